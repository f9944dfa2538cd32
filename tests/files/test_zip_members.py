"""Files in zip archives, opened by a path like any other, and archives that are damaged or made to do harm."""

from __future__ import annotations

import io
import os
import random
import stat
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.files import FileFault, check_changeable, file_size, open_regular, read_bytes
from modules.files import shards as shards_module
from modules.files.shards import shard_table
from tests.data.shards import zip_of
from tests.hosts import ROOT

RANDOM = random.Random(1).randbytes(9999)
FILES = {"b/2.txt": b"two", "1.txt": b"one" * 500_000, "1.jpg": b"", "ü" * 120 + ".png": RANDOM}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user_cache"))
    monkeypatch.setattr(shards_module, "_tables", {})


def shard(folder: Path, data: bytes, name: str = "a.zip") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


class Unseekable(io.RawIOBase):
    """A pipe, into which zip archives are written with sizes behind the data."""

    def __init__(self) -> None:
        self.written = io.BytesIO()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        return self.written.write(data)


def zip_64() -> bytes:
    """With the sizes and places of zip64, which are for archives above 4 GiB; written into a pipe."""
    pipe = Unseekable()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in FILES.items():
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(data)
    data = pipe.written.getvalue()
    at = data.rindex(b"PK\5\6")
    *_, count, length, offset, _ = struct.unpack("<4s4H2IH", data[at:])
    record = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, offset)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return data[:at] + record + struct.pack("<4sIQI", b"PK\6\7", 0, at, 1) + end


@pytest.mark.parametrize(
    "make", [lambda: zip_of(FILES), lambda: zip_of(FILES, zipfile.ZIP_STORED), zip_64], ids=["deflated", "stored", "64"]
)
def test_a_file_in_a_zip_is_read_by_its_path(tmp_path: Path, make: Callable[[], bytes]) -> None:
    path = shard(tmp_path, make())
    for name, data in FILES.items():
        assert read_bytes(path / name) == data
        assert file_size(path / name) == len(data)
    with open_regular(path / "1.txt") as file:
        assert (file.seek(-2, os.SEEK_END), file.read(9), file.seek(1), file.read(3)) == (1_499_998, b"ne", 1, b"neo")
    assert sorted(shard_table(str(path))) == sorted(name.encode() for name in FILES)
    assert shard_table(str(path)).faults == []
    with pytest.raises(FileNotFoundError):
        read_bytes(path / "3.txt")
    with pytest.raises(OSError, match=r"is in a\.zip, and archives"):
        check_changeable(path / "1.txt")


def test_names_in_other_encodings(tmp_path: Path) -> None:
    data = zip_of({"ae.txt": b"old", "uu.txt": b"utf-8"}).replace(b"ae.txt", b"\x84e.txt")
    path = shard(tmp_path, data.replace(b"uu.txt", "ü.txt".encode()))
    assert read_bytes(path / "äe.txt") == b"old"
    assert read_bytes(path / "ü.txt") == b"utf-8"


def one(name: str = "x", data: bytes = b"x" * 100, mode: int = stat.S_IFREG | 0o644, flags: int = 0) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("good.txt", b"good")
        info = zipfile.ZipInfo(name)
        info.external_attr, info.create_system, info.compress_type = mode << 16, 3, zipfile.ZIP_DEFLATED
        archive.writestr(info, data)
    found = bytearray(packed.getvalue())
    entry = found.rindex(b"PK\1\2")
    found[entry + 8] |= flags
    return bytes(found)


