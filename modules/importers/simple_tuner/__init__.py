"""SimpleTuner's config.json, whose names may start with "--", and the multidatabackend.json that it refers to."""

from __future__ import annotations

from collections.abc import Mapping

from modules.importers import common
from modules.importers.flow_families import reference_facts
from modules.importers.readers import is_path, items
from modules.importers.report import ImportEntry
from modules.importers.simple_tuner.data import BACKEND_TABLE, CAPTIONS, PLACES, REFERENCE_TABLE
from modules.importers.simple_tuner.settings import TABLE
from modules.importers.simple_tuner.unsupported import (
    MASKS,
    REFERENCES,
    family_of,
    hold_other_training,
    hold_pairs,
    is_condition,
)
from modules.importers.translation import Translation

TRAINER = "SimpleTuner"
_NOT_READ = "Tandem reads folders of images, S3 (aws) and data sets of the hub (huggingface)"
TABLES = {
    "settings": TABLE,
    "each dataset of images": BACKEND_TABLE,
    "its conditioning_data, for models that edit images": REFERENCE_TABLE,
}


def recognises(data: object) -> bool:
    """Whether the data has names that start with "--", or that only SimpleTuner uses."""
    if not isinstance(data, Mapping):
        return False
    names = {str(name).removeprefix("--") for name in data}
    known = {"model_family", "data_backend_config"} & names
    return bool(known) and ("pretrained_model_name_or_path" in names or "model_type" in names or len(known) == 2)


def translate(data: Mapping[str, object], translation: Translation) -> None:
    """Translate the settings and the local datasets."""
    written = {str(name).removeprefix("--"): str(name) for name in data}
    given = {str(name).removeprefix("--"): _plain(value) for name, value in data.items()}
    sets = given.pop("data_backend_config", None)
    key = written.get("data_backend_config", "")
    content = None if sets is None else translation.read_file(key, _example(sets, translation))
    facts = reference_facts(family_of(given))
    is_joined = given.get("conditioning_multidataset_sampling") == "combined"  # else one of several is drawn
    references = _references(content, facts.most if is_joined else 1) if facts else {}
    hold_pairs(content, {str(each.get("id")) for sets in references.values() for each in sets.values()}, translation)
    backends = {} if content is None else _backends(key, sets, content, translation)
    captions = {name: given.pop(name) for name in CAPTIONS if backends and name in given}  # of datasets without own
    prefix, first = next(iter(backends.items()), ("", {}))
    for name in ("resolution", "resolution_type"):
        if name in first:
            if name in given and given[name] != first[name]:
                translation.skip(written[name], given[name], "that of the dataset takes precedence")
            given[name], written[name] = first[name], prefix + name
    if str(given.get("lora_type")).lower() == "lycoris" and is_path(given.get("lycoris_config")):
        named = written["lycoris_config"]
        given["lycoris_config"] = translation.read_file(named, _example(given["lycoris_config"], translation))
    translation.put("lr_scaling", "none")
    translation.apply(TABLE, given, written_as=written)
    hold_other_training(given, translation)
    if "base_model" not in translation.data and not translation.held:
        model = "pretrained_model_name_or_path"
        translation.skip(written.get(model, model), None, "the file has no base model: set base_model")
    if _is_square(first):
        translation.add(ImportEntry(f"{prefix}crop", True, "aspect_ratio_bucketing", False))
    for prefix, backend in backends.items():
        own = captions | {name: value for name, value in backend.items() if not _is_shared(name, backend, first)}
        if "resolution_type" in given and ("resolution" in own or "minimum_image_size" in own):
            own.setdefault("resolution_type", backend.get("resolution_type", given["resolution_type"]))
        if _is_square(first) and not own.get("crop", False) and not _is_square(backend):
            translation.skip(f"{prefix}crop", False, "all concepts share aspect_ratio_bucketing: the first one is used")
        if backend.get("crop") is True:
            own.setdefault("crop_style", "random")
        elif "crop_style" in own:
            translation.skip(f"{prefix}crop_style", own.pop("crop_style"), "it has no effect without crop")
        target = f"concepts.{translation.count('concepts')}."
        if prefix in references:
            translation.imported.append(
                ImportEntry(f"{prefix}conditioning_data", own.pop("conditioning_data", None), f"{target}references")
            )
            _add_references(references[prefix], target, translation)
        elsewhere = {name: written[name] for name in captions if name not in backend}
        translation.apply(BACKEND_TABLE, own, prefix, target, elsewhere)
    if facts and facts.required and not references and not translation.held:
        translation.hold("SimpleTuner trains this model on pairs of images: set references of the concepts")


