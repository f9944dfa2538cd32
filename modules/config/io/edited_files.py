"""Saves a config to a file that a person wrote: comments, order and spelling stay, and only what differs is written.

The file is read by the one reader with its limits (text_formats.py). What the edit made of it is read again before
it is written; if it does not give the config, the file is written anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from modules.config.errors import ConfigError
from modules.config.io.files import READERS, dump, parse, read_text, save_config, write_config_text
from modules.config.io.migrations import migrate
from modules.config.io.text_formats import Data, write_json, write_yaml
from modules.config.io.yaml_edits import edited_yaml
from modules.config.train_config import TrainConfig


def save_edited(config: TrainConfig, path: str | Path) -> None:
    """Save to a new or an existing file. Raises ConfigError if it cannot be written."""
    file = Path(path)
    text = _edited(config, file)
    if text is None:
        save_config(config, file)
    else:
        write_config_text(file, text)


def differing(config: TrainConfig) -> Data:
    """What differs from the defaults, as in a file."""
    data: Data = config.model_dump(mode="json", exclude_defaults=True)
    whole = dump(config)
    optimizer, given = whole["optimizer"], data.get("optimizer")
    if isinstance(given, dict) and isinstance(optimizer, dict):
        data["optimizer"] = {"name": optimizer["name"], **given}
    return {name: data[name] for name in whole if name in data}


def _edited(config: TrainConfig, file: Path) -> str | None:
    """The text to write; None if only a complete one gives this config."""
    is_yaml = file.suffix.lower() in (".yaml", ".yml")
    if file.suffix.lower() not in READERS:
        return None
    wanted = differing(config)
    write = write_yaml if is_yaml else write_json
    fresh = write({"version": config.version, **wanted})
    candidates = [fresh]
    try:
        old_text = read_text(file)
        parsed = parse(file, old_text)
        old = migrate(parsed, str(file))
    except ConfigError:
        parsed, old, old_text = {}, {}, ""  # there is none, or it is damaged
    if parsed and parsed.keys() <= old.keys():  # with today's names
        before, after = _validated(old), dump(config)
        new: Data = {}
        for name, value in parsed.items():
            if name == "version":
                new[name] = config.version
            elif name in before and before[name] == after.get(name):
                new[name] = value  # as it was spelled
            elif name in after:
                new[name] = wanted.get(name, after[name])
        new |= {name: value for name, value in wanted.items() if name not in new and name != "version"}
        edited = edited_yaml(old_text, parsed, new) if is_yaml else write_json(new)
        candidates = [edited, fresh] if edited is not None else candidates
    return next((text for text in candidates if _gives(file, text, config)), None)


def _validated(data: Mapping[str, object]) -> Data:
    try:
        return dump(TrainConfig.model_validate(data))
    except ValidationError:
        return {}


def _gives(file: Path, text: str, config: TrainConfig) -> bool:
    """Whether reading `text` gives this config."""
    try:
        return _validated(migrate(parse(file, text), str(file))) == dump(config)
    except ConfigError:
        return False
