"""CIFAR archives as users download them, in all four versions, and files that pretend to be one."""

from __future__ import annotations

import gzip
import os
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modules.config import Concept, DataError
from modules.data.archives.cifar import is_archive, unpack, unpacked_concept
from modules.data.archives.numpy_pickle import read_pickled_data
from modules.data.archives.tar_reader import extract
from modules.files import FileFault
from tests.data.cifar_archives import (
    NAMES,
    binary_files,
    labels,
    pack,
    pixels,
    python_2_pickle,
    python_files,
    tar_header,
)


def test_archives_that_are_read_in_place_are_not_taken_for_one(tmp_path: Path) -> None:
    for name, is_cifar in (("cats.tar", False), ("cats.zip", False), ("cifar-10-python.tar", True)):
        (tmp_path / name).touch()
        assert is_archive(tmp_path / name) is is_cifar


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("files", [python_files, binary_files])
@pytest.mark.parametrize("wide", [False, True])
def test_every_version_gives_the_same_class_folders(tmp_path: Path, files: object, wide: bool, packed: bool) -> None:
    made: dict[str, bytes] = files(wide)  # type: ignore[operator]
    source = tmp_path / ("cifar.tar.gz" if packed else "cifar")
    if packed:
        pack(source, made)
    else:
        source.mkdir()
        for name, data in made.items():
            (source / name).write_bytes(data)
    assert is_archive(source)
    unpack(source, tmp_path / "cache")
    train, test = (
        Path(unpacked_concept(Concept(path=str(source), kind=kind), tmp_path / "cache").path)
        for kind in ("train", "validation")
    )
    for folder, count in ((train, 15), (test, 2)):
        found = sorted(folder.rglob("*.png"), key=lambda file: file.name)
        assert len(found) == count
        assert {file.parent.name.replace("_", " ") for file in found} <= set(NAMES)
    expected = labels(2), pixels(2, 9)
    for label, row, file in zip(*expected, sorted(test.rglob("*.png"), key=lambda file: file.name), strict=True):
        assert file.parent.name.replace("_", " ") == NAMES[label]
        with Image.open(file) as image:
            assert np.array_equal(np.asarray(image).transpose(2, 0, 1).reshape(-1), row)


def test_an_archive_is_unpacked_once(tmp_path: Path) -> None:
    source = pack(tmp_path / "cifar-10-python.tar.gz", python_files())
    unpack(source, tmp_path / "cache")
    (folder,) = (tmp_path / "cache").iterdir()
    stamp = folder.stat().st_mtime_ns
    unpack(source, tmp_path / "cache")
    assert [folder] == list((tmp_path / "cache").iterdir())
    assert folder.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pickles_of_python_3_are_read_as_well(protocol: int) -> None:
    data: dict[object, Any] = {
        "data": pixels(2, 0),
        "labels": [1, 300],
        b"names": ["x", b"y", None, True],
        "empty": [[], {}, ()],
    }
    found = read_pickled_data(pickle.dumps(data, protocol))
    assert isinstance(found, dict)
    assert np.array_equal(found.pop("data"), data.pop("data"))
    assert found == data


