"""What to make of which images: captions, tags or masks, and their fields; Start, as scripts/annotate.py takes it."""

from __future__ import annotations

import math
import os
import tkinter as tk
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import Final

from app.annotate.earlier import EarlierSet, earlier_sets
from app.annotate.job import Order
from app.annotate.rows import TITLES
from app.state import AppState
from app.tools.model_tasks import ModelTask, ToolField, applies
from app.tools.tool_form import ToolForm
from app.widgets import theme
from app.widgets.buttons import Button, Menu, PopupMenu, Segments, card, frame, popup_menu, text, wrap_within
from app.widgets.scroll import Scroll
from modules.annotation import DEFAULT_MODELS, KNOWN_MODELS, Task
from modules.files import expand_home
from modules.files.addresses import concept_folder, is_in_copy
from modules.machine import visible_gpus

_KEEPING: Final = "Nothing is written before you have seen it."
OTHER_FOLDER: Final = "other"
OWN_MODEL: Final = "own"
AUTOMATIC: Final = "automatic"
_MODELS: Final = {  # short name -> title, and what it is good for
    "blip": ("BLIP large", "One short sentence. Small and fast, also without a GPU."),
    "blip2": ("BLIP-2", "One short sentence; about 15 GB to download."),
    "florence2": ("Florence-2 large", "A detailed paragraph. Small and fast."),
    "joycaption": ("JoyCaption", "A long description that follows the prompt; needs about 18 GB of GPU memory."),
    "wd14": ("WD14 ViT v2", "Danbooru tags; the smallest of the taggers."),
    "wd-swinv2": ("WD SwinV2 v3", "Danbooru tags; newer, a good balance."),
    "wd-eva02": ("WD EVA02 large v3", "Danbooru tags; the most accurate, and the slowest."),
    "clipseg": ("CLIPSeg", "Marks what a text names."),
}
_LIMITS: Final = {  # field -> least and most, as in scripts/annotate_options.py
    "max_tokens": (1, 4096),
    "batch_size": (1, 1024),
    "threshold": (0, 1),
    "character_threshold": (0, 1),
    "smooth": (0, 100),
    "expand": (0, 1000),
}
_CONCEPT: Final = ToolField(
    *("concept", "Images", "choice", "A folder of the Data section, or another one.", OTHER_FOLDER),
    {OTHER_FOLDER: "Another folder"},
)
_FOLDER: Final = ToolField(
    *("folder", "Folder", "folder", "Images in its subfolders count, too."),
    is_required=True,
    only_for=(OTHER_FOLDER,),
    decided_by="concept",
)
_BATCH: Final = ToolField(
    *("batch_size", "Images at once", "integer", "More is faster on a GPU, and takes more of its memory.", "1"),
    is_required=True,
)
_PREFIX: Final = ToolField("prefix", "Begin with", "text", "Put before each, such as the name that is trained.")
_DEVICE: Final = ToolField(
    *("device", "Device", "choice", "Automatic: the first GPU, or the CPU if there is none.", AUTOMATIC),
    {AUTOMATIC: "Automatic", "cpu": "CPU"},
)
_ABOUT: Final[dict[Task, str]] = {
    "caption": "A model describes each image in words.",
    "tag": "A model names what is in each image, as tags with commas. It needs the package onnxruntime; without it, "
    "Start says how to install it.",
    "mask": "A model marks the part of each image that counts, for masked training (Data, Masks).",
}


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
        head.bind("<Configure>", lambda event: self.tasks.fit(event.width))
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
            found.setdefault(concept_folder(str(each["path"])), each)
    return found


def _name(concept: Mapping[str, object]) -> str:
    return str(concept.get("name") or "") or PurePath(str(concept["path"])).name


def _model(task: Task) -> tuple[ToolField, ToolField]:
    names = KNOWN_MODELS[task]
    titles = {name: _MODELS.get(name, (name, ""))[0] for name in names}
    details = {name: _MODELS.get(name, ("", names[name]))[1] for name in names}
    model = ToolField(
        *("model", "Model", "choice", "It is downloaded at its first use.", DEFAULT_MODELS[task]),
        {**titles, OWN_MODEL: "Another model"},
        details={**details, OWN_MODEL: "A folder, or a name on the Hugging Face hub."},
    )
    own = ToolField(
        *("own", "Folder or name", "any", "A folder with the model, or owner/name on the Hugging Face hub."),
        is_required=True,
        only_for=(OWN_MODEL,),
        decided_by="model",
    )
    return model, own


def _mode(what: str, append: str) -> ToolField:
    return ToolField(
        *("mode", f"Images with a {what}", "choice", "Undo brings back what was there.", "missing"),
        {"missing": "Leave", "replace": "Replace", "append": "Append"},
        details={"missing": f"Only images without a {what}.", "replace": f"New {what}s for all.", "append": append},
    )


