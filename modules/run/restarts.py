"""Starts that torchrun makes again after a failure: which one this is, and what it continues."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import psutil

from modules.run.run_folder import RunFolder

LATEST: Final = "latest"


def restart_number() -> int:
    """0 in the first start of these processes, 1 after torchrun's first restart."""
    return _number("TORCHELASTIC_RESTART_COUNT")


def restarts_left() -> int:
    """How often torchrun would start again after a failure of this process."""
    return max(0, _number("TORCHELASTIC_MAX_RESTARTS") - restart_number())


def resume_of_restart(resume: str | None, folder: RunFolder) -> str | None:
    """What `--resume` means in this start: after a restart the newest backup that the starts before it have made.

    Where they made none, it is what the first start was told.
    """
    if restart_number() == 0:
        return resume
    since = _launcher_began()
    made = (_changed(backup / "manifest.json") for backup in folder.backup_dir.glob("step-*"))
    return LATEST if any(at >= since for at in made) else resume


def folder_of_this_start(runs_dir: Path) -> RunFolder | None:
    """The run folder that the starts before this one have made, where torchrun was started by hand."""
    if restart_number() == 0:
        return None
    signs = runs_dir.glob(f"*/{_sign_of_launcher()}")
    newest = max(signs, key=_changed, default=None)
    return None if newest is None else RunFolder(newest.parent.parent)


def remember_folder(folder: RunFolder) -> None:
    """For `folder_of_this_start`; OSError in a folder that cannot be written."""
    if restarts_left():
        (folder.path / _sign_of_launcher()).touch()


def _sign_of_launcher() -> Path:
    return Path("log", f"launcher-{os.getppid()}-{_launcher_began():.0f}")


def _launcher_began() -> float:
    """When torchrun itself, which is the parent of every rank, was started."""
    try:
        return psutil.Process(os.getppid()).create_time()
    except psutil.Error:
        return 0.0


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 0
