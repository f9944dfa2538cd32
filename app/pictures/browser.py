"""All pictures of the concepts to look through: filter, grid, captions, search and replace."""

from __future__ import annotations

import tkinter as tk
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from app import look, texts
from app.controls import Button, Entry, Menu, Switch, frame, text
from app.pictures.captions import Replacement, plan_replacement, write_caption
from app.pictures.catalogue import Catalogue, Picture
from app.pictures.editor import CaptionEditor, why_fixed
from app.pictures.grid import PictureGrid
from app.pictures.thumbnails import Thumbnails

_FILTER_PAUSE_MS = 150


class PictureBrowser(tk.Frame):
    """The grid on the left, one picture with its captions on the right, filter and replacement above."""

    def __init__(
        self,
        parent: tk.Misc,
        thumbnails: Thumbnails,
        caption_sources: Callable[[], Mapping[int, str]],
        failed: Callable[[str], object],
        captions_changed: Callable[[], object],
    ) -> None:
        super().__init__(parent)
        look.paint(self, bg=look.CARD)
        self._caption_sources, self._failed, self._captions_changed = caption_sources, failed, captions_changed
        self._catalogue = Catalogue()
        self._faults: dict[Path, list[str]] = defaultdict(list)
        self._pause = ""
        self._build_bar()
        self.replacing = ReplaceBar(self, self._plan, self._replace)
        self.editor = CaptionEditor(self, thumbnails, self._caption_written, failed, self._why_fixed)
        self.editor.pack(side="right", fill="y", padx=(look.px(2 * look.UNIT), 0))
        self.grid_view = PictureGrid(self, thumbnails, self._selected, self.editor.focus_text)
        self.grid_view.pack(side="left", fill="both", expand=True)
        self.bind("<Configure>", lambda event: self._fit(), add="+")

    def _build_bar(self) -> None:
        self.bar = bar = frame(self)
        bar.pack(fill="x", pady=(0, look.px(look.UNIT)))
        Button(bar, texts.REPLACE, self._toggle_replacing, on=look.CARD).pack(side="right")
        self.filter = Entry(bar, lambda _: self._filter_soon(), width=220, placeholder=texts.FILTER_PICTURES)
        self.filter.pack(side="left")
        kinds = list(texts.PICTURE_FILTERS)
        self.kind = Menu(bar, kinds, lambda _: self.refresh(), width=180, titles=texts.PICTURE_FILTERS)
        self.kind.show("all")
        self.kind.pack(side="left", padx=look.UNIT)
        self._count = text(bar, font="small", colour=look.MUTED)
        self._count.pack(side="left", padx=look.px(look.UNIT))

    def show(self, catalogue: Catalogue) -> None:
        """Show what a survey found (so far)."""
        self._catalogue = catalogue
        self._faults.clear()
        for problem in catalogue.problems:
            self._faults[problem.file].append(problem.what)
        self.refresh()

    def refresh(self) -> None:
        """Show the pictures that pass the filter."""
        kind, words = self.kind.value(), self.filter.get().lower().split()
        wanted = {each.file for each in self._catalogue.problems if each.kind == kind}
        shown = [
            each
            for each in self._catalogue.pictures
            if (kind == "all" or each.file in wanted)
            and all(word in f"{each.relative}\n{each.caption}".lower() for word in words)
        ]
        total = len(self._catalogue.pictures)
        self._count.configure(text=texts.PICTURES_SHOWN.format(shown=len(shown), total=total))
        self.grid_view.show(shown, set(self._faults))
        self.shown = shown
        self._make_room(any_pictures=bool(total))

    def _fit(self) -> None:
        above = self.replacing.winfo_reqheight() if self.replacing.winfo_manager() else 0
        self.editor.fit(self.winfo_width(), self.winfo_height() - above)

    def _make_room(self, *, any_pictures: bool) -> None:
        """Only what there is something to do with: no filter without pictures, no captions where none is shown."""
        if not any_pictures:
            self.bar.pack_forget()
            self.replacing.pack_forget()
        elif not self.bar.winfo_manager():
            self.bar.pack(fill="x", pady=(0, look.px(look.UNIT)), before=self.grid_view)
        if not self.shown:
            self.editor.save()
            self.editor.pack_forget()
        elif not self.editor.winfo_manager():
            self.editor.pack(side="right", fill="y", padx=(look.px(2 * look.UNIT), 0), before=self.grid_view)

    def open(self, file: Path) -> bool:
        """Show one picture, whatever the filter; False where it is not among them."""
        if not self.grid_view.select(file):
            self.kind.show("all")
            self.show_only("")
        return self.grid_view.select(file)

    def show_only(self, words: str) -> None:
        """Set the filter, as a click on a tag does."""
        self.filter.show(words)
        self.refresh()

    def _filter_soon(self) -> None:
        if self._pause:
            self.after_cancel(self._pause)
        self._pause = self.after(_FILTER_PAUSE_MS, self.refresh)

    def _selected(self, picture: Picture) -> None:
        self.editor.show(picture, self._faults.get(picture.file, []))

    def _why_fixed(self, picture: Picture) -> str:
        return why_fixed(picture, self._caption_sources().get(picture.concept, "auto"))

    def _caption_written(self, picture: Picture) -> None:
        self._captions_changed()

    # Search and replace

    def _toggle_replacing(self) -> None:
        if self.replacing.winfo_manager():
            self.replacing.pack_forget()
        else:
            self.replacing.pack(fill="x", pady=(0, look.px(look.UNIT)), after=self.bar)
            self.replacing.search.focus_set()
        self._fit()

    def _plan(self, wanted: Replacement) -> list[tuple[Picture, str]]:
        self.editor.save()
        return [(each, caption) for each, caption in plan_replacement(self.shown, wanted) if not self._why_fixed(each)]

    def _replace(self, wanted: Replacement) -> int:
        """Write every planned caption; how many were written. The first that cannot be ends it."""
        plans = self._plan(wanted)
        for done, (picture, caption) in enumerate(plans):
            try:
                change = write_caption(picture.file, caption)
            except (OSError, UnicodeDecodeError) as error:
                self._failed(texts.CAPTION_NOT_WRITTEN.format(file=picture.file.with_suffix(".txt"), reason=error))
                return done
            self.editor.note(picture, change)
        self._selected_again()
        return len(plans)

    def _selected_again(self) -> None:
        if self.grid_view.picture is not None:
            self._selected(self.grid_view.picture)


