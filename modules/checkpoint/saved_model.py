"""The model as people use it: a diffusers folder, replaced as a whole, with a note of the family that wrote it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from modules.config import ConfigError, TrainConfig
from modules.config.adapter_settings import AdapterSettings

NOTE = "tandem.json"


def save_model(
    export: Callable[[Path], None],
    folder: Path,
    config: TrainConfig,
    step: int,
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Let `export` write the model aside, then put it at `folder`; a reader sees the old model or the new one.

    The note beside it also has `metadata`: title, author and the like, for those who have the folder only.
    Raises OSError where the disk is full or the folder cannot be written; the old model then stays.
    """
    partial, former = folder.with_name(f".partial-{folder.name}"), folder.with_name(f".former-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        export(partial)
        note = {
            "version": 1,
            "family": config.family,
            "family_options": dict(config.family_options),
            "resolution": config.resolution,
            "step": step,
            "adapter": _adapter(config),
            "metadata": dict(metadata),
        }
        (partial / NOTE).write_text(json.dumps(note, indent=2), "utf-8")
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(former, ignore_errors=True)
    if folder.exists():
        folder.rename(former)
    partial.rename(folder)
    shutil.rmtree(former, ignore_errors=True)


def _adapter(config: TrainConfig) -> dict[str, object]:
    """Settings that tell how something trained beside a model is added to it; none for a whole model."""
    if config.method == "fine_tune":
        return {}
    base = config.base_model
    adapters = config.model_dump(mode="json", include=set(AdapterSettings.model_fields))
    parts = [{**part, "weights": "run"} for part in adapters["parts"]]
    return {
        **adapters,
        "parts": parts,
        "method": config.method,
        "base_model": str(Path(base).resolve()) if base is not None and Path(base).exists() else base,
        "seed": config.seed,
    }


def config_of_saved_model(folder: Path) -> TrainConfig:
    """The config with which the model in `folder` can be loaded again. Raises ConfigError where it is none of ours."""
    note_file = folder / NOTE
    if not folder.is_dir():
        raise ConfigError(f"model: there is no folder {str(folder)!r}; give a model folder such as runs/NAME/model.")
    if not note_file.is_file():
        raise ConfigError(
            f"model: {str(folder)!r} has no {NOTE}; give a model folder that Tandem wrote, such as runs/NAME/model."
        )
    try:
        note = json.loads(note_file.read_text("utf-8"))
        return TrainConfig(
            family=note["family"],
            family_options=note["family_options"],
            resolution=note["resolution"],
            **{"base_model": str(folder), **note.get("adapter", {})},
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"model: {str(note_file)!r} is damaged ({type(error).__name__}); save the model again."
        ) from error
