"""Fields for a file, a folder or a base model; whether it exists is checked in the background."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from app.base_model import BaseModelInfo, inspect_base_model, other_family
from app.form.text_fields import NARROWEST, TextField
from app.widgets import theme
from app.widgets.buttons import Button
from app.windows.chooser import choose_path
from app.windows.folder_listing import Purpose
from modules.config.sections.concept import split_paths
from modules.facts import MODEL_FILES
from modules.files import expand_home
from modules.files.addresses import is_address
from modules.files.shard_paths import SHARD_SUFFIXES

CHECK_AFTER_MS = 400
CREATED_ON_DEMAND = ("cache_dir", "runs_dir", "rescue_dir")
_ELSEWHERE = "Downloaded to this computer when training starts."
_SEVERAL = ("references", "reference")  # paths separated by semicolons


class PathField(TextField):
    """A line of text with a button that opens the file chooser."""

    width = NARROWEST
    endings: tuple[str, ...] = ()  # of the files that are listed at once; empty: all

    def build(self) -> None:
        super().build()
        self._is_either = self.option.path == "concepts.*.path"
        self.endings = self.endings or SHARD_SUFFIXES * self._is_either
        folder = self.option.picks == "folder" and not self._is_either
        tooltip = "Choose a folder" if folder else "Choose a file or folder"
        self.browse = Button(self.area, icon="folder", style="plain", bg=self.bg, tooltip=tooltip, command=self._browse)
        self.browse.pack(side="right", padx=(4, 0), before=self.control)
        self._job = ""

    def show(self, value: object) -> None:
        super().show(value)
        self._schedule_check()

    def enable(self, enabled: bool) -> None:
        super().enable(enabled)
        self.browse.configure(state="normal" if enabled else "disabled")

    def _typed(self, typed: str) -> None:
        super()._typed(typed)
        self._schedule_check()

    def _browse(self) -> None:
        purpose: Purpose = "folder" if self.option.picks == "folder" and not self._is_either else "any"
        chosen = choose_path(self.area, purpose, self.option.title, Path(self.control.get()), self.endings)
        if chosen:
            self.control.show(chosen)
            self.put(chosen)
            self._schedule_check()

    def _schedule_check(self) -> None:
        """Check shortly after the last keystroke, off the Tk thread: a network path may not answer."""
        if self._job:
            self.area.after_cancel(self._job)
        self._job = self.area.after(CHECK_AFTER_MS, self._check)

    def _check(self) -> None:
        self._job = ""
        name = self.control.get()
        if not name or self.option.path in CREATED_ON_DEMAND:
            self.note("")
            return
        if self._is_either and is_address(name):
            self.note(_ELSEWHERE)
            return
        several = self.option.name in _SEVERAL
        paths = [expand_home(path) for path in split_paths(name)] if several else [Path(name)]
        self.state.background.run(lambda: all(map(os.path.exists, paths)), partial(self._show_result, name))

    def _show_result(self, name: str, exists: bool) -> None:
        if self.area.winfo_exists() and name == self.control.get():
            missing = (
                "This folder does not exist."
                if self.option.picks == "folder"
                else "This file does not exist."
                if self.option.name in _SEVERAL
                else "No such file or folder; treated as a Hugging Face model."
            )
            self.note("" if exists else missing)


class BaseModelField(PathField):
    """Shows below the field what type of model it is, or what is missing."""

    endings = MODEL_FILES

    def build(self) -> None:
        super().build()
        self.state.subscribe("family", self._schedule_check, self.area)  # another one may train it, or not

    def _check(self) -> None:
        self._job = ""
        name = self.control.get().strip()
        if name:
            self.state.background.run(lambda: inspect_base_model(name), lambda info: self._show_info(name, info))
        else:
            self.note("")

    def _show_info(self, name: str, info: BaseModelInfo) -> None:
        if self.area.winfo_exists() and name == self.control.get().strip():
            wrong = info.error or other_family(info, self.state.family.name)
            self.note(wrong or info.description, theme.WARN if wrong else theme.MUTED)
