"""The search for the largest batch size, run in a child process, and its result."""

from __future__ import annotations

import tempfile
import tkinter as tk
from functools import partial
from pathlib import Path
from typing import Final

from app.multi_gpu.plan_summary import INVALID_SETTINGS
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, Entry, frame, text
from app.windows.child_program import ChildProgram
from app.windows.dialog import Dialog
from modules import ROOT
from modules.config import save_config
from modules.files import FileFault, printable
from modules.run.batch_size.records import SearchResult

SCRIPT: Final = ROOT / "scripts" / "find_batch_size.py"
_POLL_MS: Final = 250
_SHOWN_CHARACTERS: Final = 20_000


class BatchSizeWindow:
    """Runs scripts/find_batch_size.py with the current settings; closing the window stops it."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        self.state = state
        self.result: SearchResult | None = None
        self.child: ChildProgram | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-window-")
        self._dialog = Dialog(
            parent,
            "Find the largest batch",
            "Starts the processes of a run with these settings and finds how many images fit into the memory of each, "
            "without training. The smallest number of all is the answer.",
            modal=False,
        )
        self._dialog.window.resizable(True, True)
        head = frame(self._dialog.body)
        head.pack(fill="x", pady=(0, theme.px(8)))
        text(head, "Share of the memory that may be taken").pack(side="left", padx=(0, theme.px(8)))
        self.target = Entry(head, width=70)
        self.target.show("0.9")
        self.target.pack(side="left")
        self.status = text(head, font="strong", wrap=440)
        self.status.pack(side="left", padx=theme.px(16))
        self.shown = tk.Text(
            self._dialog.body, width=100, height=16, wrap="word", borderwidth=0, highlightthickness=0, state="disabled"
        )
        theme.paint(self.shown, bg=theme.FIELD, fg=theme.TEXT)
        self.shown.configure(font=theme.font("mono"), padx=theme.px(12), pady=theme.px(10))
        self.shown.pack(fill="both", expand=True)
        self._dialog.button("Close", self._dialog.close)
        self.again = self._dialog.button("Search", self.start)
        self.use: Button = self._dialog.button("Use it", self._use, "accent")
        self.use.configure(state="disabled")
        self._dialog.window.bind("<Destroy>", self._on_destroy, add="+")

    def show(self) -> tk.Toplevel:
        """Open the window and start the search."""
        window = self._dialog.show()
        self.start()
        return window

    def start(self) -> None:
        """Search with the current settings."""
        config = self.state.draft.config
        if config is None:
            self._show_status(INVALID_SETTINGS, theme.BAD)
            return
        if self.child is not None:
            return
        place = Path(self._folder.name)
        file, self._found = place / "config.json", place / "result.json"
        self._found.unlink(missing_ok=True)
        save_config(config, file)
        arguments = ["--config", str(file), "--json", str(self._found), "--memory_target", self.target.get().strip()]
        self.child = ChildProgram(SCRIPT, arguments, place / "output.txt")
        self.result = None
        self.use.configure(state="disabled", text="Use it")
        self.again.configure(state="disabled")
        self._show_status("Searching …", theme.MUTED)
        self._poll(self.child)

    def _poll(self, child: ChildProgram) -> None:
        if self.child is not child:
            return
        is_running = child.is_running
        self._show_output(child.output())
        if is_running:
            self._dialog.window.after(_POLL_MS, partial(self._poll, child))
            return
        self.child = None
        self.again.configure(state="normal", text="Search again")
        try:
            self.result = SearchResult.load(self._found)
        except (OSError, FileFault):
            self._show_status("No result: see below.", theme.BAD)
            return
        self._show_status(f"Largest batch size: {self.result.batch_size}", theme.GOOD)
        self.use.configure(state="normal", text=f"Set batch size to {self.result.batch_size}")

    def _use(self) -> None:
        if self.result is not None:
            self.state.draft.set("batch_size", self.result.batch_size)
            self.state.notify("draft")
            self._dialog.close()

    def _show_output(self, output: str) -> None:
        shown = printable(output[-_SHOWN_CHARACTERS:], _SHOWN_CHARACTERS, lines=True)
        if shown == self.shown.get("1.0", "end-1c"):
            return
        self.shown.configure(state="normal")
        self.shown.delete("1.0", "end")
        self.shown.insert("1.0", shown)
        self.shown.see("end")
        self.shown.configure(state="disabled")

    def _show_status(self, message: str, colour: theme.Colour) -> None:
        theme.paint(self.status, fg=colour)
        self.status.configure(text=message)

    def _on_destroy(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is not self._dialog.window:
            return
        child, self.child = self.child, None
        if child is not None:
            child.stop()
        self._folder.cleanup()
