"""Decoding, buckets and crops of one image."""

from __future__ import annotations

import io
import os
import struct
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, UnidentifiedImageError

from modules.config import Concept, TrainConfig
from modules.data.cache.crops import Crop, compute_crops, count_views, crop_example, split_view
from modules.data.index.buckets import Bucket, assign_buckets, bucket_images, make_buckets
from modules.data.index.images import (
    IMAGE_ERRORS,
    decode_image,
    decode_mask,
    describe_image_error,
    read_image_size,
    suppress_pillow_warnings,
)
from modules.data.summary import DatasetSummary
from modules.files import FileFault
from modules.files.images import SIGNATURE_BYTES, has_image_signature, small_rgb


def encoded(image: Image.Image, suffix: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, suffix, **options)
    return buffer.getvalue()


PLUGINS = {"HEIF": "pillow_heif", "JXL": "pillow_jxl", "DNG": "rawpy"}


def need_plugin(image_format: str) -> None:
    if image_format in PLUGINS:
        plugin = pytest.importorskip(PLUGINS[image_format], reason="the extra `images` is not installed")
        if image_format == "HEIF":
            plugin.register_heif_opener()


def dng(preview: tuple[int, int], orientation: int, *, has_preview: bool = True) -> bytes:
    """A raw photo of 64x48 as cameras write it: the first directory is a JPEG of this size (width, height), or nothing
    but the names of the camera, and its subdirectory the mosaic (Adobe's DNG specification 1.4)."""
    jpeg = encoded(Image.new("RGB", preview, (200, 100, 50)), "JPEG", quality=95)
    mosaic = np.full((48, 64), 1000, "<u2").tobytes()

    def directory(start: int, tags: dict[int, tuple[str, tuple[int, ...] | bytes]]) -> bytes:
        """`tags`: the letter of struct, or s and r for text and fractions, and the values."""
        head, more = struct.pack("<H", len(tags)), b""
        for tag, (kind, values) in sorted(tags.items()):
            data = (
                bytes(values) if kind == "s" else struct.pack(f"<{len(values)}{'i' if kind == 'r' else kind}", *values)
            )
            number = {"B": 1, "s": 2, "H": 3, "I": 4, "r": 10}[kind]
            head += struct.pack("<HHI", tag, number, len(values) // (2 if kind == "r" else 1))
            head += (
                data.ljust(4, b"\0") if len(data) <= 4 else struct.pack("<I", start + 6 + 12 * len(tags) + len(more))
            )
            more += data if len(data) > 4 else b""
        return head + bytes(4) + more

    def directories(jpeg_at: int, below_at: int, mosaic_at: int) -> tuple[bytes, bytes]:
        unit = tuple(n for row in np.eye(3, dtype=int).tolist() for each in row for n in (each, 1))
        pictures: dict[int, tuple[str, tuple[int, ...] | bytes]] = {
            256: ("I", preview[:1]), 257: ("I", preview[1:]), 258: ("H", (8, 8, 8)), 259: ("H", (7,)), 262: ("H", (6,)),
            273: ("I", (jpeg_at,)), 277: ("H", (3,)), 278: ("I", preview[1:]), 279: ("I", (len(jpeg),)),
        }  # fmt: skip
        first = directory(8, {
            254: ("I", (1,)), **(pictures if has_preview else {}), 271: ("s", b"Tandem\0"), 272: ("s", b"Test\0"),
            274: ("H", (orientation,)), 330: ("I", (below_at,)),
            50706: ("B", (1, 4, 0, 0)), 50708: ("s", b"Tandem T\0"),
            50721: ("r", unit), 50728: ("r", (1, 1) * 3), 50778: ("H", (21,)),
        })  # fmt: skip
        below = directory(below_at, {
            254: ("I", (0,)), 256: ("I", (64,)), 257: ("I", (48,)), 258: ("H", (16,)), 259: ("H", (1,)),
            262: ("H", (32803,)), 273: ("I", (mosaic_at,)), 277: ("H", (1,)), 278: ("I", (48,)),
            279: ("I", (len(mosaic),)), 33421: ("H", (2, 2)), 33422: ("B", (0, 1, 1, 2)), 50717: ("I", (4095,)),
        })  # fmt: skip
        return first, below

    first, below = directories(0, 0, 0)
    below_at = 8 + len(first)
    jpeg_at = below_at + len(below)
    first, below = directories(jpeg_at, below_at, jpeg_at + len(jpeg))
    return b"II*\0" + struct.pack("<I", 8) + first + below + jpeg + mosaic


HEADS = {
    "HEIF": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
    "JXL": b"\0\0\0\x0cJXL \r\n\x87\n",
    "DNG": dng((96, 72), 1),
}


@pytest.mark.parametrize("image_format", PLUGINS)
def test_a_plugin_that_is_missing_is_named(image_format: str) -> None:
    if find_spec(PLUGINS[image_format]):
        pytest.skip("it is installed")
    with pytest.raises(FileFault, match=f"is {image_format}, which needs .*pip install (pillow-|rawpy)"):
        decode_image(HEADS[image_format], (4, 4), (4, 4))


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP", "BMP", "AVIF", "TIFF", "HEIF", "JXL"])
def test_formats_are_known_by_their_content(image_format: str) -> None:
    need_plugin(image_format)
    data = encoded(Image.new("RGB", (16, 16), (200, 100, 50)), image_format)
    assert has_image_signature(data[:SIGNATURE_BYTES])
    colour = decode_image(data, (16, 16), (16, 16)).getpixel((8, 8))
    assert np.abs(np.array(colour) - (200, 100, 50)).max() <= 8


def test_what_is_no_picture_of_colours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFault, match="floating point"):
        decode_image(encoded(Image.new("F", (4, 4)), "TIFF"), (4, 4), (4, 4))
    broken = encoded(Image.new("RGB", (16, 16)), "AVIF")[:-9]
    with pytest.raises(IMAGE_ERRORS):
        decode_image(broken, (16, 16), (16, 16))