def _example(name: object, translation: Translation) -> object:
    """Where a file of its examples is, which they call config/examples (helpers/configuration/json_file.py)."""
    inside = str(name).removeprefix("config/")
    return inside if is_path(inside) and translation.paths.find(inside) is not None else name


def _is_square(backend: Mapping[str, object]) -> bool:
    """Whether all images are cropped to squares, the default of crop_aspect."""
    return backend.get("crop") is True and backend.get("crop_aspect", "square") == "square"


def _is_shared(name: str, backend: Mapping[str, object], first: Mapping[str, object]) -> bool:
    """Whether a setting is that of the first dataset, which was imported for all of them."""
    if name in ("crop", "crop_aspect"):
        return _is_square(backend) and _is_square(first)
    size = ("resolution", "resolution_type")
    return name in size and all(backend.get(each) == first.get(each) for each in size)


def _plain(value: object) -> object:
    """A switch that is written as text, as a boolean."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def _references(content: object, most: int) -> dict[str, dict[str, Mapping[str, object]]]:
    """The folders of reference images of datasets with at most `most`; all by the prefix of their settings' names."""
    listed = [each if isinstance(each, Mapping) else {} for each in items(content)]
    places = {str(each.get("id")): f"data_backend_config.{index}." for index, each in enumerate(listed)}
    found = {}
    for each in listed:
        named = [str(name) for name in items(each.get("conditioning_data"))]
        named += [str(other.get("id")) for other in listed if other.get("source_dataset_id") == each.get("id", "")]
        sets = {places[name]: other for name in named for other in listed if str(other.get("id")) == name}
        are_folders = all(
            other.get("conditioning_type") in REFERENCES and is_path(other.get("instance_data_dir"))
            for other in sets.values()
        )
        if are_folders and 0 < len(sets) == len(set(named)) <= most:
            found[places[str(each.get("id"))]] = sets
    return found


def _add_references(sets: Mapping[str, Mapping[str, object]], target: str, translation: Translation) -> None:
    """The folders of all sets become one setting, which is reported with the first."""
    folders = [each["instance_data_dir"] for each in sets.values()]
    for index, (prefix, each) in enumerate(sets.items()):
        own = {name: value for name, value in each.items() if name != "instance_data_dir"}
        translation.apply(REFERENCE_TABLE, own if index else {**own, "instance_data_dir": folders}, prefix, target)


def _backends(key: str, sets: object, content: object, translation: Translation) -> dict[str, Mapping[str, object]]:
    """The datasets of images by the prefix of their settings' names; the others are reported."""
    found: dict[str, Mapping[str, object]] = {}
    for index, backend in enumerate(content if isinstance(content, list) else []):
        prefix = f"data_backend_config.{index}."
        if not isinstance(backend, Mapping):
            translation.skip(prefix[:-1], backend, "expected a group")
            continue
        kind = str(backend.get("dataset_type", "image"))
        if kind in ("text_embeds", "image_embeds"):
            translation.skip(prefix[:-1], str(backend.get("id")), "Tandem has its own cache")
        elif is_condition(backend):
            if backend.get("conditioning_type") in MASKS:
                translation.skip(prefix[:-1], str(backend.get("id")), common.MASKS)
        elif kind != "image" or not is_path(backend.get(PLACES.get(str(backend.get("type", "local")), ("",) * 2)[1])):
            translation.skip(prefix[:-1], str(backend.get("id")), _NOT_READ)
        else:
            found[prefix] = backend
    if found:
        translation.imported.append(ImportEntry(key, sets, "concepts", "its datasets of images"))
    else:
        translation.skip(key, sets, "none of its datasets is of images that Tandem reads")
    return found
