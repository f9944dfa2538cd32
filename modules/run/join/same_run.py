"""Whether the folder that a joining machine would write into belongs to the run: machine 0 chooses its name.

Each start on several machines has a key derived from its token, which all machines of the start keep in their run
folders. Machine 0 proves that it knows the earlier keys by HMACs over the key of the current start: nobody else can
make them, and in a start with another token they are worthless.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from modules.config import TrainConfig
from modules.files import FileFault, read_json, replacing, validate_record
from modules.run.folder.links import refuse_links
from modules.run.folder.run_folder import RunFolder, check_run_name, not_writable_error
from modules.run.join.allowed_paths import PathNotAllowed
from modules.run.join.keys import derive_key

_MOST_STARTS: Final = 1000  # that a folder remembers

_Key = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def prove_run(folder: RunFolder, token: str) -> list[str]:
    """Remember this start in machine 0's folder; proofs of the earlier ones. Raises ConfigError."""
    key = _key_of(token)
    try:
        keys = _add(folder, key)
    except OSError as error:
        raise not_writable_error(folder.path, error) from error
    return [_proof(earlier, key) for earlier in keys if earlier != key]


def own_folder(config: TrainConfig, run_name: str, token: str, proofs: Sequence[str]) -> RunFolder:
    """The folder of a joined machine, created if missing.

    Raises PathNotAllowed for a folder with files that no start of this run has left here, ConfigError if it is not
    writable or has links.
    """
    check_run_name(run_name)
    folder = RunFolder(Path(config.runs_dir) / run_name)
    key = _key_of(token)
    try:
        # in this order: another machine of the run may share the disk, and writes its key before anything else
        if _holds_files(folder) and not _is_of_run(_read(folder), key, proofs):
            raise PathNotAllowed(
                f"run_name: machine 0's run is named {run_name!r}, but the folder {folder.path} on this machine "
                "belongs to another run",
                "If that is wrong, or the folder is no longer needed, move it away: machine 0 sends what the run "
                "resumes from. Or join with --set runs_dir=FOLDER",
            )
        refuse_links(folder.path)
        folder.path.mkdir(parents=True, exist_ok=True)
        _add(folder, key)
    except OSError as error:
        raise not_writable_error(folder.path, error) from error
    return RunFolder.for_machine(config, run_name)


def _is_of_run(known: Sequence[str], key: str, proofs: Sequence[str]) -> bool:
    given = set(proofs)
    return key in known or any(_proof(each, key) in given for each in known)


def _key_of(token: str) -> str:
    return derive_key(token, "run folder", "")


def _proof(earlier: str, key: str) -> str:
    return derive_key(earlier, "same run", key)


def _holds_files(folder: RunFolder) -> bool:
    own = folder.join_keys_file.name

    def fail(error: OSError) -> None:
        raise error

    if not folder.path.exists():
        return False
    return any(not name.startswith(own) for *_, names in os.walk(folder.path, onerror=fail) for name in names)


def _add(folder: RunFolder, key: str) -> list[str]:
    """Add a key to those of the folder; all of them. Raises OSError."""
    keys = _read(folder)
    if key in keys:
        return keys
    keys = [*keys, key][-_MOST_STARTS:]
    with (
        replacing(folder.join_keys_file) as partial,
        # as the run folder for a group that shares it, but never for all users: who has a key can pass for the run
        os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o660), "w", encoding="utf-8") as opened,
    ):
        opened.write(json.dumps(keys))
    return keys


def _read(folder: RunFolder) -> list[str]:
    try:
        return validate_record(list[_Key], read_json(folder.join_keys_file))
    except (OSError, FileFault):
        return []
