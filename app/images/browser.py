"""Image browser: filter, grid, caption editor, find and replace."""

from __future__ import annotations

import tkinter as tk
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, TypeAlias

from app.background import Background
from app.images.captions import CaptionFiles, Changes, Replacement, plan_replacement, write_caption
from app.images.editor import CaptionEditor, read_only_reason
from app.images.grid import NONE_FOUND, ImageGrid
from app.images.image_index import ImageIndex, IndexedImage
from app.images.thumbnails import Thumbnails
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, Entry, Menu, Overflow, Switch, frame, handler, text
from modules.files import FileFault

_FILTER_PAUSE_MS = 150
_FILTER: Final = 220  # unscaled width of the field


_ANNOTATE: Final = "Have captions, tags or masks proposed for the folder of the selected image"
_FILTERS: Final = {
    "all": "All images",
    "broken": "Unreadable",
    "caption": "Without a caption",
    "duplicate": "Duplicates",
    "tiny": "Too small",
    "video": "Short or uneven videos",
}
_Files: TypeAlias = Mapping[int, CaptionFiles]  # the caption settings of each concept


class ImageBrowser(tk.Frame):
    """Grid on the left, the selected image with its caption on the right, filter and replacement above."""

    def __init__(
        self,
        parent: tk.Misc,
        thumbnails: Thumbnails,
        state: AppState,
        caption_files: Callable[[], Mapping[int, CaptionFiles]],
        failed: Callable[[str], object],
        captions_changed: Callable[[Sequence[IndexedImage]], object],
        paint_mask: Callable[[IndexedImage], object],
    ) -> None:
        super().__init__(parent)
        theme.paint(self, bg=theme.CARD)
        self._files, self._failed, self._captions_changed = caption_files, failed, captions_changed
        self._image_index = ImageIndex()
        self._problems: dict[Path, list[str]] = defaultdict(list)
        self._pause = ""
        self._state = state
        self._typed = typed = state.typed["images"]
        self.empty = NONE_FOUND
        self._build_bar()
        self.replacing = ReplaceBar(self, state.background, self._to_replace, self._replaced, state.typed["replace"])
        self.replacing.bind("<<Close>>", lambda event: self._toggle_replacing())
        self.editor = CaptionEditor(
            self, thumbnails, self._captions_written, failed, self._caption_files, paint_mask, state
        )
        self.editor.pack(side="right", fill="y", padx=(theme.px(2 * theme.UNIT), 0))
        self.grid_view = ImageGrid(self, thumbnails, self._selected, self.editor.focus_text)
        self.grid_view.pack(side="left", fill="both", expand=True)
        self.editor.lift()  # for Tab, which goes on from the grid to the caption of the selected image
        self.bind("<Configure>", lambda event: self._fit(), add="+")
        self.filter.show(str(typed.get("filter", "")))
        self.kind.show(str(typed.get("kind", "all")))
        if typed.get("replaces"):
            self._open_replacing()

    def _build_bar(self) -> None:
        self.bar = bar = frame(self)
        bar.pack(fill="x", pady=(0, theme.px(theme.UNIT)))
        replace = Button(bar, "Find and replace", self._toggle_replacing, bg=theme.CARD)
        replace.pack(side="right")
        annotate = Button(
            bar,
            "Write captions",
            lambda: self._state.views.annotate(self.folder),
            bg=theme.CARD,
            tooltip=_ANNOTATE,
        )
        annotate.pack(side="right", padx=(0, theme.UNIT))
        self._buttons = Overflow(bar, dict.fromkeys((replace, annotate), ""), theme.CARD)
        self.filter = Entry(
            bar, lambda _: self._schedule_filter(), width=_FILTER, placeholder="Filter by name or caption"
        )
        self.filter.pack(side="left")
        kinds = list(_FILTERS)
        self.kind = Menu(bar, kinds, lambda _: self.refresh(), width=180, titles=_FILTERS)
        self.kind.pack(side="left", padx=theme.UNIT)
        self._count = text(bar, font="small", colour=theme.MUTED)
        self._count.pack(side="left", padx=(theme.px(theme.UNIT), 0))
        bar.bind("<Configure>", lambda event: self._fit_filter(event.width))

    def show(self, image_index: ImageIndex) -> None:
        """Show a (possibly partial) survey result."""
        self._image_index = image_index
        self._note_problems()
        self.refresh()

    def _note_problems(self) -> None:
        self._problems.clear()
        for problem in self._image_index.problems:
            self._problems[problem.file].append(problem.description)

    def refresh(self) -> None:
        """Show the images that pass the filter."""
        self._keep()
        kind, terms = self.kind.value(), self.filter.get().lower().split()
        matching = {each.file for each in self._image_index.problems if each.kind == kind}
        shown = [
            each
            for each in self._image_index.images
            if (kind == "all" or each.file in matching)
            and all(term in f"{each.relative}\n{each.caption}".lower() for term in terms)
        ]
        total = len(self._image_index.images)
        self._count.configure(text=f"{len(shown):,} of {total:,}")
        self.grid_view.empty = _unreadable(len(matching)) if kind == "broken" and matching else self.empty
        self.grid_view.show(shown, set(self._problems))
        if (selected := self.grid_view.selected_image) is not None:
            self.editor.update_details(selected, self._problems.get(selected.file, []))
        self.shown = shown
        self._show_controls(any_images=bool(total))

    def _fit_filter(self, width: int) -> None:
        """The field gives way to the others, down to half of its usual width; then the count is left out."""
        beside = width - theme.px(3 * theme.UNIT) - self.kind.winfo_reqwidth()
        room = (beside - self._buttons.fit(beside - theme.px(_FILTER / 2))) / theme.scale()
        count = self._count.winfo_reqwidth() / theme.scale()
        if room - count < _FILTER / 2:
            self._count.pack_forget()
        else:
            self._count.pack(side="left", padx=(theme.px(theme.UNIT), 0))
            room -= count
        self.filter.set_width(int(max(_FILTER / 2, min(_FILTER, room))))

    def _fit(self) -> None:
        bars = [bar for bar in (self.bar, self.replacing) if bar.winfo_manager()]
        above = sum(bar.winfo_reqheight() + theme.px(theme.UNIT) for bar in bars)
        self.editor.fit(self.winfo_width(), self.winfo_height() - above)

    def _show_controls(self, *, any_images: bool) -> None:
        """Hide what has no use: the filter if there are no images, the editor if none is shown."""
        if not any_images:
            self.bar.pack_forget()
            self.replacing.pack_forget()
        elif not self.bar.winfo_manager():
            self.bar.pack(fill="x", pady=(0, theme.px(theme.UNIT)), before=self.grid_view)
            if self._typed.get("replaces"):
                self._open_replacing()
        if not self.shown:
            self.editor.save()
            self.editor.pack_forget()
        elif not self.editor.winfo_manager():
            self.editor.pack(side="right", fill="y", padx=(theme.px(2 * theme.UNIT), 0), before=self.grid_view)
        self._fit()

    def open(self, file: Path) -> bool:
        """Select one image, clearing the filter if needed; False if it is not in the index."""
        if not self.grid_view.select(file):
            self.kind.show("all")
            self.show_only("")
        return self.grid_view.select(file)

    @property
    def folder(self) -> Path | None:
        """The concept's folder of the selected image."""
        image = self.grid_view.selected_image
        return image.file.parents[image.relative.count("/")] if image is not None else None

    def show_only(self, query: str) -> None:
        """Set the filter text."""
        self.filter.show(query)
        self.refresh()

    def _keep(self) -> None:
        """For the page that a change of scale builds anew."""
        self._typed.update(filter=self.filter.get(), kind=self.kind.value())

    def _schedule_filter(self) -> None:
        self._keep()
        if self._pause:
            self.after_cancel(self._pause)
        self._pause = self.after(_FILTER_PAUSE_MS, self.refresh)

    def _selected(self, image: IndexedImage) -> None:
        self.editor.show(image, self._problems.get(image.file, []))

    def _caption_files(self, image: IndexedImage) -> CaptionFiles:
        return self._files().get(image.concept, CaptionFiles())

    def _captions_written(self, images: Sequence[IndexedImage]) -> None:
        if self._image_index.keep_captions({(each.concept, each.file): each for each in images}):
            self._note_problems()
            self.grid_view.mark(set(self._problems))
            selected = self.grid_view.selected_image
            if selected is not None and any(image.file == selected.file for image in images):
                self.editor.update_details(selected, self._problems.get(selected.file, []))
        self._captions_changed(images)

    # Find and replace

    def _toggle_replacing(self) -> None:
        if self.replacing.winfo_manager():
            self._typed["replaces"] = False
            self.replacing.pack_forget()
            self.grid_view.canvas.focus_set()
            self._fit()
        else:
            self._open_replacing()
            self.replacing.search.focus_set()

    def _open_replacing(self) -> None:
        self._typed["replaces"] = True
        self.replacing.pack(fill="x", pady=(0, theme.px(theme.UNIT)), after=self.bar)
        self._fit()

    def _to_replace(self) -> tuple[list[IndexedImage], Mapping[int, CaptionFiles]]:
        self.editor.save()
        return self.shown, self._files()

    def _replaced(self, changes: Changes, fault: str) -> None:
        if not self.winfo_exists():
            self._state.written_captions.append(changes)
            self._state.notify("captions")
            return
        self.editor.record(changes)
        if fault:
            self._failed(fault)
        if self.grid_view.selected_image is not None:
            self._selected(self.grid_view.selected_image)


def _unreadable(count: int) -> str:
    files = "1 file" if count == 1 else f"{count:,} files"
    return f"{files} cannot be shown: see Problems, which says why and moves them to the trash."


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
