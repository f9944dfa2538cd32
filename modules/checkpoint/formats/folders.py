"""A diffusers folder read without building its models: what it says it is, and its tensors one by one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import torch
from torch import Tensor

from modules.checkpoint.formats.kinds import refuse_other_folders
from modules.checkpoint.formats.tensor_files import TensorFile, planned, write_tensor_file
from modules.config import ConfigError

_WHOLE_FOLDER: Final = "Copy or download the whole folder."


@dataclass(frozen=True)
class Description:
    """What the small files of a diffusers folder say."""

    folder: Path
    pipeline: str
    parts: Mapping[str, Mapping[str, object]]  # the config.json of each part that has weights
    scheduler: Mapping[str, object]


def describe_folder(folder: Path) -> Description:
    """Raises ConfigError, in words, where `folder` is no diffusers folder."""
    refuse_other_folders(folder)
    index = _json(folder / "model_index.json", f"{str(folder)!r} is no diffusers folder")
    parts = {
        name: _json(folder / name / "config.json", f"The model in {str(folder)!r} is incomplete")
        for name in ("unet", "vae", "text_encoder", "text_encoder_2")
        if isinstance(index.get(name), list) and index[name][0] is not None
    }
    scheduler_file = folder / "scheduler" / "scheduler_config.json"
    scheduler = _json(scheduler_file, "") if scheduler_file.is_file() else {}
    return Description(folder, str(index.get("_class_name")), parts, scheduler)


class PartFiles:
    """The weights of one part, in one file or in several."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError where there are none, or only pickles."""
        self._stack = ExitStack()
        self._owner: dict[str, TensorFile] = {}
        found = sorted(folder.glob("*.safetensors"))
        files = [file for file in found if ".fp16." not in file.name and "non_ema" not in file.name] or found
        if not files:
            pickles = [*folder.glob("*.bin"), *folder.glob("*.ckpt")]
            if pickles:
                TensorFile(pickles[0])  # says why it is not read
            raise ConfigError(f"{str(folder)!r} has no weights (no .safetensors file).", _WHOLE_FOLDER)
        with ExitStack() as opening:
            for file in files:
                opened = opening.enter_context(TensorFile(file))
                self._owner.update(dict.fromkeys(opened.names, opened))
            self._stack = opening.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def names(self) -> list[str]:
        """Of all tensors."""
        return list(self._owner)

    def read(self, name: str) -> Tensor:
        """The tensor of this name."""
        return self._owner[name].read(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Its shape, without reading it."""
        return self._owner[name].shape(name)


def convert_weights(folder: Path, dtype: torch.dtype) -> None:
    """Write all weights below `folder` again, with their numbers as `dtype`. Raises OSError where the disk is full."""
    for file in sorted(folder.rglob("*.safetensors")):
        with TensorFile(file) as source:
            stored = {source.stored_dtype(name) for name in source.names}
            if all(kind == dtype or not kind.is_floating_point for kind in stored):
                continue
            # All at once, as Windows replaces no file that is open.
            tensors = {name: planned(source.read(name), dtype) for name in source.names}
            metadata = source.metadata
        write_tensor_file(file, tensors, metadata)


def _json(file: Path, otherwise: str) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it holds no names with values")
    except FileNotFoundError as error:
        raise ConfigError(f"{otherwise}: it has no {file.parent.name}/{file.name}.", _WHOLE_FOLDER) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{otherwise}: {file.name} cannot be read ({type(error).__name__}: {error}).",
            _WHOLE_FOLDER,
        ) from error
    return content
