"""Video files that anybody may have made: known formats only, no more of them at once than is sensible, and writing
clips as .mp4. Read and written by PyAV (the extra `video`), animated WebP by Pillow.

Frames are chosen by exact times: those of a file as it states them, in whole units of its time base.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from PIL import Image

from modules.files.images import SIGNATURE_BYTES, memory_to_decode, open_image, upright_rgb
from modules.files.opening import FileFault
from modules.files.partial import replacing
from modules.files.reading import file_size, open_regular

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

VIDEO_SUFFIXES: Final = frozenset({".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".gif"})
ANIMATION_SUFFIXES: Final = frozenset({".webp"})  # which may hold a still or an animation
NO_PYAV: Final = "is a video, which needs PyAV: .venv/bin/python -m pip install av"
_CODECS: Final = frozenset(
    {"av1", "libdav1d", "ffv1", "gif", "h263", "h264", "hevc", "mjpeg", "mpeg1video", "mpeg2video", "mpeg4"}
    | {"msmpeg4v2", "msmpeg4v3", "png", "prores", "rawvideo", "theora", "vp8", "libvpx", "vp9", "libvpx-vp9"}
)
_MOST_PIXELS: Final = 1 << 26  # of a frame: 8192x8192
_MOST_FRAMES: Final = 1 << 20  # nine hours at 30 a second
_MOST_SECONDS: Final = 24 * 3600
_MOST_STREAMS: Final = 32
_GIF_STARTS: Final = (b"GIF87a", b"GIF89a")
_GIF_END: Final = b"\0;"  # of the last block, and of the file
_TAIL: Final = 1 << 10  # bytes, as programs may append data of their own
_MOST_BOXES: Final = 100_000  # of fragments, a few a second
_MOST_WEBP_PIXELS: Final = 1 << 33  # of all frames, which are decoded to learn their times: minutes
_MOST_ASPECT: Final = 16  # of a pixel
_STEADY: Final = Fraction(3, 2)  # the longest step between frames over the mean; milliseconds are rounded to
_GIF_STEP_MS: Final = 100  # of a frame without a duration, as browsers have it
_RATE_DENOMINATOR: Final = 1001  # of NTSC's rates
_BT709, _UNKNOWN, _BT601 = 1, 2, 5  # ITU-T H.273, of primaries, transfer and matrix
_HD_HEIGHT: Final = 720  # pixels, from which colours that a file does not state are BT.709's
_TURNS: Final = {1: Image.Transpose.ROTATE_90, 2: Image.Transpose.ROTATE_180, 3: Image.Transpose.ROTATE_270}


@dataclass(frozen=True)
class Clip:
    """Some frames, all of one size, 8-bit RGB, shown `fps` a second."""

    frames: tuple[Image.Image, ...]
    fps: float


@dataclass(frozen=True)
class VideoHeader:
    """What a video holds: the size in pixels, upright and with square pixels, and its frames."""

    width: int
    height: int
    frames: int
    fps: float  # the mean rate: steps between frames, over the time from the first to the last
    is_steady: bool = True  # whether frames come at about equal times

    @property
    def seconds(self) -> float:
        """How long it lasts, the last frame as long as a mean one."""
        return self.frames / self.fps


def is_animation(path: str | Path) -> bool:
    """Whether a WebP holds an animation (its VP8X chunk says so: RFC 9649, 2.7). Raises OSError or FileFault."""
    with open_regular(path) as file:
        head = file.read(SIGNATURE_BYTES)
    return _is_webp(head) and head[12:16] == b"VP8X" and bool(head[20] & 2)


def read_video_header(path: str | Path) -> VideoHeader:
    """The header of a video file, or of one in a shard: its packets are listed and its first frame is decoded.

    Raises OSError, or FileFault for what is damaged, too large or of no known format."""
    if not file_size(path):
        raise FileFault("is empty")
    with _open(path) as video:
        times = video.times
        first = next(video.frames(times[:1]))
        return _header(first.size, times)


def video_frames(path: str | Path, choose: Callable[[Sequence[Fraction]], Sequence[int]]) -> Iterator[Image.Image]:
    """Some frames of a video as upright 8-bit RGB, transparent parts on white. `choose` gets the times of all frames in
    seconds, ascending, the first 0, and returns positions of the wanted ones, ascending; one may come several times.

    Only as much is decoded as these need, one frame at a time. Raises as `read_video_header`."""
    with _open(path) as video:
        times = video.times
        positions = choose(times)
        if any(later < earlier for earlier, later in pairwise(positions)):
            raise ValueError("frames are chosen in the order of their times")
        yield from video.frames([times[each] for each in positions])


def read_poster(path: str | Path) -> Image.Image:
    """The first frame of a video. Raises as `read_video_header`."""
    return next(video_frames(path, lambda times: [0]))


def is_video(path: str | Path) -> bool:
    """Whether a file is a video by its name, or an animated WebP. Raises OSError or FileFault."""
    return os.path.splitext(path)[1].lower() in VIDEO_SUFFIXES or is_animation(path)


def nearest_frames(times: Sequence[Fraction], wanted: Sequence[Fraction]) -> list[int]:
    """For each wanted time, the position of the nearest of `times`, of two equally near ones the earlier; both ascend,
    in seconds."""
    found, at = list[int](), 0
    for time in wanted:
        while at + 1 < len(times) and abs(times[at + 1] - time) < abs(times[at] - time):
            at += 1
        found.append(at)
    return found


def video_beside(poster: Path) -> Path | None:
    """The video of which an image of the same name is the first frame; None if there is none."""
    file = poster.with_suffix(".mp4")
    return file if file.is_file() else None


def write_clip(file: Path, clip: Clip) -> None:
    """Write a clip as .mp4: H.264, yuv420p, BT.709. The bytes for the same frames are rarely others (2 of 2,862
    files on a busy machine, cause unknown). Odd sides get one pixel more, which repeats the last.

    Raises FileFault without PyAV, OSError."""
    av = _pyav()
    rate = Fraction(clip.fps).limit_denominator(_RATE_DENOMINATOR)
    width, height = (side + side % 2 for side in clip.frames[0].size)
    with replacing(file) as partial:
        options = {"movflags": "+faststart", "fflags": "+bitexact"}
        with av.open(str(partial), "w", format="mp4", container_options=options) as container:
            stream = container.add_stream("libx264", rate=rate, options={"crf": "16", "preset": "medium"})
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.codec_context.thread_count = 1
            stream.codec_context.time_base = 1 / rate
            stream.codec_context.color_range, stream.codec_context.colorspace = 1, _BT709
            stream.codec_context.color_primaries = stream.codec_context.color_trc = _BT709
            for number, image in enumerate(clip.frames):
                picture = av.VideoFrame.from_image(_even(image.convert("RGB"), (width, height)))
                frame = picture.reformat(format="yuv420p", dst_colorspace=_BT709, dst_color_range=1)
                frame.pts, frame.time_base = number, 1 / rate
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))


def _even(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    if image.size == size:
        return image
    wider = Image.new("RGB", size)
    for left, top in ((1, 1), (1, 0), (0, 1), (0, 0)):  # the image itself last
        wider.paste(image, (left * (size[0] - image.width), top * (size[1] - image.height)))
    return wider


class _Webp:
    """An animated WebP, or a still one, which has one frame."""

    def __init__(self, image: Image.Image) -> None:
        self._image = image
        starts, count = [Fraction(0)], int(getattr(image, "n_frames", 1))
        _check_limits(image.size, count)
        if count * image.width * image.height > _MOST_WEBP_PIXELS:
            raise FileFault(f"has {count:,} frames of {image.width}x{image.height} pixels; convert it to .mp4")
        for number in range(count if count > 1 else 0):
            image.seek(number)
            with memory_to_decode(image):
                image.load()  # as late as here the duration is known
            starts.append(starts[-1] + Fraction(int(image.info.get("duration", 0)) or _GIF_STEP_MS, 1000))
        self.times: Sequence[Fraction] = starts[:count]

    def frames(self, wanted: Sequence[Fraction]) -> Iterator[Image.Image]:
        at, shown = -1, Image.new("RGB", (1, 1))
        for time in wanted:
            number = self.times.index(time)
            if number != at:
                if len(self.times) > 1:
                    self._image.seek(number)
                at, shown = number, upright_rgb(self._image)
            yield shown


class _Video:
    """The first video stream of a file that PyAV reads."""

    def __init__(self, container: InputContainer, stream: VideoStream) -> None:
        self._container, self._stream = container, stream
        self._base = Fraction(stream.time_base or Fraction(1, 1000))
        found, self._keys = list[int](), list[int]()
        for packet in container.demux(stream):
            time = _time(packet)
            if packet.size == 0 or time is None or packet.is_discard:
                continue
            if packet.is_corrupt:
                raise FileFault(f"is damaged after {float(len(found) and (time - found[0]) * self._base):.1f} s")
            found.append(time)
            self._keys += [time] if packet.is_keyframe else []
            _check_limits((stream.width, stream.height), len(found))
        if not found:
            raise FileFault("has no frames")
        self._times = sorted(found)
        if float((self._times[-1] - self._times[0]) * self._base) > _MOST_SECONDS:
            raise FileFault(f"lasts longer than {_MOST_SECONDS // 3600} hours; cut it")
        self.times: Sequence[Fraction] = [(each - self._times[0]) * self._base for each in self._times]

    def frames(self, wanted: Sequence[Fraction]) -> Iterator[Image.Image]:
        """The frames of these times, ascending."""
        units = [int(each / self._base) + self._times[0] for each in wanted]
        start = max((each for each in self._keys if each <= units[0]), default=self._times[0])
        found = self._decode(start, units)
        first = next(found, None)
        if first is None and start > self._times[0]:  # some formats find their key frames only from the start
            found = self._decode(self._times[0], units)
            first = next(found, None)
        if first is None:
            raise FileFault("cannot be decoded: its frames are not where it says")
        yield first
        count = 1
        for image in found:
            count += 1
            yield image
        if count < len(units):
            raise FileFault(f"cannot be decoded: of the frames that were to be used, {len(units) - count} are missing")

    def _decode(self, start: int, units: Sequence[int]) -> Iterator[Image.Image]:
        """The frames at `units` from the key frame at `start` on, none if the first of them is not found."""
        self._container.seek(start, stream=self._stream, backward=True)
        at = 0
        for frame in self._container.decode(self._stream):
            time = frame.pts if frame.pts is not None else frame.dts
            if frame.is_corrupt:
                raise FileFault("is damaged: a frame cannot be decoded whole")
            if time is None or time < units[at]:
                continue
            if time > units[at]:
                return
            image = _upright(frame, self._stream)
            while at < len(units) and units[at] == time:
                yield image
                at += 1
            if at == len(units):
                return


@contextmanager
def _open(path: str | Path) -> Iterator[_Video | _Webp]:
    with open_regular(path) as opened:
        head = opened.read(SIGNATURE_BYTES)
        kind = _format(head)
        if _is_webp(head):
            with open_image(path) as image:
                yield _Webp(image)
            return
        if not kind:
            raise FileFault("is no video of a format that Tandem reads, despite its name")
        _check_end(opened, head)
        av = _pyav()
        opened.seek(0)
        try:
            # The format is given, so nothing is guessed: a playlist or a list of files to join is damaged data.
            # Titles and other texts, which nobody reads, may be in any encoding.
            with av.open(opened, "r", format=kind, io_open=_refuse_others, metadata_errors="ignore") as container:
                yield _Video(container, _stream_of(container))
        except (av.FFmpegError, RuntimeError) as error:
            said = str(getattr(error, "strerror", "") or error).strip()
            raise FileFault(f"cannot be decoded: {said[:1].lower()}{said[1:]}") from None


def _stream_of(container: InputContainer) -> VideoStream:
    if len(container.streams) > _MOST_STREAMS:
        raise FileFault(f"has {len(container.streams)} streams; the most is {_MOST_STREAMS}")
    if not container.streams.video:
        raise FileFault("has no video")
    stream = container.streams.video[0]
    name = stream.codec_context.name if stream.codec_context is not None else "unknown"
    if name not in _CODECS:
        raise FileFault(f"is coded as {name}, which Tandem does not read; convert it to H.264")
    _check_limits((stream.width, stream.height), 0)
    stream.codec_context.options = {"err_detect": "explode"}  # damage is said, not painted over
    stream.codec_context.thread_count = 1
    return stream


def _refuse_others(url: str, flags: int, options: object) -> BinaryIO:
    raise FileFault("refers to another file, which is not read")


def _time(packet: Packet[VideoStream]) -> int | None:
    return packet.pts if packet.pts is not None else packet.dts


def _header(size: tuple[int, int], times: Sequence[Fraction]) -> VideoHeader:
    if len(times) == 1 or times[-1] == 0:
        return VideoHeader(*size, 1, 1.0)
    mean = times[-1] / (len(times) - 1)
    longest = max(later - earlier for earlier, later in pairwise(times))
    is_steady = longest <= max(mean * _STEADY, mean + Fraction(2, 1000))
    rate = (1 / mean).limit_denominator(_RATE_DENOMINATOR) or 1 / mean
    return VideoHeader(*size, len(times), float(rate), is_steady)


def _check_limits(size: tuple[int, int], frames: int) -> None:
    if size[0] * size[1] > _MOST_PIXELS:
        raise FileFault(f"has frames of {size[0]}x{size[1]} pixels; scale it down")
    if frames > _MOST_FRAMES:
        raise FileFault(f"has more than {_MOST_FRAMES:,} frames; cut it")


def _upright(frame: VideoFrame, stream: VideoStream) -> Image.Image:
    if frame.width * frame.height > _MOST_PIXELS:
        raise FileFault(f"has frames of {frame.width}x{frame.height} pixels; scale it down")
    matrix = frame.colorspace
    if matrix == _UNKNOWN and not frame.format.is_rgb:
        matrix = _BT709 if frame.height >= _HD_HEIGHT else _BT601
    if any(component.is_alpha for component in frame.format.components):
        layer = Image.fromarray(frame.to_ndarray(format="rgba"))
        image = Image.new("RGB", layer.size, "white")
        image.paste(layer, mask=layer.getchannel("A"))
    else:
        image = Image.fromarray(frame.reformat(format="rgb24", src_colorspace=matrix).to_ndarray())
    aspect = stream.sample_aspect_ratio or Fraction(1)
    if aspect > 0 and aspect != 1:
        if not 1 / _MOST_ASPECT <= aspect <= _MOST_ASPECT:
            raise FileFault(f"has pixels {float(aspect):.3g} times as wide as high, which no video has")
        size = max(1, round(image.width * aspect)), image.height
        _check_limits(size, 0)
        image = image.resize(size, Image.Resampling.LANCZOS)
    turns = round(frame.rotation / 90)  # counter-clockwise
    if _is_mirrored(frame):  # as front cameras write it; the rotation is that of the first row of the matrix
        image, turns = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), turns + 2
    turns %= 4
    return image.transpose(_TURNS[turns]) if turns else image


def _is_mirrored(frame: VideoFrame) -> bool:
    """Whether the frame's display matrix (ISO/IEC 14496-12, 8.3.2.3) has a negative determinant."""
    try:
        data = cast(Mapping[str, bytes], frame.side_data)["DISPLAYMATRIX"]
    except KeyError:
        return False
    across, down, _, right, below, *_ = struct.unpack("=9i", bytes(data))
    return bool(across * below < down * right)


