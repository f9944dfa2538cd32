"""Builds sections before their first visit, in moments without input and in small steps, so that nothing stalls."""

from __future__ import annotations

import importlib
import sys
import time
import tkinter as tk
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from app.background import Background

FIRST_MS = 1500  # after the window is there
_STEP_MS: Final = 60
QUIET_S = 0.7  # since the last key, click or turn of the wheel
_INPUTS: Final = ("<Key>", "<Button>", "<MouseWheel>")


class SectionBuilder:
    """Imports each section's module in a thread, builds it hidden, and has it prepare its fields card by card."""

    def __init__(
        self,
        root: tk.Misc,
        background: Background,
        names: Sequence[str],
        built: Callable[[], Mapping[str, Any]],
        build: Callable[[str], Any],
    ) -> None:
        self._root, self._background = root, background
        self._names, self._built, self._build = names, built, build
        self._steps: Iterator[None] = iter(())
        self._input_at = 0.0
        self.is_done = False
        for sequence in _INPUTS:
            root.bind_all(sequence, lambda event: self._saw_input(), add="+")
        self._job = root.after(FIRST_MS, self._step)

    def restart(self) -> None:
        """All sections were destroyed: build them again."""
        self._root.after_cancel(self._job)
        self._steps, self.is_done = iter(()), False
        self._job = self._root.after(FIRST_MS, self._step)

    def _saw_input(self) -> None:
        self._input_at = time.monotonic()

    def _step(self) -> None:
        if time.monotonic() - self._input_at > QUIET_S and not self._prepare():
            name = next((name for name in self._names if name not in self._built()), None)
            if name is None:
                self.is_done = True
                return
            module = f"app.sections.{name}"
            if module not in sys.modules:
                self._background.run(lambda: importlib.import_module(module), lambda _: self._schedule())
                return
            section = self._build(name)
            if hasattr(section, "prepare"):
                self._steps = section.prepare()
        self._schedule()

    def _prepare(self) -> bool:
        """Do one more step of the section that was built last; whether there was one."""
        try:
            next(self._steps)
        except StopIteration:
            return False
        except tk.TclError:  # destroyed meanwhile
            self._steps = iter(())
            return False
        return True

    def _schedule(self) -> None:
        self._job = self._root.after(_STEP_MS, self._step)
