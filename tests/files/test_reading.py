"""Files that somebody else made are read with limits; what is no file is never waited for."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from modules.files import (
    FileFault,
    decode_json,
    is_plain_name,
    printable,
    read_bytes,
    read_header,
    read_json,
    read_lines,
    read_tail,
    read_text,
)


def test_what_is_no_regular_file_is_named_and_never_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)  # the path of a socket is short
        server.bind("socket")
        for name, kind in (("pipe", "a named pipe"), ("device", "a device"), (".", "a folder"), ("socket", "a socket")):
            with pytest.raises(FileFault, match=f"is {kind}, not a file"):
                read_bytes(tmp_path / name)
    with pytest.raises(OSError, match="symbolic links"):
        read_text(tmp_path / "loop")
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "nothing")
    with pytest.raises(FileFault, match="no valid name"):
        read_text(tmp_path / "nul\0l")


def test_the_end_of_a_file_and_of_none(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one two")
    assert [read_tail(tmp_path / "log", limit) for limit in (3, 7, 100)] == [b"two", b"one two", b"one two"]
    os.mkfifo(tmp_path / "pipe")
    assert [read_tail(tmp_path / name, 3) for name in ("pipe", "nothing")] == [b"", b""]


def test_size_encoding_and_lines(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"\xef\xbb\xbfcaf\xc3\xa9")
    assert read_text(file) == "café"
    if sys.platform == "linux":
        assert read_text("/proc/self/status").startswith("Name:")  # its size is 0, and it has no end to go to
    with pytest.raises(FileFault, match="larger than 7 bytes"):
        read_text(file, 7)
    file.write_bytes(b"a\xff")
    with pytest.raises(FileFault, match=r"not UTF-8 text \(byte 1\)"):
        read_text(file)
    file.write_bytes(b"one\ntwo\nthr")
    assert list(read_lines(file)) == [b"one", b"two"]
    assert list(read_lines(file, start=4)) == [b"two"]
    file.write_bytes(b"1\n" + b"x" * 50)
    with pytest.raises(FileFault, match="line of more than 20 bytes"):
        list(read_lines(file, line_limit=20))
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)  # takes no space, and would not fit into memory
    with pytest.raises(FileFault, match="larger than 8 MiB"):
        read_bytes(tmp_path / "sparse")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "is not JSON (line 1: expecting"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 70 + "]" * 70, "nested too deeply"),
        ('{"a": 1e999}', "a number that is too large (1e999)"),
        ("Infinity", "the number Infinity"),
        ("[NaN]", "the number NaN"),
        ("9" * 5000, "too many digits"),
        (b"\xff\xfe\xff", "not"),
    ],
)
def test_json_of_others(text: str | bytes, fault: str) -> None:
    with pytest.raises(FileFault) as found:
        decode_json(text)
    assert fault in str(found.value)


def test_json(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": [1, 2.5, null, true, "b"], "c": {}}')
    assert read_json(tmp_path / "x.json") == {"a": [1, 2.5, None, True, "b"], "c": {}}
    assert decode_json("[" * 60 + "]" * 60)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", "C:x", "a\nb", ".hidden", "a b", 3, None]
)
def test_names_that_could_leave_a_folder(name: object) -> None:
    assert not is_plain_name(name)
    assert is_plain_name("step-000100.safetensors")


@given(st.text())
def test_nothing_printable_controls_a_terminal(text: str) -> None:
    shown = printable(text)

    assert not set(shown) & set(map(chr, [*range(32), *range(127, 160), 0x2028, 0x2029, 0x202E, 0x200B, 0xFEFF]))
    shown.encode()


def test_escape_codes_are_shown() -> None:
    assert printable("\x1b[2Jcat\r\n") == "\\x1b[2Jcat\\r\\n"
    assert printable("a\n\tb\x07", lines=True) == "a\n\tb\\x07"
    assert printable("x" * 50, 10) == "x" * 9 + "…"
    assert printable("\u202egnp.exe \ud800 café 猫") == "\\u202egnp.exe \\ud800 café 猫"


HEADERS: Final[dict[str, Callable[[Any], object]]] = {
    "whole": lambda header: None,
    "no tensor": lambda header: header.pop("b"),
    "unknown format": lambda header: header["a"].update(dtype="F128"),
    "another size": lambda header: header["a"].update(shape=[7]),
    "negative": lambda header: header["a"].update(shape=[-2, -3]),
    "fraction": lambda header: header["a"].update(shape=[2.0, 3]),
    "one offset": lambda header: header["a"].update(data_offsets=[0]),
    "gap": lambda header: header["b"].update(data_offsets=[13, 15]),
    "overlap": lambda header: header["b"].update(data_offsets=[11, 13]),
    "number beside": lambda header: header["__metadata__"].update(x=1),
    "nothing beside": lambda header: header.pop("__metadata__"),
    "null beside": lambda header: header.update(__metadata__=None),
    "more of a tensor": lambda header: header["a"].update(more=1),
    "less of a tensor": lambda header: header["a"].pop("dtype"),
    "empty tensor": lambda header: header.update(c={"dtype": "F4", "shape": [0, 9], "data_offsets": [14, 14]}),
    "long side": lambda header: header.update(c={"dtype": "F4", "shape": [0, 10**4000], "data_offsets": [14, 14]}),
    "half a character": lambda header: header["__metadata__"].update(x="\ud800"),
}


@pytest.mark.parametrize("change", HEADERS)
def test_headers_are_refused_where_the_library_refuses_them(change: str, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(2, 3, dtype=torch.half), "b": torch.zeros(2, dtype=torch.bool)}, file, {"x": "y"})
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    HEADERS[change](header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    try:
        opened = safe_open(file, "pt")
    except SafetensorError:
        with pytest.raises(FileFault, match="is damaged or truncated"):
            read_header(file)
        return
    found = read_header(file)
    assert found.metadata == (opened.metadata() or {})
    assert {name: (entry.dtype, entry.shape) for name, entry in found.tensors.items()} == {
        name: (opened.get_slice(name).get_dtype(), opened.get_slice(name).get_shape())
        for name in opened.keys()  # noqa: SIM118 - not a dict
    }


def test_shapes_of_which_no_model_has_so_many_sides(tmp_path: Path) -> None:
    """The library takes them, but to multiply a million numbers takes minutes."""
    file = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(2)}, file)
    data = file.read_bytes()
    text = data[8:-8].replace(b"[2]", b"[2" + b",1" * 1024 + b"]")
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[-8:])
    with pytest.raises(FileFault, match="is damaged or truncated"):
        read_header(file)


def test_every_cut_and_change_of_a_safetensors_file_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(2)}, file)
    data = file.read_bytes()
    assert read_header(file).tensors["a"].shape == [2]
    file.write_bytes(data.replace(b'"a"', b'"b"'))
    assert list(read_header(file).tensors) == ["b"]
    for end in range(len(data) + 2):
        file.write_bytes((data + b"z")[:end])
        if end != len(data):
            with pytest.raises(FileFault, match="is damaged or truncated"):
                read_header(file)
