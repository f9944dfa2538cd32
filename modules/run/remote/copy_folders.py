"""copies.json in the user's config folder: the runs folders that have had copies of runs on other machines, or entries
of a queue for some."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from modules.files import FileFault, Record, printable, validate_record
from modules.files.private import read_private_json, write_private_json
from modules.files.user_folder import user_config_folder
from modules.run.folder.run_folder import RunFolder, newest_first
from modules.run.remote.run_copy import read_copy

_MOST: Final = 100


class _Folders(Record):
    runs_dirs: Annotated[list[str], Field(max_length=_MOST)]


def remember_copies_in(runs_dir: Path) -> None:
    """Look for copies there, too, from now on; of a list that cannot be written, the other folders are known. A damaged
    one stays, for `folders_fault` to say."""
    here = str(runs_dir.absolute())
    if folders_fault() or ((known := _known()) and known[0] == here):
        return
    with suppress(OSError):
        write_private_json(_file(), {"runs_dirs": [here, *(each for each in known if each != here)][:_MOST]})


def copies_of(machine: str, *, complete: bool | None = None, runs_dirs: Iterable[Path] = ()) -> list[RunFolder]:
    """The copies here of runs on a machine, in all folders that have had some and in these: those that have all
    results, the others, or all; of each folder the newest first."""

    def changed(folder: RunFolder) -> float | None:
        copy = read_copy(folder)
        is_one = copy is not None and copy.machine == machine and copy.is_underway is not complete
        return folder.remote_file.stat().st_mtime if is_one else None

    return [copy for folder in known_folders(runs_dirs) for copy in newest_first(folder, changed)]


def known_folders(runs_dirs: Iterable[Path] = ()) -> list[Path]:
    """Each once: these, and those that are remembered."""
    return list({each.resolve(): each for each in [*runs_dirs, *map(Path, _known())]}.values())


def folders_fault() -> str:
    """Why it is not known which folders have copies, as the end of a sentence; "" if it is."""
    try:
        _read()
    except (OSError, FileFault) as fault:
        return (
            f"which folders have copies of its runs is not known, because {printable(_file())} {fault}; mend or remove "
            "that file"
        )
    return ""


def _file() -> Path:
    return user_config_folder() / "copies.json"


def _known() -> list[str]:
    try:
        return _read()
    except (OSError, FileFault):
        return []


def _read() -> list[str]:
    try:
        return validate_record(_Folders, read_private_json(_file())).runs_dirs
    except FileNotFoundError:
        return []
