"""Videos of every format: headers, exact choice of frames, damage in one sentence, and clips that are written."""

from __future__ import annotations

import importlib.util
import io
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from modules.files import FileFault, videos
from modules.files.videos import Clip, nearest_frames, read_video_header, video_frames, write_clip

av = pytest.importorskip("av")
WIDTH, HEIGHT, COUNT = 64, 48, 20


def frame(number: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    """A grey whose brightness is the frame's number, with a red corner at the top left."""
    image = Image.new("RGB", size, (10 * number,) * 3)
    ImageDraw.Draw(image).rectangle((0, 0, 15, 15), fill="red")
    return image


FRAMES = tuple(frame(number) for number in range(COUNT))


def write(
    file: Path,
    codec: str,
    times_ms: Sequence[int],
    pixels: str = "yuv420p",
    turn: float = 0,
    aspect: Fraction = Fraction(1),
    **options: str,
) -> Path:
    with av.open(str(file), "w") as container:
        stream = container.add_stream(codec, rate=8, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, pixels
        stream.sample_aspect_ratio = aspect
        if turn:
            stream.set_display_rotation(turn)
        stream.codec_context.time_base = Fraction(1, 1000)
        for image, time in zip(FRAMES, times_ms, strict=True):
            picture = av.VideoFrame.from_image(image).reformat(format=pixels)
            picture.pts, picture.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return file


def numbers(file: Path, wanted: Sequence[int]) -> list[int]:
    """Which frames the file gives for these positions, by their brightness."""
    found = video_frames(file, lambda times: wanted)
    return [round(float(np.asarray(image.convert("L"))[-8:, -8:].mean()) / 10) for image in found]


STEADY = [125 * number for number in range(COUNT)]


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.mp4", "libx264"), ("a.webm", "libvpx-vp9"), ("a.mkv", "libx264"), ("a.mov", "mpeg4"), ("a.avi", "mpeg4")],
)
def test_every_format_has_its_header_and_gives_exactly_the_frames_that_are_asked_for(
    tmp_path: Path, name: str, codec: str
) -> None:
    file = write(tmp_path / name, codec, STEADY, g="6")  # several key frames, to start at
    assert read_video_header(file) == videos.VideoHeader(WIDTH, HEIGHT, COUNT, 8.0)
    assert numbers(file, [0, 1, 1, 13, 19]) == [0, 1, 1, 13, 19]
    assert numbers(file, [14, 15]) == [14, 15]
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(FileFault, match=r"is incomplete|is damaged|cannot be decoded"):
        read_video_header(file)


@pytest.mark.parametrize("name", ["a.gif", "a.webp"])
def test_animations_are_videos(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    FRAMES[0].save(file, save_all=True, append_images=FRAMES[1:], duration=120, lossless=True)
    header = read_video_header(file)
    assert (header.width, header.height, header.frames) == (WIDTH, HEIGHT, COUNT)
    assert header.fps == pytest.approx(1000 / 120)
    assert numbers(file, [0, 7, 19]) == [0, 7, 19]


def test_an_animation_that_would_take_hours_to_decode_is_refused_at_once(tmp_path: Path) -> None:
    content, file = io.BytesIO(), tmp_path / "a.webp"
    large = [Image.new("RGB", (8192, 1024), colour) for colour in ("red", "blue")]
    large[0].save(content, "webp", save_all=True, append_images=large[1:], lossless=True, method=0, quality=0)
    head, *frames = content.getvalue().split(b"ANMF")
    body = head[8:] + b"".join(b"ANMF" + each for each in frames * 1000)
    file.write_bytes(b"RIFF" + len(body).to_bytes(4, "little") + body)
    with pytest.raises(FileFault, match=r"has 2,000 frames of 8192x1024 pixels; convert it to .mp4"):
        read_video_header(file)


def test_a_turned_video_is_upright_and_a_variable_rate_is_seen(tmp_path: Path) -> None:
    file = write(tmp_path / "turned.mp4", "libx264", STEADY, turn=90)
    assert read_video_header(file).width == HEIGHT
    image = next(video_frames(file, lambda times: [0]))
    red, _, blue = image.getpixel((4, image.height - 5))  # type: ignore[misc]
    assert image.size == (HEIGHT, WIDTH)
    assert red > 200 > blue  # counter-clockwise: what was at the top left is at the bottom left
    uneven = [20 * number + (500 if number > 10 else 0) for number in range(COUNT)]
    assert not read_video_header(write(tmp_path / "uneven.mkv", "libx264", uneven)).is_steady
    assert read_video_header(write(tmp_path / "even.mkv", "libx264", [33 * n + n % 2 for n in range(COUNT)])).is_steady


def test_a_mirrored_video_is_as_it_is_shown(tmp_path: Path) -> None:
    file = write(tmp_path / "mirrored.mp4", "libx264", STEADY, turn=90)
    content = file.read_bytes()
    place = content.find(b"tkhd") + 44
    a, b, u, c, d, *rest = struct.unpack(">9i", content[place : place + 36])
    file.write_bytes(content[:place] + struct.pack(">9i", -a, -b, u, c, d, *rest) + content[place + 36 :])
    image = next(video_frames(file, lambda times: [0]))
    red, _, blue = image.getpixel((4, 4))  # type: ignore[misc]
    assert image.size == (HEIGHT, WIDTH)
    assert red > 200 > blue  # mirrored, then turned counter-clockwise


def test_texts_in_any_encoding_and_a_frame_a_day_are_read_and_absurd_pixels_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.mp4", "libx264", STEADY, aspect=Fraction(4, 3))
    content = file.read_bytes()
    file.write_bytes(content.replace(b"VideoHandler", b"Vid\xe9oHandler"))
    assert read_video_header(file).width == WIDTH * 4 // 3
    place = content.find(b"pasp") + 4
    for ratio in ((2_000_000, 1), (1, 2_000_000), (2_000_000_000, 3)):
        file.write_bytes(content[:place] + struct.pack(">2I", *ratio) + content[place + 8 :])
        with pytest.raises(FileFault, match=r"has pixels .* times as wide as high"):
            read_video_header(file)
    slow = write(tmp_path / "slow.mp4", "libx264", [4_000_000 * number for number in range(COUNT)])
    assert read_video_header(slow).fps == 1 / 4000


def test_the_nearest_frame_in_time_counts_and_of_two_the_earlier() -> None:
    times = [Fraction(number, 8) for number in range(8)]
    wanted = [Fraction(0), Fraction(1, 16), Fraction(1, 10), Fraction(3, 16), Fraction(5)]
    assert nearest_frames(times, wanted) == [0, 0, 1, 1, 7]


def test_a_playlist_and_other_foreign_files_are_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "a.mp4"
    for content, said in [
        (b"#EXTM3U\nhttp://localhost/a.ts\n", "is no video of a format that Tandem reads"),
        (b"\0\0\0\x18ftypmp42" + bytes(99), "cannot be decoded"),
        (b"", "is empty"),
    ]:
        file.write_bytes(content)
        with pytest.raises(FileFault, match=said):
            read_video_header(file)
    write(file, "libx264", STEADY)
    damaged = bytearray(file.read_bytes())
    start = damaged.find(b"mdat") + 700  # in the first key frame
    damaged[start : start + 100] = bytes(byte ^ 0x5A for byte in damaged[start : start + 100])
    file.write_bytes(damaged)
    with pytest.raises(FileFault, match=r"is damaged|cannot be decoded"):
        list(video_frames(file, range_of_all))


def range_of_all(times: Sequence[Fraction]) -> Sequence[int]:
    return range(len(times))


def test_a_clip_is_written_whole_the_same_each_time_and_with_even_sides(tmp_path: Path) -> None:
    file = tmp_path / "clip.mp4"
    write_clip(file, Clip(tuple(frame(number, (WIDTH - 1, HEIGHT - 1)) for number in range(COUNT)), 29.97))
    first = [each.tobytes() for each in video_frames(file, range_of_all)]
    write_clip(file, Clip(tuple(frame(number, (WIDTH - 1, HEIGHT - 1)) for number in range(COUNT)), 29.97))
    assert [each.tobytes() for each in video_frames(file, range_of_all)] == first  # its bytes may differ, rarely
    assert [each.name for each in tmp_path.iterdir()] == ["clip.mp4"]
    header = read_video_header(file)
    assert (header.width, header.height, header.frames, header.fps) == (WIDTH, HEIGHT, COUNT, 29.97)
    assert numbers(file, [0, 5, 19]) == [0, 5, 19]
    red = np.asarray(next(video_frames(file, lambda times: [0])))[:12, :12].reshape(-1, 3).mean(axis=0)
    assert np.abs(red - [255, 0, 0]).max() < 6  # the colours come back


def test_without_pyav_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "a.mp4", "libx264", STEADY)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileFault, match="needs PyAV"):
        read_video_header(file)
    with pytest.raises(FileFault, match="needs PyAV"):
        write_clip(tmp_path / "b.mp4", Clip(FRAMES, 8))