class Marker:
    """Its pickle creates a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.file),)


def test_a_malicious_pickle_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    harmful = pickle.dumps({"data": Marker(marker), "labels": [0]}, 2)
    pickle.loads(harmful)
    assert marker.exists(), "the pickle does what it should not"
    marker.rmdir()
    with pytest.raises(FileFault, match=r"would run '(posix|nt)\.mkdir'"):
        read_pickled_data(harmful)
    source = pack(tmp_path / "cifar-10-python.tar.gz", {**python_files(), "data_batch_3": harmful})
    with pytest.raises(DataError, match=r"would run.*mkdir"):
        unpack(source, tmp_path / "cache")
    assert not marker.exists()
    assert not any((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"\x80\x02}(",
        b"\x80\x02cbuiltins\neval\n.",
        b"\x80\x02cnumpy\nndarray\nK\x01\x85R.",
        b"\x80\x02i__builtin__\neval\n.",
        b"\x80\x02cnumpy\ndtype\nU\x01O\x85R(K\x01tb.",
        b"\x80\x02e.",
        b"\x80\x02h\x05.",
        python_2_pickle({"data": pixels(1, 0)})[:-2000] + b".",
    ],
)
def test_other_pickles_are_faults(data: bytes) -> None:
    with pytest.raises(FileFault, match="pickle"):
        read_pickled_data(data)


def shared(kind: type[list[object]] | type[tuple[object, ...]]) -> object:
    """A value that stands for 2^60 ones."""
    value: object = "x"
    for _ in range(60):
        value = kind((value, value))
    return value


_GET_AGAIN = b"\x80\x02X\x40\x42\x0f\x00" + b"a" * 1_000_000 + b"q\x00c_codecs\nencode\nq\x01"


@pytest.mark.parametrize(
    ("data", "part"),
    [
        pytest.param(b"\x80\x02}" + pickle.dumps(shared(tuple), 2)[2:-1] + b"K\x01s.", "twice", id="hash"),
        pytest.param(pickle.dumps({"label_names": shared(list)}, 2), "twice", id="text"),
        pytest.param(b"\x80\x02" + b"K\x01" * 300_000 + b"(t0" * 200_000 + b"N.", "", id="marks"),
        pytest.param(b"\x80\x02" + b"(" * 5000 + b"N.", "nested too deeply", id="open marks"),
        pytest.param(b"\x80\x04" + b"]" * 5000 + b"a" * 4999 + b"\x8c\x01x\x93.", "damaged", id="deep name"),
        pytest.param(b"\x80\x02}K\x01K\x01s.", "keys that are not short", id="number as key"),
        pytest.param(b"\x80\x02Kxp" + b"9" * 40 + b"\n.", "damaged", id="place"),
        pytest.param(
            _GET_AGAIN + b"h\x01h\x00X\x06\x00\x00\x00latin1\x86R" * 3000 + b".", "stands for more", id="encode"
        ),
    ],
)
def test_a_pickle_takes_time_and_memory_of_its_own_size(data: bytes, part: str) -> None:
    """The first ones took for ever; the last one made 3 GB of 1 MB."""
    if part:
        with pytest.raises(FileFault, match=part):
            read_pickled_data(data)
    else:
        assert read_pickled_data(data) is None


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"\x80\x02}U\x0blabel_names" + b"]" * 5000 + b"a" * 4999 + b"s.", "not texts"),
        (pickle.dumps({"label_names": ["x" * 101]}, 2), "not texts of up to 100"),
        (pickle.dumps({"label_names": [str(n) for n in range(1001)]}, 2), "more than 1000"),
        (bytes(2 << 20), "'batches.meta', which is larger than 1 MiB"),
    ],
)
def test_hostile_class_names_are_one_sentence(tmp_path: Path, data: bytes, part: str) -> None:
    with pytest.raises(DataError, match=part):
        unpack(pack(tmp_path / "c.tar.gz", {**python_files(), "batches.meta": data}), tmp_path / "cache")
    assert not any((tmp_path / "cache").iterdir())


def test_a_gzip_file_has_few_members(tmp_path: Path) -> None:
    """Two million that hold nothing kept Python's gzip module busy for 11 s."""
    packed = pack(tmp_path / "c.tar.gz", python_files()).read_bytes()
    whole, nothing = gzip.decompress(packed), gzip.compress(b"")
    parts = gzip.compress(whole[:1000]), gzip.compress(whole[1000:])
    for name, data in (("a", parts[0] + nothing * 900 + parts[1]), ("b", packed + bytes(1000))):
        (tmp_path / name).write_bytes(data)
        extract(tmp_path / name, frozenset(["data_batch_1"]), tmp_path)
        assert (tmp_path / "data_batch_1").read_bytes() == python_files()["data_batch_1"]
    (tmp_path / "c").write_bytes(parts[0] + nothing * 1000 + parts[1])
    with pytest.raises(FileFault, match="is made of more than 1000 gzip files"):
        extract(tmp_path / "c", frozenset(["data_batch_1"]), tmp_path)


