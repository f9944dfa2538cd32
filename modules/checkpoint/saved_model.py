"""The saved model of a run: a diffusers folder or adapter files, replaced atomically, with tandem.json."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from glob import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from modules.checkpoint.backups import sync_all_to_disk, sync_to_disk
from modules.checkpoint.foreign_files import files_in, keep_foreign_files
from modules.config import ConfigError, TrainConfig
from modules.config.explain import explain
from modules.config.sections.adapters import AdapterSettings
from modules.files import (
    PARTIAL,
    REPLACED_MODEL,
    FileFault,
    check_replaceable,
    put_back_replaced,
    read_json,
    remove_tree,
)
from modules.run.folder.saved_models import MODEL_INFO

_SHAPES = ("aspect_ratio_bucketing", "no_upscale", "bucket_step", "largest_aspect", "fewer_buckets")  # as trained


def save_model(
    export: Callable[[Path], None],
    folder: Path,
    config: TrainConfig,
    step: int,
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Let `export` write the model to a temporary folder, then move it to `folder`.

    tandem.json, with what `read_model_config` needs, also contains `metadata` (title, author and so on) and the files
    that were written: others in `folder` are somebody's own and stay.
    Raises OSError if the disk is full or the folder is not writable; the old model then stays. It is removed only once
    the new one is on the disk.
    """
    check_replaceable(folder)
    partial, replaced = folder.with_name(f"{PARTIAL}{folder.name}"), folder.with_name(f"{REPLACED_MODEL}{folder.name}")
    remove_tree(partial)
    partial.mkdir(parents=True)
    try:
        export(partial)
        info = {
            "version": 1,
            "family": config.family,
            "family_options": _family_options(config),
            "resolution": config.resolution,
            **{name: getattr(config, name) for name in _SHAPES},
            "step": step,
            "adapter": _adapter(config),
            "metadata": dict(metadata),
            "files": [*files_in(partial), MODEL_INFO],
        }
        (partial / MODEL_INFO).write_text(json.dumps(info, indent=2), "utf-8")
        keep_foreign_files(folder, partial, _written_files(folder))
        sync_all_to_disk(partial)
        if os.path.lexists(folder):
            remove_tree(replaced)
            folder.rename(replaced)
        partial.rename(folder)
        sync_to_disk(folder.parent)
    except BaseException:
        put_back_replaced(folder.parent, only=escape(folder.name))
        remove_tree(partial)
        raise
    remove_tree(replaced)


def remove_model(folder: Path) -> None:
    """Remove the files that `save_model` wrote into `folder`, and the folder unless somebody's own are left in it.

    Raises OSError. tandem.json is the last to go: what is left of a removal that failed can be removed again.
    """
    written = {*(_written_files(folder) or ()), MODEL_INFO}
    for name in sorted(written.intersection(files_in(folder)), key=MODEL_INFO.__eq__):  # links are not followed
        (folder / name).unlink()
    for each in sorted([folder, *(path for path in folder.rglob("*") if path.is_dir())], reverse=True):
        if not any(each.iterdir()):
            each.rmdir()


def _written_files(folder: Path) -> list[str] | None:
    """The files that Tandem has written into a model's folder; None if it does not say."""
    try:
        info: Any = read_json(folder / MODEL_INFO)
        files = info["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return files if isinstance(files, list) and all(isinstance(each, str) for each in files) else None


def _adapter(config: TrainConfig) -> dict[str, object]:
    """The settings with which an adapter or embedding is applied to its base model; empty for a whole model."""
    if config.method == "fine_tune":
        return {}
    base = config.base_model
    adapters = config.model_dump(mode="json", include=set(AdapterSettings.model_fields))
    parts = [{**part, "weights": "run"} for part in adapters["parts"]]
    return {
        **adapters,
        "parts": parts,
        "lora_from": None,  # neither is needed to apply it
        "training_adapter": None,
        "method": config.method,
        "base_model": base and _whole_path(base),
        "seed": config.seed,
    }


def _family_options(config: TrainConfig) -> dict[str, object]:
    """Those of the run; the folder that completes a base model in one file is found from other folders, too."""
    options: dict[str, object] = dict(config.family_options)
    base, layout = config.base_model, options.get("layout")
    if isinstance(layout, str) and layout and base is not None and Path(base).exists():
        options["layout"] = _whole_path(layout)
    if config.method == "fine_tune":
        options.pop("text_encoder_files", None)  # the model's own folder has them
    elif isinstance(files := options.get("text_encoder_files"), str):
        names = filter(None, map(str.strip, files.split(",")))
        options["text_encoder_files"] = ", ".join(map(_whole_path, names))
    return options


def _whole_path(name: str) -> str:
    """The whole path of what exists here; anything else, such as a name on the hub, as it is."""
    return str(Path(name).absolute()) if Path(name).exists() else name


def read_model_config(folder: Path) -> TrainConfig:
    """The config that loads the model in `folder`. Raises ConfigError if Tandem did not write it."""
    info_file = folder / MODEL_INFO
    if not folder.is_dir():
        raise ConfigError(f"model: there is no folder {str(folder)!r}; give a model folder like runs/NAME/model.")
    if not info_file.is_file():
        raise ConfigError(
            f"model: {str(folder)!r} has no {MODEL_INFO}; give a model folder that Tandem wrote, like runs/NAME/model."
        )
    try:
        info: Any = read_json(info_file)
        return TrainConfig(
            family=info["family"],
            family_options=info["family_options"],
            resolution=info["resolution"],
            **{"fewer_buckets": True, **{name: info[name] for name in _SHAPES if name in info}},  # as up to 0.3.0
            **{"base_model": str(folder), **info.get("adapter", {})},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"model: {str(info_file)!r} is damaged: {fault_of_info(error)}; save the model again."
        ) from error


def fault_of_info(error: Exception) -> str:
    """What is wrong in tandem.json, in plain words."""
    if isinstance(error, ValidationError):
        return explain(error)[0].rstrip(".")
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror})"
    if isinstance(error, FileFault):
        return f"it {error}"
    return f"it has no {error}" if isinstance(error, KeyError) else "it is no group of settings"
