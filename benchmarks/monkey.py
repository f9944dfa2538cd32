"""Clicks, keys and turns of the wheel at random on the real window: python benchmarks/monkey.py --minutes 10 --seed 1.

Prints every traceback, and every moment in which the window did not answer for more than 0.5 s, with the line it was
at and the processor time that it took then (little on a busy machine, whose fault it is); exit code 1 if there was
any. The window has a display and a home of its own, and neither it nor what it starts can write elsewhere, so nothing
can be lost. Needs Xvfb and xdotool.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import psutil

from modules.files import read_bytes, read_text
from scripts.screenshots import display

WIDTH, HEIGHT = 1280, 800
STALL_S: Final = 0.5
ACTIONS_A_SECOND: Final = 12
KEYS: Final = (
    *("Tab", "shift+Tab", "Return", "Escape", "space", "BackSpace", "Delete", "Up", "Down", "Left", "Right", "Home"),
    *("End", "Prior", "Next", "F1", "F2", "F4", "F5", "F6", "F7", "F8", "F9", "F12", "ctrl+z", "ctrl+y", "ctrl+k"),
    *("ctrl+e", "ctrl+l", "ctrl+o", "ctrl+p", "ctrl+s", "ctrl+Tab", "ctrl+plus", "ctrl+minus", "ctrl+a", "ctrl+c"),
    *("ctrl+v", "ctrl+i", "ctrl+d", "alt+Up", "alt+Down", "alt+BackSpace", "shift+F5", "ctrl+F5", "Insert", "Menu"),
)
TEXTS: Final = ("0", "1e-4", "-1", "512", "a red disc", "cats, dogs", "../x", "nan", "lora", "$HOME", "é犬", "x" * 40)

# In front of every Python that the window starts, and of its own: writing stays in its folder.
GUARD: Final = """
import os, sys
_HOME = os.environ["MONKEY_HOME"]
_FREE = (_HOME, "/dev/", "/proc/self/")
_CHANGES = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate",
            "os.utime", "shutil.rmtree", "shutil.move"}
_OFTEN = {"open", *_CHANGES}

def _refuse(event, arguments):
    if event not in _OFTEN:
        return
    paths = arguments[:1] if event not in ("os.rename", "os.link", "os.symlink", "shutil.move") else arguments[:2]
    if event == "open":
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        mode = arguments[1] or ""
        if not (flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)) and not set(str(mode)) & set("wax+"):
            return
    for path in paths:
        if isinstance(path, (str, bytes, os.PathLike)):
            whole = os.path.realpath(os.fsdecode(os.fspath(path)))
            if whole != _HOME and not whole.startswith(_FREE):
                raise PermissionError(13, "the monkey may not write here", whole)

