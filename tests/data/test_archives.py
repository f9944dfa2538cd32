"""CIFAR archives as users download them, in all four versions, and files that pretend to be one."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.config import Concept, DataError
from modules.data.archives.cifar import is_archive, unpack, unpacked_concept
from modules.data.archives.numpy_pickle import read_pickled_data
from modules.files import FileFault
from tests.data.cifar_archives import NAMES, binary_files, labels, pack, pixels, python_2_pickle, python_files


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
