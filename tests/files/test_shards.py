"""Files in tar archives and in tables, opened by a path like any other, and archives that somebody made to do harm."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from modules.files import (
    FileFault,
    check_changeable,
    file_size,
    file_stamp,
    lies_there,
    open_regular,
    read_bytes,
    table_shards,
)
from modules.files import shards as shards_module
from modules.files.addresses import VARIABLE, copy_of
from modules.files.shard_contents import MAX_MEMBER
from modules.files.shards import shard_table
from tests.data.cifar_archives import tar_header
from tests.data.shards import tar_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user_cache"))
    monkeypatch.setattr(shards_module, "_tables", {})
    return tmp_path / "user_cache" / "tandem" / "shards"


def shard(folder: Path, data: bytes, name: str = "a.tar") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


FILES = {"b/2.txt": b"two", "1.txt": b"one" * 500, "1.jpg": b"", "ü" * 120 + ".png": b"long"}


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_file_in_a_tar_is_read_by_its_path(tmp_path: Path, tar_format: int) -> None:
    files = dict(list(FILES.items())[: 3 if tar_format == tarfile.USTAR_FORMAT else 4])
    path = shard(tmp_path, tar_of(files, format=tar_format))
    for name, data in files.items():
        assert read_bytes(path / name) == data
        assert file_size(path / name) == len(data)
        assert file_stamp(path / name) == (len(data), path.stat().st_mtime_ns)
        assert lies_there(path / name)
        with pytest.raises(OSError, match=r"is in a\.tar, and archives"):
            check_changeable(path / name)
    with open_regular(path / "1.txt") as file:
        assert (file.seek(-2, os.SEEK_END), file.read(9), file.seek(1), file.read(3)) == (1498, b"ne", 1, b"neo")
    assert sorted(shard_table(str(path))) == sorted(name.encode() for name in files)
    with pytest.raises(FileNotFoundError):
        read_bytes(path / "3.txt")
    (tmp_path / "real.tar").mkdir()
    (tmp_path / "real.tar" / "x.txt").write_bytes(b"a folder may be called so")
    assert read_bytes(tmp_path / "real.tar" / "x.txt").startswith(b"a folder")
    check_changeable(tmp_path / "real.tar" / "x.txt")


def test_copies_of_addresses_are_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    check_changeable(tmp_path / "mine" / "photos" / "a.txt")
    copied = Path(copy_of("s3://bucket/cats"))
    check_changeable(copied.parent / "list")
    for name in ("a.txt", "b/a.txt"):
        with pytest.raises(OSError, match="copy of an address"):
            check_changeable(copied / name)


def test_the_list_of_a_shard_is_kept_and_made_anew_if_the_shard_changes(tmp_path: Path, cache: Path) -> None:
    path = shard(tmp_path, tar_of(FILES))
    assert read_bytes(path / "b/2.txt") == b"two"
    (stored,) = cache.iterdir()
    before = stored.stat().st_mtime_ns
    shards_module._tables.clear()
    assert read_bytes(path / "b/2.txt") == b"two"
    assert stored.stat().st_mtime_ns == before
    path.write_bytes(tar_of({"b/2.txt": b"three"}))
    os.utime(path, ns=(1, 1))
    assert read_bytes(path / "b/2.txt") == b"three"
    with pytest.raises(FileNotFoundError):
        read_bytes(path / "1.txt")
    data = stored.read_bytes()
    torn = [data[:-lost] + rest for lost in (3, 23) for rest in (b"", bytes(lost))]  # names alone, and numbers
    for damage in (b"", data[:8], data[:40], b"x" * 5000, *torn):
        stored.write_bytes(damage)
        shards_module._tables.clear()
        assert read_bytes(path / "b/2.txt") == b"three"


_FORKS = """
import os
from modules.files import shards, table_shards
locks = [shards._lock, table_shards._lock]
for lock in locks:
    lock.acquire()  # as a thread that reads beside
