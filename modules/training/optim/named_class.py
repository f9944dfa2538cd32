"""The class that a setting names with its module."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import Any

from modules.config import ConfigError
from modules.config.imported_code import read_class
from modules.config.sections.optimizers import KNOWN_CLASS
from modules.config.trusted_code import require_trusted
from modules.files import printable


def named_class(path: str, setting: str, kind: type, noun: str) -> type[Any]:
    """The subclass of `kind` at "module.Class", which is imported only now. Raises ConfigError if it is none,
    or if it is of a package whose code nobody has allowed to run."""
    module_name, _, name = path.rpartition(".")
    if not KNOWN_CLASS.fullmatch(path):
        require_trusted(read_class(path, setting), setting)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # code of somebody else can raise anything
        raise ConfigError(f"{setting}: {module_name} cannot be imported: {printable(error, 300)}") from error
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, kind)):
        known = [each for each, value in vars(module).items() if isinstance(value, type) and issubclass(value, kind)]
        close = get_close_matches(name, known, 1)
        raise ConfigError(
            f"{setting}: {module_name} has no {noun} {name}",
            f"Did you mean {module_name}.{close[0]}?" if close else "See its documentation for their names",
        )
    return found
