"""Import of another trainer's settings file as a config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from modules.config.errors import ConfigError
from modules.config.explain import Fault, faults
from modules.config.train_config import TrainConfig
from modules.importers.adafactor import set_relative_rate
from modules.importers.flow_families import fit_to_family
from modules.importers.paths import PathResolver
from modules.importers.report import ImportResult
from modules.importers.source_file import read_file
from modules.importers.start_values import fit_to_start
from modules.importers.trainers import TRAINERS
from modules.importers.translation import Translation


def foreign_trainer(file: str | Path) -> str:
    """The trainer whose settings a file contains; empty for a config of Tandem's and for what cannot be read."""
    try:
        data = read_file(Path(file))
    except ConfigError:
        return ""
    if isinstance(data, Mapping) and {"family", "version"} & set(data):
        return ""
    return next((each.name for each in TRAINERS if each.recognises(data)), "")


def import_file(file: str | Path) -> ImportResult:
    """Convert another trainer's settings file to a config; raises ConfigError if no trainer recognises the file."""
    path = Path(file)
    data = read_file(path)
    trainer = next((each for each in TRAINERS if each.recognises(data)), None)
    if trainer is None or not isinstance(data, Mapping):
        raise ConfigError(f"{path}: {_unknown(data)}", f"Supported are files of {_names()}.")
    translation = Translation(trainer.name, PathResolver(path))
    trainer.translate(data, translation)
    fit_to_family(translation)
    fit_to_start(translation)
    set_relative_rate(translation)
    translation.take_held()
    return resolve_conflicts(translation)


def resolve_conflicts(translation: Translation) -> ImportResult:
    """The config and the report; values that are invalid in Tandem are removed and reported as not imported."""
    while True:  # each round removes a value, and the defaults are valid
        try:
            config = TrainConfig.model_validate(translation.data)
        except ValidationError as error:
            found = faults(error)
            removed = [_withdraw(translation, fault) for fault in found]
            translation.close_gaps()
            if not any(removed):
                raise ConfigError.from_faults(translation.trainer, [fault.sentence for fault in found]) from None
        else:
            return ImportResult(config, translation.report())


def _withdraw(translation: Translation, fault: Fault) -> bool:
    """Remove the value with this fault, or the nearest enclosing group that can be removed."""
    path = fault.path
    while path:
        if translation.withdraw(path, f"invalid in Tandem: {fault.sentence.rstrip('.')}"):
            return True
        path = path.rpartition(".")[0]
    return False


def _names() -> str:
    names = list(dict.fromkeys(trainer.name for trainer in TRAINERS))
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _unknown(data: object) -> str:
    if isinstance(data, Mapping):
        known = set(data) & set(TrainConfig.model_fields)
        if {"family", "version"} & known and len(known) >= len(data) / 2:
            return "this is already a Tandem config: open it directly"
        named = ", ".join(str(name) for name in list(data)[:6])
        return f"no supported trainer has these settings (they start with {named or 'nothing'})"
    names = set().union(*(item for item in data if isinstance(item, Mapping))) if isinstance(data, list) else set()
    if {"image", "text", "path"} <= names:
        return "this file contains only OneTrainer's concepts: give the preset or config that refers to it"
    if {"prompt", "cfg_scale"} <= names:
        return "this file contains only OneTrainer's samples: give the preset or config that refers to it"
    if {"id", "type"} <= names:
        return "this file contains only SimpleTuner's list of datasets: give the config.json that refers to it"
    return "this is a list; the settings of a trainer are names with values"
