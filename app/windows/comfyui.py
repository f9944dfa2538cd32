"""The button that puts a run's model into ComfyUI's folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from app.runs.comfyui import ComfyFile, files_for_comfyui, free_name, models_folder, put
from app.shell.ask import Choice, ask
from app.state import AppState
from app.widgets.buttons import PopupMenu, add_tooltip
from app.windows.chooser import choose_path
from app.windows.dialog import Dialog
from modules.files import printable
from modules.run import RunFolder

_NONE: Final = (
    "ComfyUI opens LoRAs in kohya's layout, single files (“Save as a single file”) and embeddings: this run has none."
)


class ComfyMenu:
    """Asks for the folder once; a file that is there already is replaced only after a question."""

    def __init__(self, dialog: Dialog, state: AppState, run: RunFolder, say: Callable[[str], object]) -> None:
        self._owner, self._state, self._run, self._say = dialog.window, state, run, say
        self._files: list[ComfyFile] = []
        self.button = dialog.button("Use in ComfyUI…", self._open)
        add_tooltip(self.button, lambda: "" if self._files else _NONE)

    def read(self) -> None:
        """Find the files in a thread, and allow the button if there are some."""
        self._state.background.run(lambda: files_for_comfyui(self._run), self._found)

    def _found(self, files: list[ComfyFile]) -> None:
        self._files = files
        if self.button.winfo_exists():
            self.button.configure(state="normal" if files else "disabled")

    def _open(self) -> None:
        menu = PopupMenu(self._owner)
        for each in self._files:
            menu.add_command(each.title, partial(self._use, each), detail=f"models/{each.folder}/{each.name}")
        menu.add_separator()
        menu.add_command("Another ComfyUI folder…", self._choose, icon="folder", detail=self._state.preferences.comfyui)
        menu.open_below(self.button)

    def _choose(self) -> Path | None:
        """Ask for the folder; None if it is none of ComfyUI's, or the question was left."""
        start = Path(self._state.preferences.comfyui or "")
        chosen = choose_path(self._owner, "folder", "The folder of ComfyUI, with “models” in it", start)
        if not chosen:
            return None
        found = models_folder(Path(chosen))
        if found is None:
            self._say(f"No models/checkpoints in {printable(Path(chosen).name)}: it is not ComfyUI's folder.")
            return None
        self._state.preferences.comfyui = str(found)
        self._state.preferences.save()
        return found

    def _use(self, each: ComfyFile) -> None:
        known = Path(self._state.preferences.comfyui or "/nowhere")
        models = known if known.is_dir() else self._choose()
        if models is None:
            return
        target = models / each.folder / each.name
        try:
            is_there = os.path.exists(target) and os.path.samefile(target, each.file)
        except OSError as error:  # the run, or a person, has removed it since it was listed
            self._say(f"Not copied: {printable(each.file)} cannot be read: {error.strerror or error}.")
            return
        if not os.path.lexists(target):
            self._put(each, target)
        elif is_there:
            self._say(f"{each.folder}/{target.name} is there already.")
        else:
            self._ask_to_replace(each, target)

    def _ask_to_replace(self, each: ComfyFile, target: Path) -> None:
        other = free_name(target)
        choices = (
            Choice("", "Cancel"),
            Choice("replace", "Replace it", style="danger"),
            Choice("both", f"Keep both, as {other.name}", style="accent"),
        )

        def answered(answer: str) -> None:
            if answer:
                self._put(each, target if answer == "replace" else other)

        where = printable(target.parent)
        ask(self._owner, "Replace the file?", f"{printable(target.name)} is in {where} already.", choices, answered)

    def _put(self, each: ComfyFile, target: Path) -> None:
        self._say("Copying…")
        self._state.background.run(
            lambda: put(each.file, target),
            lambda how: self._say(f"{how.capitalize()} as {each.folder}/{target.name}. Press R in ComfyUI to see it."),
            lambda why: self._say(f"Not copied: {why}"),
        )
