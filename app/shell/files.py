"""Opens and saves configs and presets, and asks about unsaved changes."""

from __future__ import annotations

import os
import sys
import tkinter as tk
from collections.abc import Callable
from functools import partial
from pathlib import Path

from app.form.setting_text import with_titles
from app.home import check_home, current_folder, with_tilde
from app.outside_change import OutsideChange
from app.sections.places import in_order
from app.shell.ask import Choice, ask
from app.shell.presets_menu import PresetsMenu
from app.state import AppState
from app.widgets.buttons import popup_menu
from app.windows.chooser import choose_path
from app.windows.faults import show_faults
from modules.config import ConfigError, TrainConfig
from modules.config.io.files import read_data
from modules.files import printable
from modules.run.demo_images import draw_images, is_demo, lacks_images

ENDINGS = (".yaml", ".yml", ".json")
CONTROL_NAME = "Cmd" if sys.platform == "darwin" else "Ctrl"
IMPORTS = "OneTrainer, kohya, ai-toolkit, SimpleTuner, diffusion-pipe"


class Files:
    """What the Open, Save and Presets buttons and their keys do."""

    def __init__(self, window: tk.Tk, state: AppState) -> None:
        self._window = window
        self._state = state
        self._presets = PresetsMenu(window, state, self.confirm_unsaved)
        self._asked: OutsideChange | None = None  # about which was asked

    def new(self) -> None:
        self.confirm_unsaved(self._state.draft.new)

    def choose(self) -> None:
        """Choose a file and open it."""
        self.confirm_unsaved(self._choose)

    def open(self, file: Path) -> None:
        """Open a file; if it has errors, ask whether to repair it."""
        try:
            ambiguous = self._state.draft.open(file)
        except ConfigError as error:
            self._cannot_open(file, error)
            return
        self._opened(file, ambiguous)

    def look_outside(self) -> None:
        """If another program has changed the file, offer to read it again; once for each change."""
        draft, file = self._state.draft, self._state.draft.file
        if file is not None:
            self._state.background.run(
                lambda: draft.changed_outside(file), lambda found: self._offer_reload(file, found)
            )

    def import_settings(self) -> None:
        """Choose a file of another trainer and open the imported settings."""
        from app.windows.importer import import_settings  # importing its tables would delay the first paint

        self.confirm_unsaved(partial(import_settings, self._window, self._state))

    def open_preset(self, name: str) -> None:
        """Edit a copy of a preset; a demo's images are drawn first, if they are missing."""
        if lacks_images(name):
            self._state.say("Drawing the images of the demo…")
            self._state.background.run(
                partial(draw_images, name), lambda drawn: self._open_preset(name), self._state.say
            )
        else:
            self._open_preset(name)

    def _open_preset(self, name: str) -> None:
        try:
            self._state.draft.open_preset(name)
        except ConfigError as error:
            self._show_error("Cannot open this file", str(error))
            return
        if is_demo(name):
            self._state.say("The demo is ready: press Train.")

    def show_open_menu(self, widget: tk.Misc) -> None:
        """Show the menu with Open and the recent files."""
        menu = popup_menu(self._window)
        menu.add_command("Open a config…", self.choose, accelerator=f"{CONTROL_NAME}+O", icon="open")
        menu.add_command("New settings", self.new, accelerator=f"{CONTROL_NAME}+N", icon="file")
        menu.add_command("Import from another trainer…", self.import_settings, icon="link", detail=IMPORTS)
        menu.add_separator()
        recent = self._state.preferences.recent
        for name in recent:
            action = partial(self.confirm_unsaved, partial(self.open, Path(name)))
            menu.add_command(Path(name).name, action, detail=_shortened(Path(name).parent))
        if not recent:
            menu.add_command(label="No recent files", state="disabled")
        menu.add_separator()
        now, chosen = current_folder(), self._state.preferences.home
        later = f", next start: {_shortened(Path(chosen))}" if chosen and os.path.realpath(chosen) != str(now) else ""
        menu.add_command("Folder of your files…", self.choose_home, icon="folder", detail=_shortened(now) + later)
        menu.open_below(widget)

    def choose_home(self) -> None:
        """Choose where runs, the cache, generated images and other files with relative paths are kept."""
        now, preferences = current_folder(), self._state.preferences
        start = Path(preferences.home) if preferences.home else now
        if not (chosen := choose_path(self._window, "folder", "Folder of your files: runs, cache, images", start)):
            return
        try:
            check_home(Path(chosen))
        except OSError as error:
            self._state.say(f"{chosen} cannot be used: {error.strerror or error}. Choose a folder that can be written.")
            return
        preferences.choose_home(Path(chosen))
        if os.path.realpath(chosen) == os.path.realpath(now):
            self._state.say(f"Your files stay in {chosen}.")
        else:
            self._state.say(f"From the next start on, your files are kept in {chosen}; those in {now} stay there.")

    def show_presets_menu(self, widget: tk.Misc) -> None:
        """Show the menu with all presets and Save as preset."""
        self._presets.show(widget, self.open_preset, self.save_as_preset)

    def save(self, reason: str = "") -> bool:
        """Save to the current file, or ask for one, for this `reason`; return whether it was saved."""
        file = self._state.draft.file
        return self.save_as(reason) if file is None else self._save(file)

    def save_as(self, reason: str = "") -> bool:
        """Choose a file and save to it; return whether it was saved."""
        if not self._is_valid():
            return False
        current = self._state.draft.file
        name = current.name if current else f"{self._suggested_stem()}.yaml"
        title = f"Save settings: {reason}" if reason else "Save settings"
        name = choose_path(self._window, "save", title, self._folder(), ENDINGS, name)
        return bool(name) and self._save(Path(name))

    def save_as_preset(self) -> None:
        """Ask for a name and save the settings as one of the user's presets."""
        if self._is_valid():
            self._presets.save_as()

    def open_copy(self, config: TrainConfig, name: str) -> None:
        """Edit a copy of the settings of the run `name`, once nothing unsaved is lost by it."""

        def open_it() -> None:
            self._state.draft.open_config(config)
            self._state.say(f"A copy of the settings of {name} is open.")

        self.confirm_unsaved(open_it)

    def train_further(self, config: TrainConfig, folder: Path) -> None:
        """Edit the settings of the complete run in `folder`, wherever that is now, so that Train continues it."""
        names = {"run_name": folder.name, "runs_dir": str(folder.absolute().parent)}
        length = "epochs" if config.max_steps is None else "max_steps"

        def open_it() -> None:
            self._state.draft.open_config(config.model_copy(update=names))
            self._state.jump_to(length)
            self._state.say(f"Raise it and press Train: {folder.name} continues.")

        self.confirm_unsaved(open_it)

    def show_save_menu(self, widget: tk.Misc) -> None:
        menu = popup_menu(self._window)
        menu.add_command("Save as…", self.save_as, accelerator=f"{CONTROL_NAME}+Shift+S")
        menu.add_command("Save as preset…", self.save_as_preset, detail="Listed under Presets from now on.")
        menu.open_below(widget)

    def confirm_unsaved(self, action: Callable[[], object]) -> None:
        """Run `action` once there are no unsaved changes, or they have been saved or discarded."""
        draft = self._state.draft
        if not draft.is_dirty:
            action()
            return

        def answered(answer: str) -> None:
            if answer == "discard" or (answer == "save" and self.save()):
                action()

        question = (
            f"{printable(draft.name)} has unsaved changes." if draft.name else "The new settings have unsaved changes."
        )
        choices = (
            Choice("", "Cancel"),
            Choice("discard", "Discard changes", "danger"),
            Choice("save", "Save", "accent"),
        )
        ask(self._window, "Save changes?", question, choices, answered)

    def _folder(self) -> Path:
        """That of the open file, else where a config was last opened or saved, else the present one."""
        recent = self._state.preferences.recent[:1]
        file = self._state.draft.file or next((Path(name) for name in recent if os.path.exists(name)), None)
        return file.parent if file else current_folder()

    def _suggested_stem(self) -> str:
        """The name of the run, or of the preset that was opened."""
        config = self._state.draft.config
        return (config and config.run_name) or self._state.draft.preset.rpartition("/")[2] or "settings"

    def _choose(self) -> None:
        name = choose_path(self._window, "open", "Open a config", self._folder(), ENDINGS)
        if name:
            self.open(Path(name))

    def _opened(self, file: Path, ambiguous: str = "") -> None:
        self._state.preferences.add_recent(file)
        self._state.preferences.save()
        self._state.notify("draft")
        if ambiguous:
            self._state.say(ambiguous)

    def _cannot_open(self, file: Path, error: ConfigError) -> None:
        from modules.importers import foreign_trainer  # its tables would delay the first paint

        if trainer := foreign_trainer(file):
            why = f"It has the settings of {trainer}; choose Import from another trainer… in this menu."
            self._show_error("Cannot open this file", why)
            return
        try:
            read_data(file)
        except ConfigError:
            self._show_error("Cannot open this file", str(error))
            return

        def answered(answer: str) -> None:
            if answer == "repair":
                ambiguous = self._state.draft.open(file, repair=True)
                self._opened(file, ambiguous)
                if faults := in_order(self._state.draft.faults):
                    self._state.jump_to(faults[0].path)

        choices = (Choice("", "Cancel"), Choice("repair", "Open and repair", "accent"))
        ask(
            self._window,
            "This file has errors",
            f"{_lines(error)}\n\nYou can open it anyway: invalid values are marked at their fields, unknown "
            "names are dropped. The file stays unchanged until you save.",
            choices,
            answered,
        )

    def _save(self, file: Path, replaces: bool = False) -> bool:
        """Save to a file; one that another program has changed only if it `replaces` that."""
        if not self._is_valid():
            return False
        if not replaces and (change := self._state.draft.changed_outside(file)) is not None:
            self._ask_whose(file, change)
            return False
        try:
            self._state.draft.save(file)
        except ConfigError as error:
            self._show_error("Not saved", str(error))
            return False
        self._opened(file)
        return True

    def _offer_reload(self, file: Path, change: OutsideChange | None) -> None:
        is_busy = self._window.grab_current() is not None  # type: ignore[no-untyped-call]
        if change is None or change == self._asked or file != self._state.draft.file or is_busy:
            return
        self._asked = change
        if change.fault:  # perhaps while it is being written
            self._state.say(f"{change.fault} Saving asks before it replaces the file.")
            return

        def answered(answer: str) -> None:
            if answer:
                self.open(file)

        is_dirty = self._state.draft.is_dirty
        choices = (
            Choice("", "Keep these", "accent" if is_dirty else "plain", help="Saving asks again."),
            Choice(
                "theirs",
                "Read the file again",
                "plain" if is_dirty else "accent",
                help="Your changes since the last save are lost." if is_dirty else "",
            ),
        )
        question = f"Another program has changed {printable(file.name)}. Train would use the settings in this window."
        ask(self._window, "The file has changed", question, choices, answered)

    def _ask_whose(self, file: Path, change: OutsideChange) -> None:
        self._asked = change

        def answered(answer: str) -> None:
            if answer == "mine":
                self._save(file, replaces=True)
            elif answer == "theirs":
                self.open(file)
            elif answer == "other":
                self.save_as()

        theirs = Choice("theirs", "Open theirs", help="Your changes since the last save are lost.")
        kept = "The settings in the file become yours; its comments stay."
        choices = (
            Choice("", "Cancel", "accent"),
            Choice("other", "Save as…"),
            *([] if change.fault else [theirs]),
            Choice("mine", "Keep mine", "danger", help="What is in the file is lost." if change.fault else kept),
        )
        question = (
            f"Another program has changed {printable(file.name)} since you opened it here. {change.fault}".rstrip()
        )
        ask(self._window, "The file has changed", question, choices, answered)

    def _is_valid(self) -> bool:
        if self._state.draft.config is None:
            show_faults(self._window, self._state, "Not saved: fix these settings first.")
        return self._state.draft.config is not None

    def _show_error(self, title: str, message: str) -> None:
        ask(self._window, title, with_titles(message), (Choice("", "Close", "accent"),), lambda answer: None)


def _shortened(folder: Path) -> str:
    shown = with_tilde(folder)
    return shown if len(shown) < 48 else f"…{shown[-46:]}"


def _lines(error: ConfigError) -> str:
    """As many lines of the error as fit a window."""
    lines = str(error).splitlines()
    return "\n".join([*lines[:12], f"  … {len(lines) - 12}"] if len(lines) > 13 else lines)
