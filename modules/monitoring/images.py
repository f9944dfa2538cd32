"""Sample images on disk: each carries its settings, and a grid shows all samples of a step."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from modules.files import replacing
from modules.files.videos import Clip, read_video_header, video_frames, write_clip

# All in pixels.
TILE = 192
CAPTION_HEIGHT = 30
GAP = 8
GIF_SIDE = 512
BACKGROUND = (24, 24, 27)
TEXT = (212, 212, 216)
MOST_CHARACTERS = 500  # of a prompt that are measured: more than two lines hold


def save_image(image: Image.Image, file: Path, settings: Mapping[str, object]) -> None:
    """Write a PNG whose text fields hold `settings`: `prompt` for people, `tandem` as JSON for programs."""
    info = PngInfo()
    info.add_itxt("prompt", str(settings.get("prompt", "")))
    info.add_itxt("tandem", json.dumps(dict(settings)))
    with replacing(file) as partial:
        # drawings, which have a palette, become small anyway: 2 ms instead of 5 for 900 x 900 pixels
        image.save(partial, format="PNG", pnginfo=info, compress_level=1 if image.mode == "P" else 6)


def save_sample(sample: Image.Image | Clip, file: Path, settings: Mapping[str, object]) -> Image.Image:
    """Write an image, or the .mp4 of a clip and its first frame beside it as `file`, which is what lists show; returns
    that image. Raises OSError, also where videos cannot be written."""
    if isinstance(sample, Image.Image):
        save_image(sample, file, settings)
        return sample
    write_clip(file.with_suffix(".mp4"), sample)  # where `video_beside` finds it
    save_image(sample.frames[0], file, {**settings, "fps": sample.fps})
    return sample.frames[0]


def gif_of(video: Path) -> bytes:
    """The video as a GIF that repeats, scaled to at most GIF_SIDE. Raises OSError."""
    fps = read_video_header(video).fps
    frames = []
    for frame in video_frames(video, lambda times: range(len(times))):
        frame.thumbnail((GIF_SIDE, GIF_SIDE))
        frames.append(frame)
    encoded = io.BytesIO()
    frames[0].save(encoded, "GIF", save_all=True, append_images=frames[1:], duration=round(1000 / fps), loop=0)
    return encoded.getvalue()


def make_grid(images: Sequence[tuple[Image.Image, str]], columns: int = 0) -> Image.Image:
    """All (image, prompt) side by side, each scaled to a tile with its prompt below; `columns` in a row if given.

    Small images are enlarged without smoothing, so that their pixels stay visible.
    """
    columns = columns or max(1, min(len(images), math.ceil(math.sqrt(len(images) * 1.4))))
    rows = math.ceil(len(images) / columns)
    cell_width, cell_height = TILE + GAP, TILE + CAPTION_HEIGHT + GAP
    sheet = Image.new("RGB", (columns * cell_width + GAP, rows * cell_height + GAP), BACKGROUND)
    font = ImageFont.load_default(size=12)
    for number, (image, prompt) in enumerate(images):
        left = GAP + number % columns * cell_width
        top = GAP + number // columns * cell_height
        tile = _scale_to_tile(image)
        sheet.paste(tile, (left + (TILE - tile.width) // 2, top + (TILE - tile.height) // 2))
        caption = Image.new("RGB", (TILE, CAPTION_HEIGHT), BACKGROUND)  # which cuts a word that is too long
        for line, text in enumerate(_wrap(prompt, font)):
            ImageDraw.Draw(caption).text((0, 2 + line * 13), text, fill=TEXT, font=font)
        sheet.paste(caption, (left, top + TILE))
    return sheet


def _scale_to_tile(image: Image.Image) -> Image.Image:
    scale = TILE / max(image.size)
    resampling = Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.LANCZOS
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.convert("RGB").resize(size, resampling)


def _wrap(prompt: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> list[str]:
    """The prompt on at most two lines as wide as a tile, the rest replaced by an ellipsis."""
    lines = [""]
    for word in prompt[:MOST_CHARACTERS].split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= TILE or not lines[-1]:
            lines[-1] = longer
        elif len(lines) == 2:
            lines[-1] = f"{lines[-1]}…"
            break
        else:
            lines.append(word)
    return lines
