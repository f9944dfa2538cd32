"""Links in run folders: a run would write, move and remove where they lead, and the folder may come from anybody."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from modules.config import ConfigError
from modules.files import find_link, is_link, printable

# Backups and models are written to new folders and replaced by renaming: links in them are never followed. wandb
# made links to its newest files, and writes to a new folder at each start.
_NOT_FOLLOWED: Final = ("backup", "model", "saves", "wandb")
_OF_RUNS: Final = ("events.jsonl", "log", "backup", "commands", "samples")


def refuse_links(folder: Path) -> None:
    """Raise ConfigError if the run folder holds a link; it may be one itself. Raises OSError if it cannot be read."""
    if link := find_link(folder, _NOT_FOLLOWED):
        raise _refusal(link)


def refuse_linked_config(file: Path) -> None:
    """Raise ConfigError if the file is the config of a run folder and a link; configs elsewhere may be links."""
    if is_link(file) and file.name == "config.json" and any(os.path.lexists(file.parent / name) for name in _OF_RUNS):
        raise _refusal(file)


def _refusal(link: Path) -> ConfigError:
    return ConfigError(
        f"{printable(link)} is a link: the run would write, or delete, outside of its folder",
        "Remove the link, or put what it leads to in its place. To keep runs on another disk, set runs_dir",
    )
