"""Only the Tk thread may hold the last reference to a Tk object: any other thread would abort the process."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import tkinter as tk
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from PIL import Image

from app.background import Background
from app.images.thumbnails import Thumbnails
from tests.app.driver import Driver
from tests.app.fake_runs import make_fake_run


def test_threads_of_a_window_end_with_it(display: str) -> None:
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
    background.run(work, lambda _: None)  # dropped: the window is gone
    assert set(threading.enumerate()) == before


@pytest.mark.slow
def test_closed_window_is_not_collected_by_threads(display: str, home: Path) -> None:
    before = set(threading.enumerate())
    with Driver.open(section="data") as driver:
        driver.window.show_section("data")
        driver.draft.insert("concepts", 0, {"path": str(home)})  # its scan continues while the window closes
        driver.settle()
    assert not gc.isenabled()
    for thread in set(threading.enumerate()) - before:
        thread.join(120)  # after its current job
        assert not thread.is_alive(), thread.name


@pytest.mark.parametrize("kind", ["bmp", "png"])
def test_images_are_read_and_not_mapped(tmp_path: Path, kind: str) -> None:
    """Pillow memory-maps uncompressed formats opened by name; truncating such a file would crash the process."""
    file = tmp_path / f"image.{kind}"
    Image.new("L", (64, 64), 9).save(file)
    thumbnails = Thumbnails(tmp_path / "cache")
    try:
        assert thumbnails.get(file) is None
        while not thumbnails.poll(lambda made: None):
            threading.Event().wait(0.01)
        image = thumbnails.get(file)
        assert image is not None
        assert getattr(image, "map", None) is None
    finally:
        thumbnails.close()


@pytest.mark.slow
def test_the_window_waits_for_no_import_of_plots(display: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib takes seconds; what the window imports meanwhile would wait for the lock of that import."""
    importers, release = list[threading.Thread](), threading.Event()

    def slow(name: str) -> ModuleType:
        importers.append(threading.current_thread())
        release.wait(20)
        return importlib.import_module(name)

    run = make_fake_run(home / "runs" / "cats", steps=20, ended="stopped")
    with Driver.open() as driver:
        driver.window.state_.actions.follow(run.path)
        with monkeypatch.context() as patch:
            for name in ("curves", "samples"):
                patch.delitem(sys.modules, f"app.monitor.{name}", raising=False)
            patch.setattr("app.sections.monitor.importlib", SimpleNamespace(import_module=slow))
            driver.window.show_section("monitor")
            section = driver.window.sections["monitor"]
            for page in ("curves", "samples", "curves"):
                section.open_page(page)
                driver.settle()
            assert not section.pages
            release.set()
            driver.wait(lambda: "curves" in section.pages and section.pages["curves"].winfo_ismapped(), "the curves")
        assert len(importers) >= 2
        assert threading.main_thread() not in importers[:2]