def _is_webp(head: bytes) -> bool:
    return head[:4] == b"RIFF" and head[8:12] == b"WEBP"


def _format(head: bytes) -> str:
    """FFmpeg's name of the format, by the beginning of the file; empty for others."""
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        return "mov"
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return "matroska"
    if head.startswith(_GIF_STARTS):
        return "gif"
    return "avi" if head[:4] == b"RIFF" and head[8:12] == b"AVI " else ""


def _check_end(file: BinaryIO, head: bytes) -> None:
    """Raises FileFault if the file ends before its end, as far as it shows: a GIF has a mark of its end, the others
    say how long they are."""
    size, wanted = file.seek(0, os.SEEK_END), 0
    if head.startswith(b"RIFF"):
        wanted = int.from_bytes(head[4:8], "little") + 8
    elif head.startswith(b"\x1a\x45\xdf\xa3"):
        wanted = _matroska_size(file)
    elif _format(head) == "mov":
        wanted = _boxes_size(file, size)
    elif head.startswith(_GIF_STARTS):
        file.seek(max(0, size - _TAIL))
        if _GIF_END not in file.read():
            raise FileFault("is incomplete: its end is missing")
    if size < wanted:
        raise FileFault(f"is incomplete: its end is missing ({size:,} of {wanted:,} bytes are there)")


