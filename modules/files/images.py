"""Opening image files that anybody may have made: known formats only, and no more memory at once than is sensible.

Pillow guesses the format from the content and has readers that start other programs (Ghostscript for EPS), so that a
picture's name says nothing; and a file of a megabyte can stand for gigabytes of pixels.
"""

from __future__ import annotations

import importlib.util
import io
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from modules.files.opening import FileFault
from modules.files.reading import open_regular

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "AVIF", "TIFF")
# Module and package; of a DNG, the preview in it is read.
_PLUGINS = {
    "HEIF": ("pillow_heif", "pillow-heif"),
    "JXL": ("pillow_jxl", "pillow-jxl-plugin"),
    "DNG": ("rawpy", "rawpy"),
}
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
_AVIF_BRANDS = (b"avif", b"avis")
_TIFF_STARTS = (b"II*\0", b"MM\0*")
_JXL_STARTS = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")
_DNG_VERSION_TAG = 50706
_MOST_DNG = 1 << 30  # bytes
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"IEND"
_PNG_PIXELS = (b"IDAT", b"fdAT")  # fdAT: of the further images of an animation
_JPEG_START = b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
_JPEG_SCAN = b"\xff\xda"
_BMP_INFO_HEADER = 40  # bytes; smaller ones are OS/2's
_HEAD_BYTES = 34
SIGNATURE_BYTES = 64
_TAILS = (1 << 10, 64 << 10)  # bytes: where an end is, and where it is before appended data
_BYTES_PER_PIXEL = 8  # decoded and converted: Pillow keeps 4 bytes a pixel for RGB, too
_BYTES_PER_WEBP_PIXEL = 16  # libwebp's decoder of animations has two images of its own
_DEVELOP = "develop it to PNG, JPEG or TIFF"
_MOST_A_SIDE = (1 << 16) - 1  # pixels, as in a JPEG; Pillow takes 34 bytes for each row, and no row of 512 MB
_MOST_JPEG_HEADER = (
    20 << 20
)  # bytes before the pixels, of which a colour profile may take 16 MB; Pillow's time is square
_MOST_JPEG_SEGMENTS = 5000
_MOST_PNG_CHUNKS = 100_000  # libpng writes one for each 8 KiB of pixels
_MOST_PNG_METADATA = 500  # chunks, each of which can hold a profile that takes Pillow 2 ms
_MOST_SCANS = 100  # of a JPEG; common ones have ten, and each takes the time of the whole image
_MEMORY_LIMIT = 1 << 30  # bytes of decoded images at once in a process
_STRIP_PIXELS = 4 << 20  # converted at once where a conversion needs several copies
_ORIENTATION_TAG = 0x0112
_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class MemoryBudget:
    """Lets threads work at once while the bytes they need add up to less than `limit`; more than that works alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, wanted: int) -> Iterator[None]:
        """Wait until `wanted` bytes, or the whole limit if they are more, are free; they are for the time inside."""
        share = min(wanted, self._limit)
        with self._changed:
            self._changed.wait_for(lambda: self._used + share <= self._limit)
            self._used += share
        try:
            yield
        finally:
            with self._changed:
                self._used -= share
                self._changed.notify_all()


_budget = MemoryBudget(_MEMORY_LIMIT)


@contextmanager
def open_image(source: str | Path | bytes) -> Iterator[Image.Image]:
    """The image in a regular file or in bytes, not decoded yet; raises what Pillow raises, OSError or FileFault.

    The file is open only inside: given a name, Pillow may map it into memory, where truncating it kills the process.
    """
    with io.BytesIO(source) if isinstance(source, bytes) else open_regular(source) as opened:
        start = opened.read(SIGNATURE_BYTES)
        if start.startswith(_JPEG_START):
            _first_scan(opened)
        elif start.startswith(_PNG_SIGNATURE):
            any(kind in _PNG_PIXELS for kind, _, _ in _png_chunks(opened))  # as far as Pillow reads now
        if start.startswith(_TIFF_STARTS) and _is_dng(opened):
            with open_image(_raw_preview(opened)) as image:
                yield image
            return
        plugin = _plugin_format(start)
        if plugin:
            _load_plugin(plugin)
        opened.seek(0)
        try:
            with Image.open(opened, formats=(plugin,) if plugin else IMAGE_FORMATS) as image:
                if max(image.size) > _MOST_A_SIDE:
                    raise FileFault(f"has a side of {max(image.size)} pixels; the most is {_MOST_A_SIDE}")
                yield image
        except RuntimeError as error:  # of the readers of AVIF, HEIF and JXL
            raise FileFault(f"cannot be decoded: {error}") from None


def has_image_signature(head: bytes) -> bool:
    """Whether a file that begins with these SIGNATURE_BYTES is of a format that Tandem reads."""
    is_bmp = head.startswith(b"BM") and head[6:10] == bytes(4)  # reserved
    is_webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    known = head.startswith((_PNG_SIGNATURE, _JPEG_START, *_TIFF_STARTS))
    is_avif = head[4:8] == b"ftyp" and head[8:12] in _AVIF_BRANDS
    return is_bmp or is_webp or known or is_avif or bool(_plugin_format(head))


def _plugin_format(head: bytes) -> str:
    """HEIF or JXL, by the beginning of the file; an AVIF may have a brand of HEIF's before its own."""
    if head.startswith(_JXL_STARTS):
        return "JXL"
    is_heif = head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS
    return "HEIF" if is_heif and not any(brand in head[16:] for brand in _AVIF_BRANDS) else ""