@pytest.mark.parametrize(
    ("archive", "part"),
    [
        (tar_header("a", 0) * 2 + tar_header("c", -1024) + bytes(1024), "negative"),
        (tar_header("././@LongLink", 10**13, b"L") + bytes(512), "has a header of 10000000000000 bytes"),
        (tar_header("x", 10**13, b"x") + bytes(512), "has a header of 10000000000000 bytes"),
        (tar_header("data_batch_1", 1 << 40), "has a file of 1048576 MiB"),
        (tar_header("data_batch_1", 100) + bytes(100), "ends too early"),
        (tar_header("data_batch_1", 100)[:-1], "ends too early"),
        (tar_header("data_batch_1", 0)[1:] + b"x", "checksum"),
        (tar_header("a", 0, b"S"), "with holes"),
        (tar_header("a", 0) * 10_001, "more than 10000 files"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_hostile_headers_of_an_archive_are_one_sentence(
    tmp_path: Path, archive: bytes, part: str, packed: bool
) -> None:
    """tarfile read the first one for ever and allocated what the next ones say."""
    source = tmp_path / "c.tar.gz"
    source.write_bytes(gzip.compress(archive) if packed else archive)
    with pytest.raises(DataError, match=part):
        unpack(source, tmp_path / "cache")
    assert not any((tmp_path / "cache").iterdir())


def test_an_archive_is_unpacked_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.data.archives.tar_reader.MAX_BYTES", 1 << 20)
    source = tmp_path / "c.tar.gz"
    for archive in (tar_header("a", 1 << 20) + bytes(1 << 20), bytes(2 << 20)):  # a file, and what follows the end
        source.write_bytes(gzip.compress(archive))
        with pytest.raises(DataError, match="holds more than 1 MiB"):
            unpack(source, tmp_path / "cache")


@pytest.mark.parametrize("at", [200, -6])
def test_a_damaged_download_is_found(tmp_path: Path, at: int) -> None:
    source = pack(tmp_path / "c.tar.gz", binary_files())
    data = bytearray(source.read_bytes())
    data[at] ^= 0x5A
    source.write_bytes(data)
    with pytest.raises(DataError, match="is damaged"):
        unpack(source, tmp_path / "cache")


@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("folder", ["cifar", "a" * 60 + "/" + "b" * 60, "c" * 97])
def test_every_layout_of_tar_is_read(tmp_path: Path, layout: int, folder: str) -> None:
    source = pack(tmp_path / "c.tar", binary_files(), layout, folder)
    unpack(source, tmp_path / "cache")
    assert len(list((tmp_path / "cache").rglob("*.png"))) == 17


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"data_batch_4.bin": None}, "is none of"),
        ({"test_batch.bin": bytes(3000)}, "not a multiple of 3073"),
        ({"test_batch.bin": b"\x09" + bytes(3072)}, "labels that are not from 0 to 2"),
        ({"batches.meta.txt": b"\xff\xfe"}, "class names"),
        ({"batches.meta.txt": b"../x\n../x\n"}, "not different"),
    ],
)
def test_damaged_archives_are_one_sentence(tmp_path: Path, changed: Mapping[str, bytes | None], part: str) -> None:
    files = {name: data for name, data in {**binary_files(), **changed}.items() if data is not None}
    with pytest.raises(DataError, match=part):
        unpack(pack(tmp_path / "cifar-10-binary.tar.gz", files), tmp_path / "cache")


def test_class_names_stay_in_the_folder(tmp_path: Path) -> None:
    files = {**binary_files(), "batches.meta.txt": b"../../a\n/etc\n.hidden\n"}
    unpack(pack(tmp_path / "c.tar.gz", files), tmp_path / "cache")
    assert {path.name for path in tmp_path.iterdir()} == {"c.tar.gz", "cache"}
    (folder,) = (tmp_path / "cache").iterdir()
    assert sorted(each.name for each in (folder / "train").iterdir()) == ["______a", "_etc", "_hidden"]


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"not an archive")
    with pytest.raises(DataError, match="is damaged"):
        unpack(tmp_path / "x.tar.gz", tmp_path / "cache")
    assert not is_archive(tmp_path)
