"""Find and replace in the captions of the images that are shown; they are read and written in a thread."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TypeAlias

from app.background import Background
from app.images.captions import CaptionFiles, Changes, Replacement, plan_replacement, write_caption
from app.images.editor import read_only_reason
from app.images.image_index import IndexedImage
from app.widgets import theme
from app.widgets.buttons import Button, Entry, Switch, handler, text
from modules.files import FileFault

_Files: TypeAlias = Mapping[int, CaptionFiles]  # the caption settings of each concept


class ReplaceBar(tk.Frame):
    """Two entries, two switches, and the number of captions that would change.

    `images` returns what is shown; `replaced` is called with what was written, and why that is not all. What is typed
    here is kept in `typed`, which outlives the bar.
    """

    def __init__(
        self,
        parent: tk.Misc,
        background: Background,
        images: Callable[[], tuple[Sequence[IndexedImage], _Files]],
        replaced: Callable[[Changes, str], object],
        typed: dict[str, object],
    ) -> None:
        super().__init__(parent)
        theme.paint(self, bg=theme.CARD)
        self._background, self._images, self._replaced = background, images, replaced
        self._typed = typed
        self._is_busy = self._is_stale = False
        self.button = Button(self, "Nothing to replace", self._run, style="accent", bg=theme.CARD)
        self.button.configure(state="disabled")
        self.button.pack(side="right")
        self.search = self._entry("Find")
        self.replace = self._entry("Replace with")
        self.whole_words = self._switch("whole words")
        self.match_case = self._switch("match case")
        if typed:
            self._show_typed()

    def _show_typed(self) -> None:
        former = Replacement(**self._typed)  # type: ignore[arg-type]
        self.search.show(former.search)
        self.replace.show(former.replace)
        self.whole_words.show(former.whole_words)
        self.match_case.show(former.match_case)

    def _entry(self, tooltip: str) -> Entry:
        entry = Entry(self, lambda _: self.count(), width=100, placeholder=tooltip)
        entry.line.bind("<Escape>", handler(lambda: self.event_generate("<<Close>>")))
        entry.pack(side="left", fill="x", expand=True, padx=(0, theme.UNIT))
        return entry

    def _switch(self, title: str) -> Switch:
        switch = Switch(self, lambda _: self.count())
        switch.pack(side="left")
        text(self, title, "small").pack(side="left", padx=(theme.px(theme.UNIT / 2), theme.px(2 * theme.UNIT)))
        return switch

    @property
    def replacement(self) -> Replacement:
        """The replacement that the controls describe."""
        whole_words, match_case = bool(self.whole_words.get()), bool(self.match_case.get())
        return Replacement(self.search.get(), self.replace.get(), whole_words, match_case)

    def count(self) -> None:
        """Show how many captions would change, a moment later."""
        self._typed.update(asdict(self.replacement))
        if self._is_busy:
            self._is_stale = True
            return
        self._is_busy = True
        replacement, (images, files) = self.replacement, self._images()
        self._background.run(lambda: len(_plan(images, files, replacement)), self._counted)

    def _counted(self, changes: int) -> None:
        self._is_busy = False
        if self._is_stale:
            self._is_stale = False
            self.count()
            return
        label = f"Replace in {changes:,} caption{'s' * (changes != 1)}" if changes else "Nothing to replace"
        self.button.configure(text=label, state="normal" if changes else "disabled")

    def _run(self) -> None:
        if self._is_busy:  # still counting what was typed last
            return
        self._is_busy = True
        self.button.configure(text="Replacing…", state="disabled")
        replacement, (images, files) = self.replacement, self._images()
        self._background.run(lambda: _write(_plan(images, files, replacement), files), lambda found: self._done(*found))

    def _done(self, changes: Changes, fault: str) -> None:
        self._is_busy = self._is_stale = False
        self._replaced(changes, fault)
        count = len(changes)
        self.button.configure(text=f"{count:,} caption{'s' * (count != 1)} replaced", state="disabled")


def _plan(images: Sequence[IndexedImage], files: _Files, replacement: Replacement) -> list[tuple[IndexedImage, str]]:
    """The captions that would change; those that come from no file of their own stay."""
    return [
        (image, caption)
        for image, caption in plan_replacement(images, replacement)
        if not read_only_reason(image, files.get(image.concept, CaptionFiles()))
    ]


def _write(plans: Sequence[tuple[IndexedImage, str]], files: _Files) -> tuple[Changes, str]:
    """Write the captions, and return the changes; a failure ends it, and is returned as a sentence."""
    changes: Changes = []
    for image, caption in plans:
        of_concept = files.get(image.concept, CaptionFiles())
        try:
            changes.append((image, write_caption(image.file, caption, of_concept)))
        except (OSError, FileFault) as error:
            return changes, f"{of_concept.file(image.file)} cannot be written: {error}."
    return changes, ""
