"""What a base model is, as far as its files tell without loading them: kind, and parts that are missing."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from app import texts

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*(@[\w./-]+)?")
_WEIGHTS = (".safetensors", ".bin")
_PICKLES = (".ckpt", ".pt", ".pth", ".bin", ".pkl")
_MOST_HEADER_BYTES = 100 << 20  # as safetensors itself has it
# Beginnings of names that only one kind of single-file model has, the surest first.
_KINDS = (
    ("lora_", "lora"),
    ("conditioner.embedders.1.", "Stable Diffusion XL"),
    ("cond_stage_model.model.", "Stable Diffusion 2"),
    ("cond_stage_model.transformer.", "Stable Diffusion 1"),
    ("model.diffusion_model.joint_blocks.", "Stable Diffusion 3"),
    ("model.diffusion_model.double_blocks.", "Flux"),
    ("double_blocks.", "Flux"),
    ("joint_blocks.", "Stable Diffusion 3"),
)


@dataclass(frozen=True)
class Finding:
    """What it is, in words; `fault` where it cannot be trained from."""

    words: str = ""
    fault: str = ""


def look_at(name: str) -> Finding:
    """Look at a folder, a file, or the form of a hub id. Reads headers only; may take long on a network disk."""
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            return _folder(path)
        if path.is_file():
            return _file(path)
    except OSError as error:
        return Finding(fault=texts.MODEL_UNREADABLE.format(file=error.filename or path, reason=error.strerror or error))
    if _HUB_ID.fullmatch(name) and not name.startswith((".", "~")):
        return Finding(texts.MODEL_OF_HUB.format(name=name))
    return Finding(fault=texts.MODEL_MISSING.format(name=name))


def _folder(folder: Path) -> Finding:
    index = folder / "model_index.json"
    if not index.is_file():
        return Finding(fault=texts.MODEL_NO_INDEX)
    try:
        described = json.loads(index.read_text("utf-8"))
        kind = str(described["_class_name"])
        parts = {name: part for name, part in described.items() if _is_part(part)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return Finding(fault=texts.MODEL_BAD_INDEX.format(file=index))
    missing = sorted(name for name, (_, class_name) in parts.items() if not _is_complete(folder / name, class_name))
    if missing:
        return Finding(fault=texts.MODEL_INCOMPLETE.format(kind=kind, parts=", ".join(missing)))
    return Finding(texts.MODEL_FOLDER.format(kind=kind, parts=", ".join(sorted(parts))))


def _is_part(part: object) -> bool:
    """Entries are [library, class]; [null, null] stands for a part that was left out on purpose."""
    return isinstance(part, list) and len(part) == 2 and all(isinstance(word, str) for word in part)


def _is_complete(folder: Path, class_name: str) -> bool:
    if "Scheduler" in class_name:
        return (folder / "scheduler_config.json").is_file()
    if "Tokenizer" in class_name:
        return any((folder / name).is_file() for name in ("tokenizer_config.json", "tokenizer.json", "vocab.json"))
    if "Processor" in class_name or "FeatureExtractor" in class_name:
        return (folder / "preprocessor_config.json").is_file()
    has_weights = folder.is_dir() and any(file.suffix in _WEIGHTS for file in folder.iterdir())
    return has_weights and (folder / "config.json").is_file()


def _file(file: Path) -> Finding:
    if file.suffix.lower() in _PICKLES:
        return Finding(fault=texts.MODEL_PICKLE.format(file=file.name))
    if file.suffix.lower() != ".safetensors":
        return Finding(fault=texts.MODEL_WRONG_FILE.format(file=file.name))
    names = _tensor_names(file)
    if names is None:
        return Finding(fault=texts.MODEL_CUT_OFF.format(file=file.name))
    kind = next((kind for start, kind in _KINDS if any(name.startswith(start) for name in names)), "")
    if kind == "lora" or any(".lora_" in name for name in names):
        return Finding(fault=texts.MODEL_IS_LORA.format(file=file.name))
    return Finding(texts.MODEL_FILE.format(kind=kind or texts.MODEL_UNKNOWN_KIND, count=len(names)))


def _tensor_names(file: Path) -> list[str] | None:
    """The names in a safetensors header; None where the file is damaged or shorter than its header says."""
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= _MOST_HEADER_BYTES:
            return None
        text = opened.read(length)
    try:
        header = json.loads(text)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None
    if file.stat().st_size < 8 + length + max(ends, default=0):
        return None
    return [name for name in header if name != "__metadata__"]
