"""The search for the largest batch size, run in a child process, and its result."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, Entry, frame, text
from app.windows.child_program import OutputWindow, not_there
from modules import ROOT
from modules.config import ConfigError
from modules.files import FileFault
from modules.run.batch_size.records import SearchResult

SCRIPT: Final = ROOT / "scripts" / "find_batch_size.py"


class BatchSizeWindow(OutputWindow):
    """Runs scripts/find_batch_size.py with the current settings."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(
            parent,
            state,
            "Find the largest batch",
            "Starts the processes of a run with these settings, also on the machines that Train starts over ssh, and "
            "finds how many images fit into the memory of each, without training. The smallest number is the answer."
            f"{not_there(state)}",
            "Search again",
        )
        self.result: SearchResult | None = None
        head = frame(self.dialog.body)
        head.pack(fill="x", pady=(0, theme.px(8)), before=self.status)
        text(head, "Share of the memory that may be taken").pack(side="left", padx=(0, theme.px(8)))
        self.target = Entry(head, width=70)
        self.target.show("0.9")
        self.target.pack(side="left")
        self.use: Button = self.dialog.button("Use it", self._use, "accent")
        self.use.configure(state="disabled")

    def show(self) -> tk.Toplevel:
        """Open the window; the search, which fills the GPUs, starts by its button."""
        window = self.dialog.show()
        self.button.configure(text="Search")
        self.button.focus_set()
        return window

    def start(self) -> None:
        """Search with the current settings."""
        if (config := self.settings()) is None:
            return
        try:
            hosts = self.hosts(config)
        except ConfigError as error:
            self.show_status(str(error), theme.BAD)
            return
        self._found = self.file("result.json")
        self._found.unlink(missing_ok=True)
        self.result = None
        self.use.configure(state="disabled", text="Use it")
        files = ["--config", self.saved(config), "--json", str(self._found)]
        self.run_shown("Searching…", SCRIPT, [*files, "--memory_target", self.target.get().strip(), *hosts])

    def ended(self, exit_code: int, output: str) -> None:
        """Offer the result, if there is one."""
        super().ended(exit_code, output)
        try:
            self.result = SearchResult.load(self._found)
        except (OSError, FileFault):
            stopped = ("Stopped.", theme.MUTED)
            self.show_status(*(stopped if self.is_stopping else ("No result: see below.", theme.BAD)))
            return
        self.show_status(f"Largest batch size: {self.result.batch_size}", theme.GOOD)
        self.use.configure(state="normal", text=f"Set batch size to {self.result.batch_size}")

    def _use(self) -> None:
        if self.result is not None:
            self.state.draft.set("batch_size", self.result.batch_size)
            self.state.notify("draft")
            self.dialog.close()
