"""The fields of a tool, in one column: title, control, and below it what it is for or what is wrong."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from app.tools.model_tasks import KIND, ModelTask, ToolField, applies
from app.widgets import theme
from app.widgets.buttons import Button, Entry, Menu, Switch, frame, text
from app.windows.chooser import choose_path
from app.windows.folder_listing import Purpose
from modules.facts import MODEL_FILES
from modules.files import expand_home

_TITLES: Final = 190  # unscaled pixels of the column of titles
_WIDEST: Final = 720  # of the fields
_PURPOSES: Final[dict[str, Purpose]] = {"any": "any", "file": "open", "folder": "folder", "save": "save"}
_TOOLTIPS: Final = {"any": "a file or folder", "file": "a file", "folder": "a folder", "save": "where to save it"}


class ToolForm(tk.Frame):
    """`values()` are the texts of the fields; `changed` is called with a field's name at every edit.

    `typed` is what was in the fields of a form before, and gets what is in them now.
    """

    def __init__(
        self, parent: tk.Misc, task: ModelTask, changed: Callable[[str], object], typed: dict[str, object]
    ) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        self.task = task
        self._changed, self._typed = changed, typed
        self.controls: dict[str, Entry | Menu | Switch] = {}
        self._messages: dict[str, tk.Label] = {}
        self._rows: dict[str, tuple[tk.Misc, ...]] = {}
        self._kind = ""  # of the source
        self._notes: dict[str, str] = {}  # in place of what fields are for
        self.grid_columnconfigure(0, minsize=theme.px(_TITLES))
        self.grid_columnconfigure(2, weight=1)  # beside the fields in a wide window
        for row, field in enumerate(task.fields):
            self._add(2 * row, field)
        self._fill()
        tk.Misc.bind(self, "<Configure>", self._wrap, add="+")
        self.refresh()

    def values(self) -> dict[str, str]:
        """The text of each field: "on" or "" of a switch."""
        found = {}
        for name, control in self.controls.items():
            if isinstance(control, Switch):
                found[name] = "on" if control.get() else ""
            else:
                found[name] = control.get() if isinstance(control, Entry) else control.value()
        return {**found, KIND: self._kind}

    def show(self, name: str, value: str) -> None:
        """Put a text into a field, as if it had been typed."""
        control = self.controls[name]
        assert not isinstance(control, Switch)
        control.show(value)
        self._edited(name)

    def offer(self, name: str, choices: Sequence[str], kind: str, note: str) -> None:
        """Offer only these choices of a menu, which are those for the `kind` of the source, and say why."""
        menu = self.controls[name]
        assert isinstance(menu, Menu)
        self._kind, self._notes[name] = kind, note
        menu.set_choices(choices)
        if menu.value() not in choices:
            menu.show(choices[0])
        self.say({})
        self._edited(name)

    def say(self, sentences: dict[str, str]) -> None:
        """Show what is wrong; the other fields show what they are for."""
        for field in self.task.fields:
            wrong = sentences.get(field.name, "")
            theme.paint(self._messages[field.name], fg=theme.BAD if wrong else theme.MUTED)
            self._messages[field.name].configure(text=wrong or self._notes.get(field.name, "") or field.help)
            control = self.controls[field.name]
            if not isinstance(control, Switch):
                control.mark(bool(wrong))

    def refresh(self) -> None:
        """Show the fields that count."""
        values = self.values()
        for field in self.task.fields:
            for part in self._rows[field.name]:
                if applies(field, values):
                    part.grid()  # type: ignore[attr-defined]
                else:
                    part.grid_remove()  # type: ignore[attr-defined]

    def _fill(self) -> None:
        for name, control in self.controls.items():
            value = str(self._typed.get(name, ""))
            if isinstance(control, Switch):
                control.show(bool(value))
            elif name in self._typed:
                control.show(value)

    def _add(self, row: int, field: ToolField) -> None:
        title = text(self, field.title)
        title.grid(row=row, column=0, sticky="w", padx=(0, theme.px(12) - Switch.RING))
        area = frame(self)
        area.grid(row=row, column=1, sticky="ew", padx=(0 if field.kind == "switch" else Switch.RING, 0))
        message = text(self, field.help, "small", colour=theme.MUTED)
        message.grid(row=row + 1, column=1, sticky="w", padx=(Switch.RING, 0), pady=(theme.px(2), theme.px(10)))
        self._messages[field.name] = message
        self._rows[field.name] = (title, area, message)
        self.controls[field.name] = self._control(area, field)

    def _control(self, area: tk.Frame, field: ToolField) -> Entry | Menu | Switch:
        if field.kind == "switch":
            switch = Switch(area, lambda value: self._edited(field.name))
            switch.pack(side="left")
            return switch
        if field.choices is not None:
            menu = Menu(
                area,
                tuple(field.choices),
                lambda value: self._edited(field.name),
                titles=field.choices,
                details=field.details,
                width=280,
            )
            menu.show(field.default)
            menu.pack(side="left")
            return menu
        is_path = field.kind in _PURPOSES
        entry = Entry(area, lambda value: self._edited(field.name), width=120)
        entry.show(field.default)
        if is_path:
            tooltip = f"Choose {_TOOLTIPS[field.kind]}"
            browse = Button(area, icon="folder", bg=theme.CARD, tooltip=tooltip, command=partial(self._browse, field))
            browse.pack(side="right", padx=(4, 0))
            entry.pack(side="left", fill="x", expand=True)
        else:
            is_long = field.kind == "text"
            entry.pack(side="left", fill="x" if is_long else "none", expand=is_long)
        return entry

    def _browse(self, field: ToolField) -> None:
        control = self.controls[field.name]
        assert isinstance(control, Entry)
        start = expand_home(control.get().strip() or self.values().get("source", ""))
        endings = {"folder": (), "any": MODEL_FILES}.get(field.kind, (".safetensors",))
        if field.kind == "save":
            chosen = choose_path(self, "save", field.title, start.parent, endings, start.name)
        else:
            chosen = choose_path(self, _PURPOSES[field.kind], field.title, start, endings)
        if chosen:
            self.show(field.name, chosen)

    def _edited(self, name: str) -> None:
        if name in self.controls:  # not while it is built
            self._typed.update(self.values())
            self.refresh()
            self._changed(name)

    def _wrap(self, event: tk.Event[tk.Misc]) -> None:
        width = min(max(event.width - theme.px(_TITLES), theme.px(136)), theme.px(_WIDEST))
        self.grid_columnconfigure(1, minsize=width)
        for message in self._messages.values():
            message.configure(wraplength=width - theme.px(16))
