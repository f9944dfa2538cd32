"""No thread but the Tk thread ever holds the last reference to anything of Tk's, which would end the process."""

from __future__ import annotations

import gc
import threading
import tkinter as tk
from pathlib import Path

import pytest
from PIL import Image

from app.background import Background
from app.pictures.thumbnails import Thumbnails
from tests.app.driving import Driver


def test_the_threads_of_a_window_end_with_it(display: str) -> None:
    root = tk.Tk()
    background = Background(root)
    started = threading.Event()
    release = threading.Event()

    def work() -> None:
        started.set()
        release.wait(60)

    before = set(threading.enumerate())
    background.run(work, lambda _: None)
    (thread,) = set(threading.enumerate()) - before
    assert started.wait(60)
    root.destroy()
    release.set()
    thread.join(60)
    assert not thread.is_alive()
    background.run(work, lambda _: None)  # dropped: nobody is there to be told
    assert set(threading.enumerate()) == before


def test_what_is_left_of_a_closed_window_is_no_other_threads_to_find(display: str, home: Path) -> None:
    before = set(threading.enumerate())
    with Driver.open(section="data") as driver:
        driver.window.show_section("data")
        driver.draft.insert("concepts", 0, {"path": str(home)})  # its survey goes on while the window closes
        driver.settle()
    assert not gc.isenabled()
    for thread in set(threading.enumerate()) - before:
        thread.join(120)  # after what it is at
        assert not thread.is_alive(), thread.name


@pytest.mark.parametrize("kind", ["bmp", "png"])
def test_pictures_are_read_and_not_mapped(tmp_path: Path, kind: str) -> None:
    """Pillow maps plain kinds into memory when it opens them by name; cut short meanwhile, they end the process."""
    file = tmp_path / f"picture.{kind}"
    Image.new("L", (64, 64), 9).save(file)
    thumbnails = Thumbnails(tmp_path / "cache")
    try:
        assert thumbnails.get(file) is None
        while not thumbnails.poll(lambda made: None):
            threading.Event().wait(0.01)
        picture = thumbnails.get(file)
        assert picture is not None
        assert getattr(picture, "map", None) is None
    finally:
        thumbnails.close()
