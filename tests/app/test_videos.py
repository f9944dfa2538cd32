"""Samples that are videos: they play in the viewer, and their tiles say that they do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.monitor.tiles import read_image
from app.monitor.viewer import SampleViewer
from modules.files.videos import Clip
from modules.monitoring.images import save_sample
from modules.run.view.event_records import SampleFile
from tests.app.driver import Driver

pytest.importorskip("av")
SIDE = 32


class Alone:
    """An image without others beside it."""

    def of_prompt(self, prompt: str) -> list[SampleFile]:
        return []

    def at_step(self, step: int) -> list[SampleFile]:
        return []


def moving(file: Path) -> Path:
    """The poster of a video of a bright bar that moves from left to right."""
    frames = []
    for left in range(0, SIDE, 4):
        pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
        pixels[:, left : left + 4] = 255
        frames.append(Image.fromarray(pixels))
    save_sample(Clip(tuple(frames), 50.0), file, {"prompt": "a bar", "frames": len(frames)})
    return file


def bar(viewer: SampleViewer) -> int:
    """Where the bar is in the frame that is shown."""
    assert viewer._image is not None
    return int(np.asarray(viewer._image.convert("L")).sum(axis=0).argmax()) // 4


def test_a_video_plays_in_the_viewer_until_it_is_paused(driver: Driver, tmp_path: Path) -> None:
    file, seen = moving(tmp_path / "one.png"), set[int]()
    viewer = SampleViewer(driver.window, Alone(), SampleFile(str(file), "a bar", 1, 1))

    def all_are_seen() -> bool:
        seen.add(bar(viewer))
        return len(seen) == SIDE // 4

    driver.wait(all_are_seen, "each frame")
    assert viewer.values["frames"].cget("text") == str(SIDE // 4)
    assert viewer.play.cget("text") == "Pause"
    viewer.play.invoke()
    assert not viewer.playback.is_playing
    assert viewer.play.cget("text") == "Play"
    viewer.play.invoke()
    assert viewer.playback.is_playing
    file.with_suffix(".mp4").write_bytes(b"damaged")
    viewer.show(viewer.sample)
    assert not viewer.playback.is_playing, "the first frame is shown"
    assert not viewer.play.winfo_manager()
    viewer.destroy()


def test_the_tile_of_a_video_has_a_mark(tmp_path: Path) -> None:
    file = moving(tmp_path / "one.png")
    marked = read_image(file, 64)
    file.with_suffix(".mp4").unlink()
    plain = read_image(file, 64)
    assert marked is not None
    assert plain is not None
    assert marked.tobytes() != plain.tobytes()
