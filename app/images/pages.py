"""The image pages of the Data section, and the survey that fills them."""

from __future__ import annotations

import copy
import os
import threading
import tkinter as tk
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from app.form.setting_text import with_titles
from app.images.browser import ImageBrowser
from app.images.bucket_table import BucketTable
from app.images.captions import CaptionFiles
from app.images.grid import NONE_FOUND
from app.images.image_index import (
    SURVEY_SETTINGS,
    Child,
    ConceptFolder,
    ImageIndex,
    ImageProblem,
    IndexedImage,
    count_problems,
    survey,
    tag_counts,
)
from app.images.mask import MASK_FORMATS, check_writable
from app.images.problem_list import ProblemList
from app.images.removal import ImageRemoval
from app.images.thumbnails import Thumbnails
from app.nested import value_at
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, card, frame, text
from app.widgets.table import table
from app.windows.mask import MaskDialog
from modules.config import Concept
from modules.files import FileFault, check_changeable, lies_there, printable
from modules.files.addresses import concept_folder

_PAUSE_MS = 700  # after the last change of a setting
_POLL_MS = 100
_DEFAULT_SIZE_STEP = 8  # pixels; until the family is known
MOST_TAGS = 5000
_SUMMARY_LINES: Final = 12
_TAGS: Final = "Press Enter or double-click to show the images with this tag."
_NO_TAGS: Final = "No tags: no image has a caption yet."
_FIRST_RESULT: Final = 200  # images before the first partial result; doubles after each