def _load_plugin(image_format: str) -> None:
    """Raises FileFault if Pillow has no reader of the format."""
    module, package = _PLUGINS[image_format]
    if importlib.util.find_spec(module) is None:
        raise FileFault(f"is {image_format}, which needs {package}: .venv/bin/python -m pip install {package}")
    loaded = importlib.import_module(module)
    if image_format == "HEIF" and image_format not in Image.OPEN:
        loaded.register_heif_opener()


def _is_dng(file: BinaryIO) -> bool:
    """Whether the first directory of a TIFF says that it is a DNG; Pillow does not open those whose first image is the
    raw one."""
    file.seek(0)
    order = ">" if file.read(2) == b"MM" else "<"
    (at,) = struct.unpack(f"{order}2xI", file.read(6).ljust(6, b"\0"))
    file.seek(at)
    (count,) = struct.unpack(f"{order}H", file.read(2).ljust(2, b"\0"))
    entries = file.read(12 * count)
    return any(
        struct.unpack_from(f"{order}H", entries, start)[0] == _DNG_VERSION_TAG
        for start in range(0, len(entries) - 11, 12)
    )


def _raw_preview(file: BinaryIO) -> bytes:
    """The JPEG that a camera has put into a raw photo, its largest. Raises FileFault."""
    _load_plugin("DNG")
    import rawpy

    file.seek(0)
    data = file.read(_MOST_DNG + 1)
    if len(data) > _MOST_DNG:
        raise FileFault(f"is larger than {_MOST_DNG >> 20} MiB")
    try:
        with rawpy.imread(io.BytesIO(data)) as raw:
            preview = raw.extract_thumb()
    except rawpy.LibRawError as error:
        raise FileFault(f"is a raw photo (DNG) without a preview that can be read ({error}); {_DEVELOP}") from None
    if preview.format != rawpy.ThumbFormat.JPEG or not preview.data.startswith(_JPEG_START):
        raise FileFault(f"is a raw photo (DNG) whose preview is no JPEG; {_DEVELOP}")
    return bytes(preview.data)


def memory_to_decode(image: Image.Image) -> AbstractContextManager[None]:
    """A context in which this image may be decoded: threads that decode large ones wait for each other."""
    each = _BYTES_PER_WEBP_PIXEL if image.format == "WEBP" else _BYTES_PER_PIXEL
    return _budget.reserve(image.width * image.height * each)


def is_turned(image: Image.Image) -> bool:
    """Whether its EXIF orientation swaps width and height."""
    return _orientation(image) >= 5


def upright_rgb(image: Image.Image, least: tuple[int, int] | None = None) -> Image.Image:
    """An opened image, whole and upright, in 8-bit RGB, transparent parts on white: what training and window show.

    A JPEG may be decoded at a reduced size, which saves most of the time, but at no less than `least` (width, height).
    Raises what Pillow raises.
    """
    orientation = _orientation(image)
    if least is not None and isinstance(image, JpegImageFile):  # a HEIF would take its thumbnail
        image.draft(None, least[::-1] if orientation >= 5 else least)
    _check_pieces(image)
    with memory_to_decode(image):
        rgb = _to_rgb(image)
        return rgb.transpose(_TRANSPOSES[orientation]) if orientation in _TRANSPOSES else rgb