if not (child := os.fork()):
    os._exit(sum(not each._lock.acquire(blocking=False) for each in (shards, table_shards)))
assert os.waitpid(child, 0)[1] == 0
assert [shards._lock, table_shards._lock] == locks
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_process_does_not_wait_for_threads_it_does_not_have() -> None:
    subprocess.run([sys.executable, "-c", _FORKS], check=True)


def test_of_equal_names_the_last_counts(tmp_path: Path) -> None:
    one, two = (tar_of({"a.txt": text, "./b.txt": b"b"})[: 4 * 512] for text in (b"one", b"two"))
    path = shard(tmp_path, one + two + bytes(1024))
    assert read_bytes(path / "a.txt") == b"two"
    assert read_bytes(path / "b.txt") == b"b"
    assert shard_table(str(path)).faults == [("", "2 of its files have the name of a later one, which counts")]


GOOD = tar_of({"good.txt": b"good"})[:1024]


def header(name: str, size: int, kind: bytes = b"0") -> bytes:
    return tar_header(name, size, kind)


def pax(**records: str) -> bytes:
    text = b""
    for key, value in records.items():
        line = f" {key.replace('__', '.')}={value}\n"
        text += f"{len(line) + 2}{line}".encode()
    return header("pax", len(text), b"x") + text.ljust(512, b"\0")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header("../../etc/passwd", 0), "leads out"),
        (header("/etc/passwd", 0), "leads out"),
        (header("a/../../b", 0), "leads out"),
        (header("C:\\b", 0), "a backslash in its name"),
        (header("link", 0, b"2"), "not followed"),
        (header("hard", 0, b"1"), "not followed"),
        (header("device", 0, b"3"), "not followed"),
        (header("pipe", 0, b"6"), "not followed"),
        (pax(path="../x") + header("x", 0), "leads out"),
        (pax(GNU__sparse__major="1") + header("x", 512) + bytes(512), "holes"),
        (header("x", 1000) + b"half", "cut off"),
        (header("x", MAX_MEMBER + 1), "the most is"),
        (pax(size=str(1 << 50)) + header("x", 3), "the most is"),
    ],
)
def test_what_cannot_be_used_is_named_and_the_rest_is_read(tmp_path: Path, data: bytes, reason: str) -> None:
    table = shard_table(str(path := shard(tmp_path, GOOD + data + bytes(1024) * (len(data) % 512 == 0))))
    assert list(table) == [b"good.txt"]
    assert reason in table.faults[0][1]
    assert read_bytes(path / "good.txt") == b"good"
    for name in ("../../etc/passwd", "..", "", "."):
        with pytest.raises(OSError, match=r"."):
            read_bytes(f"{path}/{name}")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"x" * 512, "digits"),
        (header("x", -512), "negative"),
        (header("x", 512, b"S"), "holes"),
        (header("long", 1 << 40, b"L"), "header of"),
        (header("long", 600, b"L") + b"x", "cut off in a header"),
        (header("x", 0)[:100], "cut off in a header"),
    ],
)
def test_what_comes_after_a_damaged_header_is_not_read(tmp_path: Path, data: bytes, reason: str) -> None:
    table = shard_table(str(shard(tmp_path, GOOD + data)))
    assert list(table) == [b"good.txt"]
    ((_, what),) = table.faults
    assert reason in what
    assert "what comes after good.txt is not read" in what
    with pytest.raises(FileFault, match=reason):
        shard_table(str(shard(tmp_path, data, "bad.tar")))


def images_table(pyarrow: Any, images: list[bytes | None]) -> Any:
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    rows = [None if data is None else {"bytes": data, "path": f"{number}.png"} for number, data in enumerate(images)]
    return pyarrow.table({"image": pyarrow.array(rows, kind), "text": [str(number) for number in range(len(rows))]})


IMAGES = [b"\xff\xd8\xff one", b"\x89PNG two", None, b"", b"RIFF" + b"x" * 3000]
NAMES = ["0000000.jpg", "0000001.png", "0000002.jpg", "0000003.jpg", "0000004.webp"]


