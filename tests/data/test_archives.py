"""CIFAR archives as users download them, in all four versions, and files that pretend to be one."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from modules.config import Concept, DataError
from modules.data.archives.cifar import is_archive, unpack, unpacked_concept
from modules.data.archives.numpy_pickle import read_pickled_data
from modules.files import FileFault

NAMES = ["airplane", "beaver tail", "cat"]
Table = NDArray[np.uint8]


def pixels(count: int, seed: int) -> Table:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def labels(count: int, first: int = 0) -> list[int]:
    return [(number + first) % len(NAMES) for number in range(count)]


def python_2_pickle(value: object) -> bytes:
    """As cPickle of Python 2 wrote the real archives: protocol 2, byte strings, numpy's arrays by three calls."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: object) -> bytes:
    if isinstance(value, np.ndarray):
        raw, shape = value.tobytes(), b"".join(map(_opcodes, value.shape))
        dtype = (
            b"cnumpy\ndtype\n"
            + _opcodes("u1")
            + b"K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        )
        made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        return made + b"(K\x01(" + shape + b"t" + dtype + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    if isinstance(value, str):
        return b"U" + bytes([len(value)]) + value.encode("latin-1")
    if isinstance(value, int):
        return b"K" + bytes([value]) if value < 256 else b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    assert isinstance(value, dict)
    return b"}(" + b"".join(_opcodes(key) + _opcodes(each) for key, each in value.items()) + b"s"[:0] + b"u"


def cifar_10(count: int) -> dict[str, tuple[list[int], Table]]:
    batches = {f"data_batch_{n}": (labels(count, n), pixels(count, n)) for n in range(1, 6)}
    return {**batches, "test_batch": (labels(2), pixels(2, 9))}


def python_files(wide: bool = False) -> dict[str, bytes]:
    if wide:
        parts = {"train": (labels(15), pixels(15, 1)), "test": (labels(2), pixels(2, 9))}
        meta, key = {"fine_label_names": NAMES, "coarse_label_names": ["all"]}, "fine_labels"
    else:
        parts, meta, key = cifar_10(3), {"num_cases_per_batch": 3, "label_names": NAMES}, "labels"
    files = {
        name: python_2_pickle({"batch_label": name, key: own, "data": data, "filenames": ["a.png"] * len(own)})
        for name, (own, data) in parts.items()
    }
    return {**files, ("meta" if wide else "batches.meta"): python_2_pickle(meta), "readme.html": b"<html>"}


def binary_files(wide: bool = False) -> dict[str, bytes]:
    def records(own: Sequence[int], data: Table) -> bytes:
        prefix = b"\x07" if wide else b""  # the coarse label
        return b"".join(prefix + bytes([label]) + row.tobytes() for label, row in zip(own, data, strict=True))

    underlined = "\n".join(name.replace(" ", "_") for name in NAMES).encode() + b"\n\n"
    if wide:
        files = {"train.bin": records(labels(15), pixels(15, 1)), "test.bin": records(labels(2), pixels(2, 9))}
        return {**files, "fine_label_names.txt": underlined, "coarse_label_names.txt": b"all\n"}
    return {f"{name}.bin": records(*each) for name, each in cifar_10(3).items()} | {"batches.meta.txt": underlined}


def pack(path: Path, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"cifar-batches/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


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
        Path(unpacked_concept(Concept(path=str(source), kind=kind), tmp_path / "cache").path)  # type: ignore[arg-type]
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
    data = {"data": pixels(2, 0), "labels": [1, 300], b"names": ["x", b"y", None, True], "empty": [[], {}, ()]}
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
