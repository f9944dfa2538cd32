#!/usr/bin/env python3
"""Screenshots of the window: every section at every size, in both modes, at several scales, as PNG files.

Opens the real window on the current display, or on one of its own where there is none (Xvfb).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import tkinter as tk
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from PIL import ImageGrab

from modules.config import TandemError

if TYPE_CHECKING:
    from app.main_window import MainWindow

SIZES = ("1280x800", "1366x768", "1920x1080", "2560x1440")
MODES = ("dark", "light")
SCALES = (100, 150)
SETTLE_S = 0.3
OVERLAP = 60  # pixels of a long page that two pictures have in common
TRAINING_S = 1800.0
TIMEOUT_S = 60.0  # for the family's options, which a child process with torch tells


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pictures and name them; exit code 2 where there is no display."""
    given = _parser().parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    given.out = given.out.resolve()
    try:
        with display(own=given.own_display, size=_smallest_around(given.sizes)), _own_preferences():
            for file in _take_all(given):
                print(file)
    except TandemError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


@contextmanager
def display(own: bool, size: str = "1920x1080") -> Iterator[None]:
    """The current display, or one of our own while this lasts. Raises TandemError if there can be none."""
    if os.environ.get("DISPLAY") and not own:
        yield
        return
    read, write = os.pipe()
    command = ["Xvfb", "-displayfd", str(write), "-screen", "0", f"{size}x24", "-nolisten", "tcp"]
    try:
        server = subprocess.Popen(command, pass_fds=[write], stderr=subprocess.DEVNULL)
    except OSError:
        raise TandemError("There is no display, and no Xvfb to make one.", "apt install xvfb") from None
    os.close(write)
    try:
        with os.fdopen(read) as number:
            os.environ["DISPLAY"] = f":{number.readline().strip()}"
        yield
    finally:
        server.terminate()
        server.wait()


@contextmanager
def _own_preferences() -> Iterator[None]:
    """The user's own habits neither change the pictures nor are changed by them."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TANDEM_CONFIG_DIR"] = folder
        yield


def _smallest_around(sizes: Sequence[str]) -> str:
    """The smallest display that holds a window of each of these sizes."""
    pairs = [size.split("x") for size in sizes]
    return f"{max(int(width) for width, _ in pairs)}x{max(int(height) for _, height in pairs)}"


def _take_all(given: argparse.Namespace) -> Iterator[Path]:
    from app.main_window import MainWindow
    from app.preferences import Preferences
    from app.sections import SECTIONS

    Preferences(welcomed=True, mode="dark").save()
    window = MainWindow(run_folder=given.run)
    window.update()
    window.files.open_preset(given.preset)
    window.set_advanced(given.advanced)
    _wait(window, lambda: window.state_.family.declaration is not None)
    if given.train:
        _train(window, given.train)
    for size in given.sizes:
        window.tk.call("wm", "geometry", ".", f"{size}+0+0")
        for scale in given.scales:
            window.set_scale(scale)
            for mode in given.modes:
                window.set_mode(mode)
                for section in given.sections or SECTIONS:
                    window.show_section(section)
                    for page in _turn_pages(window, section):
                        yield _take(window, given.out / f"{page}-{mode}-{size}-{scale}.png")
                        for number in _scroll_on(window) if given.whole else ():
                            yield _take(window, given.out / f"{page}-{mode}-{size}-{scale}-{number}.png")
    window.destroy()


def _scroll_on(window: MainWindow) -> Iterator[int]:
    """2, 3 and so on, each when the next part of the page is in sight; at the end the page is as before."""
    from app.widgets.scroll import Scroll

    section = window.sections[window.section]
    area = next((each for each in _inside(section) if isinstance(each, Scroll) and each.winfo_viewable()), None)
    if area is None:
        return
    number = 1
    while area.canvas.yview()[1] < 1:
        area.canvas.yview_scroll(area.canvas.winfo_height() - OVERLAP, "units")
        _settle(window)
        number += 1
        yield number
    area.canvas.yview_moveto(0)


def _inside(widget: tk.Misc) -> Iterator[tk.Misc]:
    for child in widget.winfo_children():
        yield child
        yield from _inside(child)


def _turn_pages(window: MainWindow, name: str) -> Iterator[str]:
    """The names of a section's pages, each when it is in sight."""
    from app.sections import data, monitor, tools

    section = window.sections[name]
    if name == "data":
        _wait(window, lambda: section.pages.image_index.images and section.pages.is_complete)
        for page in data.TABS:
            section.turn_to(page)
            _settle(window, 4 * SETTLE_S)  # images are read and scaled in threads
            yield name if page == "folders" else f"{name}-{page}"
        section.turn_to("folders")
    elif name == "monitor" and window.state_.run is not None:
        for page in monitor.TABS:
            section.open_page(page)
            _wait(window, lambda page=page: page in section.pages)  # type: ignore[misc]
            _settle(window, 4 * SETTLE_S)
            yield f"{name}-{page}"
    elif name == "tools":
        for page in tools.PAGES:
            section.open_page(page)
            _settle(window)
            yield f"{name}-{page}"
    else:
        if name == "model":  # a child process with torch draws the noise levels
            _wait(window, lambda: bool(section.noise.histogram.counts) or not section.noise.is_wanted)
            _wait(window, lambda: section.memory.is_current)
        elif name in ("training", "sampling"):  # another one counts the images
            shown = section.curve if name == "training" else section.timeline
            _wait(window, lambda: not shown.run_length.is_counting)
        _settle(window)
        yield name


