"""Tools beside training, one page each."""

from __future__ import annotations

import importlib
import tkinter as tk
from collections.abc import Iterator
from typing import Any, Final

from app.sections import SECTIONS
from app.shell.prebuild import import_module
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Segments
from app.widgets.section_head import SectionHead

# page -> its title, its module and class; each is built when it is first shown
PAGES: Final = {
    "models": ("Model files", "app.tools.models_page", "ModelsPage"),
    "annotate": ("Captions and masks", "app.annotate.page", "AnnotatePage"),
    "duplicates": ("Near-duplicates", "app.tools.duplicates_page", "DuplicatesPage"),
    "preview": ("Preview as trained", "app.tools.preview_page", "PreviewPage"),
}
TABS: Final = {page: title for page, (title, *_) in PAGES.items()}


class Section(tk.Frame):
    """The pages, chosen at the top."""

    name = "tools"

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self.state = state
        self.pages: dict[str, Any] = {}
        self.page = ""  # until one is built
        head = SectionHead(self, *SECTIONS[self.name])
        self.tabs = Segments(head.frame, list(TABS.values()), self._chosen)
        self.tabs.pack(side="right")

    def show(self) -> None:
        """Show the section."""
        if self.page:
            self._call("shown")
        else:
            self.open_page(self._first_page())

    def prepare(self) -> Iterator[None]:
        """Build the first page before the section is first shown."""
        name = self._first_page()
        yield from import_module(PAGES[name][1], self.state.background)
        self._build(name)
        yield
        if not self.page:
            self.open_page(name)

    def hide(self) -> None:
        """Hide the section."""
        self._call("hidden")

    def jump_to(self, path: str) -> None:
        """Do nothing: there are no settings of a run here."""

    def open_page(self, name: str) -> None:
        """Show a page."""
        if self.page:
            self._call("hidden")
            self.pages[self.page].pack_forget()
        self._build(name)
        self.page = name
        self.state.set_page(self.name, name)
        self.tabs.set(TABS[name])
        self.pages[name].pack(fill="both", expand=True, padx=(theme.px(16), theme.px(4)))
        self._call("shown")

    def _build(self, name: str) -> None:
        if name not in self.pages:
            _, module, kind = PAGES[name]
            self.pages[name] = getattr(importlib.import_module(module), kind)(self, self.state)

    def _first_page(self) -> str:
        saved = self.state.pages.get(self.name, "")
        return saved if saved in PAGES else next(iter(PAGES))

    def _chosen(self, title: str) -> None:
        self.open_page(next(name for name, tab in TABS.items() if tab == title))

    def _call(self, method: str) -> None:
        """Tell the page in sight, if it wants to know."""
        getattr(self.pages[self.page], method, lambda: None)()
