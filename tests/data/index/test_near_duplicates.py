"""Near-duplicates: copies in another size, format or brightness are found, other images are not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageEnhance

from modules.data.index.near_duplicates import near_duplicates
from tests.data.helpers import write_image
from tests.runs import ROOT


def test_copies_are_found_and_the_largest_comes_first(tmp_path: Path) -> None:
    for seed in range(12):
        write_image(tmp_path / f"{seed}.png", 160, 120, seed)
    with Image.open(tmp_path / "3.png") as image:
        image.resize((80, 60)).save(tmp_path / "small.jpg", quality=60)
        ImageEnhance.Brightness(image).enhance(0.8).save(tmp_path / "dark.webp")
    (tmp_path / "broken.png").write_bytes(b"nothing")
    (tmp_path / "moving.gif").write_bytes(b"GIF89a")
    seen = []
    groups, unreadable = near_duplicates(tmp_path, 6, lambda done, total: seen.append((done, total)))
    assert [[Path(image.file).name for image in group] for group in groups] in (
        [["3.png", "dark.webp", "small.jpg"]],
        [["dark.webp", "3.png", "small.jpg"]],
    )
    assert unreadable == 2, "as the Data section counts them"
    assert seen[-1] == (16, 16)


def test_the_same_shape_in_another_colour_is_another_image(tmp_path: Path) -> None:
    for name, colour in (("red", (200, 30, 30)), ("red_again", (205, 28, 33)), ("blue", (30, 30, 200))):
        image = Image.new("RGB", (96, 96), "white")
        ImageDraw.Draw(image).ellipse((20, 20, 76, 76), fill=colour)
        image.save(tmp_path / f"{name}.png")
    groups, _ = near_duplicates(tmp_path, 10)
    assert [sorted(Path(image.file).stem for image in group) for group in groups] == [["red", "red_again"]]


@pytest.mark.slow
def test_program_says_what_is_wrong(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "modules.data.index.near_duplicates", str(tmp_path / "no"), "6"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "does not exist" in json.loads(done.stdout)["error"]
