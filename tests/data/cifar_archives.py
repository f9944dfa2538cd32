"""CIFAR archives with a few small batches, written as the real ones were."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        meta: dict[str, Any] = {"fine_label_names": NAMES, "coarse_label_names": ["all"]}
        key = "fine_labels"
    else:
        parts, key = cifar_10(3), "labels"
        meta = {"num_cases_per_batch": 3, "label_names": NAMES}
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


def pack(
    path: Path, files: Mapping[str, bytes], layout: int = tarfile.PAX_FORMAT, folder: str = "cifar-batches"
) -> Path:
    with tarfile.open(path, "w:gz", format=layout) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def tar_header(name: str, size: int, kind: bytes = b"0") -> bytes:
    """A header whose checksum fits, with any size: as a binary number, as GNU tar writes large ones."""
    member = tarfile.TarInfo(name)
    member.type = kind
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (b"\xff" if size < 0 else b"\x80") + (size % (1 << 88)).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)
