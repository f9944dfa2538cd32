"""Reading of files that anybody may have made: regular files only, with limits on size, nesting and numbers.

A FIFO or a terminal would block the reader, a device has no end, and a deeply nested or endless text takes all memory.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import cast

TEXT_LIMIT = 8 << 20  # bytes; generous for everything that people write by hand
MAX_DEPTH = 64  # of lists and groups inside each other
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


class FileFault(ValueError):
    """What is wrong with the content or the kind of a file: a phrase that follows its name."""


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a regular file for reading, never waiting for one. Raises OSError, or FileFault if it is no regular file."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a null character in the name
        raise FileFault(f"has no valid name ({error})") from None
    except OSError as error:
        _require_regular(os.stat(path).st_mode if os.path.exists(path) else stat.S_IFREG)  # a socket cannot be opened
        raise error from None
    try:
        _require_regular(os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def file_size(path: str | Path) -> int:
    """Bytes in a regular file; raises OSError or FileFault as `open_regular`, without opening it."""
    found = os.stat(path)
    _require_regular(found.st_mode)
    return found.st_size


def read_bytes(path: str | Path, limit: int = TEXT_LIMIT) -> bytes:
    """All bytes of a regular file of at most `limit` bytes; raises OSError or FileFault."""
    with open_regular(path) as file:
        is_larger = os.fstat(file.fileno()).st_size > limit  # known without reading it
        data = b"" if is_larger else file.read(limit + 1)
    if is_larger or len(data) > limit:
        raise FileFault(f"is larger than {_size(limit)}")
    return data


def read_tail(path: str | Path, limit: int) -> bytes:
    """The last `limit` bytes of a regular file, or all of a shorter one; nothing if it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
            return file.read(limit)
    except (OSError, FileFault):
        return b""


def read_text(path: str | Path, limit: int = TEXT_LIMIT) -> str:
    """UTF-8 text, with or without a byte order mark; raises OSError or FileFault."""
    try:
        return read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFault(f"is not UTF-8 text (byte {error.start})") from None


def read_lines(path: str | Path, *, start: int = 0, line_limit: int = 1 << 20) -> Iterator[bytes]:
    """The complete lines from the byte `start` on, without their ends; raises OSError or FileFault.

    A line of more than `line_limit` bytes is a FileFault. A last line without an end is still being written: left out.
    """
    with open_regular(path) as file:
        file.seek(start)
        while line := file.readline(line_limit + 1):
            if not line.endswith(b"\n"):
                if len(line) > line_limit:
                    raise FileFault(f"has a line of more than {_size(line_limit)}")
                return
            yield line[:-1]


def read_json(path: str | Path, limit: int = TEXT_LIMIT, *, only_finite: bool = True) -> object:
    """The data in a JSON file; raises OSError or FileFault."""
    return decode_json(read_text(path, limit), only_finite=only_finite)


def decode_json(text: str | bytes, *, max_depth: int = MAX_DEPTH, only_finite: bool = True) -> object:
    """Data from JSON text that is not nested deeper than `max_depth` and has only finite numbers, unless Python's
    Infinity and NaN are allowed; raises FileFault.

    Of a name that is given twice in a group, the last one counts, as for most readers.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        data: object = _decoder(only_finite).decode(text)
    except json.JSONDecodeError as error:
        raise FileFault(f"is not JSON (line {error.lineno}: {error.msg[0].lower()}{error.msg[1:]})") from None
    except UnicodeDecodeError:
        raise FileFault("is not UTF-8 text") from None
    except RecursionError:
        raise FileFault("is nested too deeply") from None
    except FileFault:
        raise
    except ValueError:
        raise FileFault("has a number of too many digits") from None
    if is_deeper_than(data, max_depth):
        raise FileFault("is nested too deeply")
    return data


def is_deeper_than(data: object, limit: int) -> bool:
    """Whether lists and groups are inside each other more than `limit` times."""
    level = [data] if isinstance(data, (dict, list)) else []
    for _ in range(limit):
        level = [
            item
            for parent in level
            for item in (parent.values() if isinstance(parent, dict) else cast("list[object]", parent))
            if isinstance(item, (dict, list))
        ]
        if not level:
            return False
    return bool(level)


def is_plain_name(name: object) -> bool:
    """Whether it can be the name of a file and nothing else: no separator, no leading dot, ASCII without blanks."""
    return isinstance(name, str) and _PLAIN_NAME.fullmatch(name) is not None


def _require_regular(mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "something else")
    raise FileFault(f"is {kind}, not a file")


@lru_cache
def _decoder(only_finite: bool) -> json.JSONDecoder:  # that json.loads would make for each text: a line of a million
    return json.JSONDecoder(parse_constant=_reject_constant if only_finite else float, parse_float=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise FileFault(f"has a number that is too large ({text[:20]})")
    return number


def _reject_constant(name: str) -> object:
    raise FileFault(f"has the number {name}")


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count} bytes"
