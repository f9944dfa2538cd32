"""What a model folder says of itself: the class in its config.json, and the options with which it was trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pydantic import JsonValue

from modules.config import ConfigError
from modules.files import FileFault, read_json


def saved_options(folder: Path, class_name: str, what: str, advice: str) -> Mapping[str, JsonValue]:
    """The options in the config.json of `folder`, the config's base_model, which holds `what`, such as "classifier".

    Raises ConfigError, with `advice`, if it is no such folder.
    """
    try:
        config = read_json(folder / "config.json")
        if not isinstance(config, dict) or config.get("_class_name") != class_name:
            raise FileFault(f"is not that of a {what}")
        options = config.get("options")
        if not isinstance(options, dict):
            raise FileFault("has no options")
    except (OSError, FileFault) as error:
        reason = f"its config.json {error}" if isinstance(error, FileFault) else str(error)
        raise ConfigError(f"base_model: {str(folder)!r} is not a saved {what} ({reason}).", advice) from error
    return cast("dict[str, JsonValue]", options)