class ImagePages(tk.Frame):
    """Images, tags, sizes and problems; the folders are read again when their settings change."""

    def __init__(self, parent: tk.Misc, state: AppState, thumbnails: Thumbnails, changed: Callable[[], object]) -> None:
        super().__init__(parent)
        theme.paint(self, bg=theme.WINDOW)
        self.state = state
        self.image_index = ImageIndex()
        self._changed = changed
        self._settings: Mapping[str, object] = {}
        self._reading: Mapping[str, object] = {}  # the settings with which the folders are being read
        self._shown: Mapping[str, object] = {}  # and those of the images in sight: they say where a caption is
        self._written: dict[tuple[int, Path], IndexedImage] = {}  # since they are being read, by concept and file
        self._numbers: Mapping[str, list[int]] = {}  # of the concepts in these settings, by their path
        self.size_step = 0
        self._gone: set[Path] = set()  # images that the folders had when they were read
        self._reader = SurveyReader()
        self._reload_job = ""
        self._poll_job = ""
        self._page = ""
        self._pages: dict[str, tk.Frame] = {}
        self._thumbnails = thumbnails
        head = frame(self, theme.WINDOW)
        head.pack(fill="x", pady=(0, theme.px(theme.UNIT)))
        self._summary = text(head, font="small", colour=theme.MUTED, bg=theme.WINDOW)
        self._summary.pack(side="left")
        Button(head, "Reload", self.reload, style="quiet", bg=theme.WINDOW).pack(side="right")
        self._error = text(self, colour=theme.BAD, bg=theme.WINDOW, wrap=900)
        self._folders = text(self, font="small", colour=theme.MUTED, bg=theme.WINDOW, wrap=900)
        self._card = card(self)
        self._card.pack(fill="both", expand=True)
        self.bind("<Destroy>", self._on_destroy, add="+")
        state.subscribe("family", self.reload_if_changed, self)
        state.subscribe("captions", self._captions_changed_elsewhere, self)

    @property
    def is_complete(self) -> bool:
        """Whether the folders have been read completely."""
        return self._reader.has_read and not self._reader.is_reading and not self._reload_job

    def open(self, name: str) -> None:
        """Show a page: images, tags, buckets or problems."""
        if self._page:
            self._pages[self._page].pack_forget()
        self._page = name
        if name not in self._pages:
            self._pages[name] = self._build_page(name)
        self._pages[name].pack(fill="both", expand=True, padx=theme.px(12), pady=theme.px(12))
        self.reload_if_changed()
        self._fill(name)
        self._show_summary()

    def close(self) -> None:
        """Save the caption being edited."""
        if "images" in self._pages:
            self.browser.editor.save()

    def concept_folder(self, item: Mapping[str, object]) -> ConceptFolder | None:
        """Contents of a concept's folder; None if it has not been read."""
        numbers = self._numbers.get(str(item.get("path")), ())
        return next((self.image_index.folders[each] for each in numbers if each in self.image_index.folders), None)

    @property
    def folder_of_problem(self) -> Path | None:
        """The concept's folder of the problem to be captioned."""
        problem = self.problems.to_caption()
        concepts = self._shown.get("concepts")
        if problem is None or not isinstance(concepts, list) or problem.concept >= len(concepts):  # one was removed
            return None
        return Path(concept_folder(str(value_at(concepts[problem.concept], "path"))))

    def reload_if_changed(self) -> None:
        """Schedule a reload if the folders' settings have changed since the last one."""
        if self._page == "buckets":  # which also follow the batch size
            self._fill(self._page)
        settings = copy.deepcopy({name: self.state.draft.data.get(name) for name in SURVEY_SETTINGS})
        family = self.state.family.declaration
        size_step = _DEFAULT_SIZE_STEP if family is None else family.size_step
        if (settings, size_step) != (self._settings, self.size_step):
            self._settings, self.size_step = settings, size_step
            if self._reload_job:
                self.after_cancel(self._reload_job)
            self._reload_job = self.after(_PAUSE_MS if self._reader.has_read else 1, self.reload)

    def reload(self) -> None:
        """Read the folders now."""
        self._reload_job = ""
        self._reading, self._written = self._settings, {}
        self._reader.start(self._reading, self.size_step)
        self._show_summary()
        if self._page and (self._page == "problems" or not self.image_index.images):
            self._fill(self._page)
        if not self._poll_job:
            self._poll_job = self.after(_POLL_MS, self._poll_survey)

    def look_outside(self) -> None:
        """Read the folders again if images are gone, or back, that another program or page has moved."""
        files, gone = [each.file for each in self.image_index.images], self._gone

        def look() -> tuple[set[Path], bool]:
            return {file for file in files if not lies_there(file)}, any(map(lies_there, gone))

        def looked(found: tuple[set[Path], bool]) -> None:
            missing, is_back = found
            if self.winfo_exists() and (missing or is_back) and not self._reader.is_reading:
                self._gone = missing
                self.reload()

        if self.is_complete:
            self.state.background.run(look, looked)

    def _poll_survey(self) -> None:
        self._poll_job = ""
        newest = self._reader.newest()
        if newest is not None:
            if self._shown != self._reading:
                self.close()  # what is being typed goes where its caption was read from
                self._numbers = _numbers_by_path(self._reading["concepts"])
            if self._written:
                newest.keep_captions(self._written)
            self.image_index, self._shown = newest, self._reading
            self._show_summary()
            if self._page:
                self._fill(self._page)
            self._changed()
        if self._reader.is_reading:
            self._poll_job = self.after(_POLL_MS, self._poll_survey)

    def _show_summary(self) -> None:
        """Update the summary line and the error above every page."""
        found = self.image_index
        images = found.images
        captioned = sum(image.caption_state in ("found", "control", "other_encoding") for image in images)
        total = f"{len(images):,} image{'s' * (len(images) != 1)}, {captioned:,} with a caption."
        if problems := count_problems(Counter(each.kind for each in found.problems)):
            total += f"  {problems}."
        if self._reader.is_reading or self._reload_job:
            total = f"Reading the folders…  {total}" if images else "Reading the folders…"
        elif not value_at(self.state.draft.data, "concepts"):
            total = "No image folder yet: add one under “Folders and settings”."
        self._summary.configure(text=total)
        errors = self._errors()
        self._error.configure(text="\n".join(errors))
        if errors:
            self._error.pack(fill="x", pady=(0, theme.px(theme.UNIT)), before=self._card)
        else:
            self._error.pack_forget()
        lines = [line for _, folder in sorted(found.folders.items()) for line in folder.summary]
        more = [f"and {len(lines) - _SUMMARY_LINES:,} more lines"] if len(lines) > _SUMMARY_LINES else []
        self._folders.configure(text="\n".join([*lines[:_SUMMARY_LINES], *more]))
        if lines and self._page == "problems":
            self._folders.pack(fill="x", pady=(0, theme.px(theme.UNIT)), before=self._card)
        else:
            self._folders.pack_forget()

    def _build_page(self, name: str) -> tk.Frame:
        if name == "images":
            self.browser = ImageBrowser(
                self._card,
                self._thumbnails,
                self.state,
                self._caption_files,
                self._show_error,
                self._captions_changed,
                self._paint_mask,
            )
            return self.browser
        if name == "tags":
            self.tags = TagList(self._card, self._show_tag)
            return self.tags
        if name == "problems":
            return self._build_problems()
        self.buckets = BucketTable(self._card)
        return self.buckets

    def _build_problems(self) -> ProblemList:
        def remove(problems: list[ImageProblem]) -> None:
            captions = self._caption_files()
            self.removal.ask([(each.file, captions.get(each.concept, CaptionFiles())) for each in problems])

        self.problems = made = ProblemList(
            self._card,
            self._show_problem,
            remove,
            on_undo=lambda: self.removal.undo(),
            on_annotate=lambda: self.state.views.annotate(self.folder_of_problem),
        )
        self.removal = ImageRemoval(
            self, self.state.background, made.say, self._removed, self.reload, self.state.trashed_images
        )
        return made

    def _removed(self, images: set[Path]) -> None:
        """Without these images, which are in the trash now."""
        self.image_index.removed(images)
        if self._reader.is_reading:  # and has perhaps read them already
            self.reload()
        self._show_summary()
        self._fill(self._page)
        self._changed()

    def _fill(self, name: str) -> None:
        match name:
            case "images":
                self.browser.empty = self._none_found()
                self.browser.show(self.image_index)
            case "tags":
                self.tags.show(tag_counts(self.image_index.images))
            case "problems":
                was_read = bool(self.image_index.images) and not self._errors()
                self.problems.show(self.image_index.problems, is_reading=not self.is_complete, was_read=was_read)
                self.problems.offer_undo(self.removal.can_undo)
            case "buckets":
                self.buckets.empty = self._none_found()
                self.buckets.show(self.image_index.buckets, self.state.draft.get("batch_size"))

    def _none_found(self) -> str:
        return NONE_FOUND if self.is_complete else ""  # the line above says that they are being read

    def _errors(self) -> list[str]:
        """Why folders could not be read."""
        found = self.image_index
        errors = [found.error, *(folder.error for _, folder in sorted(found.folders.items()))]
        return [with_titles(error) for error in errors if error]

    def _caption_files(self) -> dict[int, CaptionFiles]:
        """The caption settings of each concept, with which its images were read."""
        concepts = self._shown.get("concepts")
        entries = concepts if isinstance(concepts, list) else []
        return {number: CaptionFiles.of(entry) for number, entry in enumerate(entries)}

    def _show_error(self, message: str) -> None:
        self._error.configure(text=message)
        self._error.pack(fill="x", pady=(0, theme.px(theme.UNIT)), before=self._card)

    def _captions_changed(self, images: Sequence[IndexedImage]) -> None:
        if self._reader.is_reading and self._shown == self._reading:
            self._written.update(((each.concept, each.file), each) for each in images)
        elif self._reader.is_reading:  # other caption files, perhaps read before
            self.reload()
        self._show_summary()
        self._changed()

    def _paint_mask(self, image: IndexedImage) -> None:
        """Open the mask that the image has, or a new one beside it, which then also counts before one elsewhere."""
        if not self._shown.get("masked_training"):
            self._show_error("The folders are still being read: paint the mask once it is known whether there is one.")
            return
        concepts = self._shown.get("concepts")
        concept = concepts[image.concept] if isinstance(concepts, list) else None
        suffix = value_at(concept, "mask_suffix") or Concept.model_fields["mask_suffix"].default
        beside = Path(f"{os.path.splitext(image.file)[0]}{suffix}")
        own = None if image.has_alpha_mask else image.mask
        file = own if own is not None and own.suffix.lower() in MASK_FORMATS else beside
        try:
            check_changeable(image.file)
            check_writable(file)
        except OSError as error:
            self._show_error(f"The mask cannot be painted: {error.strerror}.")
        except FileFault as fault:
            self._show_error(f"{printable(file.name)} {fault}.")
        else:
            written = partial(self._mask_written, file)
            MaskDialog(self, self.state, image.file, image.mask or file, file, written).show()

    def _mask_written(self, file: Path) -> None:
        self._thumbnails.forget(file)
        if self.winfo_exists():
            self.reload()

    def _captions_changed_elsewhere(self) -> None:
        if "images" in self._pages:
            self.browser.editor.show_undo()
        self.reload()

    def _show_tag(self, tag: str) -> None:
        self.event_generate("<<ShowImages>>")
        self.browser.show_only(tag)

    def _show_problem(self, problem: ImageProblem) -> None:
        self.event_generate("<<ShowImages>>")
        if not self.browser.open(problem.file):
            self._show_error(f"{problem.file}: {problem.description}")

    def _on_destroy(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is self:
            self._reader.stop()


def _numbers_by_path(concepts: object) -> dict[str, list[int]]:
    """Which concepts have a path; looked up for each of thousands, a search would take seconds at every keystroke."""
    found: dict[str, list[int]] = {}
    for number, concept in enumerate(concepts if isinstance(concepts, list) else ()):
        found.setdefault(str(value_at(concept, "path")), []).append(number)
    return found


class TagList(tk.Frame):
    """Every tag with its number of captions; `on_select` is called with the selected tag."""

    def __init__(self, parent: tk.Misc, on_select: Callable[[str], object]) -> None:
        super().__init__(parent)
        theme.paint(self, bg=theme.CARD)
        self._hint = text(self, "", "small", colour=theme.MUTED)
        self._hint.pack(side="bottom", anchor="w", pady=(theme.px(8), 0))
        # a number that stands far from its tag, as on a wide screen, belongs to none
        self.table = table(self, {"tag": ("Tag", 400), "count": ("Captions", 100)}, ("count",), stretch=False)
        self.table.bind("<Return>", lambda _: self._select(on_select))
        self.table.bind("<Double-Button-1>", lambda _: self._select(on_select))

    def show(self, counts: Sequence[tuple[str, int]]) -> None:
        """Show tags with their counts, most frequent first."""
        self._hint.configure(text=_TAGS if counts else _NO_TAGS)
        self.table.delete(*self.table.get_children())
        for number, (tag, count) in enumerate(counts[:MOST_TAGS]):
            self.table.insert("", "end", iid=str(number), values=(tag, f"{count:,}"))

    def _select(self, on_select: Callable[[str], object]) -> None:
        for item in self.table.selection():
            on_select(str(self.table.item(item, "values")[0]))


class SurveyReader:
    """Call `start`, then poll `newest` while `is_reading`. Main thread only."""

    def __init__(self) -> None:
        self.is_reading = False
        self._results: SimpleQueue[tuple[int, bool, ImageIndex]] = SimpleQueue()
        self._survey_number = 0
        self._child: Child | None = None

    @property
    def has_read(self) -> bool:
        """Whether a survey was ever started."""
        return self._survey_number > 0

    def start(self, settings: Mapping[str, object], size_step: int) -> None:
        """Read the concept folders of `settings`; a survey in progress is cancelled."""
        self.stop()
        self.is_reading = True
        arguments = (self._survey_number, settings, size_step)
        threading.Thread(target=self._survey, args=arguments, name="survey", daemon=True).start()

    def stop(self) -> None:
        """Cancel the survey in progress."""
        self._survey_number += 1
        self.is_reading = False
        if self._child is not None:
            self._child.kill()

    def newest(self) -> ImageIndex | None:
        """The latest result since the last call; None if there is nothing new."""
        found: ImageIndex | None = None
        while True:
            try:
                number, is_done, image_index = self._results.get_nowait()
            except Empty:
                return found
            if number == self._survey_number:
                found, self.is_reading = image_index, not is_done

    def _survey(self, number: int, settings: Mapping[str, object], size_step: int) -> None:
        threshold = _FIRST_RESULT

        def on_progress(image_index: ImageIndex) -> None:
            nonlocal threshold
            if len(image_index.images) >= threshold:
                threshold *= 2
                self._results.put((number, False, image_index.snapshot()))

        def on_start(child: Child) -> None:
            self._child = child

        done = survey(settings, size_step, lambda: number == self._survey_number, on_progress, on_start)
        self._results.put((number, True, done))
