"""CIFAR-10 and CIFAR-100 as their authors' page offers them: the binary and the Python version, packed or unpacked."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.config import Concept, ConfigError, DataError
from modules.data.archives.numpy_pickle import read_pickled_data
from modules.data.archives.tar_reader import MAX_FILE, extract
from modules.data.index.index import ProgressCallback, no_progress
from modules.files import FileFault, expand_home, read_bytes, remove_tree

SIDE = 32  # pixels
_PIXELS = 3 * SIDE**2
_MAX_NAMES_FILE = 1 << 20  # bytes
_MAX_CLASSES = 1000
_MAX_NAME = 100  # characters
_SUFFIXES = (".tar.gz", ".tgz")
_UNPACKED = re.compile(r"cifar.*\.tar")  # by gunzip; other archives are read in place
_TRAIN_10, _TEST_10 = [f"data_batch_{n}" for n in range(1, 6)], ["test_batch"]
_UNSAFE = re.compile(r"[^A-Za-z0-9 _-]")


@dataclass(frozen=True)
class Version:
    """One of the four ways in which the data sets are offered."""

    name: str
    names_file: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: str = "labels"  # key in the Python version
    names: str = "label_names"
    label_bytes: int = 0  # of each record in the binary version; the last one is the label

    @property
    def files(self) -> frozenset[str]:
        """The names of all files that are read."""
        return frozenset({self.names_file, *self.train, *self.test})


VERSIONS = (
    Version("CIFAR-10, Python version", "batches.meta", tuple(_TRAIN_10), tuple(_TEST_10)),
    Version(
        "CIFAR-10, binary version",
        "batches.meta.txt",
        tuple(f"{name}.bin" for name in _TRAIN_10),
        tuple(f"{name}.bin" for name in _TEST_10),
        label_bytes=1,
    ),
    Version("CIFAR-100, Python version", "meta", ("train",), ("test",), "fine_labels", "fine_label_names"),
    Version("CIFAR-100, binary version", "fine_label_names.txt", ("train.bin",), ("test.bin",), label_bytes=2),
)


def is_archive(path: str | Path) -> bool:
    """Whether `path` is an archive by its name, or a folder with the files of one; nothing is opened."""
    place = expand_home(path)
    name = place.name.lower()
    if name.endswith(_SUFFIXES) or _UNPACKED.fullmatch(name):
        return place.is_file()
    return any((place / version.names_file).is_file() and (place / version.test[0]).is_file() for version in VERSIONS)


def unpacked_concept(concept: Concept, cache_dir: Path) -> Concept:
    """The concept with the folder that `unpack` fills in place of its archive: test images for validation and test."""
    part = "train" if concept.kind == "train" else "test"
    source = "folder_name" if concept.caption_source == "auto" else concept.caption_source
    path = str(_target(expand_home(concept.path), cache_dir) / part)
    return concept.model_copy(update={"path": path, "caption_source": source})


def unpack(path: str | Path, cache_dir: Path, progress: ProgressCallback = no_progress) -> None:
    """Write the images as {train,test}/CLASS/NUMBER.png into a folder of `cache_dir`, unless they are there.

    Raises DataError if it is none of the four versions or damaged, ConfigError if it cannot be written.
    """
    source = expand_home(path)
    target = _target(source, cache_dir)
    if target.is_dir():
        return
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    extracted = target.with_name(f".{target.name}.{os.getpid()}.extracted")
    try:
        for folder in (unfinished, extracted):
            remove_tree(folder)
            folder.mkdir(parents=True)
        if not source.is_dir():
            extract(source, frozenset().union(*(version.files for version in VERSIONS)), extracted)
        _convert(source if source.is_dir() else extracted, unfinished, progress)
        unfinished.rename(target)
    except FileFault as fault:
        raise DataError(f"concepts: {str(path)!r} {fault}.", "Download the archive again.") from fault
    except OSError as error:
        raise ConfigError(
            f"concepts: {str(path)!r} cannot be unpacked into {str(target)!r} ({error.strerror or error}).",
            "Choose a writable cache_dir on a disk with free space.",
        ) from error
    finally:
        remove_tree(unfinished)
        remove_tree(extracted)


def _convert(source: Path, target: Path, progress: ProgressCallback) -> None:
    """Write the images of a folder with the files of one version; one of them is in memory at a time."""
    found = {file.name for file in source.iterdir()}
    version = next((each for each in VERSIONS if each.files <= found), None)
    if version is None:
        raise FileFault(f"is none of {'; '.join(each.name for each in VERSIONS)}, or it is not complete")
    classes = _class_names(version, _read(source / version.names_file, _MAX_NAMES_FILE))
    images = (
        (part, label, pixels)
        for part, names in (("train", version.train), ("test", version.test))
        for name in names
        for label, pixels in _images(version, _read(source / name, MAX_FILE), len(classes))
    )
    _write(target, images, classes, progress)


def _read(file: Path, limit: int) -> bytes:
    try:
        return read_bytes(file, limit)
    except FileFault as fault:
        raise FileFault(f"has the file {file.name!r}, which {fault}") from fault


def _target(source: Path, cache_dir: Path) -> Path:
    """Another one for another or a changed archive."""
    try:
        found = source.stat()
    except OSError as error:
        raise DataError(f"concepts: {str(source)!r} cannot be read ({error.strerror}).") from error
    name = f"{source.name}\0{found.st_size}\0{found.st_mtime_ns}"
    return cache_dir / f"cifar-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _class_names(version: Version, data: bytes) -> list[str]:
    if version.label_bytes:
        try:
            names: object = data.decode("ascii").split()
        except UnicodeDecodeError:
            raise FileFault(f"has class names in {version.names_file!r} that are not ASCII") from None
    else:
        names = _mapping(read_pickled_data(data)).get(version.names)
    if not isinstance(names, list) or not 0 < len(names) <= _MAX_CLASSES:
        raise FileFault(f"has no class names, or more than {_MAX_CLASSES}")
    if not all(isinstance(name, (str, bytes)) and len(name) <= _MAX_NAME for name in names):
        raise FileFault(f"has class names that are not texts of up to {_MAX_NAME} characters")
    texts = [_UNSAFE.sub("_", name.decode("latin-1") if isinstance(name, bytes) else name) for name in names]
    if len(set(texts)) < len(texts) or not all(texts):
        raise FileFault("has class names that are not different")
    return texts


def _images(version: Version, data: bytes, classes: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """(label, pixels uint8 [3072], red, green and blue one after the other) of each image in one file."""
    if version.label_bytes:
        record = version.label_bytes + _PIXELS
        if not data or len(data) % record:
            raise FileFault(f"has a file whose length, {len(data)} bytes, is not a multiple of {record}")
        table = np.frombuffer(data, np.uint8).reshape(-1, record)
        labels, pixels = table[:, version.label_bytes - 1].tolist(), table[:, version.label_bytes :]
    else:
        batch = _mapping(read_pickled_data(data))
        found, listed = batch.get("data"), batch.get(version.labels)
        if not isinstance(found, np.ndarray) or found.ndim != 2 or found.shape[1] != _PIXELS:
            raise FileFault("has a batch without images of 32 x 32 pixels")
        if not isinstance(listed, list) or len(listed) != len(found):
            raise FileFault("has a batch in which not each image has a label")
        pixels, labels = found, listed
    if not all(isinstance(label, int) and 0 <= label < classes for label in labels):
        raise FileFault(f"has labels that are not from 0 to {classes - 1}")
    yield from zip(labels, pixels, strict=True)


def _write(
    folder: Path,
    images: Iterator[tuple[str, int, NDArray[np.uint8]]],
    classes: list[str],
    progress: ProgressCallback,
) -> None:
    for part in ("train", "test"):
        for name in classes:
            (folder / part / name).mkdir(parents=True)
    for number, (part, label, pixels) in enumerate(images):
        image = Image.fromarray(np.ascontiguousarray(pixels.reshape(3, SIDE, SIDE).transpose(1, 2, 0)))
        image.save(folder / part / classes[label] / f"{number:05d}.png", compress_level=1)
        progress(number + 1, 60_000)


def _mapping(value: object) -> Mapping[str, object]:
    """With keys as text: pickles of Python 3 may have bytes."""
    if not isinstance(value, dict):
        raise FileFault("holds something else than a dictionary")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): each for key, each in value.items()}
