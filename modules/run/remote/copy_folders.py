"""copies.json in the user's config folder: the runs folders that have copies of runs on other machines."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from modules.files import FileFault, Record, validate_record
from modules.files.private import read_private_json, write_private_json
from modules.files.user_folder import user_config_folder
from modules.run.folder.run_folder import RunFolder, newest_first
from modules.run.remote.run_copy import read_copy

_MOST: Final = 100


class _Folders(Record):
    runs_dirs: Annotated[list[str], Field(max_length=_MOST)]


def remember_copies_in(runs_dir: Path) -> None:
    """Look for copies there, too, from now on; of a list that cannot be written, the other folders are known."""
    here = str(runs_dir.absolute())
    if (known := _known()) and known[0] == here:
        return
    with suppress(OSError):
        write_private_json(_file(), {"runs_dirs": [here, *(each for each in known if each != here)][:_MOST]})


def copies_of(machine: str, *, complete: bool, runs_dirs: Iterable[Path] = ()) -> list[RunFolder]:
    """The copies here of runs on a machine, in all folders that have had some and in these: those that have all
    results, or the others; of each folder the newest first."""

    def changed(folder: RunFolder) -> float | None:
        copy = read_copy(folder)
        is_one = copy is not None and copy.machine == machine and copy.is_underway != complete
        return folder.remote_file.stat().st_mtime if is_one else None

    folders = {each.resolve(): each for each in [*runs_dirs, *map(Path, _known())]}
    return [copy for folder in folders.values() for copy in newest_first(folder, changed)]


def _file() -> Path:
    return user_config_folder() / "copies.json"


def _known() -> list[str]:
    try:
        return validate_record(_Folders, read_private_json(_file())).runs_dirs
    except (OSError, FileFault):
        return []
