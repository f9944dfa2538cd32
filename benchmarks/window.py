#!/usr/bin/env python3
"""How quick the window is: first paint, sections, typing, the longest stall, memory, and what it takes while idle.

python benchmarks/window.py [--repeats 5]      on the current display, or on a new one (Xvfb)

The first paint is compared with an empty customtkinter window that imports the same toolkit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if TYPE_CHECKING:
    from app.main_window import MainWindow

BEAT_MS = 5
PAUSE_MS = 150  # between the cards of a page, to time them one by one
KEYSTROKES = 200
ROUNDS = 5
IDLE_S = 5
SETTLE_S = 2
Figures = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; exit code 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="processes that are timed for the first paint (5)")
    parser.add_argument("--child", choices=["empty", "window", "session", "prepared"], help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        print(json.dumps({"empty": empty, "window": window, "session": session, "prepared": prepared}[given.child]()))
        return 0

    from app.family_declaration import load_declaration
    from scripts.screenshots import display

    with display(own=False), tempfile.TemporaryDirectory() as folder:
        os.environ["TANDEM_CONFIG_DIR"] = folder
        # as on any machine: without compiled modules, each process would compile all of them
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "compiled")
        (Path(folder) / "window.json").write_text('{"welcomed": true, "mode": "dark", "advanced": true}')
        load_declaration("pixel_diffusion")  # cached afterwards; loading it starts a process that imports torch
        return report(given.repeats)


def report(repeats: int) -> int:
    """Measure and print, next to the limits."""
    for kind in ("empty", "window"):
        child(kind)  # the first of each fills the system's caches and is not counted
    empties, windows = zip(*((child("empty"), child("window")) for _ in range(repeats)), strict=True)
    reference, cpu_reference = median(empties, "seconds"), median(empties, "cpu")
    figures = {**child("session"), **child("prepared")}
    rows = [
        ("empty customtkinter window, first paint", reference, None, "s"),
        ("the window, first paint", median(windows, "seconds"), 1.5 * reference + 0.6, "s"),
        ("empty window, processor time until then", cpu_reference, None, "s"),
        ("the window, processor time until then", median(windows, "cpu"), None, "s"),
        ("slowest section, first cards at once", figures["first"], 0.150, "s"),
        ("longest stall until its other cards are there", figures["others"], 0.100, "s"),
        ("slowest section, first cards after a while", figures["prepared"], 0.150, "s"),
        ("longest stall until its other cards are there", figures["prepared_others"], 0.100, "s"),
        ("longest stall while sections are prepared", figures["prepare_stall"], 0.100, "s"),
        ("slowest section, shown again", figures["again"], 0.150, "s"),
        ("a keystroke, until it is rendered", figures["key"], 0.050, "s"),
        ("colours changed, what is in sight", figures["mode"], 0.5, "s"),
        ("rebuilt at 150 %, what is in sight", figures["scale"], 0.5, "s"),
        ("longest stall while typing and switching", figures["stall"], 0.100, "s"),
        ("idle, share of a core", figures["idle"], 0.5, "%"),
        ("idle in the busiest section", figures["idle_most"], 0.5, "%"),
        ("memory of the process", figures["memory"], 400, "MB"),
        ("modules of torch in the process", figures["torch"], 0, ""),
    ]
    print(f"{'':<44}{'measured':>10}{'limit':>10}")
    for name, value, limit, unit in rows:
        shown = f"{value:.3f}" if unit == "s" else f"{value:.2f}" if unit == "%" else f"{value:.0f}"
        allowed = "" if limit is None else f"{limit:.3f}" if unit == "s" else f"{limit:g}"
        print(f"{name:<44}{shown:>10}{allowed:>10} {unit}")
    return int(any(limit is not None and value > limit for _, value, limit, _ in rows))


def child(kind: str) -> Figures:
    """What a fresh process measured; the seconds are those from its start to its first paint.

    "cpu" is its processor time until then, which says more on a busy machine.
    """
    began = time.time()
    command = [sys.executable, str(Path(__file__).resolve()), "--child", kind]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return {**figures, "seconds": figures.get("painted_at", began) - began}


def median(processes: Sequence[Figures], name: str) -> float:
    return statistics.median(each[name] for each in processes)


def empty() -> Figures:
    """An empty window with the same toolkit."""
    import customtkinter
    from PIL import ImageTk

    assert ImageTk
    root = customtkinter.CTk()
    root.geometry("1280x800")
    root.update()
    return {"painted_at": time.time(), "cpu": time.process_time()}


def window() -> Figures:
    """The window up to its first paint."""
    from app.main_window import MainWindow

    MainWindow().update()
    return {"painted_at": time.time(), "cpu": time.process_time()}


def session() -> Figures:
    """Some work in one window."""
    from app.main_window import MainWindow
    from app.sections import SECTIONS

    root = MainWindow()
    root.update()

    def show(name: str) -> None:
        root.show_section(name)
        root.update()

    first, others = visits(root)
    again = max(timed(show, name) for _ in range(ROUNDS) for name in SECTIONS)
    beats: list[float] = []

    beating = True

    def beat() -> None:
        beats.append(time.perf_counter())
        if beating:
            root.after(BEAT_MS, beat)

    beat()
    show("training")
    line = root.sections["training"].find("learning_rate").control.line

    def type_a_key(key: str) -> None:
        line.insert("end", key)
        root.update()

    keys = [timed(type_a_key, str(number % 10)) for number in range(KEYSTROKES)]
    for name in SECTIONS:
        show(name)
    stall = max(later - earlier for earlier, later in pairwise(beats))
    beating = False

    def recolour() -> None:
        root.set_mode("light")
        root.update()

    def enlarge() -> None:
        root.set_scale(150)
        root.update()

    show("model")
    idle = idle_share(root)
    mode, scale = timed(recolour), timed(enlarge)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    torch = sum(name.partition(".")[0] == "torch" for name in sys.modules)
    return {
        "first": first, "others": others, "again": again, "key": max(keys), "mode": mode, "scale": scale,
        "stall": stall, "memory": memory, "torch": torch, "idle": idle,
    }  # fmt: skip


def prepared() -> Figures:
    """First visits in a window that was left alone until its sections were prepared, and what each takes while idle."""
    from app.main_window import MainWindow
    from app.sections import SECTIONS

    root = MainWindow()
    root.update()
    turns: list[float] = []
    while not root.state_.slices.is_done:
        turns.append(timed(root.update))
        time.sleep(BEAT_MS / 1000)

    first, others = visits(root)
    shares = []
    for name in SECTIONS:
        root.show_section(name)
        root.update()
        idle_share(root, SETTLE_S)
        shares.append(idle_share(root))
    return {"prepared": first, "prepared_others": others, "prepare_stall": max(turns), "idle_most": max(shares)}


def visits(root: MainWindow) -> tuple[float, float]:
    """First visits: the longest time until the first cards of a section are painted, and for each further one."""
    from app.sections import SECTIONS

    def show(name: str) -> None:
        root.show_section(name)
        root.update()

    firsts, others = [], [0.0]
    usual, root.state_.slices.pause_ms = root.state_.slices.pause_ms, PAUSE_MS
    for name in SECTIONS:
        firsts.append(timed(show, name))
        while root.state_.slices.is_busy:
            others.append(timed(root.update))
    root.state_.slices.pause_ms = usual
    return max(firsts), max(others)


def idle_share(root: MainWindow, seconds: int = IDLE_S) -> float:
    """Percent of a core that the process takes while nothing happens."""
    root.after(seconds * 1000, root.quit)
    began, used = time.perf_counter(), time.process_time()
    root.mainloop()
    return 100 * (time.process_time() - used) / (time.perf_counter() - began)


def timed(action: Callable[..., object], *arguments: object) -> float:
    """The seconds that it takes."""
    began = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
