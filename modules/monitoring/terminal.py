"""The terminal output of rank 0: one progress bar on a terminal, plain lines in a file or pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import NoReturn, Protocol

from tqdm import tqdm

from modules.run.console import discard_stdout, printable_on
from modules.run.format_progress import format_progress

LINE_EVERY_S = 15.0  # at most, in a file or pipe


class Terminal(Protocol):
    """Where progress is shown; `start` comes when training starts, everything else at any time."""

    def start(self, first_step: int, total_steps: int) -> None: ...
    def length(self, total_steps: int) -> None: ...
    def phase(self, name: str, done: int | None, total: int | None, unit: str = "") -> None: ...
    def step(self, step: int, figures: str) -> None: ...
    def line(self, text: str) -> None: ...
    def close(self) -> None: ...


def open_terminal() -> Terminal:
    """A progress bar if standard output is a terminal, otherwise plain lines."""
    return ClosableTerminal(ProgressBarTerminal() if sys.stdout.isatty() else PlainTerminal())


class ClosableTerminal:
    """Forwards all calls until standard output is closed (`| head`, a closed terminal); the run continues without."""

    def __init__(self, inner: Terminal) -> None:
        self._inner = inner
        self._is_open = True

    def start(self, first_step: int, total_steps: int) -> None:
        """Forwarded."""
        self._show(lambda: self._inner.start(first_step, total_steps))

    def length(self, total_steps: int) -> None:
        """Forwarded."""
        self._show(lambda: self._inner.length(total_steps))

    def phase(self, name: str, done: int | None, total: int | None, unit: str = "") -> None:
        """Forwarded."""
        self._show(lambda: self._inner.phase(name, done, total, unit))

    def step(self, step: int, figures: str) -> None:
        """Forwarded."""
        self._show(lambda: self._inner.step(step, figures))

    def line(self, text: str) -> None:
        """Forwarded."""
        self._show(lambda: self._inner.line(printable_on(sys.stdout, text)))

    def close(self) -> None:
        """Forwarded."""
        self._show(self._inner.close)

    def _show(self, write: Callable[[], None]) -> None:
        if not self._is_open:
            return
        try:
            write()
        except (OSError, ValueError):
            self._is_open = False
            discard_stdout()


class ProgressBarTerminal:
    """One tqdm bar at the bottom; everything else is written above it."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None

    def start(self, first_step: int, total_steps: int) -> None:
        """Show the bar at `first_step` of `total_steps`."""
        self._bar = tqdm(
            total=total_steps,
            initial=first_step,
            file=sys.stdout,
            dynamic_ncols=True,
            mininterval=0.3,
            bar_format="{desc}{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps, {elapsed} so far{postfix}",
        )

    def length(self, total_steps: int) -> None:
        """Another number of steps."""
        if self._bar is not None:
            self._bar.total = total_steps

    def phase(self, name: str, done: int | None, total: int | None, unit: str = "") -> None:
        """Before training, a counter that rewrites its line; then the phase as a prefix of the bar."""
        if self._bar is not None:
            self._bar.set_description_str("" if name == "training" else f"{name} ", refresh=name != "training")
        elif done is not None and total:
            print(f"\r{name}: {format_progress(done, total, unit)}", end="\n" if done >= total else "", flush=True)

    def step(self, step: int, figures: str) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.set_postfix_str(figures, refresh=False)
            self._bar.update(step - self._bar.n)

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.write(text, file=sys.stdout)

    def close(self) -> None:
        """Leave the bar at the step that it has reached."""
        if self._bar is not None:
            self._bar.set_description_str("", refresh=False)  # a phase, which is over
            self._bar.close()
            self._bar = None


class PlainTerminal:
    """For log files: at most a line every 15 s, and no control characters."""

    def __init__(self) -> None:
        self._total_steps = 0
        self._phase = ""
        self._printed_at = 0.0

    def start(self, first_step: int, total_steps: int) -> None:
        """Remember the total."""
        self.length(total_steps)
        self._printed_at = time.monotonic()

    def length(self, total_steps: int) -> None:
        """Another total."""
        self._total_steps = total_steps

    def phase(self, name: str, done: int | None, total: int | None, unit: str = "") -> None:
        """Print counted work when it is complete, and at intervals before that."""
        now = time.monotonic()
        if name != self._phase:
            self._phase, self._printed_at = name, now
        if not total or done is None or self._total_steps:
            return
        if done >= total or now - self._printed_at >= LINE_EVERY_S:
            self._printed_at = now
            print(f"{name}: {format_progress(done, total, unit)}", flush=True)

    def step(self, step: int, figures: str) -> None:
        """Print a line at intervals, and for the last step."""
        now = time.monotonic()
        if now - self._printed_at >= LINE_EVERY_S or step >= self._total_steps:
            self._printed_at = now
            print(f"step {step:,} of {self._total_steps:,}, {figures}", flush=True)

    def line(self, text: str) -> None:
        """Print the line."""
        print(text, flush=True)

    def close(self) -> None:
        """Nothing to close."""
