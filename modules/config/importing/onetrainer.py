"""OneTrainer's JSON, with its concepts and samples in files of their own or inside."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.errors import ConfigError
from modules.config.importing.onetrainer_data import CONCEPT_TABLE, SAMPLE_TABLE, SAMPLERS
from modules.config.importing.onetrainer_model import MODEL_RULES, MODEL_WITHOUT, PARTS
from modules.config.importing.onetrainer_training import TRAINING_RULES, TRAINING_WITHOUT, part_without
from modules.config.importing.readers import is_path, is_text
from modules.config.importing.reading import read_file
from modules.config.importing.report import Entry
from modules.config.importing.rules import Table, Without
from modules.config.importing.translation import Translation, flat

TRAINER = "OneTrainer"
# Each with the file that holds its items where the list itself is null.
LISTS = {
    "concepts": ("concept_file_name", "training_concepts/concepts.json"),
    "samples": ("sample_definition_file_name", "training_samples/samples.json"),
}

# Names from before version 1 of its file format, and those that were changed since.
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
    **{f"train_{part}": f"{part}.train" for part in PARTS},
    **{f"train_{part}_epochs": f"{part}.stop_training_after" for part in PARTS},
    **{f"{part}_learning_rate": f"{part}.learning_rate" for part in PARTS},
    **{f"{part}_weight_dtype": f"{part}.weight_dtype" for part in (*PARTS, "vae")},
}

_RULES = (*MODEL_RULES, *TRAINING_RULES)
_RULED = frozenset(Table(_RULES).keys())
TABLE = Table(
    _RULES,
    (
        *MODEL_WITHOUT,
        *TRAINING_WITHOUT,
        *(row for row in part_without() if row.theirs not in _RULED),
        Without("concept_file_name", "training_concepts/concepts.json", "its concepts were read from it"),
        Without("sample_definition_file_name", "training_samples/samples.json", "its samples were read from it"),
    ),
    OLD_NAMES,
)
TABLES = {"settings": TABLE, "each of concepts": CONCEPT_TABLE, "each of samples": SAMPLE_TABLE}


def recognises(data: object) -> bool:
    """Whether the data has names that only OneTrainer uses."""
    names = {"base_model_name", "concept_file_name", "learning_rate_warmup_steps", "training_method"}
    return isinstance(data, Mapping) and len(names & set(data)) >= 2


def translate(data: Mapping[str, object], translation: Translation) -> None:
    """Put the settings, concepts and samples of a file into the translation."""
    rest = {name: value for name, value in data.items() if name not in LISTS}
    files = {file for file, _ in LISTS.values()}
    translation.apply(TABLE, _filled({name: value for name, value in rest.items() if name not in files}))
    for place, concept in enumerate(_items("concepts", data, translation)):
        _concept(place, concept, translation)
    for place, sample in enumerate(_items("samples", data, translation)):
        _sample(place, sample, translation)


def _filled(given: Mapping[str, object]) -> dict[str, object]:
    """Old files have one weight_dtype for all parts, and count the end of a part in epochs only."""
    found = flat(given, {"cloud", "secrets", "optimizer_defaults", "quantization", "optimizer.muon_adam_config"})
    for part in PARTS:
        for name in (f"{part}_weight_dtype", f"{part}.weight_dtype"):
            if found.get(name) == "NONE":
                del found[name]
        if (
            "weight_dtype" in found
            and part != "unet"
            and not {f"{part}_weight_dtype", f"{part}.weight_dtype"} & set(found)
        ):
            found[f"{part}.weight_dtype"] = found["weight_dtype"]
        if f"train_{part}_epochs" in found:
            found.setdefault(f"{part}.stop_training_after_unit", "EPOCH")
    if {"unet_weight_dtype", "unet.weight_dtype"} & set(found):
        found.pop("weight_dtype", None)
    return found


def _items(name: str, data: Mapping[str, object], translation: Translation) -> list[Mapping[str, object]]:
    """The concepts or samples: in the file itself, or in the one that it names."""
    inside = data.get(name)
    key, usual = LISTS[name]
    if inside is not None and key in data and data[key] != usual:
        translation.lose(key, data[key], f"the {name} in the file itself count more")
    if inside is None:
        text = str(data.get(key) or usual)
        file = translation.places.find(text)
        if file is None:
            why = f"{text} was not found beside this file or above it: add the {name} by hand, or give them with it"
            translation.lose(key, text, why)
            return []
        try:
            inside = read_file(file)
        except ConfigError as error:
            translation.lose(key, text, str(error).rstrip("."))
            return []
        translation.places.files.append(file)
        if key in data:
            translation.taken.append(Entry(key, text, name, f"{len(inside) if isinstance(inside, list) else 0} items"))
    if isinstance(inside, list) and all(isinstance(item, Mapping) for item in inside):
        return inside
    translation.lose(name, inside, "a list of groups is expected")
    return []


def _concept(place: int, concept: Mapping[str, object], translation: Translation) -> None:
    theirs = f"concepts.{place}."
    if not is_path(concept.get("path")):
        translation.lose(f"{theirs[:-1]}", concept, "it has no folder")
        return
    ours = len(_listed(translation, "concepts"))
    translation.apply(CONCEPT_TABLE, concept, theirs, f"concepts.{ours}.")


def _sample(place: int, sample: Mapping[str, object], translation: Translation) -> None:
    theirs = f"samples.{place}."
    if not is_text(sample.get("prompt")):
        translation.lose(theirs[:-1], sample, "it has no prompt")
        return
    ours = len(_listed(translation, "samples"))
    sampler = str(sample.get("noise_scheduler", "")).upper()
    if ours == 0 and sampler in SAMPLERS:
        path = "family_options.sample_scheduler"
        translation.add(Entry(f"{theirs}noise_scheduler", sampler, path, SAMPLERS[sampler]))
        sample = {name: value for name, value in sample.items() if name != "noise_scheduler"}
    translation.apply(SAMPLE_TABLE, sample, theirs, f"samples.{ours}.")


def _listed(translation: Translation, name: str) -> list[object]:
    found = translation.data.get(name)
    return found if isinstance(found, list) else []