def _train(window: MainWindow, runs_dir: Path) -> None:
    """Press Train, and wait for the end."""
    window.state_.draft.set("runs_dir", str(runs_dir.resolve()))
    window.state_.draft.set("run_name", window.state_.draft.preset)
    window.run_bar.buttons.train.invoke()
    _wait(window, lambda: window.state_.run is not None)
    run = window.state_.run
    if run is None:
        faults = " ".join(fault.sentence for fault in window.state_.draft.faults)
        sys.exit(f"Training did not start. {faults or 'scripts/make_demo_data.py draws the images of demo.'}")
    _wait(window, lambda: run.is_caught_up and not run.is_alive, TRAINING_S)


def _take(window: MainWindow, file: Path) -> Path:
    x, y = window.winfo_rootx(), window.winfo_rooty()
    box = (x, y, x + window.winfo_width(), y + window.winfo_height())
    ImageGrab.grab(bbox=box, xdisplay=os.environ.get("DISPLAY")).save(file)
    return file


def _settle(window: MainWindow, seconds: float = SETTLE_S) -> None:
    _wait(window, lambda: False, seconds)


def _wait(window: MainWindow, condition: Callable[[], bool], seconds: float = TIMEOUT_S) -> None:
    """Let the window live until the condition holds, but no longer than that."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        window.update()
        time.sleep(0.01)


def _parser() -> argparse.ArgumentParser:
    from app.sections import SECTIONS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("screenshots"), help="folder for the screenshots")
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="WxH", help="sizes of the window")
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES, help="dark, light or both")
    parser.add_argument("--scales", nargs="+", type=int, default=SCALES, metavar="PERCENT", help="scales of the window")
    sections = f"{', '.join(SECTIONS)}; all if left out"
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, metavar="NAME", help=sections)
    parser.add_argument("--preset", default="demo", help="the preset that is shown (demo)")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="a run for the monitor")
    parser.add_argument(
        "--train", type=Path, metavar="FOLDER", help="train the preset first, with its run below FOLDER"
    )
    parser.add_argument("--advanced", action="store_true", help="show advanced settings, too")
    parser.add_argument("--whole", action="store_true", help="scroll long pages, and show their other parts, too")
    parser.add_argument("--own_display", action="store_true", help="start an Xvfb even where there is a display")
    return parser


if __name__ == "__main__":
    sys.exit(main())
