"""Mutations of small real files: of bytes, of text, of data, and of what kind of file it is."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

Bytes = Callable[[bytes, Random], bytes]

SPARSE_BYTES = 6 << 30  # more than a worker may take
_LONG = 100_000
_HEADER_BYTES = 600  # of a small safetensors file
# as they are written in JSON; most are also TOML and YAML
NUMBERS = (
    "0", "-0", "1", "-1", "0.5", "3", "7", "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "1e308", "5e-324", "1e-9",
    "2147483648", "4294967296", "9007199254740993", "9223372036854775807", "9223372036854775808",
    "-9223372036854775809", "18446744073709551616", "9" * 400, "9" * 5000, "1" + "0" * 320,
)  # fmt: skip
OTHERS = ("null", "true", "false", "[]", "{}", "[[]]", '""', '{"a": {"b": []}}', "[null, null]")
NESTED = ("[" * 70 + "]" * 70, "[" * 20_000 + "]" * 20_000, '{"a":' * 5000 + "1" + "}" * 5000, "[" * _LONG)
WORDS = (
    "", " ", ".", "..", "~", "/", "//", "../outside/canary.txt", "../../outside", "../" * 40 + "etc/passwd",
    "/dev/zero", "/dev/stdin", "/proc/self/mem", "/etc/passwd", "a/../../b", "C:\\x", "\\\\host\\share", "con", "-x",
    "--help", "latest", "x.py", "/x/y.py", "a\nb", "a\r\nb", "\x00", "a\x00b", "\x1b[2J\x1b]0;x\x07", "\ud800",
    "a\udfffb", "\u202eabc", "\ufeff", "\u2028", "\x85", "e\u0301" * 50, "\U0001f98a", "x" * 300, "x" * _LONG, "%s%n",
    "{0}{name}", "${HOME}", "$(touch canary)", "`touch canary`", "'; touch canary #", "0", "1e999", "nan", "true",
    "None", "1x2", "99999999999x1", "__class__", "__proto__", "step-000001", "(a+)+$", "(", "[a", "\\", "*" * 40, "**",
)  # fmt: skip


def bytes_changed(data: bytes, draw: Random, *, near: int | None = None) -> bytes:
    """`data` with one to six mutations of bytes; `near` limits the places to the first bytes of the file."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        data = draw.choice(_OF_BYTES)(data, draw) if near is None else _flip(data, draw, near)
    return data


