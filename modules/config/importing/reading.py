"""A trainer's file as plain data: JSON, TOML or YAML, whatever its ending says."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

from modules.config.errors import ConfigError
from modules.config.files import read_text
from modules.config.text_formats import read_json, read_yaml

LARGEST_FILE = 4 << 20  # bytes; settings of a few hundred concepts and prompts take a tenth of it


def read_toml(text: str) -> object:
    """Parse TOML; raises ValueError with a sentence that names the line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem, _, place = str(error).rstrip(")").partition(" (at ")
        where = f"{place.replace('end of document', 'its end')}: " if place else ""
        raise ValueError(f"{where}{problem[0].lower()}{problem[1:]}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


READERS: dict[str, tuple[str, Callable[[str], object]]] = {
    ".json": ("JSON", read_json),
    ".toml": ("TOML", read_toml),
    ".yaml": ("YAML", read_yaml),
    ".yml": ("YAML", read_yaml),
}


def read_file(path: Path) -> object:
    """What a file holds; raises ConfigError for one that is missing, too large, no text, empty or broken."""
    text = _text(path)
    if not text.strip():
        raise ConfigError(f"{path} is empty; give the settings file of another trainer.")
    suffix = path.suffix.lower()
    readers = [READERS[suffix]] if suffix in READERS else list(dict.fromkeys(READERS.values()))
    problems = []
    for name, reader in readers:
        try:
            data = reader(text)
        except ValueError as error:
            problems.append(f"as {name}: {error}")
            continue
        if isinstance(data, (dict, list)):
            return data
        problems.append(f"as {name} it holds {type(data).__name__} instead of settings")
    raise ConfigError(f"{path} cannot be read {'; '.join(problems)}.")


def lines_of(path: Path) -> list[str]:
    """The lines of a text file; raises ConfigError as `read_file` does."""
    return _text(path).splitlines()


def _text(path: Path) -> str:
    try:
        size = path.stat().st_size
    except (OSError, ValueError):
        size = 0  # read_text tells why
    if size > LARGEST_FILE:
        raise ConfigError(f"{path} has {size >> 20} MiB, which is far more than settings take.", "Give another file.")
    return read_text(path)
