"""Drives the real window on a real X server with real clicks and keys from xdotool."""

from __future__ import annotations

import gc
import subprocess
import time
import tkinter as tk
import traceback
from collections.abc import Callable
from pathlib import Path
from tkinter import ttk
from typing import Any

import psutil

from app.sections.monitor import TABS
from modules.config import TrainConfig
from modules.run import RunFolder
from tests.app.driver import open_window

ROOT = Path(__file__).resolve().parents[2]
TINY = str(ROOT / "tests" / "tiny_family.py")


class Driven:
    """A main window in this process; an exception in a callback fails the test."""

    def __init__(self, config_file: Path | None = None, run_folder: Path | None = None) -> None:
        self.window: Any = open_window(config_file, run_folder)
        self.errors: list[str] = []
        self.window.report_callback_exception = lambda kind, error, trace: self.errors.append(
            "".join(traceback.format_exception(kind, error, trace))
        )
        self.window.geometry("1280x800+0+0")
        try:
            self.until(self.window.winfo_viewable, "window")
            self.until(lambda: not self.window._curtain.winfo_exists(), "window that takes clicks")
        except BaseException:
            self.window.destroy()
            raise

    def until(self, condition: Callable[[], object], what: str, within_s: float = 200) -> None:
        """Run the window until `condition` holds."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"no {what} in {within_s} s"
            self.window.update()
            time.sleep(0.005)
            assert self.errors == [], self.errors

    def live(self, seconds: float) -> None:
        """Run the window for some seconds."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end, "end")

    def click(self, widget: tk.Misc) -> None:
        """Click the middle of a widget."""
        self.window.update()
        x = widget.winfo_rootx() + widget.winfo_width() // 2
        y = widget.winfo_rooty() + widget.winfo_height() // 2
        click_at(x, y)
        self.live(0.1)

    def press(self, *keys: str) -> None:
        """Press keys."""
        subprocess.run(["xdotool", "key", *keys], check=True)
        self.live(0.1)

    def status(self) -> str:
        """The kind of the followed run's status; empty without a run."""
        run = self.window.state_.run
        return "" if run is None else run.status().kind

    def click_row(self, table: ttk.Treeview, row: str, button: int = 1, times: int = 1) -> None:
        """Click the first cell of a row of a table."""
        table.see(row)
        self.window.update()
        box: Any = table.bbox(row, table["columns"][0])
        x, y, _, height = box
        click_at(table.winfo_rootx() + x + 20, table.winfo_rooty() + y + height // 2, button, times)
        self.live(0.1)

    def choose(self, label: str) -> None:
        """Click the entry of the open menu."""
        drawn: Any = self.window.__dict__["open_popover_"]._drawn
        number = next(number for number, row in enumerate(drawn._rows) if row.label == label)
        click_at(drawn.winfo_rootx() + 40, drawn.winfo_rooty() + drawn._tops[number] + 8)
        self.live(0.1)

    def monitor(self, page: str) -> Any:
        """Open a page of the monitor by its tab and return it."""
        self.click(self.window.sidebar.entries["monitor"])
        section = self.window.sections["monitor"]
        self.click(section.tabs.buttons[TABS[page]])
        self.until(lambda: page in section.pages and section.pages[page].winfo_ismapped(), page)
        return section.pages[page]

    def close(self) -> None:
        """Close the window without any question."""
        if self.window.state_.run is not None:
            self.window.state_.run.detach()
        self.window.destroy()
        self.window = None
        gc.collect()  # here, before another thread collects
        assert self.errors == [], self.errors


def click_at(x: int, y: int, button: int = 1, times: int = 1) -> None:
    """Click at a position on the screen."""
    clicks = ["click", "--repeat", str(times), "--delay", "20", str(button)]
    subprocess.run(["xdotool", "mousemove", str(x), str(y), *clicks], check=True)


def rank_0(folder: RunFolder) -> psutil.Process:
    """The process of a run that trains in this folder."""
    for process in psutil.process_iter():
        try:
            argv = process.cmdline()
        except psutil.Error:
            continue
        if "--run_folder" in argv and str(folder.path) in argv:
            return process
    raise AssertionError("no rank 0")


def tiny(images: Path, place: Path, **settings: object) -> TrainConfig:
    """The config of a long run of the tiny family with steps of 10 ms."""
    data: dict[str, object] = {
        "family": TINY,
        "concepts": [{"path": str(images)}],
        "resolution": 16,
        "cache_dir": str(place / "cache"),
        "runs_dir": str(place / "runs"),
        "loader_workers": 0,
        "pin_memory": False,
        "max_steps": 100_000,
        "epochs": 1_000_000,
        "batch_size": 4,
        "backup_every": "never",
        "tensorboard": False,
        "samples": [{"prompt": "a red disc", "steps": 1}, {"prompt": "a blue square", "steps": 1}],
        "family_options": {"slow_step_s": 0.01},
    }
    return TrainConfig.model_validate({**data, **settings})
