"""A debug package for a bug report: first shown whole, then written as one zip."""

from __future__ import annotations

import tkinter as tk
from pathlib import Path

from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import frame, text
from app.widgets.scrollbar import Scrollbar
from app.widgets.table import table
from app.windows.chooser import choose_path
from app.windows.dialog import Dialog
from modules.config import dump
from modules.files import visible
from modules.run import RunFolder
from modules.run.debug_package import PackedFile, collect_parts, write_package

_SHOWN: int = 200_000  # characters of a part
_EXPLANATION = (
    "Attach it to a report. It has settings, logs, versions, devices and the last events. Passwords, tokens and home "
    "folders are masked; images, captions, prompts and weights are left out. See for yourself before you save it."
)


class DebugPackageWindow:
    """Lists the parts and shows the selected one; `folder` is None for the settings in the window alone."""

    def __init__(self, owner: tk.Misc, state: AppState, folder: RunFolder | None, message: str = "") -> None:
        self._state, self._folder = state, folder
        self.parts: list[PackedFile] = []
        self.dialog = Dialog(owner, "Debug package", _EXPLANATION)
        holder = frame(self.dialog.body)
        holder.configure(width=theme.px(820), height=theme.px(190))
        holder.pack_propagate(False)
        holder.pack(fill="x")
        columns = {"name": ("File", 190), "size": ("Size", 80), "about": ("What it is", 540)}
        self.table = table(holder, columns, ("size",))
        self.table.bind("<<TreeviewSelect>>", lambda event: self._show_part())
        self.preview = self._build_preview()
        self.status = text(self.dialog.body, "Collecting…", "small", colour=theme.MUTED, wrap=800)
        self.status.pack(fill="x", pady=(theme.px(8), 0))
        self.dialog.button("Close", self.dialog.close)
        self.save_button = self.dialog.button("Save…", self._choose, "accent")
        self.save_button.configure(state="disabled")
        draft = state.draft.config
        config = None if draft is None else dump(draft)
        state.background.run(lambda: collect_parts(folder, config, message), self._show_parts, self._say)

    def show(self) -> tk.Toplevel:
        """Open the dialog."""
        return self.dialog.show()

    def save(self, file: Path) -> None:
        """Write the package."""

        def done(size: int) -> None:
            self._say(f"Saved to {file} ({size / 1000:,.0f} kB).")

        self._state.background.run(lambda: write_package(self.parts, file), done, self._say)

    def _build_preview(self) -> tk.Text:
        holder = frame(self.dialog.body)
        holder.pack(fill="both", expand=True, pady=(theme.px(10), 0))
        shown = tk.Text(
            holder, height=12, width=10, wrap="char", font=theme.tk_font("mono"),
            relief="flat", borderwidth=0, padx=theme.px(10), pady=theme.px(8), highlightthickness=1,
        )  # fmt: skip
        theme.paint(shown, bg=theme.FIELD, fg=theme.TEXT, highlightbackground=theme.EDGE, highlightcolor=theme.ACCENT)
        bar = Scrollbar(holder, shown.yview)
        shown.configure(yscrollcommand=bar.set, state="disabled")
        bar.pack(side="right", fill="y")
        shown.pack(side="left", fill="both", expand=True)
        return shown

    def _show_parts(self, parts: list[PackedFile]) -> None:
        if not self.dialog.window.winfo_exists():
            return
        self.parts = parts
        for part in parts:
            size = f"{len(part.text.encode()) / 1000:,.1f} kB"
            self.table.insert("", "end", iid=part.name, values=(part.name, size, part.about))
        self.table.selection_set(parts[0].name)
        self.save_button.configure(state="normal")
        self._say("")

    def _show_part(self) -> None:
        chosen = [part for part in self.parts if part.name in self.table.selection()]
        self.preview.configure(state="normal")
        self.preview.delete("1.0", "end")
        for part in chosen:
            self.preview.insert("1.0", visible(part.text[:_SHOWN]))
        self.preview.configure(state="disabled")

    def _choose(self) -> None:
        name = f"{'tandem' if self._folder is None else self._folder.name}-debug.zip"
        if chosen := choose_path(self.dialog.window, "save", "Save the debug package…", Path(), (".zip",), name):
            self.save(Path(chosen))

    def _say(self, message: str) -> None:
        if self.dialog.window.winfo_exists():
            self.status.configure(text=message)
