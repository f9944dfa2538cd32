"""The small files of a diffusers folder: configs, tokenizers, scheduler."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from modules.checkpoint.formats.diffusers_folder import read_json_object
from modules.config import ConfigError
from modules.files import FileFault, is_plain_name, read_bytes

WHOLE_LAYOUT: Final = "Copy or download the whole folder again."
_LARGEST_COPIED: Final = 64 << 20  # bytes; a tokenizer's files are a few MB
_COPIED: Final = (".json", ".txt", ".model", ".jinja")
_OMITTED: Final = ("safety_checker", "feature_extractor", "image_encoder")  # not part of a single file


def copy_without_weights(layout: Path, folder: Path) -> None:
    """The configuration of the diffusers folder `layout`: its small files, without components that are not trained.

    Raises ConfigError for what is no model, OSError at the first file that fails.
    """
    index = read_json_object(layout / "model_index.json")
    for name in ("", *_components(layout, index)):
        (folder / name).mkdir(parents=True)
        for file in sorted((layout / name).iterdir()):
            if file.suffix in _COPIED and not file.name.endswith(".index.json") and not file.name.startswith("."):
                _copy_small_file(file, folder / name / file.name)
    index.update({name: [None, None] for name in _OMITTED if name in index})
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def copy_components(layout: Path, folder: Path, *, leave_out: str) -> None:
    """All files of the components of the diffusers folder `layout`, as they are, but those of `leave_out`.

    `copy_without_weights` has made `folder`. Raises ConfigError for what is no model, OSError if the disk is full.
    """
    for name in _components(layout, read_json_object(layout / "model_index.json")):
        for file in sorted((layout / name).iterdir()) if name != leave_out else ():
            if file.is_file() and not file.name.startswith("."):
                shutil.copyfile(file, folder / name / file.name)


def _components(layout: Path, index: Mapping[str, object]) -> list[str]:
    return [name for name in index if is_plain_name(name) and name not in _OMITTED and (layout / name).is_dir()]


def _copy_small_file(file: Path, target: Path) -> None:
    try:
        target.write_bytes(read_bytes(file, _LARGEST_COPIED))
    except FileFault as fault:
        raise ConfigError(f"{str(file)!r} {fault}.", WHOLE_LAYOUT) from None