def has_transparency(image: Image.Image) -> bool:
    """Whether an opened image has an alpha channel, or a colour that is transparent; `upright_alpha` may be opaque."""
    return image.has_transparency_data and not image.mode.startswith(("I", "F"))


def upright_alpha(image: Image.Image) -> Image.Image:
    """How opaque an opened image is, whole and upright, in 8 bits; as `upright_rgb` otherwise."""
    orientation = _orientation(image)
    _check_pieces(image)
    with memory_to_decode(image):
        alpha = (
            _in_strips(image, lambda strip: strip.convert("RGBA").getchannel("A"), "L")
            if has_transparency(image)
            else Image.new("L", image.size, 255)
        )
        return alpha.transpose(_TRANSPOSES[orientation]) if orientation in _TRANSPOSES else alpha


def small_alpha(source: str | Path, side: int) -> Image.Image:
    """As `upright_alpha`, shrunk to fit a square of `side` pixels."""
    with open_image(source) as image:
        small = upright_alpha(image)
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return small


def small_rgb(source: str | Path, side: int) -> Image.Image:
    """As `upright_rgb`, shrunk to fit a square of `side` pixels."""
    with open_image(source) as image:
        small = upright_rgb(image, (2 * side, 2 * side))
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return small


def check_png(data: bytes) -> None:
    """Raise ValueError if `data` is a PNG with a wrong checksum or without its end, which Pillow accepts.

    Each chunk is length, type, content and a CRC-32 over type and content (PNG specification, 5.3).
    """
    if not data.startswith(_PNG_SIGNATURE):
        return
    view = memoryview(data)
    with io.BytesIO(data) as opened:
        for kind, start, end in _png_chunks(opened):
            if end + 4 > len(data):
                break
            if zlib.crc32(view[start - 4 : end]) != struct.unpack_from(">I", data, end)[0]:
                raise ValueError(f"the checksum of its {_printable_type(kind)} data does not match")
            if kind == _PNG_END:
                return
    raise ValueError("its end is missing")


def is_truncated(path: str | Path) -> bool:
    """Whether a PNG, JPEG, WebP or BMP ends before its end; others show it when decoded. Raises OSError or FileFault.

    Of a whole file little more than the two ends is read, unless a program has appended data of its own to a JPEG.
    A PNG and a JPEG have a mark of their end, a WebP and a BMP say how long they are (RIFF; BITMAPINFOHEADER).
    """
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
        size = file.seek(0, io.SEEK_END)
        if head.startswith(_PNG_SIGNATURE):
            return not any(_holds(file, _PNG_END, max(0, size - tail)) for tail in _TAILS)
        if head.startswith(_JPEG_START):
            start = _first_scan(file)
            return not any(_holds(file, _JPEG_END, max(start, size - tail)) for tail in (*_TAILS, size))
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return size < int(struct.unpack_from("<I", head, 4)[0]) + 8
    return head.startswith(b"BM") and size < _bmp_size(head)


def _first_scan(file: BinaryIO) -> int:
    """Where the pixels of a JPEG begin, after the segments that may hold a thumbnail with an end of its own.

    Raises FileFault if these are so many or so large that a reader would be busy with them.
    """
    at = 2
    for _ in range(_MOST_JPEG_SEGMENTS):
        file.seek(at)
        segment = file.read(4)
        if len(segment) < 4 or segment[0] != 0xFF or segment[:2] == _JPEG_SCAN:
            return at
        at += 2 + int.from_bytes(segment[2:], "big")
        if at > _MOST_JPEG_HEADER:
            raise FileFault(f"has more than {_MOST_JPEG_HEADER >> 20} MiB of metadata")
    raise FileFault(f"has more than {_MOST_JPEG_SEGMENTS} pieces of metadata")


