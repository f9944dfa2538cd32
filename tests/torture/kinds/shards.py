"""Archives and tables of images that are read in place: headers and bytes of tar archives, Arrow and Parquet files."""

from __future__ import annotations

import io
import os
import shutil
from importlib.util import find_spec
from random import Random

from PIL import Image

from modules.data.index.build import build_index
from modules.data.index.images import IMAGE_ERRORS, decode_image
from modules.files import read_bytes
from modules.files import shards as shards_module
from modules.files.tar_headers import BLOCK
from tests.data.cifar_archives import tar_header
from tests.data.helpers import config_for
from tests.data.shards import tar_of
from tests.torture.kind import Places
from tests.torture.mutations import bytes_changed, file_replaced

_NAMES = (
    "../../x.png",
    "/x.png",
    "a/../../x.png",
    "C:\\x.png",
    "",
    ".",
    "a" * 100,
    "a.tar/x.png",
    "x.txt",
    "a.png",
    "\0",
)
_SIZES = (-1, -512, 0, 1, 511, 513, 1 << 20, (1 << 20) + 1, 1 << 31, 1 << 40, (1 << 63) - 1, (1 << 87) - 1)
_KINDS = b"01234567LKxXgSV\0\xff"
_RECORDS = ("path=../../x.png", "path=/x", "size=1", "size=99999999999999999", "size=-1", "GNU.sparse.major=1", "path=")


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        places.seeds.mkdir(parents=True)
        files, images = dict[str, bytes](), list[bytes]()
        for number in range(4):
            packed = io.BytesIO()
            Image.new("RGB", (16 + number, 16), (number * 60, 0, 0)).save(packed, format=("PNG", "JPEG")[number % 2])
            images.append(packed.getvalue())
            files[f"{number:03d}.{('png', 'jpg')[number % 2]}"] = images[-1]
            files[f"{number:03d}.txt"] = b"a caption"
        self._seeds = {"a.tar": tar_of(files)}
        if find_spec("pyarrow") is not None:
            self._add_tables(images)

    def _add_tables(self, images: list[bytes]) -> None:
        import pyarrow
        from pyarrow import ipc, parquet

        rows = [{"bytes": data, "path": "x"} for data in images]
        table = pyarrow.table({"image": rows, "text": ["a"] * len(rows)})
        stream, packed = io.BytesIO(), io.BytesIO()
        with ipc.new_stream(stream, table.schema) as out:
            out.write_table(table, max_chunksize=2)
        parquet.write_table(table, packed, row_group_size=2)
        self._seeds |= {"a.arrow": stream.getvalue(), "a.parquet": packed.getvalue()}

    def make(self, draw: Random) -> None:
        name = draw.choice(list(self._seeds))
        data, chosen = self._seeds[name], draw.random()
        if name == "a.tar" and chosen < 0.6:
            data = _headers_changed(data, draw)
        elif chosen < 0.95:
            data = bytes_changed(data, draw)
        file = self._places.case / "set" / name
        file.parent.mkdir()
        file.write_bytes(data)
        if chosen >= 0.95:
            file_replaced(file, self._places.outside, draw)

    def read(self) -> str:
        case = self._places.case
        os.environ["XDG_CACHE_HOME"] = str(case / "user_cache")
        shards_module._tables.clear()
        config = config_for(case / "set", cache=case / "cache")
        index = build_index(config, config.seed, 8, case / "cache")
        for row in range(len(index)):
            data = read_bytes(index.file(row), 1 << 30)
            assert len(data) == index.size[row]
            try:
                decode_image(data, (int(index.width[row]), int(index.height[row])), (8, 8))
            except IMAGE_ERRORS:
                continue
        shutil.rmtree(case / "user_cache", ignore_errors=True)
        return "; ".join(problem.what for problem in index.problems())


def _headers_changed(archive: bytes, draw: Random) -> bytes:
    """Other headers in place of some, or before them, whose checksums fit; some with records of pax."""
    for _ in range(draw.choice((1, 1, 2, 5))):
        kind = _KINDS[(at := draw.randrange(len(_KINDS))) : at + 1]
        header = tar_header(draw.choice(_NAMES), draw.choice(_SIZES), kind)
        if draw.random() < 0.3:
            text = "".join(f"{len(each) + 4} {each}\n" for each in draw.choices(_RECORDS, k=2)).encode()
            header = tar_header("pax", len(text), b"x") + text.ljust(BLOCK, b"\0")
        places = [at for at in range(0, len(archive), BLOCK) if archive[at + 257 : at + 262] == b"ustar"]
        at = draw.choice(places or [0])
        archive = archive[:at] + header + archive[at + draw.choice((0, BLOCK)) :]
    return archive
