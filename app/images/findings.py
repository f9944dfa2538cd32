"""What was found in the concept folders, and next to each finding a button that does something about it."""

from __future__ import annotations

import tkinter as tk
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from app.images.image_index import ConceptFolder, count_problems
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, frame, text, wrap_within
from modules.facts import all_facts
from modules.files import printable
from modules.files.addresses import concept_folder
from modules.run.suggestions import ConceptData, fitting_resolution, median_of

_MOST_LINES: Final = 4  # concepts
_FAR: Final = 1.5  # times more, or less, pixels a side than the resolution
_BESIDE: Final = 170  # unscaled pixels of a row that its text cannot use
_READING: Final = "Reading the folders…"
_FIRST_SETTINGS: Final = "Size, batch, length and learning rate for these images"

FoundConcept = tuple[int, Mapping[str, object], ConceptFolder]  # position in `concepts`, settings, contents


@dataclass(frozen=True)
class Finding:
    """Something that could be better, and a button; `act` goes by the settings at the time of the click."""

    what: str
    button: str
    act: Callable[[], object]
    paths: tuple[str, ...] = ()  # of the concepts that `act` is about


class Findings:
    """Below the list of concepts, in its card; `refresh` after every change of the settings and of what was read."""

    def __init__(self, parent: tk.Misc, state: AppState, suggest: Callable[[], object]) -> None:
        self.frame = frame(parent)
        self._state = state
        self._shown: tuple[str, list[tuple[str, str, tuple[str, ...]]]] | None = None
        self._suggest = suggest
        self.line = text(self.frame, _READING, "small", colour=theme.MUTED)
        wrap_within(self.line, self.frame, 0)
        self.line.pack(anchor="w")
        self._rows = frame(self.frame)
        self._rows.pack(fill="x")

    def refresh(self, concepts: Sequence[FoundConcept], size_step: int, *, is_reading: bool) -> None:
        """Show what has been read; while it is being read anew, what was known before stays."""
        if not (concepts or is_reading):
            self.frame.pack_forget()
            return
        if not self.frame.winfo_manager():
            self.frame.pack(side="bottom", fill="x", padx=theme.px(16), pady=(0, theme.px(14)))
        if is_reading:
            return
        found = list(findings(self._state, concepts, size_step))
        if any(folder.images for *_, folder in concepts):
            found.append(Finding(_FIRST_SETTINGS, "Suggest settings…", self._suggest))
        shown = "\n".join(concept_lines(concepts)), [(each.what, each.button, each.paths) for each in found]
        if shown == self._shown:
            return
        self._shown = shown
        self.line.configure(text=shown[0])
        for child in self._rows.winfo_children():
            child.destroy()
        for each in found:
            row = frame(self._rows)
            row.pack(fill="x", pady=(theme.px(8), 0))
            Button(row, each.button, each.act, bg=theme.CARD).pack(side="right")
            label = text(row, each.what)
            wrap_within(label, row, _BESIDE)
            label.pack(side="left")


def concept_lines(concepts: Sequence[FoundConcept]) -> list[str]:
    """Such as "62 files: 60 usable, 2 unreadable, 3 without a caption, median 64 × 64", for each of the first."""
    lines = []
    for _, concept, folder in concepts[:_MOST_LINES]:
        name = str(concept.get("name") or Path(str(concept.get("path"))).name)
        lines.append(f"{name}  ·  {_line(folder)}" if len(concepts) > 1 else _line(folder))
    more = len(concepts) - _MOST_LINES
    return [*lines, f"and {more:,} more concept{'s' * (more != 1)}"] if more > 0 else lines


def _line(folder: ConceptFolder) -> str:
    if folder.error:
        return "cannot be read"
    images, files = len(folder.images), len(folder.images) + folder.problems["broken"]
    problems = {kind: folder.problems[kind] for kind in ("broken", "caption")}  # others are usable as they are
    said = [f"{images:,} usable", count_problems(problems)]
    if images:
        said.append(f"median {folder.median[0]} × {folder.median[1]}")
    return f"{files:,} file{'s' * (files != 1)}: {', '.join(filter(None, said))}"


