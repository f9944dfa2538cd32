"""The config being edited: plain data and raw text, validated as a whole at every change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from app.edit_history import EditHistory
from app.family_declaration import FamilyDeclaration, unknown_family
from app.nested import inserted, removed, replaced, value_at
from app.outside_change import OutsideChange, change_since, text_of
from app.repair import repaired
from modules.config import (
    ConfigError,
    Fault,
    Option,
    TrainConfig,
    all_faults,
    dump,
    find_option,
    is_active,
    load_preset,
    options,
    save_preset,
)
from modules.config.io.edited_files import save_edited
from modules.config.io.files import read_data
from modules.config.io.presets import preset_data, preset_summary
from modules.config.io.text_formats import Data
from modules.run.folder.links import refuse_linked_config

# No preset knows them better.
_OF_THE_USER: Final = (
    *("concepts", "samples", "base_model", "lora_from", "embedding_token", "embedding_init", "trigger_phrase", "seed"),
    *("run_name", "runs_dir", "cache_dir", "rescue_dir"),
)
_KEPT_SECTIONS: Final = frozenset({"Data", "Multi-GPU", "Sampling", "Output"})


class Draft:
    """Widgets write raw values with `set`; `config` is the resulting config, None while anything is invalid.

    `data` is never changed in place: each edit makes a copy that shares the unchanged parts, so history is cheap.
    """

    def __init__(self, changed: Callable[[bool], None]) -> None:
        self._changed = changed
        self._history = EditHistory()
        self._other_optimizers: dict[str, object] = {}
        self.family: FamilyDeclaration | None = None
        self.file: Path | None = None
        self.preset = ""
        self._preset_title = ""
        self.origin = ""  # what settings without a file come from
        self.data: Data = dump(TrainConfig())
        self.merged_data: Data = self.data  # plus the defaults of family options, which files omit
        self.config: TrainConfig | None = TrainConfig()
        self.faults: tuple[Fault, ...] = ()
        self._saved: Data = self.data
        self._text = ""  # of the file, when it was last opened or saved

    @property
    def name(self) -> str:
        """The name of the file or preset, or an empty string."""
        return self.file.name if self.file else self.preset

    @property
    def title(self) -> str:
        """The name as the window shows it."""
        title = "" if self.file else self._preset_title
        return title or self.name or self.origin or "New settings"

    @property
    def is_dirty(self) -> bool:
        """Whether anything differs from what was last opened or saved."""
        return self.data is not self._saved and self._as_saved() != self._saved

    @property
    def family_options(self) -> tuple[Option, ...]:
        """The options that the family declares; empty until its declaration is loaded."""
        return self.family.options if self.family is not None else ()

    def get(self, path: str) -> object:
        """The raw value as typed or read from the file, or the default of a family option; None if there is none."""
        return value_at(self.merged_data, path)

    def saved_value(self, path: str) -> object:
        """The value in the file or preset as it was last opened or saved; None if there is none."""
        return value_at(self._saved, path)

    def fault_at(self, path: str) -> Fault | None:
        """The error of a setting or, for a list of numbers, of one of its items."""
        return next((fault for fault in self.faults if _covers(path, fault.path)), None)

    def is_active(self, option: Option, index: int = 0) -> bool:
        """Whether the setting has an effect under the current choices."""
        return is_active(option, self.merged_data, index)

    def is_default(self, path: str, option: Option) -> bool:
        """Whether the value equals the declared default, however it was typed."""
        value = self.get(path)
        return value == option.default or (value is None and not option.required) or _equals(value, option.default)

    def variant(self) -> str:
        """The chosen optimizer."""
        return str(self.get("optimizer.name"))

    def set(self, path: str, value: object, typing: bool = False) -> None:
        """Set a raw value; keystrokes (`typing`) in one field are undone together."""
        if path == "optimizer.name":
            self._choose_optimizer(str(value))
        elif self.get(path) != value or type(self.get(path)) is not type(value):
            self._edit(replaced(self.data, path, value), path, typing=typing)

    def set_together(self, values: Mapping[str, object]) -> None:
        """Set several raw values as one step to undo."""
        data = self.data
        for path, value in values.items():
            data = replaced(data, path, value)
        if data != self.data:
            self._edit(data, next(iter(values)))

    def reset(self, path: str, option: Option) -> None:
        """Reset to the declared default; a family option is removed from the data."""
        if path.startswith("family_options.") and value_at(self.data, path) is not None:
            self._edit(removed(self.data, path), path)
        elif not path.startswith("family_options."):
            self.set(path, option.default)

    def insert(self, path: str, index: int, item: object) -> None:
        """Insert an item into a list of settings."""
        self._edit(inserted(self.data, path, index, item), f"{path}.{index}")

    def remove(self, path: str, index: int) -> None:
        """Remove an item from a list of settings."""
        self._edit(removed(self.data, f"{path}.{index}"), path)

    def move(self, path: str, index: int, to: int) -> None:
        """Move an item of a list to another index."""
        item = value_at(self.data, f"{path}.{index}")
        self._edit(inserted(removed(self.data, f"{path}.{index}"), path, to, item), f"{path}.{to}")

    def undo(self) -> str | None:
        """Undo one edit; return the path that changed, or None if there is nothing to undo."""
        return self._return_to(self._history.undo(self.data))

    def redo(self) -> str | None:
        """Redo the last undone edit; return the path that changed, or None."""
        return self._return_to(self._history.redo(self.data))

    @property
    def can_undo(self) -> bool:
        return self._history.can_undo

    @property
    def can_redo(self) -> bool:
        return self._history.can_redo

    def new(self) -> None:
        """Start from the defaults, with no file."""
        self._load(dump(TrainConfig()), file=None)

    def open(self, file: Path, repair: bool = False) -> str:
        """Edit a file; returns what of it an older Tandem may have meant otherwise, or an empty string.

        Raises ConfigError with all its errors, unless `repair`: then invalid values are kept and marked at their
        fields, and unknown names are dropped.
        """
        ambiguous: list[str] = []
        data = read_data(file, ambiguous.append)
        try:
            self._load(dump(TrainConfig.model_validate(data)), file)
        except ValidationError:
            if not repair:
                found = all_faults(data)
                raise ConfigError.from_faults(str(file), [fault.sentence for fault in found]) from None
            self._load(repaired(data), file)
            self._saved = {}
        return " ".join(ambiguous)

    def open_preset(self, name: str) -> None:
        """Edit a copy of a preset; saving asks for a file."""
        self._load(dump(load_preset(name)), file=None, preset=name)

    def apply_preset(self, name: str) -> None:
        """Take the settings of a preset as one step to undo, but keep what is of the user.

        That is what differs from the defaults and from the preset that was opened before, of data, machines, samples
        and files, except where the new preset has a word on it, and what no preset knows.
        """
        said, taken = _read_preset(name)
        former = dump(load_preset(self.preset)) if self.preset else dump(TrainConfig())
        sections = {each.path.partition(".")[0]: each.section for each in options(TrainConfig)}
        kept: list[str] = [each for each in _OF_THE_USER if each in self.data]
        kept += [each for each in self.data if each not in said and sections.get(each) in _KEPT_SECTIONS]
        own = {each: self.data[each] for each in kept if self.data[each] not in (former.get(each), None, "")}
        self.replace_all({**taken, **own})

    def follows(self, name: str) -> bool:
        """Whether all that a preset says is so, except for what `apply_preset` keeps."""
        said, taken = _read_preset(name)
        return all(self.data.get(each) == taken[each] for each in said if each in taken and each not in _OF_THE_USER)

    def open_config(self, config: TrainConfig, is_new: bool = False, origin: str = "") -> None:
        """Edit a copy of a config, for example a run's; `is_new` marks it as unsaved, `origin` is its title."""
        self._load(dump(config), file=None, origin=origin)
        if is_new:
            self._saved = {}
            self._changed(False)

    def replace_all(self, data: Data) -> None:
        """Edit all settings at once, as one step to undo; unknown names are dropped."""
        self._edit(repaired(data), "")

    def save(self, file: Path) -> None:
        """Write the draft. Raises ConfigError if it is invalid or the file cannot be written."""
        refuse_linked_config(file)
        save_edited(self._valid(), file)
        self.file, self._text = file, text_of(file)
        self._saved = self._as_saved()
        self._changed(False)

    def changed_outside(self, file: Path) -> OutsideChange | None:
        """What another program has made of the draft's file since it was opened or saved; None if nothing."""
        return change_since(file, self._text) if file == self.file and self._text else None

    def save_as_preset(self, name: str) -> None:
        """Save the draft as one of the user's presets. Raises ConfigError like `save`."""
        save_preset(self._valid(), name)

    def set_family(self, declaration: FamilyDeclaration | None) -> None:
        """Validate `family_options` against the family's declaration from now on; None leaves them unchecked."""
        self.family = declaration
        self._check()
        self._changed(True)

    def _load(self, data: Data, file: Path | None, preset: str = "", origin: str = "") -> None:
        self._history = EditHistory()
        self._other_optimizers = {}
        self.file, self.preset, self.origin, self.data = file, preset, origin, data
        self._preset_title = preset_summary(preset).title if preset else ""
        self._text = "" if file is None else text_of(file)
        self._check()
        self._saved = self._as_saved()
        self._changed(True)

    def _edit(self, data: Data, path: str, typing: bool = False) -> None:
        self._history.record(self.data, path, typing=typing)
        self._replace(data)

    def _return_to(self, step: tuple[Data, str] | None) -> str | None:
        if step is None:
            return None
        data, path = step
        self._replace(data)
        return path

    def _replace(self, data: Data) -> None:
        self.data = data
        before = self.faults
        self._check()
        self._changed(self.faults != before)

    def _choose_optimizer(self, name: str) -> None:
        """Keep the settings of the previous optimizer for when it is chosen again."""
        previous = self.data["optimizer"]
        if not isinstance(previous, dict) or previous.get("name") == name:
            return
        self._other_optimizers[str(previous.get("name"))] = previous
        chosen = self._other_optimizers.get(name) or dump(TrainConfig.model_validate({"optimizer": name}))["optimizer"]
        self._edit(replaced(self.data, "optimizer", chosen), "optimizer.name")

    def _check(self) -> None:
        data, found = self.data, list[Fault]()
        self.merged_data = data
        family = self.family if self.family and self.family.name == data.get("family") else None
        given = data.get("family_options")
        if family and isinstance(given, dict):
            self.merged_data = {**data, "family_options": {**family.defaults, **given}}
            options, found = family.check(given)
            found += family.check_config(data)
            data = {**data, "family_options": options}
        found += unknown_family(str(data.get("family") or ""))
        try:
            config = TrainConfig.model_validate(data)
        except ValidationError:
            config = None
            general = all_faults(data)
            known = {fault.path for fault in general}
            found = [*general, *(fault for fault in found if fault.path not in known)]
        self.config = None if found else config
        self.faults = tuple(found)

    def _as_saved(self) -> Data:
        return dump(self.config) if self.config else self.data

    def _valid(self) -> TrainConfig:
        if self.config is None:
            raise ConfigError.from_faults("The settings", [fault.sentence for fault in self.faults])
        return self.config


@cache
def _read_preset(name: str) -> tuple[Data, Data]:
    """What the file of a preset of Tandem's says, and all its settings."""
    return preset_data(name), dump(load_preset(name))


def _covers(path: str, fault_path: str) -> bool:
    """Whether an error belongs to a field: at its path, or at an item of its list of numbers."""
    if fault_path == path:
        return True
    if not fault_path.startswith(f"{path}."):
        return False
    option = find_option(TrainConfig, path)
    return option is None or option.type in ("integers", "numbers")


def _equals(value: object, default: object) -> bool:
    """Whether a typed number equals the default: "1e-4" and 0.0001."""
    if not isinstance(value, str) or not isinstance(default, (int, float)):
        return False
    try:
        return float(value) == default
    except ValueError:
        return False
