"""How long the window's event loop stalls while it follows a huge run: python benchmarks/window_under_load.py.

A run of 200,000 steps with 5,000 samples is read from its start while every page of the monitor is shown in turn;
then 50 events a second are added. Prints the longest stall and the memory for each page. Starts Xvfb if there is no
display.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

from scripts.screenshots import display
from tests.app.fake_runs import PROMPTS, line, make_fake_run, rank_rows, step_event

EVENTS_A_SECOND = 50
PAGES = ("curves", "ranks", "samples", "log", "runs")


class Stalls:
    """A heartbeat on the Tk thread: a late beat shows how long something blocked the event loop."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self.longest_s = 0.0
        self._due = time.perf_counter()
        self._beat()

    def take(self) -> float:
        """The longest stall since the last call."""
        longest, self.longest_s = self.longest_s, 0.0
        return longest

    def _beat(self) -> None:
        self.longest_s = max(self.longest_s, time.perf_counter() - self._due)
        self._due = time.perf_counter() + 0.005
        self._root.after(5, self._beat)


def main() -> int:
    """Exit code 1 if a stall is longer than 100 ms or the memory more than 400 MB."""
    parser = argparse.ArgumentParser(description="Follow a huge run in the window and measure its stalls.")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--samples", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=6.0, help="on each page")
    given = parser.parse_args()
    with display(own=False, size="1280x800"), tempfile.TemporaryDirectory() as place:
        os.environ["TANDEM_CONFIG_DIR"] = place
        Path(place, "window.json").write_text('{"welcomed": true, "section": "monitor"}')
        rounds = max(1, given.samples // len(PROMPTS))
        every = given.steps // rounds
        folder = make_fake_run(Path(place) / "runs" / "huge", steps=given.steps, samples_every=every, ended=None)
        rows = _measure(folder, given.seconds)
    print(f"{'':32} {'longest stall':>14} {'memory':>10}")
    for title, stall_s, megabytes in rows:
        print(f"{title:32} {stall_s * 1000:>11.0f} ms {megabytes:>7.0f} MB")
    return int(any(stall_s > 0.1 or megabytes > 400 for _, stall_s, megabytes in rows[1:]))


def _measure(folder: Any, seconds: float) -> list[tuple[str, float, float]]:
    from app.main_window import MainWindow

    window = MainWindow(run_folder=folder.path)
    window.geometry("1280x800+0+0")
    section = window.sections["monitor"]
    _live(window, lambda: "curves" in section.pages)  # matplotlib is imported in a thread, once
    stalls = Stalls(window)
    rows = []

    def note(title: str) -> None:
        rows.append((title, stalls.take(), psutil.Process().memory_info().rss / 1e6))

    begun = time.monotonic()
    _live(window, lambda: time.monotonic() > begun + 1)
    note("first plots")
    _live(window, lambda: window.state_.run is not None and window.state_.run.is_caught_up)
    note(f"reading all of it ({time.monotonic() - begun:.0f} s)")
    writer = _Writer(folder)
    for page in PAGES:
        section.open_page(page)
        _live(window, lambda page=page: page in section.pages)
        _live_for(window, 1.0)
        note(f"opening {page}")
        _live_for(window, seconds)
        note(f"{page}, {EVENTS_A_SECOND} events/s")
    writer.end()
    window.destroy()
    return rows


class _Writer:
    """Adds events as a quick training would."""

    def __init__(self, folder: Any) -> None:
        self._folder = folder
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _write(self) -> None:
        chance, step = random.Random(1), 10**6
        with self._folder.events_file.open("a") as file, self._folder.log_file(0).open("a") as log:
            while not self._ending.wait(1 / EVENTS_A_SECOND):
                step += 1
                file.write(line(step_event(step, time.time(), chance, 10**6)))
                if step % 100 == 0:
                    file.write(line({"t": time.time(), "type": "ranks", "ranks": rank_rows(8, chance)}))
                log.write(f"2026-01-01 00:00:00 rank 0 INFO tandem: step {step}\n")
                file.flush()
                log.flush()


def _live(window: Any, until: Any) -> None:
    while not until():
        window.update()
        time.sleep(0.001)


def _live_for(window: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    _live(window, lambda: time.monotonic() > end)


if __name__ == "__main__":
    sys.exit(main())
