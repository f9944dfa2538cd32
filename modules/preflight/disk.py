"""The folders that a run writes to: free space, durable write speed, and whether hosts share them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from modules.machine import free_disk_mib
from modules.preflight.cells import format_rate, hosts_of
from modules.preflight.coordinator import Answer, Context, Coordinator
from modules.run.preflight_report.report import Cell

BYTES = {False: 16 << 20, True: 256 << 20}
WARNS_BELOW_MIB, FAILS_BELOW_MIB = 10 << 10, 1 << 10
SLOW_MB_S = 20.0
_CHUNK = 4 << 20
_VISIBLE_WITHIN_S = 3.0  # network drives show new files with a delay


def probe_disk(context: Context, setting: str, size: int) -> Answer:
    """Task: free space and write speed where the folder of a setting is or will be."""
    folder = existing_parent(context.folders[setting])
    answer: Answer = {"free_mib": free_disk_mib(folder), "folder": str(folder)}
    probe = folder / f".tandem-preflight-{uuid.uuid4().hex}"
    deadline = time.monotonic() + context.timeout_s / 2
    try:
        return {**answer, "mb_s": _write(probe, size, deadline)}
    except OSError as error:
        return {**answer, "error": error.strerror or str(error)}
    finally:
        probe.unlink(missing_ok=True)


def set_marker(context: Context, setting: str, name: str, *, exists: bool) -> Answer:
    """Task of rank 0: create an empty file in the folder of a setting, or remove it again."""
    path = existing_parent(context.folders[setting]) / name
    if exists:
        path.touch()
    else:
        path.unlink(missing_ok=True)
    return {}


def sees_marker(context: Context, setting: str, name: str) -> Answer:
    """Task of other hosts: whether that file is visible here."""
    folder = existing_parent(context.folders[setting])
    deadline = time.monotonic() + _VISIBLE_WITHIN_S
    while not (visible := name in os.listdir(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return {"visible": visible}


def check(coordinator: Coordinator) -> Iterable[Cell]:
    """Yield a cell for each folder on each host, and one that says which hosts share it."""
    size = BYTES[coordinator.context.thorough]
    for setting in coordinator.context.folders:
        ranks = [member.rank for member in coordinator.first_ranks]
        answers = coordinator.ask(ranks, "probe_disk", setting=setting, size=size)
        for rank, answer in answers.items():
            yield judge(setting, coordinator.context.everyone[rank].host, answer)
        if len(coordinator.first_ranks) > 1:
            yield from _sharing(coordinator, setting)


def judge(setting: str, host: str, answer: Answer) -> Cell:
    """The cell of one folder on one host."""
    check = f"disk {setting}"
    if "free_mib" not in answer:
        return Cell(check, host, "red", str(answer["error"]), NOT_WRITABLE.format(setting=setting))
    free_mib, folder = int(str(answer["free_mib"])), answer["folder"]
    free = f"{free_mib / 1024:.1f} GiB free"
    if error := answer.get("error"):
        hint = FULL if "space" in str(error).lower() or "quota" in str(error).lower() else NOT_WRITABLE
        return Cell(check, host, "red", f"{folder}: {error}; {free}", hint.format(setting=setting))
    mb_s = float(str(answer["mb_s"]))
    value = f"{free}, writes {format_rate(mb_s)}"
    if free_mib < FAILS_BELOW_MIB:
        return Cell(check, host, "red", f"{folder}: {value}", FULL.format(setting=setting))
    if free_mib < WARNS_BELOW_MIB:
        return Cell(check, host, "yellow", f"{folder}: {value}", FULL.format(setting=setting))
    if mb_s < SLOW_MB_S:
        return Cell(check, host, "yellow", f"{folder}: {value}", SLOW.format(setting=setting, minutes=1e4 / mb_s / 60))
    return Cell(check, host, "green", value)


def existing_parent(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(each for each in (folder, *folder.absolute().parents) if each.is_dir())


def _sharing(coordinator: Coordinator, setting: str) -> Iterable[Cell]:
    first, *others = coordinator.first_ranks
    name = f".tandem-preflight-{uuid.uuid4().hex}"
    coordinator.ask([first.rank], "set_marker", setting=setting, name=name, exists=True)
    answers = coordinator.ask([member.rank for member in others], "sees_marker", setting=setting, name=name)
    coordinator.ask([first.rank], "set_marker", setting=setting, name=name, exists=False)
    separate = [member for member in others if member.rank in answers and not answers[member.rank].get("visible")]
    if separate:
        verb = "has its own folder" if len(separate) == 1 else "have their own folders"
        text = f"{hosts_of(separate)} {verb}: {SEPARATE[setting]}"
        yield Cell(f"disk {setting}", hosts_of(separate), "grey", text)
    else:
        yield Cell(f"disk {setting}", hosts_of(coordinator.first_ranks), "green", "one folder, shared by all hosts")


def _write(path: Path, size: int, deadline: float) -> float:
    """MB per second of writes with fsync; stops early at the deadline."""
    chunk, written, started = os.urandom(_CHUNK), 0, time.perf_counter()
    with path.open("wb", buffering=0) as file:
        while written < size and time.monotonic() < deadline:
            written += file.write(chunk)
            os.fsync(file.fileno())
    return written / 1e6 / max(time.perf_counter() - started, 1e-9)


SEPARATE = {
    "runs_dir": "backups and samples are on rank 0's machine only",
    "cache_dir": "each machine encodes all images itself",
}
FULL = (
    "Free space on that disk, lower backups_kept (and saves_kept, with save_every), or move {setting} to another disk."
)
NOT_WRITABLE = "Grant yourself write permission there, or set {setting} to a writable folder."
SLOW = "Slow disk: a backup of 10 GB takes {minutes:.0f} min. Move {setting} to a faster one."
