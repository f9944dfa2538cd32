"""The window's preferences: a small JSON file in the user's config folder."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Self

from app.widgets.theme import SCALES
from modules.config.file_access import other_owner
from modules.files import FileFault, control_character, read_json, remove_partial, replacing
from modules.files.private import make_private_folder
from modules.files.user_folder import user_config_folder
from modules.run.hosts.host_list import MOST_HOSTS

RECENT_FILES = 10
MOST_FOLDERS = 20
MOST_CHARACTERS = 4096  # of a path


@dataclass
class Preferences:
    """Each value is checked when read, so that a damaged file only resets preferences."""

    mode: str = "system"
    scale: int = 100
    advanced: bool = False
    geometry: str = ""
    maximised: bool = False
    section: str = "model"
    pages: dict[str, str] = field(default_factory=dict)  # of each section, the page in sight
    recent: list[str] = field(default_factory=list)
    last_run: str = ""
    runs_folders: list[str] = field(default_factory=list)  # listed under Runs beside that of the settings
    hosts: list[str] = field(default_factory=list)  # the machines that Train starts over ssh, by their names
    place: str = ""  # the machine that Train starts runs on; empty: this computer
    kubernetes: dict[str, str] = field(default_factory=dict)  # what a run there needs besides the settings
    sends_token: bool = False  # whether runs there get HF_TOKEN
    places: dict[str, str] = field(default_factory=dict)  # where a file dialog was left, by what it chooses
    smoothing: int = 50  # of the curves, in steps
    log_scale: bool = False  # of the loss
    notifies: bool = True  # on the desktop, when a run ends
    home: str = ""  # where the user's files are; empty: in the folder that the window is started from
    comfyui: str = ""  # the folder of its models, once it has been chosen
    welcomed: bool = False

    @classmethod
    def load(cls, file: Path | None = None) -> Self:
        """Load from the file; values that are missing, damaged or of the wrong type take their defaults."""
        try:
            data = read_own(file or preferences_file())
        except (OSError, FileFault):
            data = {}
        loaded = cls()
        for each in fields(cls):
            value = data.get(each.name) if isinstance(data, dict) else None
            if type(value) is type(getattr(loaded, each.name)):
                setattr(loaded, each.name, value)
        loaded.mode = loaded.mode if loaded.mode in ("system", "light", "dark") else "system"
        loaded.scale = loaded.scale if loaded.scale in SCALES else 100
        loaded.recent = [name for name in loaded.recent if _is_path(name)][:RECENT_FILES]
        loaded.runs_folders = [name for name in loaded.runs_folders if _is_path(name)][:MOST_FOLDERS]
        loaded.last_run = loaded.last_run if _is_path(loaded.last_run) else ""
        loaded.home = loaded.home if _is_path(loaded.home) else ""
        loaded.comfyui = loaded.comfyui if _is_path(loaded.comfyui) else ""
        loaded.hosts = [name for name in loaded.hosts if isinstance(name, str)][:MOST_HOSTS]
        # the other sections begin at their first page, which is quick to build
        loaded.pages = {
            name: page for name, page in loaded.pages.items() if name == loaded.section and type(page) is str
        }
        loaded.kubernetes = {name: text for name, text in loaded.kubernetes.items() if _is_path(text)}
        loaded.places = {kind: place for kind, place in loaded.places.items() if _is_path(place)}
        return loaded

    def save(self, file: Path | None = None) -> None:
        """Write the file, with its `home`, which another window may have chosen; one that cannot be written is left."""
        self._write({**asdict(self), "home": self.load(file).home}, file)

    def choose_home(self, folder: Path) -> None:
        """Choose the folder of the user's files, and write the file."""
        self.home = str(folder)
        self._write(asdict(self), None)

    def _write(self, data: dict[str, object], file: Path | None) -> None:
        write_private(file or preferences_file(), json.dumps(data, indent=2))

    def rename_host(self, former: str, name: str) -> None:
        """Know a machine of the list by its new name."""
        self.hosts = [name if each == former else each for each in self.hosts]
        self.place = name if self.place == former else self.place
        self.save()

    def add_recent(self, file: Path) -> None:
        """Put a config file at the top of the recent files."""
        name = str(file.absolute())
        self.recent = [name, *(other for other in self.recent if other != name)][:RECENT_FILES]


def _is_path(name: object) -> bool:
    """Whether a file can have this name: the system refuses others, such as one with a null character."""
    return isinstance(name, str) and len(name) <= MOST_CHARACTERS and not control_character(name)


def preferences_file() -> Path:
    """The path of the file: in TANDEM_CONFIG_DIR, or in the system's usual config folder."""
    return user_config_folder() / "window.json"


def read_own(file: Path) -> object:
    """The data of a file in the user's config folder; raises OSError, or FileFault, also for another user's file."""
    if owner := other_owner(file):
        raise FileFault(f"belongs to {owner}")
    return read_json(file)


def write_private(target: Path, text: str) -> None:
    """Replace a file of the user's config folder; a folder that cannot be written, or another user's file, is left."""
    if other_owner(target):
        return
    with suppress(OSError, ValueError):
        make_private_folder(target.parent)  # which holds what the user has allowed, too
        remove_partial(target.parent, only="")  # of programs that were killed here
        with replacing(target) as partial:
            partial.write_text(text, encoding="utf-8")