def _flip(data: bytes, draw: Random, near: int | None = None) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8)) if data else 0):
        changed[draw.randrange(min(len(data), near or len(data)))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _truncate(data: bytes, draw: Random) -> bytes:
    return data[: draw.choice((0, 1, 7, 8, 9, len(data) // 2, len(data) - 1, draw.randint(0, len(data))))]


def _cut(data: bytes, draw: Random) -> bytes:
    start, end = _slice(data, draw)
    return data[:start] + data[end:]


def _double(data: bytes, draw: Random) -> bytes:
    start, end = _slice(data, draw)
    return data[:end] + data[start:end] * draw.choice((1, 2, 50)) + data[end:]


def _splice(data: bytes, draw: Random) -> bytes:
    (start, end), at = _slice(data, draw), draw.randint(0, len(data))
    return data[:at] + data[start:end] + data[at + draw.choice((0, end - start)) :]


def _integer(data: bytes, draw: Random) -> bytes:
    width = draw.choice((1, 2, 4, 8))
    value = draw.choice((0, 1, 255, (1 << 8 * width) - 1, (1 << 8 * width - 1), (1 << 8 * width - 1) - 1, 64 << 10))
    at = draw.randint(0, max(0, len(data) - width))
    piece = (value % (1 << 8 * width)).to_bytes(width, draw.choice(("little", "big")))
    return data[:at] + piece + data[at + width :]


def _insert(data: bytes, draw: Random) -> bytes:
    at = draw.randint(0, len(data))
    return data[:at] + draw.choice((*_JUNK, draw.randbytes(40))) + data[at:]


_JUNK = (
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b[2J", b"\n" * 2000, b"\r", b" " * _LONG, b"[" * 9000, b'"', b"{", b"}",
    b"\xf0\x9f\xa6\x8a", b"\xc3", b"\x0c", b"\xef\xbb\xbf",
)  # fmt: skip
_OF_BYTES: Sequence[Bytes] = (_flip, _flip, _truncate, _cut, _double, _splice, _integer, _insert)


def _slice(data: bytes, draw: Random) -> tuple[int, int]:
    start = draw.randint(0, len(data))
    return start, min(len(data), start + draw.choice((1, 4, 30, 400)))


def text_changed(text: str, draw: Random) -> bytes:
    """Text with a number, a word or a line replaced, or its bytes mutated."""
    choice = draw.random()
    if choice < 0.35 and (numbers := list(re.finditer(r"-?\d+(\.\d+)?(e-?\d+)?", text))):
        found = draw.choice(numbers)
        text = text[: found.start()] + draw.choice((*NUMBERS, *OTHERS)) + text[found.end() :]
    elif choice < 0.6 and (words := list(re.finditer(r"[\w./ -]+", text))):
        found = draw.choice(words)
        text = text[: found.start()] + draw.choice((*WORDS, *NESTED)) + text[found.end() :]
    elif choice < 0.75:
        lines = text.split("\n")
        at = draw.randrange(len(lines))
        lines[at:at] = [draw.choice(lines)] * draw.choice((1, 1, 3, 3000))
        text = "\n".join(lines)
    else:
        return bytes_changed(text.encode("utf-8", "surrogatepass"), draw)
    return text.encode("utf-8", "surrogatepass")


def data_changed(data: object, draw: Random) -> object:
    """JSON data with one value replaced, removed, repeated, wrapped or exchanged for another one of the same data."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        places = _places(data)
        change = partial(_value_changed, places=places, whole=data, draw=draw)
        data = _at(data, draw.choice(places), change)
    return data


def json_text(data: object) -> bytes:
    """As JSON, with the values of `data_changed` that no encoder writes; lone surrogates are escapes."""
    text = json.dumps(data, ensure_ascii=True)
    return re.sub(r'"\\u0001(.*?)\\u0001"', lambda raw: _unescaped(raw[1]), text).encode()


def _unescaped(raw: str) -> str:
    return raw.replace('\\"', '"').replace("\\\\", "\\")


def json_changed(data: bytes, draw: Random) -> bytes:
    """A JSON file, mutated as data mostly, else as text."""
    if draw.random() < 0.75:
        with suppress(ValueError, RecursionError):  # it was mutated before
            return json_text(data_changed(json.loads(data), draw))
    return text_changed(data.decode("utf-8", "replace"), draw)


def safetensors_changed(data: bytes, draw: Random) -> bytes:
    """A safetensors file: its header as data, bytes of the header, or any bytes."""
    chosen, length = draw.random(), int.from_bytes(data[:8], "little")
    if chosen < 0.2:  # NaN, infinity and large numbers
        at = min(len(data), 8 + length + 4 * draw.randrange(200))
        return (
            data[:at]
            + draw.choice((b"\xff", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f"))[: len(data) - at]
            + data[at + 4 :]
        )
    if chosen < 0.6 and len(data) > 8:
        header = json_changed(data[8 : 8 + length].rstrip(), draw)[: 1 << 20]
        header += b" " * (-len(header) % 8)
        return len(header).to_bytes(8, "little") + header + data[8 + length :]
    return bytes_changed(data, draw, near=_HEADER_BYTES if chosen < 0.8 else None)


def _value_changed(value: object, places: Sequence[tuple[object, ...]], whole: object, draw: Random) -> object:
    choice = draw.random()
    if choice < 0.3:
        return _raw(draw.choice((*NUMBERS, *OTHERS)))
    if choice < 0.55:
        return draw.choice(WORDS)
    if choice < 0.6:
        return _raw(draw.choice(NESTED))
    if choice < 0.7:  # another value of the same file
        return _get(whole, draw.choice(places))
    if choice < 0.78:
        return [value] * draw.choice((1, 2, 3000)) if draw.random() < 0.7 else {"a": value}
    if isinstance(value, dict) and value:
        name = draw.choice(list(value))
        rest = {key: item for key, item in value.items() if key != name}
        return rest if choice < 0.9 else {**rest, draw.choice(WORDS)[:400]: value[name]}
    if isinstance(value, list) and value:
        at = draw.randrange(len(value))
        return [*value[:at], *([value[at]] * draw.choice((0, 2, 500))), *value[at + 1 :]]
    if isinstance(value, str):
        changed = text_changed(value, draw)[:_LONG]
        return changed.decode("utf-8", "surrogateescape")
    if isinstance(value, int | float):
        return draw.choice((-value, value + 1, value * 1e30, value / 3, str(value)))
    return {draw.choice(WORDS)[:400]: value}


def _raw(text: str) -> str:
    return f"\x01{text}\x01"


def _places(data: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    found = [path]
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in list(pairs)[:60]:
        if len(path) < 12:
            found += _places(item, (*path, key))
    return found


def _get(data: object, path: tuple[object, ...]) -> object:
    for key in path:
        data = data[key]  # type: ignore[index]
    return data


def _at(data: object, path: tuple[object, ...], change: Callable[[object], object]) -> object:
    """A copy of `data` with the value at `path` changed."""
    if not path:
        return change(data)
    if isinstance(data, dict):
        return {key: _at(item, path[1:], change) if key == path[0] else item for key, item in data.items()}
    assert isinstance(data, list)
    return [_at(item, path[1:], change) if at == path[0] else item for at, item in enumerate(data)]


def file_changed(file: Path, change: Bytes, draw: Random) -> None:
    """Change the content of a regular file; what has become something else stays."""
    if file.is_file() and not file.is_symlink() and file.stat().st_size < 1 << 20:
        file.write_bytes(change(file.read_bytes(), draw))


def file_replaced(file: Path, outside: Path, draw: Random) -> None:
    """Put something else in place of a file or folder: nothing, a FIFO, a device, a link, a folder, a huge file."""
    if os.path.lexists(file):
        file.rename(file.with_name(f".was-{draw.randrange(1 << 40)}-{file.name[:100]}"))
    kind = draw.choice(("none", "empty", "fifo", "socket", "folder", "self", "device", "canary", "dangling", "sparse"))
    if kind == "empty":
        file.touch()
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "socket":
        _make_socket(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "sparse":
        with file.open("wb") as opened:
            opened.truncate(SPARSE_BYTES)
    elif kind != "none":
        dangling = outside / "not" / "there"
        target = {"self": file.name, "canary": str(outside / "canary.txt"), "dangling": str(dangling)}
        file.symlink_to(target.get(kind) or draw.choice(("/dev/zero", "/dev/tty", "/dev/full", "/proc/self/maps")))


def _make_socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, suppress(OSError):  # a path of more than 100 characters
        made.bind(str(file))