def test_of_a_raw_photo_the_preview_is_read(tmp_path: Path) -> None:
    need_plugin("DNG")
    for orientation, size in ((1, (96, 72)), (6, (72, 96))):
        data = dng((96, 72), orientation)
        (tmp_path / "a.dng").write_bytes(data)
        assert read_image_size(str(tmp_path / "a.dng")) == size
        colour = decode_image(data, size, (16, 16)).getpixel((8, 8))
        assert np.abs(np.array(colour) - (200, 100, 50)).max() <= 8
    with pytest.raises(FileFault, match=r"raw photo \(DNG\) without a preview that can be read .* develop it to PNG"):
        decode_image(dng((96, 72), 1, has_preview=False), (4, 4), (4, 4))
    for end in range(8, len(data), 211):
        with pytest.raises(IMAGE_ERRORS), suppress_pillow_warnings():
            decode_image(data[:end], (1, 1), (1, 1))


ADOBE_COLORANTS = {b"rXYZ": (0.60974, 0.31111, 0.01947), b"gXYZ": (0.20528, 0.62567, 0.06087)}  # at D50
ADOBE_COLORANTS[b"bXYZ"] = (0.14919, 0.06322, 0.74457)


def adobe_rgb() -> tuple[bytes, Any]:
    """Little CMS' sRGB profile with the primaries of Adobe RGB (1998); the matrix from its linear values to sRGB's."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    theirs, ours = [], []
    for name, colorant in ADOBE_COLORANTS.items():
        entry = profile.index(name, 128)  # the table of tags: name, offset, size
        start = struct.unpack_from(">I", profile, entry + 4)[0] + 8
        ours.append(np.array(struct.unpack_from(">3i", profile, start)) / 65536)
        theirs.append(np.array(colorant))
        struct.pack_into(">3i", profile, start, *(round(each * 65536) for each in colorant))
    text = "sRGB".encode("utf-16-be")
    return bytes(profile).replace(text, "aRGB".encode("utf-16-be")), np.linalg.solve(
        np.array(ours).T, np.array(theirs).T
    )


def linear(values: Any) -> Any:
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_colour_profiles_become_srgb(image_format: str, mode: str) -> None:
    if (image_format, mode) in {("JPEG", "RGBA"), ("JPEG", "P"), ("WEBP", "P"), ("AVIF", "P")}:
        pytest.skip("there are none")
    profile, matrix = adobe_rgb()
    given = np.array([120, 200, 90])
    image = Image.new("RGB", (16, 16), tuple(given.tolist())).convert(mode, palette=Image.Palette.ADAPTIVE)
    options: dict[str, Any] = {"lossless": True} if image_format == "WEBP" else {}
    found = decode_image(encoded(image, image_format, icc_profile=profile, **options), (16, 16), (8, 8)).getpixel(
        (8, 8)
    )
    shown = linear(np.array(found) / 255)
    assert np.abs(shown - (matrix @ linear(given / 255))).max() < 0.03
    assert found[0] < given[0] - 20, "as the same numbers are a stronger green in Adobe RGB"  # type: ignore[index]
    plain = decode_image(encoded(image, image_format, **options), (16, 16), (8, 8)).getpixel((8, 8))
    assert np.abs(np.array(plain) - given).max() <= 8


@pytest.mark.parametrize("profile", [b"no profile", b"\0" * 200, adobe_rgb()[0][:300]])
def test_damaged_profiles_and_those_of_other_colours_are_ignored(profile: bytes) -> None:
    red = encoded(Image.new("RGB", (4, 4), (200, 10, 10)), icc_profile=profile)
    assert decode_image(red, (4, 4), (4, 4)).getpixel((0, 0)) == (200, 10, 10)
    inks = encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", icc_profile=adobe_rgb()[0])
    assert np.abs(np.array(decode_image(inks, (8, 8), (8, 8)).getpixel((4, 4))) - (255, 0, 0)).max() <= 3


def test_every_mode_becomes_rgb_on_white() -> None:
    half = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert decode_image(encoded(half), (4, 4), (4, 4)).getpixel((0, 0)) == (255, 255, 255)
    assert decode_image(encoded(half.convert("LA")), (4, 4), (4, 4)).getpixel((0, 0)) == (255, 255, 255)
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    assert decode_image(encoded(palette), (4, 4), (4, 4)).getpixel((0, 0)) == (10, 20, 30)
    assert decode_image(encoded(palette, transparency=1), (4, 4), (4, 4)).getpixel((0, 0)) == (255, 255, 255)
    grey = Image.fromarray(np.full((4, 4), 257 * 100, dtype=np.uint16))
    assert decode_image(encoded(grey), (4, 4), (4, 4)).getpixel((0, 0)) == (100, 100, 100)
    assert decode_image(encoded(Image.new("1", (4, 4), 1)), (4, 4), (4, 4)).getpixel((0, 0)) == (255, 255, 255)
    cmyk = decode_image(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"), (8, 8), (8, 8)).getpixel((4, 4))
    assert np.abs(np.array(cmyk) - (255, 0, 0)).max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["JPEG", "PNG", "WEBP", "AVIF", "TIFF", "HEIF", "JXL"])
def test_exif_orientation_is_applied(orientation: int, suffix: str, tmp_path: Path) -> None:
    upright = Image.new("RGB", (64, 32), "white")
    upright.paste((200, 0, 0), (0, 0, 32, 16))  # the upper left quarter is red
    stored = {1: [], 2: [0], 3: [3], 4: [1], 5: [5], 6: [2], 7: [6], 8: [4]}[orientation]
    image = upright
    for turn in stored:
        image = image.transpose(Image.Transpose(turn))
    exif = Image.Exif()
    exif[0x0112] = orientation
    need_plugin(suffix)
    data = encoded(image, suffix, exif=exif.tobytes())
    (tmp_path / "x").write_bytes(data)
    assert read_image_size(str(tmp_path / "x")) == (64, 32)
    shown: Any = decode_image(data, (64, 32), (32, 16))
    assert shown.size == (64, 32)
    assert shown.getpixel((8, 8))[1] < 60
    assert shown.getpixel((56, 24))[1] > 200


def test_no_changed_byte_of_a_png_goes_unnoticed() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8))
    data = encoded(noise)
    draw = np.random.default_rng(1)
    for place in range(0, len(data), 7):
        mutant = bytearray(data)
        mutant[place] ^= 1 << int(draw.integers(8))
        with pytest.raises(IMAGE_ERRORS):
            decode_image(bytes(mutant), (20, 20), (20, 20))


def test_a_truncated_png_is_noticed_by_its_end(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8))
    data = encoded(noise)
    (tmp_path / "x.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="its end is missing"):
        read_image_size(str(tmp_path / "x.png"))
    (tmp_path / "x.png").write_bytes(data + b"what some programs append")
    assert read_image_size(str(tmp_path / "x.png")) == (200, 200)
    decode_image(data + b"what some programs append", (200, 200), (200, 200))


def test_transparent_and_16_bit_images_of_several_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(2)
    half = Image.fromarray(draw.integers(0, 256, (50, 30, 4), dtype=np.uint8))
    deep = Image.fromarray(draw.integers(0, 65536, (50, 30), dtype=np.uint16))
    whole = [np.asarray(decode_image(encoded(image), (30, 50), (30, 50))) for image in (half, deep)]
    monkeypatch.setattr("modules.files.images._STRIP_PIXELS", 100)
    strips = [np.asarray(decode_image(encoded(image), (30, 50), (30, 50))) for image in (half, deep)]
    assert all(np.array_equal(*pair) for pair in zip(whole, strips, strict=True))


def test_only_image_formats_are_read_whatever_the_name(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(marker) (w) file closefile\nshowpage\n"
    )
    with Image.open(tmp_path / "x.png") as guessed:
        assert guessed.format == "EPS", "Pillow would start Ghostscript for it"
    with pytest.raises(UnidentifiedImageError):
        read_image_size(str(tmp_path / "x.png"))
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(FileFault, match="is a named pipe, not a file"):
        read_image_size(str(tmp_path / "pipe.png"))


def test_images_that_keep_a_reader_busy_are_refused(tmp_path: Path) -> None:
    jpeg, row = encoded(Image.new("RGB", (40, 40)), "JPEG", progressive=True), encoded(Image.new("1", (1 << 16, 1)))
    scan = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    metadata = b"\xff\xe1\xff\xffExif\0\0" + b"x" * 65_527
    png = encoded(Image.new("RGB", (40, 40)))
    other, pixels = (bytes(4) + kind + struct.pack(">I", zlib.crc32(kind)) for kind in (b"abCd", b"IDAT"))
    for data, size, said in (
        (row, (1 << 16, 1), "has a side of 65536 pixels"),
        (jpeg[:2] + metadata * 321 + jpeg[2:], (40, 40), "more than 20 MiB of metadata"),
        (jpeg[:2] + b"\xff\xfe\0\2" * 5001 + jpeg[2:], (40, 40), "more than 5000 pieces of metadata"),
        (jpeg[:-2] + scan * 101 + jpeg[-2:], (40, 40), "scans; the most is 100"),
        (png[:33] + other * 501 + png[33:], (40, 40), "more than 500 pieces of metadata"),
        (png[:-12] + other * 501 + png[-12:], (40, 40), "more than 500 pieces of metadata"),
        (png[:33] + pixels * 100_000 + png[33:], (40, 40), "is in more than 100000 pieces"),
    ):
        with pytest.raises(FileFault, match=said):
            decode_image(data, size, (4, 4))
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(FileFault, match=said):
            small_rgb(tmp_path / "a", 64)
    for data in (jpeg[:2] + metadata * 10 + jpeg[2:], png[:33] + other * 400 + pixels * 1000 + png[33:]):
        assert decode_image(data, (40, 40), (40, 40)).size == (40, 40)


def test_large_jpegs_are_decoded_at_reduced_size() -> None:
    data = encoded(Image.new("RGB", (800, 400)), "JPEG")
    assert decode_image(data, (800, 400), (64, 32)).size == (200, 100)


@pytest.mark.parametrize("cut", [0, 10, 60, 0.5, 0.95])
@pytest.mark.parametrize("suffix", ["PNG", "JPEG", "WEBP", "BMP"])
def test_truncated_files_raise_image_errors(cut: float, suffix: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 50, 3), dtype=np.uint8))
    data = encoded(noise, suffix)
    kept = int(cut if cut >= 1 else cut * len(data))
    with pytest.raises(IMAGE_ERRORS):
        decode_image(data[:kept], (50, 50), (50, 50))


# Pillow warns from half of the size on that it refuses, which a damaged header may claim.
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@settings(max_examples=200, deadline=None)
@example(suffix="BMP", places=[(24, 35)])
@given(
    suffix=st.sampled_from(["PNG", "JPEG", "WEBP", "BMP"]),
    places=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=8),
)
def test_damaged_files_raise_only_image_errors(suffix: str, places: list[tuple[int, int]]) -> None:
    data = bytearray(encoded(Image.effect_noise((40, 30), 60).convert("RGB"), suffix))
    for place, value in places:
        data[place % len(data)] = value
    try:
        decode_image(bytes(data), (40, 30), (40, 30))
        decode_mask(bytes(data))
    except IMAGE_ERRORS:
        pass


@settings(max_examples=100, deadline=None)
@given(resolution=st.integers(8, 2048), step=st.sampled_from([1, 4, 8, 16, 32, 64]), fewer=st.booleans())
def test_buckets_have_similar_area_and_whole_steps(resolution: int, step: int, fewer: bool) -> None:
    buckets = make_buckets(resolution, step, True, fewer=fewer)
    assert 1 <= len(buckets) <= (17 if fewer else 25)
    assert len(set(buckets)) == len(buckets)
    assert {Bucket(b.width, b.height) for b in buckets} == set(buckets)
    for bucket in buckets:
        assert bucket.width % step == bucket.height % step == 0
        if resolution >= 16 * step:
            assert bucket.width * bucket.height == pytest.approx(resolution**2, rel=0.1)
            assert 0.22 <= bucket.width / bucket.height <= 4.5


def test_images_go_to_the_nearest_aspect_ratio() -> None:
    buckets = make_buckets(512, 8, True)
    sizes = np.array([(100, 100), (400, 300), (300, 400), (1920, 1080), (5000, 10), (3, 900)], dtype=np.int32)
    found = [str(buckets[n]) for n in assign_buckets(buckets, sizes[:, 0], sizes[:, 1])]
    assert found == ["512x512", "592x440", "440x592", "680x384", "1024x256", "256x1024"]
    assert make_buckets(500, 8, False) == (Bucket(504, 504),)


@settings(max_examples=200, deadline=None)
@given(
    width=st.integers(1, 5000),
    height=st.integers(1, 5000),
    variation=st.integers(0, 15),
    path=st.integers(0, 2**64 - 1),
)
def test_crops_are_inside_and_cover_the_bucket(width: int, height: int, variation: int, path: int) -> None:
    bucket = Bucket(256, 384)
    numbers = compute_crops(
        np.array([width], dtype=np.int32),
        np.array([height], dtype=np.int32),
        np.array([[bucket.height, bucket.width]], dtype=np.int32),
        np.array([path], dtype=np.uint64),
        variation,
    )
    resized_height, resized_width, top, left = numbers[0].tolist()
    assert 0 <= top <= resized_height - bucket.height
    assert 0 <= left <= resized_width - bucket.width
    assert resized_height == bucket.height or resized_width == bucket.width
    box = Crop((resized_height, resized_width), top, left, bucket, False).box(width, height)
    assert 0 <= box[0] < box[2] <= width
    assert 0 <= box[1] < box[3] <= height


def test_views_are_variations_times_flips() -> None:
    concept = Concept(path="x", crop_jitter=True, image_variations=3, horizontal_flip=True)
    assert count_views(concept, validation=False) == 6
    assert count_views(concept, validation=True) == 1
    assert [split_view(view, concept) for view in range(4)] == [(0, False), (0, True), (1, False), (1, True)]
    assert count_views(Concept(path="x", image_variations=3), validation=False) == 1
    for varied in ({"crop_jitter": True}, {"random_rotate": 5}, {"color_jitter": 0.1}, {"random_hue": 0.1}):
        assert count_views(Concept.model_validate({"path": "x", **varied}), validation=False) == 4


def test_mask_is_cropped_like_its_image() -> None:
    image = Image.new("RGB", (80, 40), "black")
    image.paste("white", (0, 0, 30, 40))
    mask = image.convert("L").resize((40, 20))
    crop = Crop((32, 64), 0, 8, Bucket(32, 32), flipped=True)
    example = crop_example(image, mask, True, ("a",), (40, 80), crop)
    assert example.pixels.shape == (3, 32, 32)
    assert example.mask is not None
    assert example.mask.shape == (1, 32, 32)
    assert (example.pixels[0] > 128).eq(example.mask[0] > 128).float().mean() > 0.95
    assert example.pixels[0, 0, 31] == 255
    assert (example.crop, example.flipped, example.original_size) == (
        (0, 24),
        True,
        (40, 80),
    )  # 80 - 48 - 8, from its own left edge
    whole = crop_example(image, None, True, ("a",), (40, 80), crop).mask
    assert whole is not None
    assert whole.min() == 255
    assert crop_example(image, mask, False, ("a",), (40, 80), crop).mask is None or mask is not None


def test_an_empty_file_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    with pytest.raises(FileFault) as error:
        read_image_size(str(tmp_path / "a.png"))
    assert describe_image_error(error.value) == "skipped: it is empty"
    what = describe_image_error(OSError("Truncated File Read"))
    assert what == "skipped: damaged or incomplete: the end of the file is missing"


def test_one_is_no_plural() -> None:
    summary = DatasetSummary(1, 0, {"64x64": 1}, 1, 1, 1, 1)
    assert summary.lines()[0] == "1 image, 1 problem (see problems.txt)"


def test_sizes_of_images_that_are_not_enlarged() -> None:
    sizes = np.array([(640, 480), (100, 80), (37, 500), (5, 5), (900, 100)], dtype=np.int32)  # width, height
    concept = np.zeros(len(sizes), dtype=np.int32)

    def found(**settings: object) -> list[str]:
        config = TrainConfig.model_validate({"resolution": 256, "concepts": [{"path": "x"}], **settings})
        buckets, numbers = bucket_images(config, 8, concept, sizes[:, 0], sizes[:, 1])
        assert list(buckets) == sorted(set(buckets), key=lambda each: (each.width / each.height, each.width))
        return [str(buckets[number]) for number in numbers]

    assert found() == ["296x224", "288x232", "128x512", "256x256", "512x128"]
    assert found(no_upscale=True) == ["296x224", "96x80", "32x144", "8x8", "400x96"]
    assert found(no_upscale=True, aspect_ratio_bucketing=False) == ["256x256", "80x80", "32x32", "8x8", "96x96"]
    assert found(bucket_step=64) == ["256x192", "320x256", "128x512", "256x256", "512x128"]
    assert found(largest_aspect=1.5, bucket_step=12) == ["288x216", "288x240", "216x312", "264x264", "312x216"]


def test_every_concept_has_the_buckets_of_its_resolution() -> None:
    concepts = [
        {"path": "a"},
        {"path": "b", "resolutions": "128"},
        {"path": "c", "enabled": False, "resolutions": "999"},
    ]
    config = TrainConfig.model_validate({"resolution": 256, "concepts": concepts})
    side = np.array([300, 300, 300], dtype=np.int32)
    buckets, numbers = bucket_images(config, 8, np.array([0, 1, 0], dtype=np.int32), side, side)
    assert [str(buckets[number]) for number in numbers] == ["256x256", "128x128", "256x256"]
    assert config.largest_resolution == 256
    alone = config.model_copy(update={"concepts": ()})
    assert bucket_images(alone, 8, np.zeros(3, dtype=np.int32), side, side)[0] == make_buckets(256, 8, True)