def _boxes_size(file: BinaryIO, size: int) -> int:
    """Where the last box of a file of `size` bytes ends (ISO/IEC 14496-12, 4.2)."""
    at = 0
    for _ in range(_MOST_BOXES):
        file.seek(at)
        head = file.read(16)
        length = int.from_bytes(head[:4], "big")
        length = int.from_bytes(head[8:16], "big") if length == 1 else length
        if length < 8 or at + length >= size:  # 0: up to the end
            return at + max(0, length)
        at += length
    return at


def _matroska_size(file: BinaryIO) -> int:
    """Bytes that the file must have: its EBML header and its segment, of which each says how long it is (RFC 8794);
    0 if it does not, as when it was recorded live."""
    at = 4
    for _ in range(2):
        file.seek(at)
        start = file.read(8)
        if len(start) < 8 or not start[0]:
            return 0
        length = 9 - start[0].bit_length()
        value = int.from_bytes(start[:length], "big") & ((1 << 7 * length) - 1)
        if value == (1 << 7 * length) - 1:
            return 0
        if at > 4:
            return at + length + value
        at += length + value + 4  # and the identifier of the segment, of 4 bytes
    return 0


def has_pyav() -> bool:
    """Whether PyAV is installed."""
    return importlib.util.find_spec("av") is not None


def _pyav() -> ModuleType:
    """PyAV's module. Raises FileFault if it is not installed."""
    if not has_pyav():
        raise FileFault(NO_PYAV)
    return importlib.import_module("av")