def data_of(concepts: Sequence[FoundConcept]) -> list[ConceptData]:
    """What the rules for settings know of the concepts."""
    return [
        ConceptData(number, len(folder.images), folder.samples, *folder.median)
        for number, _, folder in concepts
        if folder.images
    ]


def findings(state: AppState, concepts: Sequence[FoundConcept], size_step: int) -> Iterator[Finding]:
    """What could be better under the present settings. Only concepts that are switched on count."""
    draft, views = state.draft, state.views
    concepts = [each for each in concepts if each[1].get("enabled", True)]
    facts = all_facts().get(str(draft.get("family")))
    yield from _resolution(state, concepts, size_step)
    uncaptioned = [
        (concept, folder.problems["caption"]) for _, concept, folder in concepts if folder.problems["caption"]
    ]
    if uncaptioned:
        count = sum(number for _, number in uncaptioned)
        path = str(uncaptioned[0][0].get("path"))
        what = f"{count:,} image{' has' if count == 1 else 's have'} no caption."
        yield Finding(what, "Write captions", partial(_write_captions, state, path), (path,))
    problems = sum((folder.problems for *_, folder in concepts), Counter[str]())
    del problems["caption"]
    if said := count_problems(problems):
        yield Finding(f"{said}.", "Show problems", views.problems)
    masks = sum(folder.unused_masks for *_, folder in concepts)
    if masks and draft.get("masked_training") is False:
        what = f"{masks:,} mask{' is' if masks == 1 else 's are'} not used."
        yield Finding(what, "Use the masks", partial(draft.set, "masked_training", True))
    transparent = {
        str(concept.get("path")): folder.transparent for _, concept, folder in concepts if folder.transparent
    }
    if transparent and not any(folder.masked for *_, folder in concepts):
        count = sum(transparent.values())
        what = f"No image has a mask, and {count:,} {'has' if count == 1 else 'have'} transparency."
        paths = tuple(transparent)
        yield Finding(what, "Use it as mask", partial(_use, state, "alpha_mask", paths), paths)
    numbered = {
        str(concept.get("path")): folder.numbered_folder
        for _, concept, folder in concepts
        if folder.numbered_folder and not concept.get("folder_repeats")
    }
    if numbered and not (facts and facts.learns_classes):
        what = f"Subfolders have numbers of repeats: {next(iter(numbered.values()))}."
        paths = tuple(numbered)
        yield Finding(what, "Use these repeats", partial(_use, state, "folder_repeats", paths), paths)


def _write_captions(state: AppState, path: str) -> None:
    if _numbers_of(state, (path,)):
        state.views.annotate(Path(concept_folder(path)))


def _use(state: AppState, name: str, paths: Sequence[str]) -> None:
    """Switch a setting on for the concepts with these paths."""
    state.draft.set_together({f"concepts.{n}.{name}": True for n in _numbers_of(state, paths)})


def _numbers_of(state: AppState, paths: Sequence[str]) -> list[int]:
    """The present positions of the concepts with these paths; if there are none, the window says so."""
    concepts = state.draft.get("concepts")
    items = enumerate(concepts if isinstance(concepts, list) else ())
    found = [number for number, each in items if isinstance(each, Mapping) and str(each.get("path")) in paths]
    if not found:
        state.say(f"{printable(paths[0])} is no longer one of the concepts.")
    return found


def _resolution(state: AppState, concepts: Sequence[FoundConcept], size_step: int) -> Iterator[Finding]:
    draft = state.draft
    data = data_of(
        [each for each in concepts if each[1].get("kind", "train") == "train" and not each[1].get("resolutions")]
    )
    resolution = draft.get("resolution")
    if not data or not isinstance(resolution, int) or resolution <= 0:
        return
    median = median_of(data)
    family = str(draft.get("family"))
    fitting = fitting_resolution(family, str(draft.get("base_model") or ""), median.side, size_step)
    if fitting > resolution and not all_facts()[family].has_base_model:
        return  # from scratch a small size is a choice, as in the demo: it takes less time
    if fitting and not 1 / _FAR < fitting / resolution < _FAR:
        what = f"The images are mostly {median.width} × {median.height}, the resolution is {resolution}."
        yield Finding(what, f"Set it to {fitting}", partial(draft.set, "resolution", fitting))
