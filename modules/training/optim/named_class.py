"""The class that a setting names with its module."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import Any

from modules.config import ConfigError
from modules.config.imported_code import read_class
from modules.config.sections.optimizers import KNOWN_CLASS
from modules.config.trusted_code import require_trusted


def named_class(path: str, setting: str, kind: type, noun: str) -> type[Any]:
    """The subclass of `kind` at "module.Class", which is imported only now. Raises ConfigError if it is none,
    or if it is of a package whose code nobody has allowed to run."""
    module_name, _, name = path.rpartition(".")
    if not KNOWN_CLASS.fullmatch(path):
        require_trusted(read_class(path, setting), setting)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"{setting}: {module_name} cannot be imported: {error}") from error
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, kind)):
        close = get_close_matches(name, dir(module), 1)
        raise ConfigError(
            f"{setting}: {module_name} has no {noun} {name}",
            f"Did you mean {module_name}.{close[0]}?" if close else "See its documentation for their names",
        )
    return found
