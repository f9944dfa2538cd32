"""Opening and saving configs and presets, with the questions that go with it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from pathlib import Path

from app import look, texts
from app.ask import Choice, ask
from app.controls import popup_menu
from app.state import AppState
from app.windows.chooser import choose
from app.windows.faults import show_faults
from app.windows.name import ask_name
from modules.config import ConfigError, preset_names
from modules.config.files import read_data
from modules.config.presets import OWN

ENDINGS = (".yaml", ".yml", ".json")


class Files:
    """What the Open, Save and Presets buttons and their keys do."""

    def __init__(self, window: tk.Tk, state: AppState) -> None:
        self._window = window
        self._state = state

    # -- open

    def new(self) -> None:
        self.when_safe(self._state.draft.new)

    def choose(self) -> None:
        """Ask for a file and open it."""
        self.when_safe(self._choose)

    def open(self, file: Path) -> None:
        """Open a file; one with faults only if people want to repair it."""
        try:
            self._state.draft.open(file)
        except ConfigError as error:
            self._cannot_open(file, error)
            return
        self._opened(file)

    def import_settings(self) -> None:
        """Ask for a file of another trainer, and open what it amounts to."""
        from app.windows.importer import import_settings  # its tables would delay the first paint

        self.when_safe(partial(import_settings, self._window, self._state))

    def open_preset(self, name: str) -> None:
        """Edit a copy of a preset."""
        try:
            self._state.draft.open_preset(name)
        except ConfigError as error:
            self._tell(texts.CANNOT_OPEN, str(error))

    def menu_below(self, widget: tk.Misc) -> None:
        """Open…, and the recent files."""
        menu = popup_menu(self._window)
        menu.add_command(label=f"{texts.OPEN_FILE}…", command=self.choose)
        menu.add_command(label=texts.NEW, command=self.new)
        menu.add_command(label=texts.IMPORT, command=self.import_settings)
        menu.add_separator()
        recent = self._state.preferences.recent
        for name in recent:
            menu.add_command(label=_short(name), command=partial(self.when_safe, partial(self.open, Path(name))))
        if not recent:
            menu.add_command(label=texts.NO_RECENT, state="disabled")
        _below(menu, widget)

    def presets_below(self, widget: tk.Misc) -> None:
        """All presets by name, and keeping one's own."""
        menu = popup_menu(self._window)
        names = preset_names()
        for name in names:
            if name.startswith(f"{OWN}/") and not menu.entrycget("end", "label").startswith(OWN):
                menu.add_separator()
            shown = name.removeprefix(f"{OWN}/")
            menu.add_command(label=shown, command=partial(self.when_safe, partial(self.open_preset, name)))
        menu.add_separator()
        menu.add_command(label=texts.SAVE_AS_PRESET, command=self.save_as_preset)
        _below(menu, widget)

    # -- save

    def save(self) -> bool:
        """Into the file it came from, or as a new one; False if nothing was saved."""
        file = self._state.draft.file
        return self.save_as() if file is None else self._save(file)

    def save_as(self) -> bool:
        """Ask for a file and save there."""
        if not self._is_valid(texts.CANNOT_SAVE):
            return False
        present = self._state.draft.file
        stem = self._state.draft.preset.rpartition("/")[2] or "settings"
        start, name = (present.parent, present.name) if present else (Path(), f"{stem}.yaml")
        name = choose(self._window, "save", texts.SAVE_AS_TITLE, start, ENDINGS, name)
        return bool(name) and self._save(Path(name))

    def save_as_preset(self) -> None:
        """Ask for a name and keep the settings among one's own presets."""
        if not self._is_valid(texts.CANNOT_SAVE):
            return

        def keep(name: str) -> str:
            try:
                self._state.draft.save_as_preset(name)
            except ConfigError as error:
                return str(error)
            return ""

        ask_name(self._window, texts.PRESET_QUESTION, self._state.draft.preset.removeprefix(f"{OWN}/"), keep)

    def save_menu_below(self, widget: tk.Misc) -> None:
        menu = popup_menu(self._window)
        menu.add_command(label=texts.SAVE_AS, command=self.save_as)
        menu.add_command(label=texts.SAVE_AS_PRESET, command=self.save_as_preset)
        _below(menu, widget)

    def when_safe(self, action: Callable[[], object]) -> None:
        """Go on when there are no unsaved changes, or when they are saved or given up."""
        draft = self._state.draft
        if not draft.is_dirty:
            action()
            return

        def answered(answer: str) -> None:
            if answer == "discard" or (answer == "save" and self.save()):
                action()

        question = texts.UNSAVED_QUESTION.format(name=draft.name or texts.UNTITLED)
        choices = (
            Choice("", texts.CANCEL),
            Choice("discard", texts.DISCARD, "danger"),
            Choice("save", texts.SAVE, "accent"),
        )
        ask(self._window, texts.UNSAVED_TITLE, question, choices, answered)

    # -- inside

    def _choose(self) -> None:
        present = self._state.draft.file
        start = present.parent if present else Path()
        name = choose(self._window, "open", texts.OPEN_FILE, start, ENDINGS)
        if name:
            self.open(Path(name))

    def _opened(self, file: Path) -> None:
        self._state.preferences.remember(file)
        self._state.preferences.save()
        self._state.notify("draft")

    def _cannot_open(self, file: Path, error: ConfigError) -> None:
        try:
            read_data(file)
        except ConfigError:
            self._tell(texts.CANNOT_OPEN, str(error))
            return

        def answered(answer: str) -> None:
            if answer == "repair":
                self._state.draft.open(file, repair=True)
                self._opened(file)
                if self._state.draft.faults:
                    self._state.jump_to(self._state.draft.faults[0].path)

        choices = (Choice("", texts.CANCEL), Choice("repair", texts.REPAIR, "accent"))
        ask(self._window, texts.OPEN_FAULTY, f"{_lines(error)}\n\n{texts.REPAIR_HELP}", choices, answered)

    def _save(self, file: Path) -> bool:
        if not self._is_valid(texts.CANNOT_SAVE):
            return False
        try:
            self._state.draft.save(file)
        except ConfigError as error:
            self._tell(texts.NOT_SAVED, str(error))
            return False
        self._opened(file)
        return True

    def _is_valid(self, why: str) -> bool:
        if self._state.draft.config is None:
            show_faults(self._window, self._state, why)
        return self._state.draft.config is not None

    def _tell(self, title: str, words: str) -> None:
        ask(self._window, title, words, (Choice("", texts.CLOSE, "accent"),), lambda answer: None)


def _below(menu: tk.Menu, widget: tk.Misc) -> None:
    menu.tk_popup(widget.winfo_rootx(), widget.winfo_rooty() + widget.winfo_height() + look.px(4))


def _short(name: str) -> str:
    path = Path(name)
    folder = str(path.parent).replace(str(Path.home()), "~", 1)
    return f"{path.name}    {folder if len(folder) < 48 else f'…{folder[-46:]}'}"


def _lines(error: ConfigError) -> str:
    """Not more faults than fit a window."""
    lines = str(error).splitlines()
    return "\n".join([*lines[:12], f"  … {len(lines) - 12}"] if len(lines) > 13 else lines)
