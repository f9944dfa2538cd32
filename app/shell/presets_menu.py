"""The menu of presets: the user's own first, then by model family, with a search; and saving one."""

from __future__ import annotations

import re
import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import Final

from app.form.setting_text import choice_title
from app.shell.ask import ask_name
from app.state import AppState
from app.widgets.popover_search import SearchedMenu
from modules.config import ConfigError, preset_names
from modules.config.family_about import family_about
from modules.config.io.presets import OWN, PresetSummary, preset_summary

YOURS: Final = "Your presets"
FIRST: Final = "First steps, without a download"  # families that say no size: their models are small and made here
MANAGE: Final = "Rename or remove yours…"
SAVE: Final = "Save as preset…"
_MEMORY: Final = re.compile(r"\d+ GB")


class PresetsMenu:
    """What the Presets button and *Save as preset* do; `confirm_unsaved` asks before another config replaces one."""

    def __init__(
        self, window: tk.Tk, state: AppState, confirm_unsaved: Callable[[Callable[[], object]], object]
    ) -> None:
        self._window = window
        self._state = state
        self._confirm_unsaved = confirm_unsaved

    def show(self, widget: tk.Misc, open_preset: Callable[[str], object], save_as: Callable[[], object]) -> None:
        """Open the menu below a widget."""
        menu = SearchedMenu(self._window, "Search presets: sdxl, lora, 24 GB …")
        heading = ""
        for group, preset in sorted(map(_grouped, preset_names()), key=_place):
            if group != heading:
                menu.add_heading(heading := group)
            menu.add_command(
                preset.title or preset.name.removeprefix(f"{OWN}/"),
                partial(self._confirm_unsaved, partial(open_preset, preset.name)),
                detail=_in_brief(preset.about) or _of_own(preset),
                is_chosen=preset.name == self._state.draft.preset,
                # memory is found by what is shown of it
                words=f"{preset.name} {preset.family} {_MEMORY.sub('', preset.about)}",
            )
        menu.add_separator()
        menu.add_command(SAVE, save_as, icon="save")
        if any(name.startswith(f"{OWN}/") for name in preset_names()):
            menu.add_command(MANAGE, self._manage, icon="folder")
        menu.open_below(widget)

    def save_as(self) -> None:
        """Ask for a name and save the valid settings as one of the user's presets."""
        confirmed = ""

        def keep(name: str) -> str:
            nonlocal confirmed
            plain = name.removeprefix(f"{OWN}/").strip()
            if f"{OWN}/{plain}" in preset_names() and confirmed != plain:
                confirmed = plain
                return f"Your preset “{plain}” already exists. Save again to replace it."
            try:
                self._state.draft.save_as_preset(name)
            except ConfigError as error:
                return str(error)
            self._state.say(f"Saved as the preset “{plain}”: it is at the top of Presets.")
            return ""

        ask_name(self._window, "Preset name", self._suggested(), keep)

    def _manage(self) -> None:
        from app.windows.own_presets import OwnPresetsWindow

        OwnPresetsWindow(self._window, self._state).show()

    def _suggested(self) -> str:
        """The name of the file or of the user's own preset; one of ours keeps its name."""
        draft = self._state.draft
        if draft.file is not None:
            return draft.file.stem
        own = draft.preset.removeprefix(f"{OWN}/")
        return own if own != draft.preset or not own else f"my_{own}"


def _grouped(name: str) -> tuple[str, PresetSummary]:
    preset = preset_summary(name)
    if name.startswith(f"{OWN}/"):
        return YOURS, preset
    family = family_about(preset.family)
    return (family.title if family.weights else FIRST), preset


def _place(entry: tuple[str, PresetSummary]) -> tuple[bool, bool, str, bool, str]:
    group, preset = entry
    return group != YOURS, group != FIRST, group, preset.name != "demo", preset.name


def _in_brief(about: str) -> str:
    """What a preset is for, with the GPU memory that it needs; "24 GB" is kept on one line."""
    purpose = re.split(r"[:;] ", about, maxsplit=1)[0].rstrip(".")
    memory = _MEMORY.search(about)
    if memory is not None and " GB" not in purpose:
        purpose = f"{purpose}, {memory[0]}"
    return purpose.replace(" GB", "\xa0GB")


def _of_own(preset: PresetSummary) -> str:
    """The family and method of a preset whose file has no comment."""
    if not preset.family:
        return "This file cannot be read."
    return f"{family_about(preset.family).title}, {choice_title('method', preset.method)}"
