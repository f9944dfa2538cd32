"""A run on Kubernetes: what scripts/submit_kubernetes.py needs besides the settings; its manifests to save or apply."""

from __future__ import annotations

import shlex
import tkinter as tk
from pathlib import Path
from typing import Final

from app.shell.ask import Choice, ask
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Entry, add_tooltip, frame, text
from app.windows.child_program import OutputWindow
from app.windows.chooser import choose_path
from modules import ROOT
from modules.files import printable

_SCRIPT: Final = ROOT / "scripts" / "submit_kubernetes.py"
_FIELDS: Final = (  # option, title, example, help; those of which there may be several are separated by spaces
    ("image", "Image", "registry.example.com/me/tandem:1.0", "Built from the Dockerfile; the cluster must reach it."),
    ("volume", "Volumes", "work:/work", "CLAIM:PATH of claims that exist. Relative paths begin in the first."),
    ("gpus", "GPUs of each machine", "1", "With --cpu under More options, the processes on its CPU."),
    ("machines", "Machines", "1", "A pod each. Empty: the number of machines in the settings."),
    ("namespace", "Namespace", "training", "Empty: the one that kubectl is set to."),
    ("secret", "Secrets", "hub-token", "Names of secrets whose keys, such as HF_TOKEN, become variables."),
    ("mem", "Memory of each machine", "64Gi", "Empty: not requested."),
    ("more", "More options", "--cpu --time 1-12:00:00", "As on the command line: docs/kubernetes.md lists them."),
)
_SEVERAL: Final = ("volume", "secret")
_WIDTH: Final = 260  # of a field, unscaled
_ABOUT: Final = (
    "The manifests of a run with these settings. Images and base models must be in the volumes, where the settings "
    "name them; the run stays on the cluster."
)


class KubernetesWindow(OutputWindow):
    """The fields are kept in the preferences."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, state, "Run on Kubernetes", _ABOUT, "Show manifests")
        fields = frame(self.dialog.body)
        fields.pack(fill="x", pady=(0, theme.px(10)), before=self.status)
        self.fields: dict[str, Entry] = {}
        for number, (name, title, example, about) in enumerate(_FIELDS):
            row, column = divmod(number, 2)
            text(fields, title).grid(row=row, column=2 * column, sticky="w", padx=(0, theme.px(10)))
            field = Entry(fields, width=_WIDTH, placeholder=example)
            field.show(state.preferences.kubernetes.get(name, ""))
            field.grid(row=row, column=2 * column + 1, sticky="ew", pady=theme.px(3), padx=(0, theme.px(20)))
            add_tooltip(field, about)
            self.fields[name] = field
        self._said = ""  # once the program has ended well
        self.save_button = self.dialog.button("Save…", self._save)
        self.apply_button = self.dialog.button("Apply…", self._ask_to_apply, "accent")

    def show(self) -> tk.Toplevel:
        """Open it; the manifests are shown by the button."""
        window = self.dialog.show()
        self.button.configure(text=self.again)
        self.fields["image"].focus_set()
        return window

    def start(self) -> None:
        """Show the manifests."""
        self._submit("Nothing was applied: these are the manifests.")

    def _save(self) -> None:
        window, title = self.dialog.window, "Save the manifests"
        if self.child is None and (file := choose_path(window, "save", title, Path(), (".yaml",), "job.yaml")):
            self._submit(f"Saved in {printable(file)}. Nothing was applied.", "--output", str(Path(file).absolute()))

    def _ask_to_apply(self) -> None:
        def answered(answer: str) -> None:
            if answer:
                self._submit("Applied.", "--apply")

        choices = (Choice("", "Cancel"), Choice("apply", "Apply", style="accent"))
        question = "This starts the run on the cluster that kubectl is set to on this computer."
        ask(self.dialog.window, "Apply the manifests?", question, choices, answered)

    def _submit(self, said: str, *arguments: str) -> None:
        if (config := self.settings()) is None:
            return
        typed = {name: field.get().strip() for name, field in self.fields.items()}
        self.state.preferences.kubernetes = {name: value for name, value in typed.items() if value}
        self.state.preferences.save()
        try:
            more = shlex.split(typed.pop("more"))
        except ValueError as error:  # a quotation mark without its other
            self.show_status(f"More options cannot be read: {error}.", theme.BAD)
            return
        given = [
            f"--{name}={value}"
            for name, content in typed.items()
            for value in (content.split() if name in _SEVERAL else [content])
            if value
        ]
        self._said = said
        self.run_shown("Checking the settings…", _SCRIPT, ["--config", self.saved(config), *given, *arguments, *more])

    def ended(self, exit_code: int, output: str) -> None:
        """Say what has come of it."""
        super().ended(exit_code, output)
        last = output.strip().splitlines()[-1:] or ["It has ended without a word."]
        if self.is_stopping:
            self.show_status("Stopped.", theme.MUTED)
        elif exit_code:
            self.show_status(printable(last[0], 500), theme.BAD)
        else:
            self.shown.see("1.0")
            self.show_status(self._said, theme.GOOD)