_FIELDS: Final[dict[Task, tuple[ToolField, ...]]] = {
    "caption": (
        ToolField(
            "prompt", "Prompt", "text", "What the model is asked; BLIP's captions begin with it. May stay empty."
        ),
        _PREFIX,
        ToolField(
            "max_tokens", "Longest caption", "integer", "In tokens, about ¾ of a word each.", "128", is_required=True
        ),
        _BATCH,
        _mode("caption", "Another line; training chooses one of the lines at random."),
    ),
    "tag": (
        ToolField(
            *("threshold", "Threshold", "number", "From 0 to 1: lower gives more tags, and more wrong ones.", "0.35"),
            is_required=True,
        ),
        ToolField(
            "character_threshold", "For characters", "number", "For names of characters.", "0.85", is_required=True
        ),
        ToolField("with_rating", "Rating first", "switch", "On: begins with the rating, such as general."),
        ToolField("exclude", "Leave out", "text", "Tags that are never wanted, with commas between them."),
        _PREFIX,
        _BATCH,
        _mode("caption", "The tags that a caption does not have yet."),
    ),
    "mask": (
        ToolField(
            *("prompt", "What counts", "text", "Such as face, or: person, dog. It becomes white in the mask."),
            is_required=True,
        ),
        ToolField(
            *("threshold", "Threshold", "number", "From 0 to 1: lower marks more of the image.", "0.3"),
            is_required=True,
        ),
        ToolField(
            "smooth",
            "Smooth by",
            "integer",
            "Blurs the mask by this many pixels of 352, the size at which the model sees an image.",
            "5",
            is_required=True,
        ),
        ToolField("expand", "Grow by", "integer", "Pixels by which the marked part grows.", "10", is_required=True),
        ToolField("invert", "Invert", "switch", "On: what is named is left out, and the rest counts."),
        _mode("mask", "What either mask marks counts."),
    ),
}
TASKS: Final[dict[Task, ModelTask]] = {
    task: ModelTask(task, TITLES[task], _ABOUT[task], (_CONCEPT, _FOLDER, *_model(task), *fields, _DEVICE))
    for task, fields in _FIELDS.items()
}


def folder_of(values: Mapping[str, str]) -> Path:
    """The folder of the images, absolute."""
    concept = values["concept"]
    return Path(concept_folder(values["folder"].strip() if concept == OTHER_FOLDER else concept))


def faults(task: Task, values: Mapping[str, str]) -> dict[str, str]:
    """What is missing or wrong, as a sentence for each field."""
    found = {}
    for field in TASKS[task].fields:
        value = values.get(field.name, "").strip()
        if not applies(field, values):
            continue
        if field.is_required and not _parts(value):
            found[field.name] = f"{field.title} is missing."
        elif field.name in _LIMITS and not _is_within(value, *_LIMITS[field.name], whole=field.kind == "integer"):
            least, most = _LIMITS[field.name]
            kind = "whole number" if field.kind == "integer" else "number"
            found[field.name] = f"{field.title} is {value!r}; use a {kind} from {least} to {most}."
    place = "folder" if values["concept"] == OTHER_FOLDER else "concept"
    if place not in found and is_in_copy(folder_of(values)):
        found[place] = "Images of an address are only read: copy them into a folder first."
    elif place not in found and not os.path.isdir(folder_of(values)):
        found[place] = f"There is no folder {str(folder_of(values))!r}; choose another one."
    return found


def order(task: Task, values: Mapping[str, str], concept: Mapping[str, object]) -> Order:
    """What to propose, for values without faults; `concept` has the settings of the folder, if it is one of them."""
    folder = folder_of(values)
    setting, default = ("mask_suffix", "-masklabel.png") if task == "mask" else ("caption_extension", ".txt")
    ending = next(iter(str(concept.get(setting) or "").split()), default)
    more = [f"--{setting}={ending}"] if ending != default else []
    if concept.get("include_subfolders") is False:
        more.append("--no_subfolders")
    return Order(task, folder, ending, (*_arguments(task, values), *more, "--review", "--", str(folder)))


def _arguments(task: Task, values: Mapping[str, str]) -> Iterator[str]:
    own = values["own"].strip()
    yield f"--model={values['model'] if values['model'] != OWN_MODEL else _expanded(own)}"
    yield "--only_missing" if values["mode"] == "missing" else f"--{values['mode']}"
    if task == "mask":
        yield from (f"--prompt={part}" for part in _parts(values["prompt"]))
    elif values.get("prompt", "").strip():
        yield f"--prompt={values['prompt'].strip()}"
    if values.get("prefix", "").strip():
        prefix = values["prefix"].strip()
        yield f"--prefix={prefix.rstrip(', ')}, " if task == "tag" else f"--prefix={prefix} "
    for name in (*_LIMITS, "exclude"):
        if values.get(name, "").strip():
            yield f"--{name}={values[name].strip()}"
    for name in ("invert", "with_rating"):
        if values.get(name):
            yield f"--{name}"
    if values["device"] != AUTOMATIC:
        yield f"--device={values['device']}"


def _parts(text: str) -> list[str]:
    """What is between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _expanded(name: str) -> str:
    return str(expand_home(name)) if name.startswith("~") else name


def _is_within(text: str, least: float, most: float, *, whole: bool) -> bool:
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        return False
    return math.isfinite(value) and least <= value <= most
