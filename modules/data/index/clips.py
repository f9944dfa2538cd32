"""Clips of videos: how many frames they have, which moments these are, and where in a long video a clip may begin.

A clip is on a grid of moments k / rate seconds after the first frame of its video, for k = 0, 1, 2 ...; of each moment
it has the video's frame that is nearest in time, of two equally near ones the earlier (`modules.files.videos`). All
times are fractions, so that every machine takes the same frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from PIL import Image

from modules.files.videos import nearest_frames, video_frames

_DENOMINATOR: Final = 1001  # of NTSC's rates


@dataclass(frozen=True)
class ClipTimes:
    """`frames` moments of a video from the moment `start` on, `rate` a second; as a text, part of the cache's keys."""

    start: int
    frames: int
    rate: float

    def times(self) -> list[Fraction]:
        """In seconds after the first frame of the video."""
        return [(self.start + each) / _ratio(self.rate) for each in range(self.frames)]


def moments(frames: int, fps: float, rate: float) -> int:
    """How many moments a video of so many frames has: those up to half a frame after its last frame; of a single
    frame, which has no rate, one."""
    return 1 if frames == 1 else int((frames - Fraction(1, 2)) * _ratio(rate) / _ratio(fps)) + 1


def clip_frames(found: int, most: int, step: int) -> int:
    """Of a video with `found` moments, the largest 1 + n x `step` frames that it fills, at most `most`."""
    return (min(found, most) - 1) // step * step + 1


def clip_start(
    clips: Literal["start", "uniform", "random"], spare: int, variation: int, variations: int, drawn: float
) -> int:
    """The moment at which a clip begins that may begin at any of the moments 0 to `spare`.

    uniform: variation 0 at 0 and the last of `variations` at `spare`, the others evenly between, rounded down. random:
    by `drawn`, in [0, 1), and 0 for variation 0."""
    if clips == "start" or variation == 0:
        return 0
    return spare * variation // max(1, variations - 1) if clips == "uniform" else int(drawn * (spare + 1))


def read_clip(path: str, clip: ClipTimes) -> Iterator[Image.Image]:
    """The frames of a clip, upright RGB, each decoded when it is asked for. Raises OSError or FileFault."""
    return video_frames(path, lambda times: nearest_frames(times, clip.times()))


def clip_notes(frames: int, fps: float, trained: int, most: int, *, is_steady: bool) -> Iterator[str]:
    """What its owner should know of a video that is `trained` with so many of its frames, of at most `most`."""
    if trained == 1 < min(frames, most):
        yield f"too short for a clip ({frames} frames, {frames / fps:.2g} s): one frame is trained on"
    if not is_steady:
        yield f"its frames come at a variable rate ({fps:.3g} a second on average): the nearest are taken"


def _ratio(number: float) -> Fraction:
    exact = Fraction(number)
    return exact.limit_denominator(_DENOMINATOR) or exact
