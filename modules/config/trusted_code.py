"""Python files that a config names run only after a person has allowed their content.

A config, run folder, model or backup may come from anybody, and `family: path/to/file.py` runs that file. What was
allowed is remembered by its SHA-256, for this user; a changed file is asked about again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field

from modules.config.errors import ConfigError
from modules.files import FileFault, Record, printable, read_bytes, validate_record
from modules.files.private import read_private_json, why_ignored, write_private_json
from modules.files.user_folder import user_config_folder

# The hashes allowed for this process and those that it starts, separated by commas; "any" allows every file, for
# containers and tests.
VARIABLE = "TANDEM_TRUST_CODE"
LARGEST_FILE = 4 << 20  # bytes
_MOST_REMEMBERED = 500


class CodeNotTrusted(ConfigError):
    """A config names a Python file that nobody has allowed to run."""

    kind = "code"


class AllowedCode(Record):
    """One entry of trusted_code.json."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    file: str = ""
    allowed: float = 0.0  # seconds since 1970


def read_code(path: Path) -> bytes:
    """The content of a Python file; raises ConfigError."""
    try:
        return read_bytes(path, LARGEST_FILE)
    except FileNotFoundError:
        raise ConfigError(f"family: there is no file {str(path.absolute())!r}.") from None
    except (OSError, FileFault) as error:
        reason = str(error) if isinstance(error, FileFault) else f"cannot be read: {error.strerror}"
        raise ConfigError(f"family: {str(path)!r} {reason}.") from None


def is_trusted(code: bytes) -> bool:
    """Whether somebody has allowed exactly this content."""
    allowed = os.environ.get(VARIABLE, "").split(",")
    found = hashlib.sha256(code).hexdigest()
    return "any" in allowed or found in allowed or any(each.sha256 == found for each in _remembered())


def trust_code(code: bytes, path: Path) -> None:
    """Allow this content from now on: for this process and those that it starts, and, if possible, for this user."""
    found = hashlib.sha256(code).hexdigest()
    allowed = [each for each in os.environ.get(VARIABLE, "").split(",") if each]
    os.environ[VARIABLE] = ",".join(dict.fromkeys([*allowed, found]))
    entries = [each for each in _remembered() if each.sha256 != found]
    entries.append(AllowedCode(sha256=found, file=str(path.absolute()), allowed=time.time()))
    with suppress(OSError):  # a home that cannot be written: the variable holds for this start
        write_private_json(_file(), [each.model_dump() for each in entries[-_MOST_REMEMBERED:]])


def require_trusted(path: Path, code: bytes) -> None:
    """Raise CodeNotTrusted unless this content is allowed."""
    if is_trusted(code):
        return
    raise CodeNotTrusted(
        f"family is the Python file {str(path)!r}, which runs only after you have allowed it; it may do anything that "
        f"you can do on this computer{why_ignored(_file())}",
        "Read it; then start once with --trust_code, or allow it in the window",
    )


def allow_family(family: str, *, trust: bool, ask: Callable[[str], bool] | None) -> None:
    """Let a family that is a Python file run, if `trust` or if `ask` says so to a question; other names pass.

    Raises CodeNotTrusted if nobody allowed it, ConfigError if the file cannot be read.
    """
    if not family.endswith(".py"):
        return
    path = Path(family)
    code = read_code(path)
    if trust or (not is_trusted(code) and ask is not None and ask(describe_code(path, code))):
        trust_code(code, path)
    require_trusted(path, code)


def describe_code(path: Path, code: bytes) -> str:
    """Which file would run: for the question whether it may."""
    digest = hashlib.sha256(code).hexdigest()
    lines = len(code.splitlines())
    size = f"{lines} line{'s' * (lines != 1)}"
    return f"{printable(path.absolute(), mask=False)} ({size}, SHA-256 {digest[:16]}...{why_ignored(_file())})"


def _remembered() -> list[AllowedCode]:
    try:
        return validate_record(list[AllowedCode], read_private_json(_file()))
    except (OSError, FileFault):
        return []


def _file() -> Path:
    return user_config_folder() / "trusted_code.json"
