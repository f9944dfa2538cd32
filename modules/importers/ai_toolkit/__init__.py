"""ai-toolkit's YAML or JSON: a job with one process."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.errors import ConfigError
from modules.config.explain import format_value
from modules.config.io.text_formats import Data
from modules.facts import ClipFacts
from modules.importers import common
from modules.importers.ai_toolkit.data import (
    DATASET_TABLE,
    FIRST_TABLE,
    NUMBERED,
    SAMPLE_TABLE,
    clip_table,
    control_table,
    sample_control_table,
)
from modules.importers.ai_toolkit.other_training import facts_of, other_training, references_of
from modules.importers.ai_toolkit.prompts import split_prompt
from modules.importers.ai_toolkit.tables import PROCESS_TABLE
from modules.importers.readers import is_path, is_text, items, non_empty_text
from modules.importers.report import ImportEntry
from modules.importers.rules import ANY, EMPTY_VALUES, Rule, Table, Unsupported
from modules.importers.translation import Translation

TRAINER = "ai-toolkit"
TRAINING_JOBS = ("extension", "train")  # toolkit/job.py; the others extract, generate, or edit files
TABLES = {
    "the process": PROCESS_TABLE,
    "the first of datasets": FIRST_TABLE,
    "each of datasets": DATASET_TABLE,
    "each of datasets, for models that edit images": control_table(NUMBERED),
    "the first of datasets, for models of videos": clip_table(ClipFacts(4, 24.0, first_frame=True)),
    "each sample": SAMPLE_TABLE,
    "each sample, of models that edit or animate images": sample_control_table(NUMBERED),
}


def recognises(data: object) -> bool:
    """Whether the data is a job whose config has processes."""
    config = data.get("config") if isinstance(data, Mapping) else None
    return isinstance(data, Mapping) and "job" in data and isinstance(config, Mapping) and "process" in config


def translate(data: Mapping[str, object], translation: Translation) -> None:
    """Translate the first process; raises ConfigError if the job is not training."""
    if data["job"] not in TRAINING_JOBS:
        raise ConfigError(
            f"this job of ai-toolkit is {format_value(data['job'])}, which trains nothing",
            f"Give a job that trains: {' or '.join(TRAINING_JOBS)}.",
        )
    config = data["config"]
    assert isinstance(config, Mapping)
    _job(data, config, translation)
    processes = [item for item in items(config["process"]) if isinstance(item, Mapping)]
    for index, _ in enumerate(processes[1:], 1):
        translation.skip(f"config.process.{index}", "a process", "Tandem trains one model at a time")
    found = processes[0] if processes else {}
    process = {name: value for name, value in found.items() if value is not None}
    prefix = "config.process.0."
    key, trigger = _trigger(process)
    sample = process.get("sample")
    sampling: Data = dict(sample) if isinstance(sample, Mapping) else {}
    rest = {name: value for name, value in process.items() if name not in ("datasets", "sample")}
    if key == "trigger_word":
        del rest[key]
    if "sample_every" in sampling:
        rest["sample"] = {"sample_every": sampling["sample_every"]}
    _samples(sampling, f"{prefix}sample.", trigger, translation, facts_of(process).sample_images)
    translation.apply(PROCESS_TABLE, rest, prefix)
    for why in other_training(process):
        translation.hold(f"{prefix}{why}")
    translation.put("lr_scaling", "none")
    _datasets(process, prefix, key, trigger, translation)


def _trigger(process: Mapping[str, object]) -> tuple[str, str]:
    """The word that ai-toolkit adds to captions, and its setting; both empty without one."""
    embedding = process.get("embedding")
    word = embedding.get("trigger") if isinstance(embedding, Mapping) else None
    datasets = items(process.get("datasets"))
    if is_text(word):
        return "embedding.trigger", str(word)
    has_folders = any(isinstance(item, Mapping) and is_path(item.get(_place(item))) for item in datasets)
    word = process.get("trigger_word")
    return ("trigger_word", str(word)) if is_text(word) and (has_folders or "sample" in process) else ("", "")


def _job(data: Mapping[str, object], config: Mapping[str, object], translation: Translation) -> None:
    outer = Table(
        (Rule("config.name", "run_name", None, non_empty_text, optional=True),),
        (
            Unsupported("job", "the kind of job", default=ANY),
            Unsupported("meta", common.METADATA, default=ANY, is_group=True),
        ),
    )
    around = {name: value for name, value in config.items() if name != "process"}
    translation.apply(outer, {**{name: value for name, value in data.items() if name != "config"}, "config": around})


def _datasets(
    process: Mapping[str, object], process_prefix: str, trigger_key: str, trigger: str, translation: Translation
) -> None:
    count = 0
    first: dict[str, object] = {}
    clips = facts_of(process).clips
    tables = (FIRST_TABLE, clip_table(clips)) if clips else (FIRST_TABLE,)
    defaults = {name: default for table in tables for name, default in table.keys().items()}
    for index, dataset in enumerate(items(process.get("datasets"))):
        prefix = f"{process_prefix}datasets.{index}."
        if not isinstance(dataset, Mapping) or not is_path(dataset.get(place := _place(dataset))):
            translation.skip(prefix[:-1], dataset, "it has no folder_path")
            continue
        if str(dataset[place]).lower().endswith(".json"):
            translation.skip(prefix[:-1], dataset, "Tandem reads folders, with captions as in docs/data.md")
            continue
        if place != "folder_path" and "folder_path" in dataset:
            translation.skip(f"{prefix}folder_path", dataset["folder_path"], f"{place} takes precedence")
        shared = {name: value for name, value in dataset.items() if name in defaults}
        if count == 0:
            first = shared
            for table in tables:
                known = table.keys()
                given = {name: value for name, value in shared.items() if name in known}
                translation.apply(table, given, prefix)
        own = {name: value for name, value in dataset.items() if name not in shared}
        own["folder_path"] = own.pop(place)
        size = dataset.get("resolution", 512)
        if size != first.get("resolution", 512) or len(items(size)) > 1:
            own["resolution"] = size
        for name, value in shared.items():
            if name != "resolution" and value != first.get(name, defaults[name]):
                translation.skip(prefix + name, value, "all concepts share it: the first one is used")
        if references := references_of(process):
            table = control_table(references.most)
            control = {name: own.pop(name) for name in table.keys() & own.keys()}
            translation.apply(table, control, prefix, f"concepts.{count}.")
        translation.apply(DATASET_TABLE, own, prefix, f"concepts.{count}.", {"folder_path": prefix + place})
        of_masks = {"unmasked_weight": 0.0, "normalize_masked_area_loss": True}  # of a batch together there
        common.train_alpha_masks(translation, f"concepts.{count}.", of_masks)
        translation.put(f"concepts.{count}.caption_lines", "whole")  # toolkit/dataloader_mixins.py, load_caption
        if trigger and dataset.get("is_reg") is not True:
            why = "it is put before every caption, in ai-toolkit if it is missing; [trigger] in captions is kept"
            path = f"concepts.{count}.prompt_prefix"
            translation.add(ImportEntry(process_prefix + trigger_key, trigger, path, f"{trigger} ", why))
        count += 1


def _place(dataset: Mapping[str, object]) -> str:
    """The setting with its folder (toolkit/data_loader.py, AiToolkitDataset), whose subfolders count, too."""
    return "folder_path" if dataset.get("dataset_path") is None else "dataset_path"


def _samples(
    sampling: Mapping[str, object],
    prefix: str,
    trigger: str,
    translation: Translation,
    most_images: int,
) -> None:
    common = {name: value for name, value in sampling.items() if name not in ("prompts", "samples", "sample_every")}
    prompts = [{"prompt": item} for item in items(sampling.get("prompts"))]
    prompts += [dict(item) for item in items(sampling.get("samples")) if isinstance(item, Mapping)]
    known = SAMPLE_TABLE.keys()
    walks = common.get("walk_seed") is True
    count = 0
    for index, prompt in enumerate(prompts):
        if not is_text(prompt.get("prompt")):
            translation.skip(f"{prefix}prompts.{index}", prompt, "it has no prompt")
            continue
        flags = split_prompt(str(prompt["prompt"]), trigger)
        own = {**prompt, **flags}
        shared = {name: value for name, value in common.items() if count == 0 or name in known}
        values: Data = {**shared, **own}  # what is not imported is reported once
        seed = values.get("seed")
        if walks and isinstance(seed, int) and "seed" not in own:
            values["seed"] = seed + index
        names = {name: prefix + name for name in common} | {"prompt": f"{prefix}prompts.{index}"}
        names |= {name: f"{prefix}prompts.{index}.{name}" for name in flags if name != "prompt"}
        if most_images:
            table = sample_control_table(most_images)
            control = {name: values.pop(name) for name in table.keys() & values.keys()}
            translation.apply(table, control, prefix, f"samples.{count}.", names)
        translation.apply(SAMPLE_TABLE, values, prefix, f"samples.{count}.", names)
        count += 1
    if not prompts:
        for name, value in common.items():
            if value not in EMPTY_VALUES:
                translation.skip(prefix + name, value, "there are no prompts")