def _png_chunks(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Of each chunk the type, and where its content begins and ends, which may be after the end of the file.

    Raises FileFault if there are so many that a reader would be busy with them.
    """
    at, metadata = len(_PNG_SIGNATURE), 0
    for _ in range(_MOST_PNG_CHUNKS):
        file.seek(at)
        head = file.read(8)
        if len(head) < 8:
            return
        length, kind = struct.unpack(">I4s", head)
        metadata += kind not in _PNG_PIXELS
        if metadata > _MOST_PNG_METADATA:
            raise FileFault(f"has more than {_MOST_PNG_METADATA} pieces of metadata")
        yield kind, at + 8, at + 8 + length
        at += 12 + length
    raise FileFault(f"is in more than {_MOST_PNG_CHUNKS} pieces")


def _check_pieces(image: Image.Image) -> None:
    """Raises FileFault if a progressive JPEG is made to be decoded again and again, or a PNG is in too many pieces."""
    if not isinstance(image, ImageFile):
        return
    file = cast(BinaryIO, image.fp)
    if isinstance(image, JpegImageFile):
        start = file.tell()
        file.seek(_first_scan(file))
        before, scans = b"", 0
        while chunk := file.read(1 << 20):
            scans += (before + chunk).count(_JPEG_SCAN)
            before = chunk[-1:]
        file.seek(start)
        if scans > _MOST_SCANS:
            raise FileFault(f"is decoded in {scans} scans; the most is {_MOST_SCANS}")
    elif image.format == "PNG":
        start = file.tell()
        any(kind == _PNG_END for kind, _, _ in _png_chunks(file))
        file.seek(start)


def _holds(file: BinaryIO, mark: bytes, start: int) -> bool:
    """Whether a file has these bytes somewhere from `start` on."""
    file.seek(start)
    before = b""
    while chunk := file.read(1 << 20):
        if mark in before + chunk:
            return True
        before = chunk[-len(mark) :]
    return False


def _bmp_size(head: bytes) -> int:
    """Bytes that an uncompressed BMP needs: its rows of 4-byte words follow its header. 0 if the header is another."""
    if len(head) < _HEAD_BYTES:
        return 0
    start, header, width, height, _, bits, compression = struct.unpack_from("<IIiiHHI", head, 10)
    if header < _BMP_INFO_HEADER or compression not in (0, 3) or width <= 0:
        return 0
    return int(start + (width * bits + 31) // 32 * 4 * abs(height))


def _printable_type(chunk_type: bytes) -> str:
    return chunk_type.decode("ascii", "replace") if chunk_type.isalpha() else "unknown"


def _orientation(image: Image.Image) -> int:
    # PNG's getexif() would decode the whole image to look for a late EXIF chunk. Reading sizes and decoding both use
    # the header's alone, so they always agree.
    if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
        return 1  # Pillow turns a TIFF itself
    orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    return orientation if isinstance(orientation, int) and orientation in _TRANSPOSES else 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise FileFault("has pixels of floating point; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        return _in_strips(image, _from_16_bit)
    to_srgb = _profile_transform(image)
    if image.has_transparency_data:
        return _in_strips(image, lambda strip: to_srgb(_on_white(strip)))
    return image.convert("RGB") if to_srgb is _unchanged else _in_strips(image, to_srgb)


def _unchanged(strip: Image.Image) -> Image.Image:
    return strip


def _profile_transform(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """What makes sRGB of a part of the image: `_unchanged` if it has no colour profile that says something else.

    Profiles that are damaged, or of other colours than the image's, are ignored, as browsers do.
    """
    data = image.info.get("icc_profile")
    if not isinstance(data, bytes) or not data:
        return _unchanged
    from PIL import ImageCms  # which most images do without

    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(data))
        mode = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK"}.get(profile.profile.xcolor_space.strip(), "")
        is_srgb = "sRGB" in (profile.profile.profile_description or "")
        if is_srgb or not mode or (mode == "CMYK") != (image.mode == "CMYK"):
            return _unchanged
        if mode == "L" and image.mode not in ("L", "LA", "1"):
            return _unchanged
        transform = ImageCms.buildTransform(profile, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        return _unchanged
    return lambda strip: transform.apply(strip.convert(mode))


def _in_strips(image: Image.Image, convert: Callable[[Image.Image], Image.Image], mode: str = "RGB") -> Image.Image:
    """The converted image; only the result is as large as the image."""
    width, height = image.size
    result = Image.new(mode, image.size)
    rows = max(1, _STRIP_PIXELS // width)
    for top in range(0, height, rows):
        result.paste(convert(image.crop((0, top, width, min(top + rows, height)))), (0, top))
    return result


def _on_white(strip: Image.Image) -> Image.Image:
    layer = strip.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")


def _from_16_bit(strip: Image.Image) -> Image.Image:
    # Pillow's own conversion clips at 255 and would turn such images white.
    import numpy as np  # which the window does without, but for such images

    levels = np.asarray(strip).astype(np.int64)
    return Image.fromarray(np.clip(levels // 257, 0, 255).astype(np.uint8)).convert("RGB")