sys.addaudithook(_refuse)
"""


def main() -> int:
    """Let the monkey play; exit code 1 if it found something."""
    parser = argparse.ArgumentParser(description="Random input on the real window.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--window", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.window is not None:
        return _open_window(given.window)
    with tempfile.TemporaryDirectory(prefix="tandem-monkey-") as place, display(own=True, size=f"{WIDTH}x{HEIGHT}"):
        home = Path(place).resolve()
        _prepare(home)
        monkey = Monkey(home, random.Random(given.seed))
        try:
            monkey.play(time.monotonic() + given.minutes * 60)
        finally:
            monkey.end()
        return monkey.report()


class Monkey:
    """Plays with one window after the other: a window that it closes is opened again."""

    def __init__(self, home: Path, chance: random.Random) -> None:
        self._home, self._chance = home, chance
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "TANDEM_", "PYTHON"))},
            "HOME": str(home),
            "TMPDIR": str(home),
            "MONKEY_HOME": str(home),
            "PYTHONPATH": str(home / "guard"),
            "PYTHONPYCACHEPREFIX": str(home / "compiled"),  # the program's own folders cannot be written
            "TANDEM_CONFIG_DIR": str(home / "preferences"),
            "BROWSER": "true",
            "OMP_NUM_THREADS": "1",
        }
        self._window: subprocess.Popen[bytes] | None = None
        self._hand = subprocess.Popen(["xdotool", "-"], stdin=subprocess.PIPE, env=self._environment)
        self._boxes: list[list[int]] = []
        self._boxes_at = 0.0
        self.windows = self.actions = 0
        self._exits: list[int] = []

    def play(self, until: float) -> None:
        """Act at random until then."""
        while time.monotonic() < until:
            if self._window is None or self._window.poll() is not None:
                self._open()
            self._act()
            time.sleep(self._chance.uniform(0.5, 1.5) / ACTIONS_A_SECOND)

    def end(self) -> None:
        """End the window and all that it has started."""
        if self._hand.stdin is not None:
            self._hand.stdin.close()
        self._hand.wait()
        ours = str(self._home)
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and process.environ().get("MONKEY_HOME") == ours:
                    process.kill()
            except psutil.Error:
                continue
        if self._window is not None:
            self._window.wait()

    def report(self) -> int:
        """Print what was found; returns an exit code."""
        found = [json.loads(line) for file in self._home.glob("found-*.jsonl") for line in read_text(file).splitlines()]
        stalls = [each for each in found if "stall_s" in each]
        faults = [each["traceback"] for each in found if "traceback" in each]
        for file in sorted(self._home.glob("stderr-*.txt")):
            text = read_bytes(file).decode(errors="replace")
            if "Traceback" in text or "Fatal Python error" in text:
                faults.append(f"{file.name}:\n{text[-4000:]}")
        faults += [f"The window ended with code {code}." for code in self._exits if code != 0]
        print(f"{self.actions} actions, {self.windows} windows, {len(faults)} faults, {len(stalls)} stalls.")
        for stall in sorted(stalls, key=lambda each: -each["stall_s"]):
            print(
                f"\nno answer for {stall['stall_s']:.2f} s, {stall['cpu_s']:.2f} s of processor time, at\n{stall['at']}"
            )
        for fault in dict.fromkeys(faults):
            print(f"\n{fault}")
        return int(bool(faults or stalls))

    def _open(self) -> None:
        if self._window is not None:
            self._exits.append(self._window.returncode)
        self.windows += 1
        argv = [sys.executable, str(Path(__file__).resolve()), "--window", str(self._home)]
        with (self._home / f"stderr-{self.windows}.txt").open("wb") as output:
            self._window = subprocess.Popen(
                argv, cwd=self._home, env=self._environment, stdout=subprocess.DEVNULL, stderr=output
            )
        boxes = self._home / "boxes.json"
        boxes.unlink(missing_ok=True)
        while self._window.poll() is None and not boxes.exists():
            time.sleep(0.1)

    def _act(self) -> None:
        chance, (x, y) = self._chance, self._place()
        kind = chance.choices(("click", "wheel", "key", "type", "drag", "right", "double"), (45, 15, 20, 8, 4, 4, 4))[0]
        at = f"mousemove {x} {y}"
        line = {
            "click": f"{at} click 1",
            "double": f"{at} click --repeat 2 --delay 40 1",
            "right": f"{at} click 3",
            "wheel": f"{at} click --repeat {chance.randint(1, 6)} --delay 10 {chance.choice((4, 5))}",
            "key": f"key {chance.choice(KEYS)}",
            "type": f"type --delay 5 -- '{chance.choice(TEXTS)}'",
            "drag": f"{at} mousedown 1 mousemove {chance.randrange(WIDTH)} {chance.randrange(HEIGHT)} mouseup 1",
        }[kind]
        assert self._hand.stdin is not None
        self._hand.stdin.write(f"{line}\n".encode())
        self._hand.stdin.flush()
        self.actions += 1

    def _place(self) -> tuple[int, int]:
        """In the middle of a widget, most often; or anywhere."""
        if time.monotonic() - self._boxes_at > 0.5:
            self._boxes_at = time.monotonic()
            self._boxes = json.loads(read_text(self._home / "boxes.json"))
        if self._boxes and self._chance.random() < 0.8:
            x, y, width, height = self._chance.choice(self._boxes)
            return x + self._chance.randrange(max(1, width)), y + self._chance.randrange(max(1, height))
        return self._chance.randrange(WIDTH), self._chance.randrange(HEIGHT)


def _prepare(home: Path) -> None:
    """Images with captions, finished runs, a config, and the guard."""
    from PIL import Image

    from modules.config import Concept, Sample, TrainConfig, save_config
    from tests.app.fake_runs import make_fake_run

    (home / "preferences").mkdir()
    (home / "preferences" / "window.json").write_text('{"welcomed": true, "mode": "dark"}')
    (home / "guard").mkdir()
    (home / "guard" / "sitecustomize.py").write_text(GUARD)
    (home / "images").mkdir()
    chance = random.Random(0)
    for number in range(40):
        colour = tuple(chance.randrange(256) for _ in range(3))
        Image.new("RGB", (64, chance.choice((48, 64, 96))), colour).save(home / "images" / f"{number:02d}.png")
        (home / "images" / f"{number:02d}.txt").write_text(f"a disc, number {number}")
    (home / "images" / "broken.png").write_bytes(b"no image")
    for name in ("cats", "dogs"):
        make_fake_run(home / "runs" / name, steps=400, samples_every=100)
    config = TrainConfig(
        concepts=(Concept(path=str(home / "images")),),
        samples=(Sample(prompt="a disc", steps=2, width=32, height=32),),
        device="cpu",
        resolution=32,
        max_steps=50,
        family_options={"width": 8},
    )
    save_config(config, home / "monkey.yaml")


def _open_window(home: Path) -> int:
    """The window's process: it writes tracebacks, stalls and where its widgets are."""
    from app.main_window import MainWindow

    window = MainWindow(home / "monkey.yaml", keeps_session=True)
    window.geometry(f"{WIDTH}x{HEIGHT}+0+0")
    window.update()
    found = (home / f"found-{os.getpid()}.jsonl").open("a", encoding="utf-8", buffering=1)

    def note(**what: object) -> None:
        found.write(json.dumps(what) + "\n")

    usual = window.report_callback_exception

    def fault(kind: Any, error: Any, trace: Any) -> None:
        note(traceback="".join(traceback.format_exception(kind, error, trace)))
        usual(kind, error, trace)

    window.report_callback_exception = fault
    Watch(window, note)
    window.after(1, lambda: _write_boxes(window, home / "boxes.json"))
    window.mainloop()
    return 0


