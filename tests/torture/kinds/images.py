"""Image files and masks, through the index and the decoders of training and of the window."""

from __future__ import annotations

import struct
import zlib
from random import Random

import numpy as np
from PIL import Image

from app.images.thumbnails import Thumbnails
from modules.config import Concept
from modules.data.index.concept_rows import index_concept
from modules.data.index.images import IMAGE_ERRORS, decode_image, decode_mask, describe_image_error
from modules.data.index.index import no_progress
from modules.data.index.scan import scan_concept
from modules.files import read_bytes
from tests.torture.kind import Places
from tests.torture.mutations import bytes_changed, file_changed, file_replaced

_LARGEST = 512 << 20  # bytes, as far as this test is concerned
_MODES = {"rgb.png": "RGB", "rgba.png": "RGBA", "grey.png": "L", "palette.png": "P", "deep.png": "I;16", "bit.png": "1",
          "rgb.jpg": "RGB", "cmyk.jpg": "CMYK", "rgb.webp": "RGB", "rgba.webp": "RGBA", "rgb.bmp": "RGB"}  # fmt: skip


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        places.seeds.mkdir(parents=True)
        noise = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)
        exif = Image.Exif()
        exif[0x0112] = 6
        for name, mode in _MODES.items():
            image = Image.fromarray(noise).convert("L" if mode == "I;16" else mode)
            if mode == "I;16":
                image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
            extra = {} if name.endswith(".bmp") else {"exif": exif}
            image.save(places.seeds / name, **extra)  # type: ignore[arg-type]

    def make(self, draw: Random) -> None:
        images = self._places.case / "images"
        images.mkdir()
        name = draw.choice(list(_MODES))
        # another suffix than the content's: Pillow looks at the content
        suffix = (
            draw.choice((".png", ".jpg", ".webp", ".bmp", "", ".jpg!d"))
            if draw.random() < 0.1
            else name[name.index(".") :]
        )
        file = images / f"a{suffix}"
        file.write_bytes((self._places.seeds / name).read_bytes())
        (images / "a-masklabel.png").write_bytes((self._places.seeds / "grey.png").read_bytes())
        chosen = file if draw.random() < 0.85 else images / "a-masklabel.png"
        if draw.random() < 0.08:
            file_replaced(chosen, self._places.outside, draw)
        elif chosen.suffix == ".png" and draw.random() < 0.4:
            file_changed(chosen, _png_changed, draw)
        else:
            file_changed(chosen, bytes_changed, draw)

    def read(self) -> str:
        folder = self._places.case / "images"
        concept = Concept.model_validate({"path": str(folder), "mask_suffix": "-masklabel.png"})
        scan = scan_concept(concept, with_masks=True)
        rows = index_concept(0, scan, concept, None, no_progress)
        reasons = [problem.what for problem in rows.problems]
        thumbnails = Thumbnails(self._places.case / "thumbnails")
        for path, width, height in zip(rows.paths, rows.columns["width"], rows.columns["height"], strict=True):
            file, size = folder / path.decode(), (int(width), int(height))
            try:
                image = decode_image(read_bytes(file, _LARGEST), size, (32, 32))
                mask_file = folder / scan.mask_at.get(path, f"{file.stem}{concept.mask_suffix}")
                has_mask = rows.columns["mask_size"][0][0] > 0
                mask = decode_mask(read_bytes(mask_file, _LARGEST)) if has_mask else None
            except IMAGE_ERRORS as error:
                reasons.append(describe_image_error(error))
                continue
            assert image.mode == "RGB"
            assert image.width >= min(32, size[0]), "it is smaller than what the index says"
            assert mask is None or mask.mode == "L"
        for file in sorted(folder.iterdir()):
            for alpha in (False, True):
                thumbnail = thumbnails._make(file, 64, alpha)
                assert thumbnail is None or max(thumbnail.size) <= 64
        thumbnails.close()
        return "; ".join(reasons)


def _png_changed(data: bytes, draw: Random) -> bytes:
    """Its content, with checksums that fit: numbers of the header, and compressed data."""

    chunks, at = [], 8
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    number = draw.randrange(len(chunks))
    kind, content = chunks[number]
    chosen = draw.random()
    if chosen < 0.6:
        chunks[number] = kind, bytes_changed(content, draw)[: 1 << 20]
    elif chosen < 0.8:
        chunks.insert(number, (draw.choice((kind, b"IDAT", b"zTXt", b"iCCP", b"eXIf", b"tRNS", b"acTL")), content))
    else:
        size = draw.choice((0, 1, 65_535, 30_000, 1 << 31, (1 << 32) - 1))
        chunks[0] = b"IHDR", struct.pack(">II", size, draw.choice((1, 40, 5000, size))) + chunks[0][1][8:]
    return data[:8] + b"".join(
        struct.pack(">I", len(each)) + name + each + struct.pack(">I", zlib.crc32(name + each)) for name, each in chunks
    )
