"""What to make of which images: captions, tags or masks, their fields, and Start."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import Final

from app.annotate.choices import AUTOMATIC, OTHER_FOLDER, TASKS, faults, order
from app.annotate.earlier import EarlierSet, earlier_sets
from app.annotate.job import Order
from app.state import AppState
from app.tools.tool_form import ToolForm
from app.widgets import theme
from app.widgets.buttons import Button, Menu, PopupMenu, Segments, card, frame, popup_menu, text, wrap_within
from app.widgets.scroll import Scroll
from modules.annotation import Task
from modules.files import expand_home
from modules.machine import visible_gpus

_KEEPING: Final = "Nothing is written before you have seen it."


class Setup(tk.Frame):
    """`start` is called with what to propose, `review` to show the proposals."""

    def __init__(
        self,
        parent: tk.Misc,
        state: AppState,
        start: Callable[[Order], object],
        review: Callable[[], object],
        open_earlier: Callable[[EarlierSet], object],
    ) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self._state, self._start, self._open = state, start, open_earlier
        self._is_checked = False
        self._gpus = 0
        self.forms: dict[Task, ToolForm] = {}
        scroll = Scroll(self)
        scroll.pack(fill="both", expand=True)
        outer = card(scroll.inside)
        outer.pack(fill="x", padx=8, pady=(0, 16))
        head = frame(outer)
        head.pack(fill="x", padx=theme.px(16), pady=(theme.px(14), theme.px(4)))
        self.tasks = Segments(head, [task.title for task in TASKS.values()], self._choose_title, bg=theme.CARD)
        self.tasks.pack(side="left")
        self._about = text(outer, "", colour=theme.MUTED)
        wrap_within(self._about, outer)
        self._about.pack(fill="x", padx=theme.px(16), pady=(theme.px(4), theme.px(12)))
        self._place = frame(outer)
        self._place.pack(fill="x", padx=theme.px(16))
        row = frame(outer)
        row.pack(fill="x", padx=theme.px(16), pady=(theme.px(6), theme.px(16)))
        self.start_button = Button(row, "Start", self.start, icon="play", style="accent", bg=theme.CARD)
        self.start_button.pack(side="left")
        self._review = Button(row, "Show the proposals", review, bg=theme.CARD)
        self.earlier_button = Button(row, "Earlier proposals", self._show_earlier, icon="down", bg=theme.CARD)
        self.earlier: list[EarlierSet] = []
        self.task: Task = next((task for task in TASKS if task == state.typed["annotate"].get("task")), "caption")
        self.choose(self.task)
        state.background.run(lambda: len(visible_gpus()), self._offer_devices)

    @property
    def form(self) -> ToolForm:
        """The fields in sight."""
        return self.forms[self.task]

    def choose(self, task: Task) -> None:
        """Show the fields of a task; the folder stays."""
        folder = self.form.values() if self.forms else {}
        for form in self.forms.values():
            form.pack_forget()
        self.task = task
        self._state.typed["annotate"]["task"] = task
        if task not in self.forms:
            self.forms[task] = ToolForm(self._place, TASKS[task], self._edited, self._state.typed[task])
            self.offer_folders()
            self._offer_devices(self._gpus)
        for name in ("concept", "folder"):
            if name in folder:
                self.form.show(name, folder[name])
        self.form.pack(fill="x")
        self.tasks.set(TASKS[task].title)
        self._about.configure(text=f"{TASKS[task].about} {_KEEPING}")
        self._is_checked = False
        self.form.say({})

    def offer_folders(self) -> None:
        """Offer the concepts that the settings have now."""
        concepts = concept_folders(self._state.draft.data.get("concepts"))
        titles = {folder: _name(concept) for folder, concept in concepts.items()} | {OTHER_FOLDER: "Another folder"}
        for form in self.forms.values():
            menu = form.controls["concept"]
            assert isinstance(menu, Menu)
            menu.set_choices(tuple(titles), titles)
            if menu.value() not in titles or (menu.value() == OTHER_FOLDER and not form.values()["folder"].strip()):
                form.show("concept", next(iter(titles)))

    def show_folder(self, folder: Path) -> None:
        """Choose a folder, by its concept if it is one."""
        menu = self.form.controls["concept"]
        assert isinstance(menu, Menu)
        if str(folder) in menu.choices:
            self.form.show("concept", str(folder))
        else:
            self.form.show("concept", OTHER_FOLDER)
            self.form.show("folder", str(folder))

    def offer_review(self, proposals: int, *, is_running: bool) -> None:
        """Offer the way to the proposals that there are; none other can be made meanwhile."""
        self.start_button.configure(state="disabled" if is_running else "normal")
        self.earlier_button.configure(state="disabled" if is_running else "normal")
        if proposals or is_running:
            self._review.pack(side="left", padx=(8, 0))
        else:
            self._review.pack_forget()

    def look_for_earlier(self) -> None:
        """Offer the proposals that were made before, if there are any."""
        self._state.background.run(earlier_sets, self._offer_earlier)

    def earlier_menu(self) -> PopupMenu:
        """The proposals that were made before."""
        menu = popup_menu(self)
        for each in self.earlier:
            menu.add_command(each.title, partial(self._open, each), detail=each.detail)
        return menu

    def start(self) -> None:
        """Start, or show what is missing."""
        values = self.form.values()
        wrong = faults(self.task, values)
        self._is_checked = True
        self.form.say(wrong)
        if not wrong:
            self._start(order(self.task, values, self._concept(values["concept"])))

    def _offer_devices(self, gpus: int) -> None:
        self._gpus = gpus
        titles = {AUTOMATIC: "Automatic", "cpu": "CPU"} | {f"cuda:{number}": f"GPU {number}" for number in range(gpus)}
        for form in self.forms.values():
            menu = form.controls["device"]
            assert isinstance(menu, Menu)
            menu.set_choices(tuple(titles), titles)

    def _concept(self, folder: str) -> Mapping[str, object]:
        return concept_folders(self._state.draft.data.get("concepts")).get(folder, {})

    def _offer_earlier(self, found: list[EarlierSet]) -> None:
        self.earlier = found
        if found:
            self.earlier_button.pack(side="right")
        else:
            self.earlier_button.pack_forget()

    def _show_earlier(self) -> None:
        self.earlier_menu().open_below(self.earlier_button)

    def _choose_title(self, title: str) -> None:
        self.choose(next(name for name, task in TASKS.items() if task.title == title))

    def _edited(self, name: str) -> None:
        if self._is_checked:
            self.form.say(faults(self.task, self.form.values()))


def concept_folders(concepts: object) -> dict[str, Mapping[str, object]]:
    """Absolute folder -> the concept, also while the settings are incomplete."""
    found: dict[str, Mapping[str, object]] = {}
    for each in concepts if isinstance(concepts, list) else []:
        if isinstance(each, dict) and each.get("path"):
            found.setdefault(str(expand_home(str(each["path"])).absolute()), each)
    return found


def _name(concept: Mapping[str, object]) -> str:
    return str(concept.get("name") or "") or PurePath(str(concept["path"])).name
