"""OneTrainer's JSON, with its concepts and samples in separate files or in the same one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from modules.facts import all_facts
from modules.importers.dotted import flatten
from modules.importers.flow_families import flow_family
from modules.importers.onetrainer.data import CONCEPT_TABLE, SAMPLE_TABLE, SAMPLERS, several_resolutions
from modules.importers.onetrainer.model import MODEL_RULES, MODEL_UNSUPPORTED
from modules.importers.onetrainer.optimizer import OPTIMIZER_REST
from modules.importers.onetrainer.submodules import (
    SUBMODULES,
    network_section,
    unsupported_submodule_settings,
)
from modules.importers.onetrainer.training import TRAINING_RULES, TRAINING_UNSUPPORTED
from modules.importers.readers import is_path, is_text, several_sides
from modules.importers.report import ImportEntry
from modules.importers.rules import Table, Unsupported, is_default
from modules.importers.translation import Translation

TRAINER = "OneTrainer"
# Each with the file that contains the items if the list itself is null.
LISTS = {
    "concepts": ("concept_file_name", "training_concepts/concepts.json"),
    "samples": ("sample_definition_file_name", "training_samples/samples.json"),
}

# Names before version 1 of its file format, and those that have changed since.
OLD_NAMES: Mapping[str, str] = {
    "optimizer": "optimizer.optimizer",
    "weight_decay": "optimizer.weight_decay",
    "weight_dtype": "unet.weight_dtype",
    "gradient_checkpointing": "unet.gradient_checkpointing",
    "dataloader_threads": "caching_threads",
    "latent_caching": "image_caching",
    "save_after": "save_every",
    "save_after_unit": "save_every_unit",
    "lora_layers": "layer_filter",
    "lora_layer_preset": "layer_filter_preset",
    "lora_layers_regex": "layer_filter_regex",
    "token_count": "embedding.token_count",
    "initial_embedding_text": "embedding.initial_embedding_text",
    **{f"train_{part}": f"{part}.train" for part in SUBMODULES},
    **{f"train_{part}_epochs": f"{part}.stop_training_after" for part in SUBMODULES},
    **{f"{part}_learning_rate": f"{part}.learning_rate" for part in SUBMODULES},
    **{f"{part}_weight_dtype": f"{part}.weight_dtype" for part in (*SUBMODULES, "vae")},
}

_RULES = (*MODEL_RULES, *TRAINING_RULES)
_RULED = frozenset(Table(_RULES).keys())
TABLE = Table(
    _RULES,
    (
        *MODEL_UNSUPPORTED,
        *TRAINING_UNSUPPORTED,
        *(row for row in unsupported_submodule_settings() if row.sources not in _RULED),
        Unsupported("concept_file_name", "its concepts are read from it", default="training_concepts/concepts.json"),
        Unsupported(
            "sample_definition_file_name",
            "its samples are read from it",
            default="training_samples/samples.json",
        ),
    ),
    OLD_NAMES,
)
TABLES = {"settings": TABLE, "each of concepts": CONCEPT_TABLE, "each of samples": SAMPLE_TABLE}


def recognises(data: object) -> bool:
    """Whether the data has names that only OneTrainer uses."""
    names = {"base_model_name", "concept_file_name", "learning_rate_warmup_steps", "training_method"}
    return isinstance(data, Mapping) and len(names & set(data)) >= 2


def translate(data: Mapping[str, object], translation: Translation) -> None:
    """Translate the settings, concepts and samples of a file."""
    rest = {name: value for name, value in data.items() if name not in LISTS}
    files = {file for file, _ in LISTS.values()}
    concepts, samples = (_items(name, data, translation) for name in LISTS)
    for index, sample in enumerate(samples):  # first, because the interval of samples matters only if there are any
        _sample(index, sample, translation)
    translation.put("lr_scaling", "none")
    settings, written_as = _as_loaded({name: value for name, value in rest.items() if name not in files}, translation)
    translation.apply(TABLE, settings, written_as=written_as)
    sides = several_resolutions(settings.get("resolution", ""))
    for index, concept in enumerate(concepts):
        _concept(index, concept, sides, translation)


def _as_loaded(given: Mapping[str, object], translation: Translation) -> tuple[dict[str, object], dict[str, str]]:
    """The settings as OneTrainer has them once it has loaded the file, but those at their defaults, and the names that
    some of them have in the file (migrations of modules/util/config/TrainConfig.py, modules/util/optimizer_util.py).
    """
    found = flatten(given, {"cloud", "secrets", "optimizer_defaults", "optimizer.muon_adam_config"})
    written_as: dict[str, str] = {}

    def take(name: str, source: str) -> None:
        if source in found and name not in found:
            found[name] = found[source]
            written_as[name] = source

    model_type = {"model_type": found.get("model_type", "STABLE_DIFFUSION_15")}
    version = found.get("__version")
    if network_section(model_type) == "transformer":
        take("transformer.gradient_checkpointing", "gradient_checkpointing")
        found.pop("gradient_checkpointing", None)
        if isinstance(version, int) and version < 9:
            for source in [name for name in found if name.startswith("prior.")]:
                take(f"transformer.{source.removeprefix('prior.')}", source)
                del found[source]
    _take_weight_dtype(found, take, translation)
    for part in SUBMODULES:
        if f"train_{part}_epochs" in found:
            found.setdefault(f"{part}.stop_training_after_unit", "EPOCH")
    name = str(found.get("optimizer.optimizer", found.get("optimizer", "ADAMW")))
    defaults = given.get("optimizer_defaults")
    own = defaults.get(name) if isinstance(defaults, Mapping) else None
    if isinstance(own, Mapping) and not isinstance(given.get("optimizer"), str):  # a preset has its settings only there
        for setting, value in own.items():
            if f"optimizer.{setting}" not in found:
                found[f"optimizer.{setting}"] = value
                written_as[f"optimizer.{setting}"] = f"optimizer_defaults.{name}.{setting}"
    if isinstance(own, Mapping) and isinstance(defaults, Mapping) and len(defaults) == 1:
        del found["optimizer_defaults"]
    facts = all_facts().get(flow_family(model_type["model_type"]) or "")
    is_embedding = str(found.get("training_method")).upper() == "EMBEDDING"
    if facts is not None and facts.onetrainer_trains_encoders and not is_embedding:  # by default, and Tandem cannot
        for part in SUBMODULES[1 : 1 + facts.onetrainer_encoders]:
            found.setdefault(f"{part}.train", True)
    cloud = found.get("cloud")
    if isinstance(cloud, Mapping) and cloud.get("enabled") is False:
        del found["cloud"]
    known = TABLE.keys()
    kept = {source: value for source, value in found.items() if not _is_at_default(source, value, known)}
    return kept, written_as


def _is_at_default(source: str, value: object, known: Mapping[str, object]) -> bool:
    name = OLD_NAMES.get(source, source)
    group, _, setting = name.partition(".")
    if group == "optimizer":  # with a default of its own for each optimizer
        return setting in OPTIMIZER_REST and value in OPTIMIZER_REST[setting]
    is_told = (group in SUBMODULES and setting == "train") or (value is False and known.get(name, False) is None)
    return name in known and not is_told and is_default(value, known[name])


def _take_weight_dtype(found: dict[str, object], take: Callable[[str, str], None], translation: Translation) -> None:
    """One data type for all submodules, in files before version 10, is that of submodules that have none."""
    parts = ("transformer", *SUBMODULES)
    has_sections = any(name.partition(".")[0] in parts for name in found if "." in name)
    is_used = False
    for part in parts:
        own = next((name for name in (f"{part}_weight_dtype", f"{part}.weight_dtype") if name in found), "")
        if own and found[own] == "NONE":
            del found[own]
        elif own or has_sections:
            continue
        if part != "transformer" or has_sections:
            take(f"{part}.weight_dtype", "weight_dtype")
            is_used = True
    value = found.pop("weight_dtype", None)
    if value is not None and not is_used:
        translation.skip("weight_dtype", value, "OneTrainer does not read it either: each submodule has its own")


def _items(name: str, data: Mapping[str, object], translation: Translation) -> list[Mapping[str, object]]:
    """The concepts or samples: in the file itself, or in the one that it refers to."""
    inside = data.get(name)
    key, default_file = LISTS[name]
    if inside is not None and key in data and data[key] != default_file:
        translation.skip(key, data[key], f"the {name} in the file itself take precedence")
    if inside is None:
        text = str(data.get(key) or default_file)
        missing = f"{text} was not found in this folder or its parents: add the {name} by hand, or put the file there"
        inside = translation.read_file(key, text, missing)
        if inside is None:
            return []
        if key in data:
            translation.imported.append(
                ImportEntry(key, text, name, f"{len(inside) if isinstance(inside, list) else 0} items")
            )
    if isinstance(inside, list) and all(isinstance(item, Mapping) for item in inside):
        return inside
    translation.skip(name, inside, "expected a list of groups")
    return []


def _concept(index: int, concept: Mapping[str, object], sides: list[str], translation: Translation) -> None:
    prefix = f"concepts.{index}."
    if not is_path(concept.get("path")):
        translation.skip(f"{prefix[:-1]}", concept, "it has no folder")
        return
    target = f"concepts.{translation.count('concepts')}."
    if len(sides) > 1:  # unless it has its own
        translation.put(f"{target}resolutions", several_sides(sides))
    translation.apply(CONCEPT_TABLE, concept, prefix, target)


def _sample(index: int, sample: Mapping[str, object], translation: Translation) -> None:
    prefix = f"samples.{index}."
    if not is_text(sample.get("prompt")):
        translation.skip(prefix[:-1], sample, "it has no prompt")
        return
    count = translation.count("samples")
    sampler = str(sample.get("noise_scheduler", "")).upper()
    if count == 0 and sampler in SAMPLERS:
        path = "family_options.sample_scheduler"
        translation.add(ImportEntry(f"{prefix}noise_scheduler", sampler, path, SAMPLERS[sampler]))
        sample = {name: value for name, value in sample.items() if name != "noise_scheduler"}
    translation.apply(SAMPLE_TABLE, sample, prefix, f"samples.{count}.")
