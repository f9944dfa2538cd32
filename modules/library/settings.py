"""The config of a Trainer: a TrainConfig, a mapping, a file or a preset, and keywords on top."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from modules.config import ConfigError, TrainConfig, dump, validate
from modules.config.io.files import READERS, read_data
from modules.config.io.migrations import ambiguous_settings, migrate
from modules.config.io.presets import preset_data
from modules.facts import PROGRAM

log = logging.getLogger("tandem")

ConfigSource: TypeAlias = "TrainConfig | Mapping[str, object] | str | Path | None"


def trainer_config(source: ConfigSource, overrides: Mapping[str, object], *, has_validation: bool) -> TrainConfig:
    """The config of a run of a program's own model. Raises ConfigError that lists every fault.

    What is not given has the default of docs/settings.md, except that all devices train (`enable_multi_gpu`),
    that validation data is used once an epoch, and that what is trained in fp64 is saved in fp64.
    """
    given = {**_settings(source), **overrides}
    defaults: dict[str, object] = {"enable_multi_gpu": given.get("training_mode") != "single"}
    if has_validation or given.get("validation_split"):
        defaults["validate_every"] = "1 epoch"
    if given.get("precision") == "fp64":
        defaults["save_dtype"] = "fp64"  # the saved weights are loaded into the program's model
    return validate({**defaults, **given, "family": PROGRAM}, "Trainer")


def _settings(source: ConfigSource) -> dict[str, object]:
    """Those that were given, without defaults."""
    if source is None:
        return {}
    if isinstance(source, TrainConfig):
        return {name: value for name, value in dump(source).items() if name in source.model_fields_set}
    if isinstance(source, Mapping):
        for sentence in ambiguous_settings(source, "Trainer"):
            log.warning(sentence)
        return migrate(dict(source), "Trainer") if "version" in source else dict(source)
    if isinstance(source, str | Path):
        is_file = Path(source).suffix.lower() in READERS
        return dict(read_data(source) if is_file else preset_data(str(source)))
    raise ConfigError(
        f"Trainer: config is {type(source).__name__}; give a TrainConfig, a mapping of settings, the path of a YAML or "
        "JSON file, or settings as keywords, such as epochs=3"
    )
