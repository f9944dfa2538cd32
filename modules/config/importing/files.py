"""From a file of another trainer to a config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modules.config.errors import ConfigError
from modules.config.importing.places import Places
from modules.config.importing.reading import read_file
from modules.config.importing.report import Imported
from modules.config.importing.settling import settle
from modules.config.importing.trainers import TRAINERS
from modules.config.importing.translation import Translation
from modules.config.train_config import TrainConfig


def import_file(file: str | Path) -> Imported:
    """The config that another trainer's settings amount to; raises ConfigError for a file that is none of theirs."""
    path = Path(file)
    data = read_file(path)
    trainer = next((one for one in TRAINERS if one.recognises(data)), None)
    if trainer is None or not isinstance(data, Mapping):
        raise ConfigError(f"{path}: {_unknown(data)}", f"Known are files of {_names()}.")
    translation = Translation(trainer.name, Places(path))
    trainer.translate(data, translation)
    return settle(translation)


def _names() -> str:
    names = list(dict.fromkeys(trainer.name for trainer in TRAINERS))
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _unknown(data: object) -> str:
    if isinstance(data, Mapping):
        ours = set(data) & set(TrainConfig.model_fields)
        if {"family", "version"} & ours and len(ours) >= len(data) / 2:
            return "this is a config of Tandem already: open it as it is"
        named = ", ".join(str(name) for name in list(data)[:6])
        return f"these settings belong to no trainer that is known here (they begin with {named or 'nothing'})"
    names = set().union(*(item for item in data if isinstance(item, Mapping))) if isinstance(data, list) else set()
    if {"image", "text", "path"} <= names:
        return "these are OneTrainer's concepts alone: give the preset or config that names them"
    if {"prompt", "cfg_scale"} <= names:
        return "these are OneTrainer's samples alone: give the preset or config that names them"
    if {"id", "type"} <= names:
        return "this is SimpleTuner's list of data sets alone: give the config.json that names it"
    return "this is a list; the settings of a trainer are names with values"
