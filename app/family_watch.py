"""Asks the family of the settings what it declares, as soon as it is named: its options are checked from then on."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app.background import Background
from app.draft import Draft
from app.family import FamilyDescription, describe_family

ASK_AFTER_MS = 500  # so that a path being typed is not asked about at every letter


class FamilyWatch:
    """`told` hears when the answer has come, or `fault` says why there is none. Main thread only."""

    def __init__(self, root: tk.Misc, background: Background, draft: Draft, told: Callable[[], object]) -> None:
        self._root, self._background, self._draft, self._told = root, background, draft, told
        self._job = ""
        self.asked = ""
        self.fault = ""

    @property
    def described(self) -> FamilyDescription | None:
        """What the family of the settings says; None while it is asked, or where it cannot say."""
        found = self._draft.family
        return found if found and found.name == self.asked else None

    def look(self) -> None:
        """Ask, in a moment, where the settings name another family than was asked."""
        family = str(self._draft.get("family") or "")
        if family == self.asked:
            return
        first = not self.asked
        self.asked, self.fault = family, ""
        if self._job:
            self._root.after_cancel(self._job)
        self._job = self._root.after(1 if first else ASK_AFTER_MS, lambda: self._ask(family))
        self._told()

    def _ask(self, family: str) -> None:
        self._job = ""
        if family and self.described is None:
            self._background.run(lambda: describe_family(family), self._answered, lambda why: self._failed(family, why))

    def _answered(self, found: FamilyDescription) -> None:
        if found.name == self.asked:
            self._draft.describe_family(found)
            self._told()

    def _failed(self, family: str, why: str) -> None:
        if family == self.asked:
            self.fault = why
            self._draft.describe_family(None)
            self._told()
