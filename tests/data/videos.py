"""Small videos of a square that moves, with frames that are known by their brightness."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw

from modules.files.videos import Clip, write_clip


def numbered_frame(number: int, size: tuple[int, int] = (64, 48)) -> Image.Image:
    """Grey, 8 brighter with each number, with a white square that moves to the right."""
    image = Image.new("RGB", size, (8 * number % 256,) * 3)
    left = 2 * number % size[0]
    ImageDraw.Draw(image).rectangle((left, 4, left + 8, 12), fill="white")
    return image


def write_video(file: Path, frames: int, fps: float = 8.0, size: tuple[int, int] = (64, 48)) -> Path:
    """An .mp4 of `frames` numbered ones."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_clip(file, Clip(tuple(numbered_frame(number, size) for number in range(frames)), fps))
    return file
