"""Reading of files that anybody may have made: regular files only, with limits on size, nesting and numbers.

A FIFO or a terminal would block the reader, a device has no end, and a deeply nested or endless text takes all memory.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import cast

from modules.files.opening import FileFault, open_file, require_regular
from modules.files.shard_paths import split_member
from modules.files.shards import member_stamp, open_member

TEXT_LIMIT = 8 << 20  # bytes; generous for everything that people write by hand
MAX_DEPTH = 64  # of lists and groups inside each other
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a regular file, or a file in a shard (`modules.files.shards`), for reading, never waiting for one.

    Raises OSError, or FileFault if it is no regular file.
    """
    name = os.fspath(path)
    return open_member(name) if split_member(name) else open_file(name)


def file_size(path: str | Path) -> int:
    """Bytes in a file that `open_regular` opens; raises OSError or FileFault as it does, without opening it."""
    return file_stamp(path)[0]


def file_stamp(path: str | Path) -> tuple[int, int]:
    """The same size, and the time of the last change (ns), which for a file in a shard is the shard's."""
    name = os.fspath(path)
    if split_member(name):
        return member_stamp(name)
    found = os.stat(name)
    require_regular(found.st_mode)
    return found.st_size, found.st_mtime_ns


def read_bytes(path: str | Path, limit: int = TEXT_LIMIT) -> bytes:
    """All bytes of a regular file of at most `limit` bytes; raises OSError or FileFault."""
    with open_regular(path) as file:
        is_larger = file_size(path) > limit  # known without reading it
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


def decode_json(text: str | bytes, *, only_finite: bool = True) -> object:
    """Data from JSON text that is not nested deeper than MAX_DEPTH and has only finite numbers, unless Python's
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
    if is_deeper_than(data, MAX_DEPTH):
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
