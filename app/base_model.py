"""Identifies a base model from its files without loading them: model type and missing components."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modules.config.family_about import family_about
from modules.facts import (
    FILE_INDEX,
    GGUF,
    MODEL_FILES,
    all_facts,
    family_names,
    family_of_file,
    hub_model_of,
    is_lora,
    known_model,
    pipeline_of,
    shares_files,
    whole_model,
)
from modules.files import (
    FileFault,
    expand_home,
    printable,
    read_gguf_header,
    read_header,
    read_json,
    validate_record,
    weight_map,
)

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*(@[\w./-]+)?")
_WEIGHTS = (".safetensors", ".bin")
_PICKLES = (".ckpt", ".pt", ".pth", ".bin", ".pkl")
_MOST_SHOWN = 600  # characters: a file may name thousands of components
_PIPELINE_USE = re.compile(r"(Img2Img|Inpaint)?Pipeline$")


@dataclass(frozen=True)
class BaseModelInfo:
    """A description, or the `error` that makes it unusable for training."""

    description: str = ""
    error: str = ""
    family: str = ""  # that trains it; empty if that is not known
    is_file: bool = False  # of a transformer, which others with the same layers train as well


def inspect_base_model(name: str) -> BaseModelInfo:
    """Inspect a folder, a file or a Hugging Face id. Reads headers only; may be slow on a network disk."""
    found = _inspect(name)
    shown, error = (printable(said, _MOST_SHOWN) for said in (found.description, found.error))
    return replace(found, description=shown, error=error)


def _inspect(name: str) -> BaseModelInfo:
    path = expand_home(name)
    try:
        if path.is_dir():
            return _inspect_folder(path)
        if path.is_file():
            return _inspect_file(path)
    except OSError as error:
        return BaseModelInfo(error=f"{error.filename or path} cannot be read: {error.strerror or error}.")
    if _HUB_ID.fullmatch(name) and not name.startswith((".", "~")):
        known = known_model(name)
        if known is None:
            return BaseModelInfo(f"Looks like a Hugging Face model; {name} is downloaded when training starts.")
        title = family_about(known.family).title
        downloaded = f"{title} (family {known.family}); it is downloaded when training starts."
        return BaseModelInfo(downloaded, family=known.family)
    return BaseModelInfo(error=f"{name} is neither a file or folder nor a Hugging Face model (owner/name).")


def other_family(info: BaseModelInfo, family: str) -> str:
    """A sentence if the model is one of another built-in family than `family`; else empty."""
    is_of_it = info.family == family or (info.is_file and shares_files(info.family, family))
    if not info.family or is_of_it or family not in family_names():
        return ""
    return (
        f"{info.description} {family_about(family).title} does not train it: choose "
        f"{family_about(info.family).title} as the family."
    )


def _inspect_folder(folder: Path) -> BaseModelInfo:
    index = folder / "model_index.json"
    if not index.is_file():
        if len(shards := [*folder.glob(f"*{FILE_INDEX}")]) == 1:
            return _inspect_file(shards[0])
        return BaseModelInfo(error="This folder has no model_index.json: it is not a diffusers model.")
    try:
        entries = validate_record(dict[str, Any], read_json(index))
        kind = str(entries["_class_name"])
        components = {name: entry for name, entry in entries.items() if _is_component(entry)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return BaseModelInfo(error=f"{index} cannot be read: copy or download the model again.")
    missing = sorted(
        name for name, (_, class_name) in components.items() if not _is_complete(folder / name, class_name)
    )
    if missing:
        return BaseModelInfo(error=f"{kind}, but components are missing or incomplete: {', '.join(missing)}.")
    pipeline = pipeline_of(entries | {"_class_name": f"{_PIPELINE_USE.sub('', kind)}Pipeline"})
    trained_by = next((name for name, facts in all_facts().items() if pipeline in facts.pipelines), "")
    return BaseModelInfo(f"{kind}, with {', '.join(sorted(components))}.", family=trained_by)


def _is_component(entry: object) -> bool:
    """Components are [library, class]; [null, null] marks one that was left out on purpose."""
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(item, str) for item in entry)


def _is_complete(folder: Path, class_name: str) -> bool:
    if "Scheduler" in class_name:
        return (folder / "scheduler_config.json").is_file()
    if "Tokenizer" in class_name:
        return any((folder / name).is_file() for name in ("tokenizer_config.json", "tokenizer.json", "vocab.json"))
    if "Processor" in class_name or "FeatureExtractor" in class_name:
        return (folder / "preprocessor_config.json").is_file()
    has_weights = folder.is_dir() and any(file.suffix in _WEIGHTS for file in folder.iterdir())
    return has_weights and (folder / "config.json").is_file()


def _inspect_file(file: Path) -> BaseModelInfo:
    if file.suffix.lower() in _PICKLES:
        return BaseModelInfo(
            error=f"{file.name} is a pickle, which can run code when opened: convert it to .safetensors first."
        )
    if not file.name.lower().endswith(MODEL_FILES):
        return BaseModelInfo(
            error=f"{file.name} is not a model: choose a .safetensors or .gguf file, a diffusers folder or a Hugging "
            "Face model."
        )
    try:
        shapes = tensor_shapes(file)
    except FileFault as error:
        advice = ": copy or download it again" if str(error).startswith(("is damaged", "is truncated")) else ""
        return BaseModelInfo(error=f"{file.name} {error}{advice}.")
    if is_lora(shapes):
        return BaseModelInfo(error=f"{file.name} is a LoRA, not a base model.")
    count = f"{len(shapes):,} tensors"
    if (family := family_of_file(shapes, file.name)) in family_names():
        rest = hub_model_of(family, shapes, file.name)
        source = f"; the other components come from {rest}, unless others are chosen (Advanced)" if rest else ""
        return BaseModelInfo(
            f"Transformer of {family_about(family).title} (family {family}), {count}{source}.",
            family=family,
            is_file=True,
        )
    kind, trained_by = whole_model(shapes)
    if kind:
        return BaseModelInfo(f"{kind}, {count}.", family=trained_by)
    return BaseModelInfo(f"Unknown model type, {count}.")


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """The shapes in the header of a model file, or in those of the shards of an index, by name. Raises OSError, or
    FileFault if it is damaged."""
    if file.suffix.lower() == GGUF:
        return {name: [*tensor.shape] for name, tensor in read_gguf_header(file).items()}
    if file.name.lower().endswith(FILE_INDEX):
        shards = (file.parent / name for name in sorted(set(weight_map(file).values())))
        return {name: shape for shard in shards for name, shape in tensor_shapes(shard).items()}
    return {name: entry.shape for name, entry in read_header(file).tensors.items()}
