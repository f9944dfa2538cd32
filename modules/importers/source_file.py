"""Reads a trainer's JSON, TOML or YAML file as plain data, also if its extension is unknown."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from modules.config.errors import ConfigError
from modules.config.io.files import read_text
from modules.config.io.text_formats import read_json, read_yaml

LARGEST_FILE = 4 << 20  # bytes; ten times what a few hundred concepts and prompts take
LARGEST_TOML = 1 << 20  # characters; they take three seconds at worst
MOST_PARTS = 16  # of a name in TOML, such as a.b.c; tomllib takes the square of their number

# Also finds as many words with nothing but dots between them after the comma of a text, which no prompt has.
_ENDLESS_NAME = re.compile(
    r"""(?m)(?:^|[{,])[ \t]*+\[{0,2}+[ \t]*+"""
    r"""(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){""" + f"{MOST_PARTS}}}"
)


def read_toml(text: str) -> object:
    """Parse TOML; raises ValueError with a sentence that names the line."""
    if len(text) > LARGEST_TOML:
        raise ValueError(f"TOML of more than {LARGEST_TOML >> 10} KiB takes too long to read; write it as JSON")
    if found := _ENDLESS_NAME.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"line {line} has a name of more than {MOST_PARTS} parts, and no trainer has such a setting")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem, _, position = str(error).rstrip(")").partition(" (at ")
        prefix = f"{position.replace('end of document', 'the end')}: " if position else ""
        raise ValueError(f"{prefix}{problem[0].lower()}{problem[1:]}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


READERS: dict[str, tuple[str, Callable[[str], object]]] = {
    ".json": ("JSON", read_json),
    ".toml": ("TOML", read_toml),
    ".yaml": ("YAML", partial(read_yaml, tags=True)),
    ".yml": ("YAML", partial(read_yaml, tags=True)),
}


def read_file(path: Path) -> object:
    """The data in a file; raises ConfigError if it is missing, too large, binary, empty or malformed."""
    text = text_of(path)
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
        problems.append(f"as {name} it contains {type(data).__name__} instead of settings")
    raise ConfigError(f"{path} cannot be read {'; '.join(problems)}.")


def lines_of(path: Path) -> list[str]:
    """The lines of a text file; raises ConfigError as `read_file` does."""
    return text_of(path).splitlines()


def text_of(path: Path) -> str:
    """The text of a file; raises ConfigError if it is missing, too large or binary."""
    return read_text(path, LARGEST_FILE)