@pytest.mark.parametrize("kind", ["stream.arrow", "file.arrow", "x.parquet", "small_groups.parquet", "binary.parquet"])
def test_images_in_tables(tmp_path: Path, kind: str) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import ipc, parquet

    table, path = images_table(pyarrow, IMAGES), tmp_path / kind
    if kind == "binary.parquet":
        table = pyarrow.table({"other": [1] * len(IMAGES), "jpg": pyarrow.array(IMAGES, pyarrow.large_binary())})
    if kind.endswith("parquet"):
        parquet.write_table(table, path, row_group_size=2 if kind.startswith("small") else None)
    else:
        writer = ipc.new_stream if kind.startswith("stream") else ipc.new_file
        with writer(str(path), table.schema) as opened:
            opened.write_table(table, max_chunksize=2)
    assert [name.decode() for name in shard_table(str(path))] == NAMES
    for name, data in [*zip(NAMES, IMAGES, strict=True)][::-1]:
        assert read_bytes(path / name) == (data or b"")
        assert file_size(path / name) == len(data or b"")


def test_tables_without_images_or_compressed_are_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import ipc, parquet

    parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(FileFault, match="no column with the bytes of images; it has text"):
        shard_table(str(tmp_path / "a.parquet"))
    table = images_table(pyarrow, [b"x" * 10_000])
    with ipc.new_stream(
        str(tmp_path / "a.arrow"), table.schema, options=ipc.IpcWriteOptions(compression="zstd")
    ) as out:
        out.write_table(table)
    with pytest.raises(FileFault, match="compressed"):
        shard_table(str(tmp_path / "a.arrow"))
    parquet.write_table(table.slice(0, 0), tmp_path / "empty.parquet")
    assert not len(shard_table(str(tmp_path / "empty.parquet")))
    (tmp_path / "b.arrow").write_bytes(b"nothing")
    with pytest.raises(FileFault, match="cannot be read as arrow"):
        shard_table(str(tmp_path / "b.arrow"))


def test_an_arrow_file_that_is_cut_off_has_the_rows_before(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import ipc

    table, path = images_table(pyarrow, [b"x" * 5000] * 4), tmp_path / "a.arrow"
    with ipc.new_stream(str(path), table.schema) as out:
        out.write_table(table, max_chunksize=2)
    path.write_bytes(path.read_bytes()[:-6000])
    table = shard_table(str(path))
    assert len(table) == 2
    assert "cut off after row 1" in table.faults[0][1]


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_text_that_a_table_repeats_counts_each_time(
    tmp_path: Path, kind: str, nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import ipc, parquet

    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 40, pyarrow.int32()), ["x" * 1000])
    if nested:
        texts = pyarrow.ListArray.from_arrays(pyarrow.array(range(41), pyarrow.int32()), texts)
    table, path = pyarrow.table({"text": texts, "label": range(40)}), tmp_path / f"a.{kind}"
    if kind == "parquet":
        text = pyarrow.list_(pyarrow.string()) if nested else pyarrow.string()
        parquet.write_table(table.cast(pyarrow.schema([("text", text), ("label", pyarrow.int64())])), path)
    else:
        with ipc.new_stream(str(path), table.schema) as out:
            out.write_table(table)

    def rows() -> list[dict[str, object]]:
        with path.open("rb") as file:
            return table_shards.table_rows(file, f".{kind}", {"text", "label"})

    long = "x" * 1000
    assert rows() == [{"text": [long] if nested else long, "label": row} for row in range(40)]
    with path.open("rb") as file:
        (batch,) = table_shards._text_batches(file, f".{kind}", {"text"})[1]
        assert batch.nbytes < 5000  # and so in memory once
    monkeypatch.setattr(table_shards, "_MAX_TEXTS", 20_000)
    with pytest.raises(FileFault, match="MiB of texts"):
        rows()
