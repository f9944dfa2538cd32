"""Any file is imported without an exception as a valid config, and every setting is reported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from modules.config import TrainConfig, dump, find_option
from modules.importers import (
    TRAINERS,
    ImportResult,
    Trainer,
    diffusion_pipe,
    import_file,
    kohya,
    onetrainer,
)
from modules.importers.ai_toolkit import data as ai_toolkit_data
from modules.importers.ai_toolkit import tables as ai_toolkit
from modules.importers.dotted import flatten
from modules.importers.kohya import data as kohya_data
from modules.importers.onetrainer import data as onetrainer_data
from modules.importers.rules import ANY, CombinedRule, Table, is_default
from modules.importers.simple_tuner import data as simple_tuner_data
from modules.importers.simple_tuner import settings as simple_tuner
from modules.importers.training_yaml import tables as training_yaml

TEXT = st.text(max_size=12)
NUMBERS = st.integers(-3, 10**6) | st.floats(-1, 1e6) | st.floats() | st.integers(10**300, 10**310)
WORDS = st.sampled_from(
    ["", "0", "1e-4", "True", "no", "bf16", "FLOAT_16", "LORA", "EPOCH", "NEVER", "512,768", "1024x", "AdamW8bit",
     "a=1 b=(1,2)", "a b", "-1", "nan", "inf", "9" * 5000, "x\0y", "/", "..", "BOTH", "COSINE", "lora", "sdxl"]
)  # fmt: skip
LEAVES = st.none() | st.booleans() | NUMBERS | TEXT | WORDS
VALUES = LEAVES | st.lists(LEAVES, max_size=3) | st.dictionaries(TEXT, LEAVES, max_size=2)
PHASES = (Phase.generate,)  # failures are printed in full: shrinking takes minutes
SETTINGS = settings(
    max_examples=60, deadline=None, derandomize=True, phases=PHASES, suppress_health_check=list(HealthCheck)
)


def names(table: Table) -> list[str]:
    """Every name that a table knows; each pattern yields one name."""
    patterns = [name.replace("*", "x").replace("?", "3").replace("[lg]", "l") for name in table.unsupported_defaults()]
    return [*dict.fromkeys([*table.keys(), *table.renamed, *patterns])]


def default_of(table: Table, name: str) -> object:
    from fnmatch import fnmatchcase

    present = table.renamed.get(name, name)
    known = table.keys()
    if present in known:
        return known[present]
    return next(
        (value for pattern, value in table.unsupported_defaults().items() if fnmatchcase(present, pattern)), None
    )


def groups(table: Table) -> st.SearchStrategy[dict[str, Any]]:
    """Some names of a table, with any values; half of them are defaults."""
    return st.lists(st.sampled_from(names(table)), max_size=12, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries(
            {name: VALUES | st.just(_plain(default_of(table, name))) for name in chosen}
        )
    )


def _plain(default: object) -> object:
    return None if default is ANY else default


def nested(flat_group: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as nested groups; names that conflict with a value are dropped."""
    result: dict[str, Any] = {}
    for name, value in flat_group.items():
        *parents, last = name.split(".")
        container: Any = result
        for part in parents:
            inner = container.setdefault(part, {})
            if not isinstance(inner, dict):
                break
            container = inner
        else:
            container.setdefault(last, value)
    return result


def imported(folder: Path, data: object) -> ImportResult:
    file = folder / "theirs.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    return import_file(file)


def check(found: ImportResult, given_settings: Mapping[str, Any], table: Table, prefix: str = "") -> None:
    """The config is valid, and each setting that is given and not at its default is in one of the lists."""
    assert TrainConfig.model_validate(dump(found.config)) == found.config
    report = found.report
    reported = {
        name
        for entry in (*report.imported, *report.changed, *report.not_imported)
        for name in entry.source.partition(" (line ")[0].split(", ")
    }
    groups_kept = {name for row in table.unsupported if row.is_group for name in row.names} | set(table.keys())
    for name, value in flatten(nested(given_settings), groups_kept).items():
        if value is not None and not is_default(value, default_of(table, name)):
            parts = (prefix + name).split(".")
            assert any(".".join(parts[: n + 1]) in reported for n in range(len(parts))), (name, value, sorted(reported))
    assert all(str(entry) for entry in (*report.imported, *report.changed, *report.not_imported))