def numbers(data: bytes, at: int, layout: str, *values: int) -> bytes:
    """With other numbers in the last entry of the list."""
    found = bytearray(data)
    struct.pack_into(layout, found, found.rindex(b"PK\1\2") + at, *values)
    return bytes(found)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (one("../x"), "leads out"),
        (one("/etc/x"), "leads out"),
        (one("a/../../x"), "leads out"),
        (one("..\\x"), "leads out"),
        (one("C:/x"), "a colon in its name"),
        (one("a\\x"), "a backslash in its name"),
        (one(mode=stat.S_IFLNK | 0o777), "not followed"),
        (one(mode=stat.S_IFCHR | 0o777), "not followed"),
        (one(flags=1), "is encrypted"),
        (numbers(one(), 10, "<H", 14), "compressed with LZMA"),
        (numbers(one(), 10, "<H", 77), "method 77"),
        (numbers(one(), 24, "<I", 1 << 30), "the most is 512"),
        (numbers(one(), 20, "<I", 1 << 30), "cut off"),
        (numbers(one(), 42, "<I", 1 << 30), "cut off"),
        (numbers(one(), 0, "<I", 0), "what comes after good.txt in its list is not read"),
        (numbers(one(), 28, "<H", 0xFFFF), "what comes after good.txt in its list is not read"),
    ],
)
def test_what_cannot_be_used_is_named_and_the_rest_is_read(tmp_path: Path, data: bytes, reason: str) -> None:
    table = shard_table(str(path := shard(tmp_path, data)))
    assert list(table) == [b"good.txt"]
    assert reason in table.faults[0][1]
    assert read_bytes(path / "good.txt") == b"good"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no zip archive"),
        (b"PK\3\4" + b"x" * 5000, "no zip archive, or cut off"),
        (one()[:-40], "cut off"),
        (b"#!/bin/sh\n" + one(), "unpacks itself"),
        (numbers(one(), 42, "<I", 0), "good.txt and x lie in the same place"),
        (one()[:-18] + b"\1\0" + one()[-16:], "several parts"),
    ],
)
def test_an_archive_that_is_none_or_does_harm_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(FileFault, match=reason):
        shard_table(str(shard(tmp_path, data)))


def test_damaged_content_is_a_fault_of_the_file(tmp_path: Path) -> None:
    data = zip_of({"x": b"".join(b"%d " % number for number in range(2000))})
    size = struct.unpack_from("<I", data, data.rindex(b"PK\1\2") + 24)[0]
    damages = [
        (numbers(data, 16, "<I", 1), "checksum"),
        (numbers(data, 24, "<I", size - 1), "another size"),
        (numbers(data, 24, "<I", size + 1), "another size"),
        (numbers(data, 20, "<I", 300), "another size"),
        (data[:31] + b"\xff" * 300 + data[331:], "inflated"),
        (data.replace(b"PK\3\4", b"PK\3\5"), "something else"),
    ]
    for number, (damaged, reason) in enumerate(damages):
        path = shard(tmp_path, damaged, f"{number}.zip")
        assert list(shard_table(str(path))) == [b"x"]
        with pytest.raises(FileFault, match=reason):
            read_bytes(path / "x")


def test_a_stored_file_is_checked_where_it_is_read_whole(tmp_path: Path) -> None:
    path = shard(tmp_path, zip_of({"x": RANDOM}, zipfile.ZIP_STORED).replace(RANDOM, RANDOM[:-1] + b"?"))
    with pytest.raises(FileFault, match="checksum"):
        read_bytes(path / "x")


@pytest.mark.parametrize("check", ["large", "bomb"])
def test_a_deflated_file_is_inflated_no_further_than_it_is_read(tmp_path: Path, check: str) -> None:
    """In a process of its own: tracemalloc counts what all threads of a process do."""
    code = f"from tests.files.test_zip_members import {check}; {check}({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr


def large(folder: str) -> None:
    """Read little of a file of 60 MiB, then whole."""
    data = RANDOM + bytes(60 << 20) + RANDOM
    path = shard(Path(folder), zip_of({"x": data}))
    shard_table(str(path))
    tracemalloc.start()
    with open_regular(path / "x") as file:
        assert file.read(9000) == RANDOM[:9000]
        file.seek(-9999, os.SEEK_END)
        assert file.read() == RANDOM
        file.seek(5)
        assert file.read(9) == RANDOM[5:14]
    with pytest.raises(FileFault, match="larger than 8 MiB"):
        read_bytes(path / "x")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert read_bytes(path / "x", 1 << 30) == data


def bomb(folder: str) -> None:
    """Read a file of 64 MiB of which its archive says that it has 1,000 bytes."""
    path = shard(Path(folder), numbers(zip_of({"x": bytes(64 << 20)}), 24, "<I", 1000))
    tracemalloc.start()
    with pytest.raises(FileFault, match="another size"):
        read_bytes(path / "x")
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
