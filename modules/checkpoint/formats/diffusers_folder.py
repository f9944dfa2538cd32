"""Reading a diffusers folder without building its models: configs, and tensors one by one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import torch
from torch import Tensor

from modules.checkpoint.formats.file_types import require_diffusers_folder
from modules.checkpoint.formats.safetensors_file import SafetensorsFile, lazy_tensor, write_safetensors
from modules.config import ConfigError
from modules.diffusion.transformer_files.whole import require_unscaled
from modules.facts import pipeline_of
from modules.files import FileFault, read_json

_WHOLE_FOLDER: Final = "Copy or download the whole folder."


@dataclass(frozen=True)
class DiffusersFolder:
    """The configuration of a diffusers pipeline."""

    folder: Path
    pipeline: str  # as `pipeline_of` names it
    components: Mapping[str, Mapping[str, object]]  # the config.json of each component that has weights
    scheduler: Mapping[str, object]  # its config


def read_diffusers_folder(folder: Path) -> DiffusersFolder:
    """Raises ConfigError if `folder` is not a diffusers folder."""
    require_diffusers_folder(folder)
    index = read_json_object(folder / "model_index.json", f"{str(folder)!r} is not a diffusers folder")
    components = {
        name: read_json_object(folder / name / "config.json", f"The model in {str(folder)!r} is incomplete")
        for name in ("unet", "transformer", "vae", "text_encoder", "text_encoder_2")
        if isinstance(index.get(name), list) and index[name][:1] not in ([], [None])
    }
    scheduler_file = folder / "scheduler" / "scheduler_config.json"
    scheduler = read_json_object(scheduler_file) if scheduler_file.is_file() else {}
    return DiffusersFolder(folder, pipeline_of(index), components, scheduler)


class ComponentWeights:
    """The weights of one component, in one file or in several shards."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError if there are none, only pickles, or quantised ones."""
        self._stack = ExitStack()
        self._file_of: dict[str, SafetensorsFile] = {}
        found = sorted(folder.glob("*.safetensors"))
        files = [file for file in found if ".fp16." not in file.name and "non_ema" not in file.name] or found
        if not files:
            pickles = [*folder.glob("*.bin"), *folder.glob("*.ckpt")]
            if pickles:
                SafetensorsFile(pickles[0])  # raises and explains why
            raise ConfigError(f"{str(folder)!r} has no weights (no .safetensors file).", _WHOLE_FOLDER)
        _require_shards(folder)
        with ExitStack() as opening:
            for file in files:
                opened = opening.enter_context(SafetensorsFile(file))
                require_unscaled(opened)
                self._file_of.update(dict.fromkeys(opened.names, opened))
            self._stack = opening.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._file_of)

    def file(self, name: str) -> Path:
        """The file that has a tensor."""
        return self._file_of[name].path

    def read(self, name: str) -> Tensor:
        """Read one tensor, as it is stored."""
        return self._file_of[name].read(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor, without reading it."""
        return self._file_of[name].shape(name)

    def stored_dtype(self, name: str) -> torch.dtype:
        """The dtype of one tensor, without reading it."""
        return self._file_of[name].stored_dtype(name)


def _require_shards(folder: Path) -> None:
    """Raises ConfigError if a file that an index names is missing."""
    for index in folder.glob("*.safetensors.index.json"):
        if index.with_name(index.name.removesuffix(".index.json")).is_file():
            continue
        named = read_json_object(index, f"{str(folder)!r} is incomplete").get("weight_map")
        for file in sorted({str(name) for name in named.values()} if isinstance(named, dict) else ()):
            if not (folder / file).is_file():
                raise ConfigError(
                    f"{str(folder)!r} is incomplete: there is no {file}, which {index.name} names.", _WHOLE_FOLDER
                )


def convert_folder_dtype(folder: Path, dtype: torch.dtype) -> None:
    """Rewrite all weights below `folder`, floating point ones as `dtype`. Raises OSError if the disk is full."""
    for file in sorted(folder.rglob("*.safetensors")):
        with SafetensorsFile(file) as source:
            stored = {source.stored_dtype(name) for name in source.names}
            if all(each == dtype or not each.is_floating_point for each in stored):
                continue
            # read completely before the file is replaced: Windows cannot replace an open file
            tensors = {name: lazy_tensor(source.read(name), dtype) for name in source.names}
            metadata = source.metadata
        write_safetensors(file, tensors, metadata)


def read_json_object(file: Path, problem: str = "The model is incomplete") -> dict[str, Any]:
    """The content of a JSON file of a model. Raises ConfigError, which begins with `problem`."""
    try:
        content = read_json(file)
        if not isinstance(content, dict):
            raise FileFault("is not an object")
    except FileNotFoundError as error:
        raise ConfigError(f"{problem}: it has no {file.parent.name}/{file.name}.", _WHOLE_FOLDER) from error
    except (OSError, FileFault) as error:
        reason = f"it {error}" if isinstance(error, FileFault) else str(error.strerror)
        raise ConfigError(f"{problem}: {file.name} cannot be read ({reason}).", _WHOLE_FOLDER) from error
    return content
