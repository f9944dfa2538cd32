"""Python files that a config names run only after a person has allowed their content.

A config, run folder, model or backup may come from anybody, and `family: path/to/file.py` runs that file and those that
it imports. What was allowed is remembered by the SHA-256 of each, for this user; a new or changed one is asked about.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field

from modules.config.errors import ConfigError
from modules.config.imported_code import MOST_FILES, CodeFile, read_class, read_with_imports
from modules.config.sections.optimizers import KNOWN_CLASS, Custom
from modules.config.train_config import TrainConfig
from modules.files import FileFault, Record, printable, validate_record
from modules.files.private import read_private_json, why_ignored, write_private_json
from modules.files.user_folder import user_config_folder

# The hashes allowed for this process and those that it starts, separated by commas; "any" allows every file, for
# containers and tests.
VARIABLE = "TANDEM_TRUST_CODE"
_MOST_REMEMBERED = 5000
_SHOWN = 3


class CodeNotTrusted(ConfigError):
    """A config names a Python file that nobody has allowed to run."""

    kind = "code"


class AllowedCode(Record):
    """One entry of trusted_code.json."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    file: str = ""
    allowed: float = 0.0  # seconds since 1970


def is_trusted(files: Sequence[CodeFile]) -> bool:
    """Whether somebody has allowed exactly this content of each file."""
    allowed = _allowed()
    return allows_any() or all(file.sha256 in allowed for file in files)


def allows_any() -> bool:
    """Whether every file may run."""
    return "any" in os.environ.get(VARIABLE, "").split(",")


def trust_code(files: Sequence[CodeFile]) -> None:
    """Allow this content from now on: for this process and those that it starts, and, if possible, for this user."""
    found = [file.sha256 for file in files]
    given = [each for each in os.environ.get(VARIABLE, "").split(",") if each not in ("", "any", *found)]
    newest = list(dict.fromkeys([*given, *found]))[-MOST_FILES:]
    os.environ[VARIABLE] = ",".join([*["any"] * allows_any(), *newest])
    entries = [each for each in _remembered() if each.sha256 not in found]
    entries += [AllowedCode(sha256=each.sha256, file=str(each.path.absolute()), allowed=time.time()) for each in files]
    with suppress(OSError):  # a home that cannot be written: the variable holds for this start
        write_private_json(_file(), [each.model_dump() for each in entries[-_MOST_REMEMBERED:]])


def require_trusted(files: Sequence[CodeFile], setting: str = "family") -> None:
    """Raise CodeNotTrusted unless the content of a file that a setting names, and of those that it imports, is
    allowed."""
    if is_trusted(files):
        return
    allowed = _allowed()
    new = [str(file.path) for file in files[1:] if file.sha256 not in allowed]
    others = " and others" * (len(new) > _SHOWN)
    imported = f" (which imports {', '.join(new[:_SHOWN])}{others})" * bool(new)
    raise CodeNotTrusted(
        f"{setting} is the Python file {str(files[0].path)!r}{imported}, which runs only after you have allowed it; it "
        f"may do anything that you can do on this computer{why_ignored(_file())}",
        "Read it; then start once with --trust_code, or allow it in the window",
    )


def allow_code(config: TrainConfig, *, trust: bool, ask: Callable[[str], bool] | None) -> None:
    """Let the files that a config names run: its family's, and those of classes that are not torch's or
    pytorch_optimizer's; as `allow_family` does."""
    allow_family(config.family, trust=trust, ask=ask)
    for setting, path in foreign_classes(config):
        _allow(read_class(path, setting), setting, trust=trust, ask=ask)


def foreign_classes(config: TrainConfig) -> list[tuple[str, str]]:
    """(setting, "package.module.Class") of each class that is asked about before its module is imported."""
    named = [("scheduler_target", config.scheduler_target if config.scheduler == "custom" else "")]
    if isinstance(config.optimizer, Custom):
        named.insert(0, ("optimizer.target", config.optimizer.target))
    return [(setting, path) for setting, path in named if path and not KNOWN_CLASS.fullmatch(path)]


def allow_family(family: str, *, trust: bool, ask: Callable[[str], bool] | None) -> None:
    """Let a family that is a Python file run, with the files that it imports, if `trust` or if `ask` says so to what
    it is told, "as its family, the Python file ..."; other names pass.

    Raises CodeNotTrusted if nobody allowed it, ConfigError if a file cannot be read.
    """
    if not family.endswith(".py"):
        return
    _allow(read_with_imports(Path(family)), "family", trust=trust, ask=ask)


def _allow(files: Sequence[CodeFile], setting: str, *, trust: bool, ask: Callable[[str], bool] | None) -> None:
    question = f"as its {setting_said(setting)}, the Python file {describe_code(files)}"
    if trust or (not is_trusted(files) and ask is not None and ask(question)):
        trust_code(files)
    require_trusted(files, setting)


def setting_said(setting: str) -> str:
    """What code of a setting is to a person: "scheduler" for scheduler_target."""
    return setting.partition("_")[0].partition(".")[0]


def describe_code(files: Sequence[CodeFile]) -> str:
    """Which files would run: for the question whether they may."""
    allowed = _allowed()
    first, *imported = (_described(file, allowed) for file in files)
    more = "".join(f"\n  {each}" for each in imported)
    return f"{first}{f', which imports{more}' if more else ''}{why_ignored(_file())}"


def _described(file: CodeFile, allowed: Collection[str]) -> str:
    lines = len(file.content.splitlines())
    size = f"{lines} line{'s' * (lines != 1)}" if file.is_source else f"compiled or packed, {len(file.content)} bytes"
    before = ", allowed before" if file.sha256 in allowed else ""
    return f"{printable(file.path.absolute(), mask=False)} ({size}, SHA-256 {file.sha256[:16]}...{before})"


def _allowed() -> set[str]:
    return {*os.environ.get(VARIABLE, "").split(","), *(each.sha256 for each in _remembered())}


def _remembered() -> list[AllowedCode]:
    try:
        return validate_record(list[AllowedCode], read_private_json(_file()))
    except (OSError, FileFault):
        return []


def _file() -> Path:
    return user_config_folder() / "trusted_code.json"
