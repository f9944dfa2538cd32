"""Sample images carry their settings; a grid shows all of them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from modules.files.videos import Clip, video_beside
from modules.monitoring import make_grid, save_image, save_sample
from modules.monitoring.images import CAPTION_HEIGHT, GAP, TILE, gif_of
from modules.monitoring.tensorboard import TensorBoardWriter


def test_image_carries_its_settings(tmp_path: Path) -> None:
    settings = {"prompt": "ein grünes Quadrat \u4e2d", "steps": 20, "guidance_scale": 4.5, "seed": 7}
    save_image(Image.new("RGB", (8, 8), "green"), tmp_path / "p.png", settings)
    with Image.open(tmp_path / "p.png") as image:
        assert json.loads(image.info["tandem"]) == settings
        assert image.info["prompt"] == settings["prompt"]
    assert [path.name for path in tmp_path.iterdir()] == ["p.png"]


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (2, 2, 1), (6, 3, 2), (12, 5, 3)])
def test_grid_has_room_for_every_image(count: int, columns: int, rows: int) -> None:
    images = [(Image.new("RGB", (16, 16 + n), "white"), f"image {n}") for n in range(count)]
    sheet = make_grid(images)
    assert sheet.size == (columns * (TILE + GAP) + GAP, rows * (TILE + CAPTION_HEIGHT + GAP) + GAP)


def test_grid_enlarges_without_smoothing_and_cuts_prompts() -> None:
    two = Image.new("RGB", (2, 2), "black")
    two.putpixel((0, 0), (255, 0, 0))
    sheet = make_grid([(two, "very long words " * 50), (Image.new("L", (900, 300)), "")])
    assert sheet.getpixel((GAP + 5, GAP + 5)) == (255, 0, 0)
    assert sheet.getpixel((GAP + TILE // 2 - 2, GAP + TILE // 2 - 2)) == (255, 0, 0)
    assert sheet.getpixel((GAP + TILE // 2 + 2, GAP + 5)) == (0, 0, 0)


def test_a_prompt_without_spaces_stays_below_its_image() -> None:
    tile = Image.new("RGB", (2, 2))
    left, right = make_grid([(tile, "x" * 100_000), (tile, "")]), make_grid([(tile, ""), (tile, "")])
    beside = (GAP + TILE, 0, *left.size)
    assert left.crop(beside).tobytes() == right.crop(beside).tobytes()
    assert left.tobytes() != right.tobytes()


def test_a_video_is_written_with_its_first_frame_and_moves_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("av")
    frames = tuple(Image.new("RGB", (64, 48), colour) for colour in ("red", "green", "blue"))
    poster = save_sample(Clip(frames, 10.0), tmp_path / "p.png", {"prompt": "colours", "frames": 3})
    assert poster == frames[0]
    with Image.open(tmp_path / "p.png") as image:
        assert json.loads(image.info["tandem"]) == {"prompt": "colours", "frames": 3, "fps": 10.0}
    video = video_beside(tmp_path / "p.png")
    assert video is not None
    with Image.open(io.BytesIO(gif_of(video))) as moving:
        assert (moving.size, getattr(moving, "n_frames", 1), moving.info["duration"]) == ((64, 48), 3, 100)
    writer = TensorBoardWriter(tmp_path / "tensorboard", pytest.fail)
    writer.add_png("samples/00", tmp_path / "p.png", 1)
    writer.close()
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"GIF89a" in events.read_bytes()
