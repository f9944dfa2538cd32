#!/usr/bin/env python3
"""Pictures of the window: every section at every size, in both modes, at several scales, as PNG files.

Opens the real window on the present display, or on one of its own where there is none (Xvfb).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from PIL import ImageGrab

from modules.config import TandemError

if TYPE_CHECKING:
    from app.main_window import MainWindow

SIZES = ("1280x800", "1920x1080")
MODES = ("dark", "light")
SCALES = (100, 150)
SETTLE_S = 0.3
PATIENCE_S = 60.0  # for the family's options, which a child process with torch tells


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pictures and name them; exit code 2 where there is no display."""
    given = _parser().parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    given.out = given.out.resolve()
    try:
        with display(own=given.own_display), _own_preferences():
            for file in _take_all(given):
                print(file)
    except TandemError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


@contextmanager
def display(own: bool) -> Iterator[None]:
    """The present display, or one of our own while this lasts."""
    if os.environ.get("DISPLAY") and not own:
        yield
        return
    read, write = os.pipe()
    command = ["Xvfb", "-displayfd", str(write), "-screen", "0", "1920x1080x24", "-nolisten", "tcp"]
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


def _take_all(given: argparse.Namespace) -> Iterator[Path]:
    from app import texts
    from app.main_window import MainWindow
    from app.preferences import Preferences

    Preferences(welcomed=True, mode="dark").save()
    window = MainWindow(run_folder=given.run)
    window.update()
    window.files.open_preset(given.preset)
    window.set_advanced(given.advanced)
    window.show_section("model")
    _wait_for_family(window)
    for size in given.sizes:
        window.tk.call("wm", "geometry", ".", f"{size}+0+0")
        for scale in given.scales:
            window.set_scale(scale)
            for mode in given.modes:
                window.set_mode(mode)
                for section in given.sections or texts.SECTIONS:
                    window.show_section(section)
                    _settle(window)
                    yield _take(window, given.out / f"{section}-{mode}-{size}-{scale}.png")
    window.destroy()


def _take(window: MainWindow, file: Path) -> Path:
    x, y = window.winfo_rootx(), window.winfo_rooty()
    box = (x, y, x + window.winfo_width(), y + window.winfo_height())
    ImageGrab.grab(bbox=box, xdisplay=os.environ.get("DISPLAY")).save(file)
    return file


def _settle(window: MainWindow) -> None:
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until:
        window.update()
        time.sleep(0.01)


def _wait_for_family(window: MainWindow) -> None:
    until = time.monotonic() + PATIENCE_S
    while window.state_.draft.family is None and time.monotonic() < until:
        window.update()
        time.sleep(0.05)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("screenshots"), help="folder for the pictures (screenshots)")
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="WxH", help="sizes of the window")
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES, help="dark, light or both")
    parser.add_argument("--scales", nargs="+", type=int, default=SCALES, metavar="PERCENT", help="scales of the window")
    parser.add_argument("--sections", nargs="+", metavar="NAME", help="sections; all if left out")
    parser.add_argument("--preset", default="demo", help="the preset that is shown (demo)")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="a run for the monitor")
    parser.add_argument("--advanced", action="store_true", help="show advanced settings, too")
    parser.add_argument("--own_display", action="store_true", help="start an Xvfb even where there is a display")
    return parser


if __name__ == "__main__":
    sys.exit(main())
