"""The left side of the Generate page: model, prompt, and what the images are to be like."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from app.base_model import BaseModelInfo
from app.form.path_fields import CHECK_AFTER_MS
from app.form.setting_text import format_value, help_text
from app.generate.history import Prompt
from app.generate.run_models import inspect_lora, inspect_model
from app.generate.settings import EMPTY_PROMPT, OPTIONS, check, families, parse_strengths
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, Entry, Menu, Switch, TextBox, add_tooltip, card, frame, popup_menu, text
from app.widgets.card import Card
from app.widgets.ellipsis import truncate
from app.widgets.scroll import Scroll
from app.windows.chooser import choose_path
from app.windows.folder_listing import Purpose
from modules.config import Option, in_words
from modules.config.family_about import family_about
from modules.config.sections.concept import IMAGE_SUFFIXES
from modules.facts import MODEL_FILES, family_names

WIDTH: Final = 372  # unscaled pixels
_DEVICES: Final = {"cpu": "CPU"}
_PLACEHOLDERS: Final = {
    "model": "Folder, file or owner/name",
    "lora": "none",
    "reference": "none; for models that edit or animate images",
    "width": "automatic",
    "height": "automatic",
    "frames": "automatic",
}
_SHOWN_PROMPT: Final = 70  # characters of a prompt in the menu
INSIDE: Final = 300  # unscaled pixels of texts in a card
_HALF: Final = 146  # of texts in one of two columns
_GAP: Final = 3


class GenerateForm(tk.Frame):
    """`changed` is called at every edit, `submit` by Ctrl+Return."""

    def __init__(
        self, parent: tk.Misc, state: AppState, changed: Callable[[], object], submit: Callable[[], object]
    ) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self._state, self._changed, self._submit = state, changed, submit
        self.prompts: Callable[[], list[Prompt]] = list
        self.choose_run: Callable[[tk.Misc], object] = lambda widget: None
        self.fields: dict[str, Field] = {}
        self._check_job = ""
        self.fault_count = 0  # fields that are marked as wrong since Generate was pressed
        self._scroll = Scroll(self)
        self._scroll.pack(fill="both", expand=True)
        self._scroll.canvas.configure(width=theme.px(WIDTH - 12))
        self._due: list[Card] = []  # the cards that are still to appear
        self.steps = self._build()

    def _build(self) -> Iterator[None]:
        """Build the cards, one at each step; the form is usable after the last."""
        self._build_model(self._card("Model"))
        yield
        self._build_prompt(self._card("Prompts"))
        yield
        self._build_images(self._card("Images"))
        yield
        self._build_rest(self._card("Process and files"))

    def appear(self) -> Iterator[None]:
        """Show the cards, one at each step: drawing takes longer than building."""
        while self._due:
            self._due.pop(0).pack(fill="x", padx=(6, 4), pady=(0, 12))
            yield

    def values(self) -> dict[str, object]:
        """What is in the fields, to be checked."""
        found: dict[str, object] = {}
        for name, field in self.fields.items():
            control = field.control
            if isinstance(control, Menu):
                found[name] = control.value()
            elif isinstance(control, Switch):
                found[name] = control.get()
            else:
                found[name] = _typed(OPTIONS[name], control.get())
        return found

    def show(self, values: Mapping[str, object]) -> None:
        """Fill fields in."""
        for name, value in values.items():
            field = self.fields.get(name)
            if field is None:
                continue
            if isinstance(field.control, Switch):
                field.control.show(bool(value))
            elif isinstance(field.control, Menu):
                field.control.show(str(value))
            else:
                field.control.show(format_value(value))
                if isinstance(field.control, Entry):
                    field.control.line.xview_moveto(1)  # the end of a long path says more than its start
        self._edited()
        self._schedule_check()

    def repeat(self, values: Mapping[str, object]) -> None:
        """Fill in the settings of an image; with its seed, if that is known, so that the same image comes again."""
        self.show({**values, "random_seed": False} if "seed" in values else values)

    def show_faults(self, faults: Mapping[str, str]) -> None:
        """Mark the fields that are wrong, and bring the first one into view."""
        self._mark(faults)
        first = next((self.fields[name] for name in self.fields if name in faults), None)
        if first is not None:
            self._scroll.see(first.outer)
            first.control.focus_set()

    def _edited(self) -> None:
        self._mark(check(self.values())[1] if self.fault_count else {})
        self.fields["seed"].control.enable(not self.fields["random_seed"].control.get())  # type: ignore[union-attr]
        self._changed()

    def _mark(self, faults: Mapping[str, str]) -> None:
        """Mark the fields that are wrong; the prompt may be empty, which is remarked on."""
        self.fault_count = len(faults)
        for name, field in self.fields.items():
            if isinstance(field.control, (Entry, TextBox)):
                field.control.mark(name in faults)
            if name in faults or str(field.message.cget("fg")) == theme.resolve(theme.BAD):
                field.say(faults.get(name, ""))
        if "prompt" not in faults:
            self.fields["prompt"].say("" if str(self.values()["prompt"]).strip() else EMPTY_PROMPT, theme.MUTED)

    def _card(self, title: str) -> tk.Frame:
        outer = card(self._scroll.inside)
        self._due.append(outer)
        body = frame(outer)
        body.pack(fill="both", expand=True, padx=theme.px(16), pady=theme.px(12))
        head = frame(body)
        head.pack(fill="x", pady=(0, theme.px(8)))
        text(head, title, "heading").pack(side="left")
        self._head = head
        return body

    def _build_model(self, body: tk.Frame) -> None:
        runs = Button(self._head, "Runs", lambda: self.choose_run(runs), bg=theme.CARD, icon="down", height=26)
        runs.pack(side="right")
        add_tooltip(runs, "Fill in the model that a run has saved.")
        self._path(body, "model")
        row = frame(body)
        row.pack(fill="x")
        row.grid_columnconfigure(0, weight=1)
        self._path(row, "lora", 0)
        self._entry(self._field(row, "lora_scale", 1, spans=True), "lora_scale")
        several = "Several, such as 0, 0.5, 1, give a row of images each."
        text(body, several, "small", colour=theme.MUTED, wrap=INSIDE).pack(anchor="w", pady=(0, theme.px(10)))

    def _build_prompt(self, body: tk.Frame) -> None:
        button = Button(
            self._head, "History", lambda: self._show_history(button), bg=theme.CARD, icon="down", height=26
        )
        button.pack(side="right")
        for name, height in (("prompt", 74), ("negative_prompt", 42)):
            field = self._field(body, name)
            box = TextBox(field.area, lambda _: self._edited(), height=height)
            box.pack(fill="x")
            for key in ("<Control-Return>", "<Control-KP_Enter>"):
                box.text.bind(key, lambda event: self._submitted())
            field.control = box
        self._path(body, "reference")

    def _build_images(self, body: tk.Frame) -> None:
        for names in (("width", "height"), ("steps", "guidance_scale"), ("count", "seed"), ("frames",)):
            row = frame(body)
            row.pack(fill="x")
            row.grid_columnconfigure((0, 1), weight=1, uniform="pair")
            for column, name in enumerate(names):
                field = self._field(row, name, column)
                self._entry(field, name)
        body.pack_configure(pady=(theme.px(12), 0))
        row = frame(body.master)  # outside the body, so that the switch is seen below the fields
        row.pack(fill="x", padx=(theme.px(16) - Switch.RING, theme.px(16)), pady=(0, theme.px(22)))
        switch = Switch(row, lambda _: self._edited())
        switch.pack(side="left")
        option = OPTIONS["random_seed"]
        label = text(row, option.title)
        label.pack(side="left", padx=theme.px(8))
        add_tooltip(label, partial(help_text, option))
        self.fields["random_seed"] = random_seed = Field(body, option)
        random_seed.control = switch

    def _build_rest(self, body: tk.Frame) -> None:
        self._path(body, "folder")
        self._menu(body, "device", ["automatic", "cpu"])
        self._menu(body, "family", families())

    def show_devices(self, gpus: int) -> None:
        """Offer the GPUs of this machine."""
        menu = self.fields["device"].control
        assert isinstance(menu, Menu)
        menu.set_choices(["automatic", *(f"cuda:{number}" for number in range(gpus)), "cpu"])

    def _field(self, parent: tk.Misc, name: str, column: int | None = None, *, spans: bool = False) -> Field:
        field = self.fields[name] = Field(parent, OPTIONS[name], column, spans=spans)
        if column is None:
            field.outer.pack(fill="x", pady=(0, theme.px(10)))
        else:
            left = theme.px(6) if column else 0
            right = 0 if column else theme.px(6)
            below = theme.px(3 if spans else 10)
            field.outer.grid(row=0, column=column, sticky="new", padx=(left, right), pady=(0, below))
        return field

    def _entry(self, field: Field, name: str) -> Entry:
        changed = self._path_edited if OPTIONS[name].picks == "file" else self._edited
        entry = Entry(field.area, lambda _: changed(), width=80, placeholder=_PLACEHOLDERS.get(name))
        entry.pack(side="left", fill="x", expand=True)
        field.control = entry
        return entry

    def _menu(self, parent: tk.Misc, name: str, choices: list[str]) -> None:
        field = self._field(parent, name)
        titles = {value: _choice(value) for value in choices}
        menu = Menu(field.area, choices, lambda _: self._edited(), width=120, titles=titles, names_values=True)
        menu.pack(side="left", fill="x", expand=True)
        menu.show(choices[0])
        field.control = menu

    def _path(self, parent: tk.Misc, name: str, column: int | None = None) -> None:
        field = self._field(parent, name, column, spans=column is not None)
        button = Button(field.area, icon="folder", bg=theme.CARD, command=partial(self._browse, name))
        kinds = {"model": "a file or folder", "folder": "a folder"}
        add_tooltip(button, f"Choose {kinds.get(name, 'a file')}")
        button.pack(side="right", padx=(4, 0))
        self._entry(field, name)

    def _browse(self, name: str) -> None:
        control = self.fields[name].control
        assert isinstance(control, Entry)
        purpose: Purpose = {"lora": "open", "reference": "open", "folder": "folder"}.get(name, "any")  # type: ignore[assignment]
        endings_of = {"lora": (".safetensors",), "model": MODEL_FILES, "reference": tuple(sorted(IMAGE_SUFFIXES))}
        endings = endings_of.get(name, ())
        start = Path(control.get())
        chosen = choose_path(self, purpose, OPTIONS[name].title, start, endings)
        if chosen:
            self.show({name: chosen})

    def _show_history(self, widget: tk.Misc) -> None:
        menu = popup_menu(self)
        for prompt in (prompts := self.prompts()):
            shown = truncate(" ".join(prompt.prompt.split()), _SHOWN_PROMPT)
            detail = truncate(" ".join(prompt.negative_prompt.split()), _SHOWN_PROMPT)
            detail = f"without {detail}" if detail else ""
            menu.add_command(shown, partial(self.show, prompt.model_dump()), detail=detail)
        if not prompts:
            menu.add_command(label="Prompts that you have used appear here", state="disabled")
        menu.open_below(widget)

    def _submitted(self) -> str:
        self._submit()
        return "break"

    def _path_edited(self) -> None:
        self._edited()
        self._schedule_check()

    def _schedule_check(self) -> None:
        """Look at the base model shortly after the last keystroke, off the Tk thread."""
        if self._check_job:
            self.after_cancel(self._check_job)
        self._check_job = self.after(CHECK_AFTER_MS, self._check_model)

    def _check_model(self) -> None:
        self._check_job = ""
        for name, inspect in (("model", inspect_model), ("lora", inspect_lora)):
            if typed := str(self.values()[name]).strip():
                self._state.background.run(partial(inspect, typed), partial(self._show_info, name, typed))
            else:
                self.fields[name].say("", theme.MUTED)

    def _show_info(self, name: str, typed: str, info: BaseModelInfo) -> None:
        if self.winfo_exists() and typed == str(self.values()[name]).strip():
            self.fields[name].say(info.error or info.description, theme.WARN if info.error else theme.MUTED)


def _choice(value: str) -> str:
    """A family by its title, anything else by the words for it."""
    return family_about(value).title if value in family_names() else _DEVICES.get(value) or in_words(value)


def _typed(option: Option, typed: str) -> object:
    """The text of a field as a value to be checked."""
    if option.type == "text":
        return typed
    if option.type == "numbers":
        return parse_strengths(typed)
    stripped = typed.strip().replace(",", ".")
    return None if option.optional and not stripped else stripped


class Field:
    """A title above its control, and below it what is wrong; it takes no width from the field beside it.

    `column` is its place in a row of two, which share the width for `message` if it `spans` both.
    """

    def __init__(self, parent: tk.Misc, option: Option, column: int | None = None, *, spans: bool = False) -> None:
        self.outer = frame(parent)
        self.head = frame(self.outer)
        self.head.pack(fill="x")
        title = text(self.head, option.title, "small", colour=theme.MUTED)
        title.pack(side="left")
        add_tooltip(title, partial(help_text, option))
        self.area = frame(self.outer)
        self.area.pack(fill="x", pady=(theme.px(_GAP), 0))
        self.message = text(
            parent if spans else self.outer,
            "",
            "small",
            colour=theme.BAD,
            wrap=INSIDE if spans or column is None else _HALF,
        )
        self._show: Callable[[], object] = partial(self.message.pack, anchor="w", pady=(theme.px(_GAP), 0))
        self._hide: Callable[[], object] = self.message.pack_forget
        if spans:
            self._show = partial(
                self.message.grid,
                row=1 + (column or 0),
                columnspan=2,
                sticky="e" if column else "w",  # below its own control
                pady=(0, theme.px(_GAP)),
            )
            self._hide = self.message.grid_remove
        self.control: Entry | TextBox | Menu | Switch

    def say(self, sentence: str, colour: theme.Colour = theme.BAD) -> None:
        """Show a sentence below the control; none if it is empty."""
        theme.paint(self.message, fg=colour)
        self.message.configure(text=sentence)
        if sentence and not self.message.winfo_manager():
            self._show()
        elif not sentence:
            self._hide()
