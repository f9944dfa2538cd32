"""Sets batch_size in a config file and leaves everything else in it as it is, comments included."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from modules.config.errors import ConfigError
from modules.config.io.files import READERS, read_text, write_atomically
from modules.files import printable

_JSON_LINE: Final = re.compile(r'(?m)^(\s*"batch_size"\s*:\s*)\d+(?=\s*,?\s*$)')
_YAML_LINE: Final = re.compile(r"(?m)^(batch_size\s*:[ \t]*)\d+(?=[ \t]*(?:#.*)?\r?$)")


def set_batch_size(path: Path, batch_size: int) -> None:
    """Change its line, or add one to a YAML file. Raises ConfigError if that is not possible."""
    reader = READERS.get(path.suffix.lower())
    if reader is None or not path.is_file():
        raise ConfigError(f"{printable(path)} is no config file, so batch_size was not set.", _advice(batch_size))
    text = read_text(path)
    line = _JSON_LINE if path.suffix.lower() == ".json" else _YAML_LINE
    try:
        before = reader(text)
        changed, count = line.subn(rf"\g<1>{batch_size}", text)
        if not count and line is _YAML_LINE:
            changed = f"{text.rstrip()}\nbatch_size: {batch_size}\n"
        after = reader(changed)
    except ValueError:
        before = after = None
    if not isinstance(before, dict) or after != {**before, "batch_size": batch_size}:
        raise ConfigError(f"{printable(path)}: batch_size has no line of its own there.", _advice(batch_size))
    try:
        write_atomically(path.resolve(), changed)
    except OSError as error:
        raise ConfigError(f"{printable(path)} cannot be written: {error.strerror or error}.") from error


def _advice(batch_size: int) -> str:
    return f"Write it there yourself: batch_size: {batch_size}"
