"""Repositories and folders that hold one model, in transformers' layout or as a tagger in ONNX: their files, checked by
name, and the type of the model."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from modules.config import ConfigError
from modules.diffusion.hub.files import PICKLES
from modules.files import FileFault, printable, read_json, weight_map

OneModelKind = Literal["transformers", "tagger"]
CONFIG = "config.json"
TAGGER_MODEL, TAGGER_TAGS = "model.onnx", "selected_tags.csv"
_SMALL_FILES = re.compile(r"[^/]+\.(json|txt|jinja|model)")  # .model: SentencePiece's vocabulary
_WHOLE, _SHARD_INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_CONFIG_LIMIT = 8 << 20  # bytes
NEEDS_OWN_CODE = "needs Python code from its own repository (trust_remote_code), which Tandem never runs"
KNOWN_BY_TRANSFORMERS = "Choose a model that transformers knows by itself; of many there is a converted copy."


def required_model_files(label: str, files: Collection[str], kind: OneModelKind) -> list[str]:
    """Of all `files` of a repository or folder those that loading reads. Raises ConfigError if some are missing."""
    if kind == "tagger":
        for name in (TAGGER_TAGS, TAGGER_MODEL):
            if name not in files:
                raise ConfigError(
                    f"base_model: {label!r} has no {name}.",
                    f"A tagger is a {TAGGER_MODEL} with its {TAGGER_TAGS}, as SmilingWolf publishes them.",
                )
        return [TAGGER_TAGS, TAGGER_MODEL]
    if CONFIG not in files:
        raise ConfigError(
            f"base_model: {label!r} has no {CONFIG}.", "Choose a model in transformers' layout, with its weights."
        )
    small = sorted(name for name in files if _SMALL_FILES.fullmatch(name) and not name.endswith(".index.json"))
    weights = model_weights(label, files)
    indexes = [_SHARD_INDEX] if weights != [_WHOLE] else []
    if indexes and _SHARD_INDEX not in files:
        raise ConfigError(f"base_model: {label!r} has no {_SHARD_INDEX}, which lists its weight files.")
    return [*small, *indexes, *weights]


def model_weights(label: str, files: Collection[str]) -> list[str]:
    """The .safetensors files with the weights. Raises ConfigError if there are none, or only pickled ones."""
    if found := [_WHOLE] if _WHOLE in files else sorted(name for name in files if _SHARD.fullmatch(name)):
        return found
    pickled = sorted(name for name in files if Path(name).suffix in PICKLES and "/" not in name)
    if pickled:
        raise ConfigError(
            f"base_model: {label!r} has its weights only as a pickled file ({pickled[0]}), which can run arbitrary "
            "code when it is loaded.",
            "Choose a model with .safetensors weights; many have a branch (owner/model@branch) with them.",
        )
    raise ConfigError(f"base_model: {label!r} has no weights.", f"Expected {_WHOLE}.")


def is_complete_model(folder: Path, kind: OneModelKind) -> bool:
    """Whether a folder of the hub's cache holds everything that `required_model_files` would choose."""
    files = {file.name for file in folder.iterdir() if file.is_file()}
    try:
        required = required_model_files(str(folder), files, kind)
        indexes = [name for name in required if name == _SHARD_INDEX]
        return all(set(weight_map(folder / name).values()) <= files for name in indexes)
    except (ConfigError, OSError, FileFault):
        return False


def check_model_type(folder: Path, types: Collection[str], label: str) -> str:
    """The type of a model in transformers' layout. Raises ConfigError unless it is one of `types`, or if the model
    brings Python code of its own, which is never run."""
    try:
        content = read_json(folder / CONFIG, _CONFIG_LIMIT, only_finite=False)
        if not isinstance(content, dict):
            raise FileFault("is not a JSON object")
    except (OSError, FileFault) as error:
        reason = f"it {error}" if isinstance(error, FileFault) else error.strerror
        raise ConfigError(f"base_model: the {CONFIG} of {label!r} cannot be read ({reason}).") from None
    found = content.get("model_type")
    if isinstance(found, str) and found in types:
        return found
    if "auto_map" in content:
        raise ConfigError(f"base_model: {label!r} {NEEDS_OWN_CODE}.", KNOWN_BY_TRANSFORMERS)
    raise ConfigError(
        f"base_model: {label!r} is a model of the type {printable(found, 60)!r}, which cannot be used here.",
        f"Types that can: {', '.join(sorted(types))}." if len(types) <= 12 else "",
    )
