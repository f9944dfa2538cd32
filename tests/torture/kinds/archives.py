"""CIFAR archives: the tar, its compression, and the pickles and records in it."""

from __future__ import annotations

import gzip
import io
import tarfile
from random import Random

from modules.data.archives.cifar import unpack
from tests.data.cifar_archives import binary_files, python_files, tar_header
from tests.torture.kind import Places
from tests.torture.mutations import bytes_changed, file_replaced

_SIZES = (-1, -512, -1024, -(1 << 40), 0, 1, 511, 513, 1 << 20, (1 << 20) + 1, 1 << 31, 1 << 40, 10**13, (1 << 87) - 1)
_KINDS = b"01234567LKxXgSV\0\xff"
# operations of pickles of which a few make many values
_OPERATIONS = (
    b"(", b"]", b"}", b")", b"t", b"l", b"d", b"a", b"e", b"s", b"u", b"\x85", b"\x86", b"\x87", b"q\x00", b"h\x00",
    b"q\x01", b"h\x01", b"\x94", b"0", b"2", b"1", b"R", b"b", b"K\x01", b"N", b"U\x01x", b"\x8c\x01x", b"\x93",
    b"p0\n", b"g0\n", b"L9999999999999999999L\n", b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b".",
)  # fmt: skip


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        places.seeds.mkdir(parents=True)
        self._seeds = [make(wide) for make in (python_files, binary_files) for wide in (False, True)]

    def make(self, draw: Random) -> None:
        files, chosen = dict(draw.choice(self._seeds)), draw.random()
        if chosen < 0.5:
            name = draw.choice(list(files))
            files[name] = (
                _pickle_changed(files[name], draw) if draw.random() < 0.6 else bytes_changed(files[name], draw)
            )
        archive = _packed(files)
        if 0.5 <= chosen < 0.75:
            archive = _headers_changed(archive, draw)
        elif 0.75 <= chosen < 0.85:
            archive = bytes_changed(archive, draw)
        if draw.random() < 0.6:
            archive = gzip.compress(archive, 1)
        if 0.85 <= chosen < 0.95:
            archive = bytes_changed(archive, draw)
        file = self._places.case / "c.tar.gz"
        file.write_bytes(archive)
        if chosen >= 0.95:
            file_replaced(file, self._places.outside, draw)

    def read(self) -> str:
        cache = self._places.case / "cache"
        unpack(self._places.case / "c.tar.gz", cache)
        (folder,) = cache.iterdir()
        assert {each.name for each in folder.iterdir()} == {"train", "test"}
        return ""


def _packed(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"cifar/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def _headers_changed(archive: bytes, draw: Random) -> bytes:
    """Other headers in place of some, or before them, whose checksums fit."""
    for _ in range(draw.choice((1, 1, 2, 5))):
        kind = _KINDS[(at := draw.randrange(len(_KINDS))) : at + 1]
        header = tar_header(draw.choice(("cifar/data_batch_1", "batches.meta", "")), draw.choice(_SIZES), kind)
        places = [at for at in range(0, len(archive), 512) if archive[at + 257 : at + 262] == b"ustar"]
        at = draw.choice(places)
        archive = archive[:at] + header + archive[at + draw.choice((0, 512)) :]
    return archive


def _pickle_changed(data: bytes, draw: Random) -> bytes:
    """Operations that are put into a pickle, or a pickle of some operations again and again."""
    operations = b"".join(draw.choices(_OPERATIONS, k=draw.choice((1, 3, 10)))) * draw.choice((1, 1, 60, 5000))
    at = draw.choice((2, len(data) - 1, draw.randint(2, len(data))))
    return b"\x80\x02" + operations + b"." if draw.random() < 0.3 else data[:at] + operations + data[at:]
