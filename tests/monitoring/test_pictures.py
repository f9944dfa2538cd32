"""Sample pictures carry their settings; a grid shows all."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from modules.monitoring import grid, save_picture
from modules.monitoring.pictures import CAPTION_HEIGHT, GAP, TILE, read_settings


def test_a_picture_carries_its_settings(tmp_path: Path) -> None:
    settings = {"prompt": "ein grünes Quadrat \u4e2d", "steps": 20, "guidance_scale": 4.5, "seed": 7}
    save_picture(Image.new("RGB", (8, 8), "green"), tmp_path / "p.png", settings)
    assert read_settings(tmp_path / "p.png") == settings
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.info["prompt"] == settings["prompt"]
    assert [path.name for path in tmp_path.iterdir()] == ["p.png"]


def test_a_picture_of_somebody_else_has_no_settings(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "p.png")
    assert read_settings(tmp_path / "p.png") == {}


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (2, 2, 1), (6, 3, 2), (12, 5, 3)])
def test_a_grid_has_room_for_every_picture(count: int, columns: int, rows: int) -> None:
    pictures = [(Image.new("RGB", (16, 16 + n), "white"), f"picture {n}") for n in range(count)]
    sheet = grid(pictures)
    assert sheet.size == (columns * (TILE + GAP) + GAP, rows * (TILE + CAPTION_HEIGHT + GAP) + GAP)


def test_small_pictures_are_enlarged_without_smoothing_and_long_prompts_cut() -> None:
    two = Image.new("RGB", (2, 2), "black")
    two.putpixel((0, 0), (255, 0, 0))
    sheet = grid([(two, "very long words " * 50), (Image.new("L", (900, 300)), "")])
    assert sheet.getpixel((GAP + 5, GAP + 5)) == (255, 0, 0)
    assert sheet.getpixel((GAP + TILE // 2 - 2, GAP + TILE // 2 - 2)) == (255, 0, 0)
    assert sheet.getpixel((GAP + TILE // 2 + 2, GAP + 5)) == (0, 0, 0)
