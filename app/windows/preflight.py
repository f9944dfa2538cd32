"""The preflight check: a child process that tries everything out, and its table as it grows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import tkinter as tk
from pathlib import Path
from typing import TYPE_CHECKING

from app import look, texts
from app.controls import Segments, frame, text
from app.table import table
from app.windows.dialog import Dialog
from modules.config import save_config
from modules.run.checkup import Checkup

if TYPE_CHECKING:
    from app.main_window import MainWindow

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "preflight.py"
_LOOK_EVERY_MS = 250


class PreflightWindow:
    """Runs scripts/preflight.py with the present settings; closing the window ends it."""

    def __init__(self, window: MainWindow) -> None:
        self.state = window.state_
        self.checkup: Checkup | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-window-")
        self._dialog = Dialog(window, texts.PREFLIGHT, texts.PREFLIGHT_WORDS, modal=False)
        self._dialog.window.resizable(True, True)
        head = frame(self._dialog.body)
        head.pack(fill="x", pady=(0, look.px(8)))
        self.depth = Segments(head, list(texts.PREFLIGHT_DEPTHS), lambda _: None, on=look.CARD)
        self.depth.set(next(iter(texts.PREFLIGHT_DEPTHS)))
        self.depth.pack(side="left")
        self._said = text(head, font="strong", wrap=600)
        self._said.pack(side="left", padx=look.px(16))
        place = frame(self._dialog.body)
        place.configure(width=look.px(940), height=look.px(340))
        place.pack_propagate(False)
        place.pack(fill="both", expand=True)
        columns = {
            "check": (texts.PREFLIGHT_CHECK, 150),
            "where": (texts.PREFLIGHT_WHERE, 130),
            "state": ("", 60),
            "value": (texts.PREFLIGHT_RESULT, 560),
        }
        self.tree = table(place, columns)
        self._colour_rows()
        self._advice = text(self._dialog.body, colour=look.MUTED, wrap=900)
        self._advice.pack(fill="x", pady=(look.px(8), 0))
        self.tree.bind("<<TreeviewSelect>>", lambda event: self._show_advice())
        self._dialog.button(texts.CLOSE, self._dialog.close)
        self.button = self._dialog.button(texts.PREFLIGHT_START, self.start, "accent")
        self._dialog.window.bind("<Destroy>", self._end, add="+")

    def show(self) -> tk.Toplevel:
        """Open it and begin with the quick checks."""
        window = self._dialog.show()
        self.start()
        return window

    def start(self) -> None:
        """Check the present settings."""
        config = self.state.draft.config
        if config is None:
            self._say(texts.PLAN_UNKNOWN, look.BAD)
            return
        if self._child is not None:
            return
        file, self._result = Path(self._folder.name, "config.json"), Path(self._folder.name, "checkup.json")
        self._result.unlink(missing_ok=True)
        save_config(config, file)
        argv = [sys.executable, str(SCRIPT), "--config", str(file), "--json", str(self._result)]
        argv += ["--test", texts.PREFLIGHT_DEPTHS[self.depth.get()]]
        # a file, not a pipe: nobody has to read it for the check to go on
        with self._log().open("wb") as log:
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=sys.platform != "win32",
            )
        self.tree.delete(*self.tree.get_children())
        self.checkup = None
        self.button.configure(state="disabled")
        self._say(texts.PREFLIGHT_RUNNING, look.MUTED)
        self._look()

    def _look(self) -> None:
        child = self._child
        if child is None:
            return
        self._take_in()
        if child.poll() is None:
            self._dialog.window.after(_LOOK_EVERY_MS, self._look)
            return
        self._child = None
        said = self._log().read_text("utf-8", errors="replace").strip()
        self.button.configure(state="normal")
        if self.checkup is None:
            self._say(said.splitlines()[-1] if said else texts.PREFLIGHT_SILENT, look.BAD)
        else:
            self._say(self.checkup.verdict, look.BAD if self.checkup.reds else look.GOOD)

    def _log(self) -> Path:
        return Path(self._folder.name, "said.txt")

    def _take_in(self) -> None:
        try:
            checkup = Checkup.parse(self._result.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError):
            return
        shown = len(self.tree.get_children())
        for number, cell in enumerate(checkup.cells[shown:], start=shown):
            words = texts.PREFLIGHT_STATES[cell.colour]
            self.tree.insert(
                "", "end", iid=str(number), values=(cell.check, cell.where, words, cell.value), tags=(cell.colour,)
            )
        self.checkup = checkup

    def _show_advice(self) -> None:
        chosen = self.tree.selection()
        if self.checkup is not None and chosen:
            cell = self.checkup.cells[int(chosen[0])]
            self._advice.configure(text=cell.advice or cell.value)

    def _colour_rows(self) -> None:
        def recolour() -> None:
            for name, colour in (("red", look.BAD), ("yellow", look.WARN), ("grey", look.FAINT)):
                self.tree.tag_configure(name, foreground=look.now(colour))

        look.follow(self.tree, "rows", recolour)

    def _say(self, words: str, colour: look.Colour) -> None:
        look.paint(self._said, fg=colour)
        self._said.configure(text=words)

    def _end(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is not self._dialog.window:
            return
        child, self._child = self._child, None
        if child is not None and child.poll() is None:
            if sys.platform == "win32":
                child.terminate()
            else:
                os.killpg(child.pid, signal.SIGINT)
        self._folder.cleanup()
