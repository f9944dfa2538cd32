"""The search for the largest batch size, run in a child process, and its result."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from app.multi_gpu.plan_summary import INVALID_SETTINGS
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, Entry, frame, text
from app.windows.child_program import ProgramWindow, not_there
from modules import ROOT
from modules.config import ConfigError, save_config
from modules.files import FileFault, printable
from modules.run.batch_size.records import SearchResult

SCRIPT: Final = ROOT / "scripts" / "find_batch_size.py"
_SHOWN_CHARACTERS: Final = 20_000


class BatchSizeWindow(ProgramWindow):
    """Runs scripts/find_batch_size.py with the current settings."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(
            parent,
            state,
            "Find the largest batch",
            "Starts the processes of a run with these settings, also on the machines that Train starts over ssh, and "
            "finds how many images fit into the memory of each, without training. The smallest number is the answer."
            f"{not_there(state)}",
        )
        self.result: SearchResult | None = None
        head = frame(self.dialog.body)
        head.pack(fill="x", pady=(0, theme.px(8)))
        text(head, "Share of the memory that may be taken").pack(side="left", padx=(0, theme.px(8)))
        self.target = Entry(head, width=70)
        self.target.show("0.9")
        self.target.pack(side="left")
        self.status = text(head, font="strong", wrap=440)
        self.status.pack(side="left", padx=theme.px(16))
        self.shown = tk.Text(
            self.dialog.body, width=100, height=16, wrap="word", borderwidth=0, highlightthickness=0, state="disabled"
        )
        theme.paint(self.shown, bg=theme.FIELD, fg=theme.TEXT)
        self.shown.configure(font=theme.tk_font("mono"), padx=theme.px(12), pady=theme.px(10))
        self.shown.pack(fill="both", expand=True)
        self.dialog.button("Close", self.dialog.close)
        self.again = self.dialog.button("Search", self.start_or_stop)
        self.use: Button = self.dialog.button("Use it", self._use, "accent")
        self.use.configure(state="disabled")

    def show(self) -> tk.Toplevel:
        """Open the window; the search, which fills the GPUs, starts by its button."""
        window = self.dialog.show()
        self.again.focus_set()
        return window

    def start(self) -> None:
        """Search with the current settings."""
        config = self.state.draft.config
        if config is None:
            self.show_status(INVALID_SETTINGS, theme.BAD)
            return
        if self.child is not None:
            return
        try:
            hosts = self.hosts(config)
        except ConfigError as error:
            self.show_status(str(error), theme.BAD)
            return
        file, self._found = self.file("config.json"), self.file("result.json")
        self._found.unlink(missing_ok=True)
        save_config(config, file)
        self.result = None
        self.use.configure(state="disabled", text="Use it")
        self.again.configure(text="Stop")
        self.show_status("Searching…", theme.MUTED)
        arguments = ["--config", str(file), "--json", str(self._found), "--memory_target", self.target.get().strip()]
        self.run(SCRIPT, [*arguments, *hosts])

    def ended(self, exit_code: int, output: str) -> None:
        """Offer the result, if there is one."""
        self.again.configure(text="Search again")
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

    def progressed(self, output: str) -> None:
        """Show what the program says."""
        shown = printable(output[-_SHOWN_CHARACTERS:], _SHOWN_CHARACTERS, lines=True)
        if shown == self.shown.get("1.0", "end-1c"):
            return
        self.shown.configure(state="normal")
        self.shown.delete("1.0", "end")
        self.shown.insert("1.0", shown)
        self.shown.see("end")
        self.shown.configure(state="disabled")
