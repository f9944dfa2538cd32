"""The config that is being edited: plain data and raw text, checked as a whole at every change."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from app import texts
from app.family import FamilyDescription
from app.repair import usable
from app.tree import at, inserted, removed, replaced
from modules.config import (
    ConfigError,
    Fault,
    Option,
    TrainConfig,
    dump,
    faults,
    find_option,
    is_active,
    load_preset,
    save_config,
    save_preset,
)
from modules.config.files import read_data
from modules.config.text_formats import Data

HISTORY = 500
SAME_EDIT_S = 1.5  # keystrokes in one field that follow each other so closely are undone together
UNTITLED = ""


class Draft:
    """Widgets put raw values in with `set`; `config` is what they amount to, None while anything is wrong.

    `data` is never changed in place: every edit makes a new one that shares the unchanged parts, so that the
    history costs next to nothing.
    """

    def __init__(self, changed: Callable[[bool], None]) -> None:
        self._changed = changed
        self._undo: list[tuple[Data, str]] = []
        self._redo: list[tuple[Data, str]] = []
        self._last_edit = ("", 0.0)
        self._other_optimizers: dict[str, object] = {}
        self.family: FamilyDescription | None = None
        self.file: Path | None = None
        self.preset = ""
        self.data: Data = dump(TrainConfig())
        self.effective: Data = self.data  # with the defaults of the family's options, which files leave out
        self.config: TrainConfig | None = TrainConfig()
        self.faults: tuple[Fault, ...] = ()
        self._saved: Data = self.data

    # -- reading

    @property
    def name(self) -> str:
        """The file's or the preset's name; empty for neither."""
        return self.file.name if self.file else self.preset

    @property
    def is_dirty(self) -> bool:
        """Whether anything differs from what was opened or saved last."""
        return self.data is not self._saved and self._as_saved() != self._saved

    @property
    def family_options(self) -> tuple[Option, ...]:
        """What the family has declared; empty as long as it is not known."""
        return self.family.options if self.family is not None else ()

    def get(self, path: str) -> object:
        """The value as it was put in or stands in the file, or a family's default; None where there is none."""
        return at(self.effective, path)

    def fault_at(self, path: str) -> Fault | None:
        """What is wrong with a setting or, for a list of numbers, with one of its items."""
        return next((fault for fault in self.faults if _covers(path, fault.path)), None)

    def is_active(self, option: Option, index: int = 0) -> bool:
        """Whether the present choices make the setting matter."""
        return is_active(option, self.effective, index)

    def is_default(self, path: str, option: Option) -> bool:
        """Whether the value is the declared default, however it was typed."""
        value = self.get(path)
        return value == option.default or (value is None and not option.required) or _same(value, option.default)

    def variant(self) -> str:
        """The chosen optimizer."""
        return str(self.get("optimizer.name"))

    # -- editing

    def set(self, path: str, value: object, typing: bool = False) -> None:
        """Put a raw value in; keystrokes (`typing`) in one field are undone together."""
        if path == "optimizer.name":
            self._choose_optimizer(str(value))
        elif self.get(path) != value or type(self.get(path)) is not type(value):
            self._edit(replaced(self.data, path, value), path, merge=typing)

    def reset(self, path: str, option: Option) -> None:
        """Back to the declared default; a family's option is no longer mentioned at all."""
        if path.startswith("family_options.") and at(self.data, path) is not None:
            self._edit(removed(self.data, path), path)
        elif not path.startswith("family_options."):
            self.set(path, option.default)

    def insert(self, path: str, place: int, item: object) -> None:
        """Put an item into a list of settings."""
        self._edit(inserted(self.data, path, place, item), f"{path}.{place}")

    def remove(self, path: str, place: int) -> None:
        """Take an item out of a list of settings."""
        self._edit(removed(self.data, f"{path}.{place}"), path)

    def move(self, path: str, place: int, to: int) -> None:
        """Give an item of a list another place."""
        item = at(self.data, f"{path}.{place}")
        self._edit(inserted(removed(self.data, f"{path}.{place}"), path, to, item), f"{path}.{to}")

    def undo(self) -> str | None:
        """One edit back; returns the path that changed, None where there is nothing to undo."""
        return self._travel(self._undo, self._redo)

    def redo(self) -> str | None:
        """The undone edit again."""
        return self._travel(self._redo, self._undo)

    @property
    def can_undo(self) -> bool:
        return bool(self._undo)

    @property
    def can_redo(self) -> bool:
        return bool(self._redo)

    # -- files

    def new(self) -> None:
        """The defaults, in no file."""
        self._begin(dump(TrainConfig()), file=None)

    def open(self, file: Path, repair: bool = False) -> None:
        """Edit a file; ConfigError tells all its faults. With `repair` it is opened nevertheless:
        what is wrong is marked at its field, what nobody knows is left out.
        """
        data = read_data(file)
        try:
            self._begin(dump(TrainConfig.model_validate(data)), file)
        except ValidationError as error:
            found = faults(error)
            if not repair:
                raise ConfigError.from_faults(str(file), [fault.sentence for fault in found]) from None
            self._begin(usable(data), file)
            self._saved = {}

    def open_preset(self, name: str) -> None:
        """Edit a copy of a preset: saving asks for a file."""
        self._begin(dump(load_preset(name)), file=None, preset=name)

    def open_config(self, config: TrainConfig, is_new: bool = False) -> None:
        """Edit a copy of a config, such as a run's; `is_new`: it is kept nowhere yet, and people are asked to save."""
        self._begin(dump(config), file=None)
        if is_new:
            self._saved = {}
            self._changed(False)

    def save(self, file: Path) -> None:
        """Write a valid draft; ConfigError for one that is not, or for a place that cannot be written."""
        save_config(self._valid(), file)
        self.file = file
        self._saved = self._as_saved()
        self._changed(False)

    def save_as_preset(self, name: str) -> None:
        """Keep a valid draft among the user's own presets."""
        save_preset(self._valid(), name)

    def describe_family(self, description: FamilyDescription | None) -> None:
        """Check `family_options` against what the family declares, from now on; None: leave them unchecked."""
        self.family = description
        self._check()
        self._changed(True)

    # -- inside

    def _begin(self, data: Data, file: Path | None, preset: str = "") -> None:
        self._undo, self._redo, self._last_edit = [], [], ("", 0.0)
        self._other_optimizers = {}
        self.file, self.preset, self.data = file, preset, data
        self._check()
        self._saved = self._as_saved()
        self._changed(True)

    def _edit(self, data: Data, path: str, merge: bool = False) -> None:
        at_once = (
            merge and self._undo and self._last_edit[0] == path and time.monotonic() - self._last_edit[1] < SAME_EDIT_S
        )
        if not at_once:
            self._undo.append((self.data, path))
            del self._undo[:-HISTORY]
        self._redo.clear()
        self._last_edit = (path, time.monotonic() if merge else 0.0)
        self._replace(data)

    def _travel(self, source: list[tuple[Data, str]], target: list[tuple[Data, str]]) -> str | None:
        if not source:
            return None
        data, path = source.pop()
        target.append((self.data, path))
        self._last_edit = ("", 0.0)
        self._replace(data)
        return path

    def _replace(self, data: Data) -> None:
        self.data = data
        before = self.faults
        self._check()
        self._changed(self.faults != before)

    def _choose_optimizer(self, name: str) -> None:
        """The settings of the former optimizer come back when it is chosen again."""
        former = self.data["optimizer"]
        if not isinstance(former, dict) or former.get("name") == name:
            return
        self._other_optimizers[str(former.get("name"))] = former
        chosen = self._other_optimizers.get(name) or dump(TrainConfig.model_validate({"optimizer": name}))["optimizer"]
        self._edit(replaced(self.data, "optimizer", chosen), "optimizer.name")

    def _check(self) -> None:
        data, found = self.data, list[Fault]()
        self.effective = data
        family = self.family if self.family and self.family.name == data.get("family") else None
        given = data.get("family_options")
        if family and isinstance(given, dict):
            self.effective = {**data, "family_options": {**family.defaults, **given}}
            options, found = family.check(given)
            found += family.check_others(data)
            data = {**data, "family_options": options}
        try:
            config = TrainConfig.model_validate(data)
        except ValidationError as error:
            config = None
            found = [*faults(error), *found]
        self.config = None if found else config
        self.faults = tuple(found)

    def _as_saved(self) -> Data:
        return dump(self.config) if self.config else self.data

    def _valid(self) -> TrainConfig:
        if self.config is None:
            raise ConfigError.from_faults(texts.THE_SETTINGS, [fault.sentence for fault in self.faults])
        return self.config


def _covers(path: str, fault_path: str) -> bool:
    """Whether a fault belongs to a field: at its path, or at an item of its list of numbers."""
    if fault_path == path:
        return True
    if not fault_path.startswith(f"{path}."):
        return False
    option = find_option(TrainConfig, path)
    return option is None or option.type in ("integers", "numbers")


def _same(value: object, default: object) -> bool:
    """Whether a typed number is the default: "1e-4" and 0.0001."""
    if not isinstance(value, str) or not isinstance(default, (int, float)):
        return False
    try:
        return float(value) == default
    except ValueError:
        return False
