"""Restarts after a failure, by torchrun or machine 0: the number of this one, what it resumes, what went before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import psutil

from modules.machine import process_start
from modules.run.exit_codes import FAILED
from modules.run.folder.resume import LATEST
from modules.run.folder.run_folder import RunFolder

SECONDS_BEFORE: Final = "TANDEM_SECONDS_BEFORE"  # what machine 0 of several gives its processes


def seconds_before() -> float | None:
    """From machine 0's first start of this run on several machines to this one; None in all other runs."""
    text = os.environ.get(SECONDS_BEFORE)
    return None if text is None else float(text)


def restart_number() -> int:
    """0 in the first start of these processes, 1 after torchrun's first restart."""
    return _number("TORCHELASTIC_RESTART_COUNT")


def restarts_left() -> int:
    """How often torchrun would still restart after a failure of this process."""
    return max(0, _number("TORCHELASTIC_MAX_RESTARTS") - restart_number())


def is_restarted_after(exit_code: int) -> bool:
    """Whether torchrun starts all ranks again after this process ends with that code: a failure, which what is no
    setting or data may not repeat."""
    return exit_code == FAILED and restarts_left() > 0


def resume_after_restart(resume: str | None, folder: RunFolder) -> str | None:
    """What to resume in this start: after a restart, the newest backup if earlier starts made any, else `resume`."""
    return resume if restart_number() == 0 else resume_since(_launcher_start_time(), resume, folder)


def resume_since(launched_at: float, resume: str | None, folder: RunFolder) -> str | None:
    """The newest backup if any was made since `launched_at` (seconds since 1970), else `resume`.

    Only where a certain backup of the run was resumed, the time decides, which a clock that was set may belie.
    """
    made = [_mtime(backup / "manifest.json") for backup in folder.backup_dir.glob("step-*")]
    return LATEST if made and (resume in (None, "", LATEST) or max(made) >= launched_at) else resume


def folder_of_previous_start(runs_dir: Path) -> RunFolder | None:
    """The run folder created by earlier starts under the same torchrun, if torchrun was started by hand."""
    if restart_number() == 0:
        return None
    markers = runs_dir.glob(f"*/{_launcher_marker()}")
    newest = max(markers, key=_mtime, default=None)
    return None if newest is None else RunFolder(newest.parent.parent)


def remember_run_folder(folder: RunFolder) -> None:
    """Mark the folder for `folder_of_previous_start`; raises OSError if it is not writable."""
    if restarts_left():
        (folder.path / _launcher_marker()).touch()


def _launcher_marker() -> Path:
    try:
        started = process_start(os.getppid())
    except psutil.Error:
        started = 0.0
    return Path("log", f"launcher-{os.getppid()}-{started:.2f}")


def _launcher_start_time() -> float:
    """When torchrun, the parent of every rank, was started (seconds since 1970)."""
    try:
        return psutil.Process(os.getppid()).create_time()
    except psutil.Error:
        return 0.0


def _mtime(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 0
