"""Sample pictures on disk: each carries its settings, and a grid shows one sampling at a glance."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

TILE = 192
CAPTION_HEIGHT = 30
GAP = 8
BACKGROUND = (24, 24, 27)
TEXT = (212, 212, 216)


def save_picture(picture: Image.Image, file: Path, settings: Mapping[str, object]) -> None:
    """Write a PNG whose text fields hold `settings`: `prompt` for people, `tandem` as JSON for programs."""
    info = PngInfo()
    info.add_itxt("prompt", str(settings.get("prompt", "")))
    info.add_itxt("tandem", json.dumps(dict(settings)))
    partial = file.with_name(f".partial-{file.name}")
    picture.save(partial, format="PNG", pnginfo=info)
    partial.replace(file)


def read_settings(file: Path) -> dict[str, object]:
    """The settings that `save_picture` wrote into a PNG; empty where there are none."""
    with Image.open(file) as picture:
        text = picture.info.get("tandem", "{}")
    settings: dict[str, object] = json.loads(text)
    return settings


def grid(pictures: Sequence[tuple[Image.Image, str]]) -> Image.Image:
    """All pictures of one sampling side by side, each enlarged to a tile with its prompt below.

    Small pictures are enlarged without smoothing, so that one sees the pixels as they are.
    """
    columns = max(1, min(len(pictures), math.ceil(math.sqrt(len(pictures) * 1.4))))
    rows = math.ceil(len(pictures) / columns)
    cell_width, cell_height = TILE + GAP, TILE + CAPTION_HEIGHT + GAP
    sheet = Image.new("RGB", (columns * cell_width + GAP, rows * cell_height + GAP), BACKGROUND)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=12)
    for number, (picture, caption) in enumerate(pictures):
        left = GAP + number % columns * cell_width
        top = GAP + number // columns * cell_height
        tile = _fitted(picture)
        sheet.paste(tile, (left + (TILE - tile.width) // 2, top + (TILE - tile.height) // 2))
        for line, text in enumerate(_wrapped(caption, font)):
            pen.text((left, top + TILE + 2 + line * 13), text, fill=TEXT, font=font)
    return sheet


def _fitted(picture: Image.Image) -> Image.Image:
    scale = TILE / max(picture.size)
    how = Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.LANCZOS
    return picture.convert("RGB").resize(
        (max(1, round(picture.width * scale)), max(1, round(picture.height * scale))), how
    )


def _wrapped(caption: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> list[str]:
    """The caption on at most two lines as wide as a tile, the rest replaced by an ellipsis."""
    lines = [""]
    for word in caption.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= TILE or not lines[-1]:
            lines[-1] = longer
        elif len(lines) == 2:
            lines[-1] = f"{lines[-1]} …"
            break
        else:
            lines.append(word)
    return lines