@pytest.mark.slow
@given(
    given_settings=groups(onetrainer.TABLE),
    concept=groups(onetrainer_data.CONCEPT_TABLE),
    sample=groups(onetrainer_data.SAMPLE_TABLE),
)
@SETTINGS
def test_onetrainer(
    tmp_path: Path, given_settings: dict[str, Any], concept: dict[str, Any], sample: dict[str, Any]
) -> None:
    base = {"training_method": "LORA", "base_model_name": "a/b", **nested(given_settings)}
    found = imported(tmp_path, {**base, "concepts": [nested(concept)], "samples": [nested(sample)]})
    check(found, {name: value for name, value in given_settings.items() if name in flatten(base)}, onetrainer.TABLE)
    check(found, concept, onetrainer_data.CONCEPT_TABLE, "concepts.0.")
    check(found, sample, onetrainer_data.SAMPLE_TABLE, "samples.0.")


@pytest.mark.slow
@given(given_settings=groups(kohya.TABLE), arguments=groups(kohya_data.SUBSET_TABLE), prompt=VALUES)
@SETTINGS
def test_sd_scripts(tmp_path: Path, given_settings: dict[str, Any], arguments: dict[str, Any], prompt: object) -> None:
    base = {**given_settings, **arguments, "pretrained_model_name_or_path": "a/b", "network_dim": 4}
    found = imported(tmp_path, {**base, "sample_prompts": prompt})
    kept = {name: value for name, value in base.items() if not isinstance(value, (str, dict)) or value == "a/b"}
    check(found, {name: value for name, value in kept.items() if name in names(kohya.TABLE)}, kohya.TABLE)
    used = {name: value for name, value in kept.items() if name in names(kohya_data.SUBSET_TABLE)}
    check(found, used, kohya_data.SUBSET_TABLE)


@pytest.mark.slow
@given(
    general=groups(kohya_data.SUBSET_TABLE),
    dataset=groups(kohya_data.DATASET_TABLE),
    subset=groups(kohya_data.SUBSET_TABLE),
)
@SETTINGS
def test_datasets(tmp_path: Path, general: dict[str, Any], dataset: dict[str, Any], subset: dict[str, Any]) -> None:
    found = imported(tmp_path, {"general": general, "datasets": [{**dataset, "subsets": [subset]}]})
    for prefix, values, table in (
        ("general.", general, kohya_data.SUBSET_TABLE),
        ("datasets.0.", dataset, kohya_data.DATASET_TABLE),
        ("datasets.0.subsets.0.", subset, kohya_data.SUBSET_TABLE),
    ):
        check(found, {name: value for name, value in values.items() if value is not None}, table, prefix)


@pytest.mark.slow
@given(
    process=groups(ai_toolkit.PROCESS_TABLE),
    dataset=groups(ai_toolkit_data.DATASET_TABLE),
    sample=groups(ai_toolkit_data.SAMPLE_TABLE),
)
@SETTINGS
def test_ai_toolkit(tmp_path: Path, process: dict[str, Any], dataset: dict[str, Any], sample: dict[str, Any]) -> None:
    own = {name: value for name, value in process.items() if not name.startswith(("sample.", "trigger_word"))}
    process_data = {**nested(own), "datasets": [dataset], "sample": {**sample, "prompts": ["a cat"]}}
    found = imported(tmp_path, {"job": "train", "config": {"name": "x", "process": [process_data]}})
    check(
        found,
        {n: v for n, v in own.items() if n in flatten(nested(own))},
        ai_toolkit.PROCESS_TABLE,
        "config.process.0.",
    )
    check(found, dataset, ai_toolkit_data.DATASET_TABLE, "config.process.0.datasets.0.")


@given(given_settings=groups(diffusion_pipe.TABLE))
@SETTINGS
def test_diffusion_pipe(tmp_path: Path, given_settings: dict[str, Any]) -> None:
    base = {**nested(given_settings), "pipeline_stages": 1}
    base["model"] = {"type": "sdxl", **base["model"]} if isinstance(base.get("model"), dict) else {"type": "sdxl"}
    found = imported(tmp_path, base)
    separate = ("pipeline_stages", "model.type")
    kept = {name: value for name, value in given_settings.items() if name in flatten(base) and name not in separate}
    check(found, kept, diffusion_pipe.TABLE)