class Watch:
    """A heartbeat of the Tk thread, and a thread that sees when it is late."""

    def __init__(self, root: Any, note: Callable[..., None]) -> None:
        self._root, self._note = root, note
        self._beat_at, self._beat_cpu = time.monotonic(), time.process_time()
        self._main = threading.get_ident()
        self._at = ""  # what the Tk thread was doing while it was late
        self._beat()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def _beat(self) -> None:
        late = time.monotonic() - self._beat_at
        if late > STALL_S:
            self._note(stall_s=late, cpu_s=time.process_time() - self._beat_cpu, at=self._at)
        self._beat_at, self._beat_cpu, self._at = time.monotonic(), time.process_time(), ""
        self._root.after(20, self._beat)

    def _watch(self) -> None:
        while True:
            time.sleep(0.05)
            frame = sys._current_frames().get(self._main)
            if time.monotonic() - self._beat_at > STALL_S and not self._at and frame is not None:
                self._at = "".join(traceback.format_stack(frame)[-8:])


def _write_boxes(window: Any, file: Path) -> None:
    """The places of all widgets in sight: those of an open dialog, or else of the window."""
    places = []
    dialogs = [each for each in window.winfo_children() if each.winfo_class() == "Toplevel" and each.winfo_viewable()]
    left = [dialogs[-1]] if dialogs else [window]
    while left:
        widget = left.pop()
        children = [
            each for each in widget.winfo_children() if each.winfo_class() != "Toplevel" and each.winfo_viewable()
        ]
        left += children
        if not children:
            places.append([getattr(widget, f"winfo_{name}")() for name in ("rootx", "rooty", "width", "height")])
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(places))
    partial.replace(file)
    window.after(700, lambda: _write_boxes(window, file))


if __name__ == "__main__":
    sys.exit(main())
