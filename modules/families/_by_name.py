"""Families by their names: those in this folder, Python files named by their path, and those of a program."""

from __future__ import annotations

import gc
import importlib
from pathlib import Path
from types import ModuleType

from modules.config import ConfigError
from modules.facts import PROGRAM, family_names
from modules.families._custom import family_of_file
from modules.families._family import Family
from modules.families._family_file import LoadedFile, load_python_file
from modules.files import printable

# Members of Family that had other names in older versions, so that files written for those get a sentence.
_RENAMED = {
    "parts": "submodules",
    "draw": "sample_transform",
    "rest": "offload_frozen",
    "remarks": "prompt_warnings",
    "learn_words": "add_placeholder_token",
    "sampling_facts": "sample_metadata",
    "encode_together": "encode_batch",
    "on_hub": "hub_model",
    "adapter_names": "adapter_prefixes",
    "spec": "facts",
}

_registered: dict[str, type[Family]] = {}


def register_family(name: str, kind: type[Family]) -> None:
    """Let `family_class(name)` find a family that no file defines, in this process; replaces a former one."""
    _registered[name] = kind


def family_class(name: str) -> type[Family]:
    """The family in modules/families/NAME.py, or in the Python file whose path `name` is, or registered.

    A file defines exactly one Family, or the functions of `modules/families/_custom.py`. Raises ConfigError if it
    does not, or there is no such family.
    """
    if name in _registered:
        return _registered[name]
    is_file = name.endswith(".py")
    module = load_python_file(Path(name)) if is_file else _built_in_module(name)
    found = [
        member
        for member in vars(module).values()
        if isinstance(member, type) and issubclass(member, Family) and member.__module__ == module.__name__
    ]
    if not found and is_file:
        found = [family_of_file(module)]
    if len(found) != 1:
        raise ConfigError(f"family: {name!r} defines {len(found)} Family classes; a family file defines exactly one.")
    if old := [member for member in _RENAMED if member in vars(found[0])]:
        renamed = ", ".join(f"{member} to {_RENAMED[member]}" for member in old)
        raise ConfigError(f"family: {name!r} was written for an older Tandem; rename {renamed}.")
    if is_file:
        found[0].source = LoadedFile(str(module.__file__))
    return found[0]


def _built_in_module(name: str) -> ModuleType:
    if name == PROGRAM:
        raise ConfigError(
            "This run was started by a program with a model of its own, which no file describes.",
            "Continue it in that program: Trainer(..., run_name=...).fit(resume=True).",
        )
    if name not in family_names():
        raise ConfigError(
            f"family is {printable(name, 200)!r}; use one of {', '.join(family_names())}, or the path of a .py file of "
            "your own."
        )
    collects = gc.isenabled()
    gc.disable()  # it finds nothing in a million new objects, which takes a fifth of the import
    try:
        return importlib.import_module(f"modules.families.{name}")
    finally:
        if collects:
            gc.enable()
