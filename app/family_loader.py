"""Loads the declaration of the chosen family in the background, so that its options can be checked."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence

from app.background import Background
from app.draft import Draft
from app.family_declaration import FamilyDeclaration, load_declaration
from modules.config.imported_code import CodeFile
from modules.config.trusted_code import CodeNotTrusted, trust_code

DELAY_MS = 500  # so that a path being typed is not loaded at every keystroke


class FamilyLoader:
    """Calls `on_change` when loading starts, succeeds or fails; `error` then says why. Main thread only."""

    def __init__(self, root: tk.Misc, background: Background, draft: Draft, on_change: Callable[[], object]) -> None:
        self._root, self._background, self._draft, self._on_change = root, background, draft, on_change
        self._job = ""
        self.name = ""
        self.error = ""
        self.not_allowed = False  # it is a Python file, which runs only after `allow`

    @property
    def declaration(self) -> FamilyDeclaration | None:
        """The declaration of the chosen family; None while it loads or if it failed."""
        found = self._draft.family
        return found if found and found.name == self.name else None

    def refresh(self) -> None:
        """Load the declaration, after a short delay, if the settings name another family."""
        family = str(self._draft.get("family") or "")
        if family == self.name:
            return
        first = not self.name
        self._start(family, 1 if first else DELAY_MS)

    def allow(self, files: Sequence[CodeFile]) -> None:
        """Let the chosen Python file run with what it imports, as long as their content is what the person has seen."""
        trust_code(files)
        self._start(self.name, 1)

    def retry(self) -> None:
        """Ask the family again, after an error that may have passed."""
        self._start(self.name, 1)

    def _start(self, family: str, delay_ms: int) -> None:
        self.name, self.error, self.not_allowed = family, "", False
        if self._job:
            self._root.after_cancel(self._job)
        self._job = self._root.after(delay_ms, lambda: self._load(family))
        self._on_change()

    def _load(self, family: str) -> None:
        self._job = ""
        if family and self.declaration is None:
            self._background.run(lambda: _load(family), self._loaded, lambda why: self._failed(family, why))

    def _loaded(self, found: FamilyDeclaration | CodeNotTrusted) -> None:
        if isinstance(found, CodeNotTrusted):
            self.not_allowed = True
            self._failed(self.name, found.message)
        elif found.name == self.name:
            self._draft.set_family(found)
            self._on_change()

    def _failed(self, family: str, why: str) -> None:
        if family == self.name:
            self.error = why
            self._draft.set_family(None)
            self._on_change()


def _load(family: str) -> FamilyDeclaration | CodeNotTrusted:
    try:
        return load_declaration(family)
    except CodeNotTrusted as refusal:  # which has an answer, unlike other errors
        return refusal