@pytest.mark.slow
@given(given_settings=groups(simple_tuner.TABLE), backend=groups(simple_tuner_data.BACKEND_TABLE))
@SETTINGS
def test_simple_tuner(tmp_path: Path, given_settings: dict[str, Any], backend: dict[str, Any]) -> None:
    (tmp_path / "data.json").write_text(json.dumps([{**backend, "dataset_type": "image"}]), encoding="utf-8")
    base = {**given_settings, "model_family": "sdxl", "data_backend_config": "data.json"}
    found = imported(tmp_path, base)
    check(found, {name: value for name, value in given_settings.items() if base[name] == value}, simple_tuner.TABLE)
    own = {name: value for name, value in backend.items() if name != "dataset_type"}
    check(found, own, simple_tuner_data.BACKEND_TABLE, "data_backend_config.0.")


@pytest.mark.slow
@given(given_settings=groups(training_yaml.TABLE))
@SETTINGS
def test_training_yaml(tmp_path: Path, given_settings: dict[str, Any]) -> None:
    base = nested(given_settings)
    for section in ("training", "data"):
        base[section] = base[section] if isinstance(base.get(section), dict) else {}
    found = imported(tmp_path, base)
    groups_with_keys = ("training.optimizer.", "training.scheduler.")  # which are also settings by themselves
    kept = {name: value for name, value in flatten(base).items() if not name.startswith(groups_with_keys)}
    known = names(training_yaml.TABLE)
    check(found, {name: value for name, value in kept.items() if name in known}, training_yaml.TABLE)


@pytest.mark.slow
@given(
    data=st.dictionaries(
        st.sampled_from(["config", "process", "datasets", "general", "concepts", "samples", "job", "optimizer", "unet"])
        | st.just("--host")  # SimpleTuner's names start so, but alone this is not enough
        | TEXT,
        st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)),
        max_size=5,
    ),
    trainer=st.sampled_from(
        [
            {"training_method": "LORA", "base_model_name": "x"},
            {"datasets": [{"subsets": [{"image_dir": "x"}]}]},
            {"pretrained_model_name_or_path": "x", "network_dim": 3},
            {"job": "train", "config": {"process": [{}]}},
            {"model": {"type": "x"}, "pipeline_stages": 1},
            {"model_family": "x", "model_type": "lora"},
            {"training": {"epochs": 1}, "data": {}},
        ]
    ),
)
@settings(max_examples=150, deadline=None, derandomize=True, phases=PHASES, suppress_health_check=list(HealthCheck))
def test_any_data_gives_a_valid_config(tmp_path: Path, data: dict[str, Any], trainer: dict[str, Any]) -> None:
    found = imported(tmp_path, {**data, **trainer})
    assert TrainConfig.model_validate(dump(found.config)) == found.config


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.name)
def test_every_rule_targets_an_existing_setting(trainer: Trainer) -> None:
    for heading, table in trainer.tables.items():
        for rule in table.rules:
            for written in rule.target.split(", "):
                path = written.partition(".0")[0].partition(".1")[0].partition(".2")[0]
                if path.startswith("family_options.") or path == "min_snr_gamma":
                    continue
                groups_of = ("", "concepts.*.", "samples.*.", "optimizer.")
                options = [find_option(TrainConfig, prefix + path) for prefix in groups_of]
                assert any(options) or path == "optimizer", (heading, path)


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.name)
def test_settings_have_one_rule_or_a_reason(trainer: Trainer) -> None:
    silent = {"__version", "optimizer.__version", "*.__version", "embedding.uuid", "model_list", "config_file", "type",
              "job", "walk_seed", "train_dir", "create_caption", "create_buckets", "use_latent_files",
              "caption_metadata_filename", "latent_metadata_filename", "full_path", "generate_caption_database",
              "generate_image_buckets", "id", "conditioning_type", "source_dataset_id",
              "metadata_backend", "streaming"}  # fmt: skip
    for table in trainer.tables.values():
        ruled = [
            name for rule in table.rules for name in (rule.keys if isinstance(rule, CombinedRule) else [rule.source])
        ]
        assert not [name for name in table.unsupported_defaults() if name in ruled]
        for row in table.unsupported:
            assert row.why[0].islower() or row.why.startswith(("Tandem", "OneTrainer", "PyTorch")), row
            assert not row.why.endswith(".")
            assert row.default is not ANY or set(row.names) <= silent, row
