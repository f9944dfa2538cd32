"""The pages of the Data section about the pictures themselves, and the survey that fills them."""

from __future__ import annotations

import copy
import tkinter as tk
from collections.abc import Callable, Mapping

from app import look, texts
from app.controls import Button, card, frame, text
from app.pictures.browser import PictureBrowser
from app.pictures.catalogue import ASKED, Catalogue, Folder, Problem, tag_counts
from app.pictures.lists import Histogram, ProblemList, TagList
from app.pictures.reader import SurveyReader
from app.pictures.thumbnails import Thumbnails
from app.state import AppState
from app.tree import at

NAMES = ("pictures", "tags", "buckets", "problems")
_PAUSE_MS = 700  # after the last change of a setting
_POLL_MS = 100
_USUAL_STEP = 8  # of families that have not said what theirs is


class PicturePages(tk.Frame):
    """Pictures, tags, sizes and problems; the folders are read again when a setting of theirs has changed."""

    def __init__(self, parent: tk.Misc, state: AppState, thumbnails: Thumbnails, changed: Callable[[], object]) -> None:
        super().__init__(parent)
        look.paint(self, bg=look.WINDOW)
        self.state = state
        self.catalogue = Catalogue()
        self._changed = changed
        self._asked: Mapping[str, object] = {}
        self._size_step = 0
        self._reader = SurveyReader()
        self._pause = ""
        self._poll = ""
        self._page = ""
        self._pages: dict[str, tk.Frame] = {}
        self._thumbnails = thumbnails
        head = frame(self, look.WINDOW)
        head.pack(fill="x", pady=(0, look.px(look.UNIT)))
        self._words = text(head, font="small", colour=look.MUTED, on=look.WINDOW)
        self._words.pack(side="left")
        Button(head, texts.PICTURES_AGAIN, self.read_again, style="quiet", on=look.WINDOW).pack(side="right")
        self._fault = text(self, colour=look.BAD, on=look.WINDOW, wrap=900)
        self._card = card(self)
        self._card.pack(fill="both", expand=True)
        self.bind("<Destroy>", self._end, add="+")
        state.subscribe("family", self.look_for_changes, self)

    @property
    def is_complete(self) -> bool:
        """Whether the folders have been read to their end."""
        return self._reader.has_read and not self._reader.is_reading and not self._pause

    def open(self, name: str) -> None:
        """Show one of NAMES."""
        if self._page:
            self._pages[self._page].pack_forget()
        self._page = name
        if name not in self._pages:
            self._pages[name] = self._built(name)
        self._pages[name].pack(fill="both", expand=True, padx=look.px(12), pady=look.px(12))
        self._fill(name)
        self.look_for_changes()

    def close(self) -> None:
        """Out of sight: what was typed is written."""
        if "pictures" in self._pages:
            self.browser.editor.save()

    def folder_of(self, item: Mapping[str, object]) -> Folder | None:
        """What was found in the folder of a concept; None where it has not been read."""
        concepts = self._asked.get("concepts")
        for number, asked in enumerate(concepts if isinstance(concepts, list) else ()):
            if at(asked, "path") == item.get("path") and number in self.catalogue.folders:
                return self.catalogue.folders[number]
        return None

    def look_for_changes(self) -> None:
        """Read the folders again, in a moment, where their settings are others than those that were read."""
        asked = copy.deepcopy({name: self.state.draft.data.get(name) for name in ASKED})
        family = self.state.family.described
        size_step = _USUAL_STEP if family is None else family.size_step
        if (asked, size_step) != (self._asked, self._size_step):
            self._asked, self._size_step = asked, size_step
            if self._pause:
                self.after_cancel(self._pause)
            self._pause = self.after(_PAUSE_MS if self._reader.has_read else 1, self.read_again)

    def read_again(self) -> None:
        """Read the folders now."""
        self._pause = ""
        self._reader.start(self._asked, self._size_step)
        self._tell()
        if not self._poll:
            self._poll = self.after(_POLL_MS, self._collect)

    # Reading

    def _collect(self) -> None:
        self._poll = ""
        newest = self._reader.newest()
        if newest is not None:
            self.catalogue = newest
            self._tell()
            if self._page:
                self._fill(self._page)
            self._changed()
        if self._reader.is_reading:
            self._poll = self.after(_POLL_MS, self._collect)

    def _tell(self) -> None:
        """The line above every page."""
        found = self.catalogue
        pictures = found.pictures
        captioned = sum(picture.caption_state == "found" for picture in pictures)
        total = texts.PICTURES_TOTAL.format(pictures=f"{len(pictures):,}", captioned=f"{captioned:,}")
        total += texts.PROBLEMS_COUNT.format(count=len(found.problems)) if found.problems else ""
        empty = texts.NO_FOLDERS if not at(self.state.draft.data, "concepts") else total
        self._words.configure(text=f"{texts.PICTURES_READING}  {total}" if self._reader.is_reading else empty)
        errors = [found.fault, *(folder.error for _, folder in sorted(found.folders.items()))]
        self._fault.configure(text="\n".join(error for error in errors if error))
        if any(errors):
            self._fault.pack(fill="x", pady=(0, look.px(look.UNIT)), before=self._card)
        else:
            self._fault.pack_forget()

    # Pages

    def _built(self, name: str) -> tk.Frame:
        if name == "pictures":
            self.browser = PictureBrowser(
                self._card, self._thumbnails, self._sources, self._failed, self._captions_changed
            )
            return self.browser
        if name == "tags":
            self.tags = TagList(self._card, self._show_tag)
            return self.tags
        if name == "problems":
            self.problems = ProblemList(self._card, self._show_problem)
            return self.problems
        self.histogram = Histogram(self._card)
        return self.histogram

    def _fill(self, name: str) -> None:
        match name:
            case "pictures":
                self.browser.show(self.catalogue)
            case "tags":
                self.tags.show(tag_counts(self.catalogue.pictures))
            case "problems":
                self.problems.show(self.catalogue.problems)
            case "buckets":
                self.histogram.show(self.catalogue.buckets)

    def _sources(self) -> dict[int, str]:
        """Where each concept's captions come from."""
        concepts = at(self.state.draft.data, "concepts")
        entries = concepts if isinstance(concepts, list) else []
        return {number: str(at(entry, "caption_source") or "auto") for number, entry in enumerate(entries)}

    def _failed(self, sentence: str) -> None:
        self._fault.configure(text=sentence)
        self._fault.pack(fill="x", pady=(0, look.px(look.UNIT)), before=self._card)

    def _captions_changed(self) -> None:
        self._tell()
        self._changed()

    def _show_tag(self, tag: str) -> None:
        self.event_generate("<<ShowPictures>>")
        self.browser.show_only(tag)

    def _show_problem(self, problem: Problem) -> None:
        self.event_generate("<<ShowPictures>>")
        if not self.browser.open(problem.file):
            self._failed(f"{problem.file}: {problem.what}")

    def _end(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is self:
            self._reader.stop()
