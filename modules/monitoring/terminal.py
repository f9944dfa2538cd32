"""The terminal of rank 0: one progress bar for a person, plain lines where the output goes to a file or pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import NoReturn, Protocol

from tqdm import tqdm

from modules.run.amounts import counted
from modules.run.console import drop_output, writable

LINE_EVERY_S = 15.0


class Terminal(Protocol):
    """Where progress is shown."""

    def begin(self, first_step: int, total_steps: int) -> None: ...
    def phase(self, name: str, done: int | None, total: int | None, unit: str = "") -> None: ...
    def step(self, step: int, figures: str) -> None: ...
    def line(self, text: str) -> None: ...
    def close(self) -> None: ...


def terminal() -> Terminal:
    """A bar where standard output is a terminal, lines elsewhere."""
    return Steadfast(Bar() if sys.stdout.isatty() else Lines())


class Steadfast:
    """Passes all on until nobody reads any more (`| head`, a closed terminal): the run goes on without it."""

    def __init__(self, inner: Terminal) -> None:
        self._inner = inner
        self._is_read = True

    def begin(self, first_step: int, total_steps: int) -> None:
        """Passed on."""
        self._show(lambda: self._inner.begin(first_step, total_steps))

    def phase(self, name: str, done: int | None, total: int | None, unit: str = "") -> None:
        """Passed on."""
        self._show(lambda: self._inner.phase(name, done, total, unit))

    def step(self, step: int, figures: str) -> None:
        """Passed on."""
        self._show(lambda: self._inner.step(step, figures))

    def line(self, text: str) -> None:
        """Passed on."""
        self._show(lambda: self._inner.line(writable(text, sys.stdout)))

    def close(self) -> None:
        """Passed on."""
        self._show(self._inner.close)

    def _show(self, act: Callable[[], None]) -> None:
        if not self._is_read:
            return
        try:
            act()
        except (OSError, ValueError):
            self._is_read = False
            drop_output()


class Bar:
    """One tqdm bar at the bottom; everything else is written above it."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None

    def begin(self, first_step: int, total_steps: int) -> None:
        """Show the bar at `first_step` of `total_steps`."""
        self._bar = tqdm(
            total=total_steps,
            initial=first_step,
            file=sys.stdout,
            dynamic_ncols=True,
            mininterval=0.3,
            bar_format="{desc}{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps, {elapsed} so far{postfix}",
        )

    def phase(self, name: str, done: int | None, total: int | None, unit: str = "") -> None:
        """Before the bar a counter that rewrites its line; then a word before the bar."""
        if self._bar is not None:
            self._bar.set_description_str("" if name == "training" else f"{name} ", refresh=name != "training")
        elif done is not None and total:
            print(f"\r{name}: {counted(done, total, unit)}", end="\n" if done >= total else "", flush=True)

    def step(self, step: int, figures: str) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.set_postfix_str(figures, refresh=False)
            self._bar.update(step - self._bar.n)

    def line(self, text: str) -> None:
        """A line of its own, above the bar."""
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.write(text, file=sys.stdout)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Lines:
    """For logs: a line every quarter of a minute, and no control characters."""

    def __init__(self) -> None:
        self._total_steps = 0
        self._phase = ""
        self._told_at = 0.0

    def begin(self, first_step: int, total_steps: int) -> None:
        """Note the total."""
        self._total_steps = total_steps
        self._told_at = time.monotonic()

    def phase(self, name: str, done: int | None, total: int | None, unit: str = "") -> None:
        """Counted work is told when it is complete, and before that now and then."""
        now = time.monotonic()
        if name != self._phase:
            self._phase, self._told_at = name, now
        if not total or done is None or self._total_steps:
            return
        if done >= total or now - self._told_at >= LINE_EVERY_S:
            self._told_at = now
            print(f"{name}: {counted(done, total, unit)}", flush=True)

    def step(self, step: int, figures: str) -> None:
        """Now and then, and for the last step."""
        now = time.monotonic()
        if now - self._told_at >= LINE_EVERY_S or step >= self._total_steps:
            self._told_at = now
            print(f"step {step} of {self._total_steps}, {figures}", flush=True)

    def line(self, text: str) -> None:
        """As it is."""
        print(text, flush=True)

    def close(self) -> None:
        """Nothing to close."""