class ReplaceBar(tk.Frame):
    """Two entries, two switches, and how many captions would change."""

    def __init__(
        self,
        parent: tk.Misc,
        plan: Callable[[Replacement], list[tuple[Picture, str]]],
        replace: Callable[[Replacement], int],
    ) -> None:
        super().__init__(parent)
        look.paint(self, bg=look.CARD)
        self._plan, self._do_replace = plan, replace
        self.button = Button(self, texts.REPLACE_NONE, self._go, style="accent", on=look.CARD)
        self.button.configure(state="disabled")
        self.button.pack(side="right")
        self.search = self._entry(texts.REPLACE_SEARCH)
        self.replace = self._entry(texts.REPLACE_WITH)
        self.whole_words = self._switch(texts.WHOLE_WORDS)
        self.match_case = self._switch(texts.MATCH_CASE)

    def _entry(self, hint: str) -> Entry:
        entry = Entry(self, lambda _: self.count(), width=100, placeholder=hint)
        entry.pack(side="left", fill="x", expand=True, padx=(0, look.UNIT))
        return entry

    def _switch(self, title: str) -> Switch:
        switch = Switch(self, lambda _: self.count())
        switch.pack(side="left")
        text(self, title, "small").pack(side="left", padx=(look.px(look.UNIT / 2), look.px(2 * look.UNIT)))
        return switch

    @property
    def wanted(self) -> Replacement:
        """What the controls say."""
        whole_words, match_case = bool(self.whole_words.get()), bool(self.match_case.get())
        return Replacement(self.search.get(), self.replace.get(), whole_words, match_case)

    def count(self) -> None:
        """Tell how many captions would change."""
        changes = len(self._plan(self.wanted))
        words = texts.REPLACE_COUNT.format(count=changes) if changes else texts.REPLACE_NONE
        self.button.configure(text=words, state="normal" if changes else "disabled")

    def _go(self) -> None:
        done = self._do_replace(self.wanted)
        self.count()
        if done:
            self.button.configure(text=texts.REPLACED.format(count=done))
