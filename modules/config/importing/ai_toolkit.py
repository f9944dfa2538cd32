"""ai-toolkit's YAML or JSON: a job with one process."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.importing.ai_toolkit_tables import (
    DATASET_TABLE,
    FIRST_NAMES,
    FIRST_TABLE,
    PROCESS_TABLE,
    SAMPLE_TABLE,
)
from modules.config.importing.readers import is_path, is_text, items, some_text
from modules.config.importing.report import Entry
from modules.config.importing.rules import ANY, BLANK, Rule, Table, Without
from modules.config.importing.translation import Translation
from modules.config.text_formats import Data

TRAINER = "ai-toolkit"
TABLES = {
    "the process": PROCESS_TABLE,
    "the first of datasets": FIRST_TABLE,
    "each of datasets": DATASET_TABLE,
    "each sample": SAMPLE_TABLE,
}


def recognises(data: object) -> bool:
    """A job whose config has processes."""
    config = data.get("config") if isinstance(data, Mapping) else None
    return isinstance(data, Mapping) and "job" in data and isinstance(config, Mapping) and "process" in config


def translate(data: Mapping[str, object], translation: Translation) -> None:
    """Put the first process into the translation."""
    config = data["config"]
    assert isinstance(config, Mapping)
    _around(data, config, translation)
    processes = [one for one in items(config["process"]) if isinstance(one, Mapping)]
    for place, _ in enumerate(processes[1:], 1):
        translation.lose(f"config.process.{place}", "a process", "Tandem trains one thing at a time")
    process: Mapping[str, object] = processes[0] if processes else {}
    theirs = "config.process.0."
    folders = [
        one for one in items(process.get("datasets")) if isinstance(one, Mapping) and is_path(one.get("folder_path"))
    ]
    trigger = process.get("trigger_word") if folders and isinstance(process.get("trigger_word"), str) else None
    apart = ("datasets", "sample", *(("trigger_word",) if trigger else ()))
    rest = {name: value for name, value in process.items() if name not in apart}
    sample = process.get("sample")
    sampling: Data = dict(sample) if isinstance(sample, Mapping) else {}
    if "sample_every" in sampling:
        rest["sample"] = {"sample_every": sampling["sample_every"]}
    translation.apply(PROCESS_TABLE, rest, theirs)
    translation.put("lr_scaling", "none")
    _datasets(process, theirs, str(trigger or ""), translation)
    _samples(sampling, f"{theirs}sample.", translation)


def _around(data: Mapping[str, object], config: Mapping[str, object], translation: Translation) -> None:
    outer = Table(
        (Rule("config.name", "run_name", None, some_text, ask=False),),
        (Without("job", ANY, "the kind of job"), Without("meta", ANY, "set model_title and its like", whole=True)),
    )
    around = {name: value for name, value in config.items() if name != "process"}
    translation.apply(outer, {**{name: value for name, value in data.items() if name != "config"}, "config": around})


def _datasets(process: Mapping[str, object], theirs: str, trigger: str, translation: Translation) -> None:
    count = 0
    first: dict[str, object] = {}
    for place, dataset in enumerate(items(process.get("datasets"))):
        here = f"{theirs}datasets.{place}."
        if not isinstance(dataset, Mapping) or not is_path(dataset.get("folder_path")):
            translation.lose(here[:-1], dataset, "it has no folder_path")
            continue
        shared = {name: value for name, value in dataset.items() if name in FIRST_NAMES}
        if count == 0:
            first = shared
            translation.apply(FIRST_TABLE, shared, here)
        for name, value in shared.items():
            if value != first.get(name):
                translation.lose(here + name, value, "it holds for all concepts: that of the first was taken")
        own = {name: value for name, value in dataset.items() if name not in shared}
        translation.apply(DATASET_TABLE, own, here, f"concepts.{count}.")
        translation.put(f"concepts.{count}.include_subfolders", False)
        if trigger:
            why = "it stands before every caption; ai-toolkit adds it where it is missing"
            path = f"concepts.{count}.prompt_prefix"
            translation.add(Entry(f"{theirs}trigger_word", trigger, path, f"{trigger}, ", why))
        count += 1


def _samples(sampling: Mapping[str, object], theirs: str, translation: Translation) -> None:
    common = {name: value for name, value in sampling.items() if name not in ("prompts", "samples", "sample_every")}
    prompts = [{"prompt": one} for one in items(sampling.get("prompts"))]
    prompts += [dict(one) for one in items(sampling.get("samples")) if isinstance(one, Mapping)]
    walks = common.get("walk_seed") is True
    count = 0
    for place, prompt in enumerate(prompts):
        if not is_text(prompt.get("prompt")):
            translation.lose(f"{theirs}prompts.{place}", prompt, "it has no prompt")
            continue
        values: Data = {**common, **prompt}
        seed = values.get("seed")
        if walks and isinstance(seed, int) and "seed" not in prompt:
            values["seed"] = seed + place
        names = {name: theirs + name for name in common} | {"prompt": f"{theirs}prompts.{place}"}
        translation.apply(SAMPLE_TABLE, values, theirs, f"samples.{count}.", names)
        count += 1
    if not prompts:
        for name, value in common.items():
            if value not in BLANK:
                translation.lose(theirs + name, value, "there are no prompts")
