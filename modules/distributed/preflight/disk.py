"""The folders that a run writes to: free space, speed of writing for good, and whether hosts share them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from modules.distributed.preflight.conductor import Answer, Conductor, Context
from modules.distributed.preflight.words import hosts_of, lost_cells, rate
from modules.machine import free_disk_mib
from modules.run.checkup import Cell

BYTES = {False: 16 << 20, True: 256 << 20}
LITTLE_MIB, TOO_LITTLE_MIB = 10 << 10, 1 << 10
SLOW_MB_S = 20.0
_CHUNK = 4 << 20
_SEEN_WITHIN_S = 3.0  # network disks show a new file after a moment


def disk(context: Context, setting: str, size: int) -> Answer:
    """The task: free space and speed where the folder of a setting is or will be."""
    folder = existing_parent(context.folders[setting])
    answer: Answer = {"free_mib": free_disk_mib(folder), "folder": str(folder)}
    probe = folder / f".tandem-preflight-{uuid.uuid4().hex}"
    deadline = time.monotonic() + context.patience_s / 2
    try:
        return {**answer, "mb_s": _write(probe, size, deadline)}
    except OSError as error:
        return {**answer, "error": error.strerror or str(error)}
    finally:
        probe.unlink(missing_ok=True)


def mark(context: Context, setting: str, name: str, *, there: bool) -> Answer:
    """The task of rank 0: leave an empty file in the folder of a setting, or take it away again."""
    path = existing_parent(context.folders[setting]) / name
    if there:
        path.touch()
    else:
        path.unlink(missing_ok=True)
    return {}


def look(context: Context, setting: str, name: str) -> Answer:
    """The task of other hosts: whether that file is seen here."""
    folder = existing_parent(context.folders[setting])
    deadline = time.monotonic() + _SEEN_WITHIN_S
    while not (seen := name in os.listdir(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return {"seen": seen}


def check(conductor: Conductor) -> Iterable[Cell]:
    """A cell for each folder on each host, and one that says who shares it."""
    size = BYTES[conductor.context.thorough]
    for setting in conductor.context.folders:
        answers = conductor.ask([member.rank for member in conductor.firsts], "disk", setting=setting, size=size)
        yield from lost_cells("disk", conductor)
        hosts = {member.rank: member.host for member in conductor.context.everyone}
        for rank, answer in answers.items():
            yield judge(setting, hosts[rank], answer)
        if len(conductor.firsts) > 1:
            yield from _sharing(conductor, setting)


def judge(setting: str, host: str, answer: Answer) -> Cell:
    """The cell of one folder on one host."""
    check = f"disk {setting}"
    if "free_mib" not in answer:
        return Cell(check, host, "red", str(answer["error"]), REFUSED.format(setting=setting))
    free_mib, folder = int(str(answer["free_mib"])), answer["folder"]
    free = f"{free_mib / 1024:.1f} GiB free"
    if error := answer.get("error"):
        hint = FULL if "space" in str(error).lower() or "quota" in str(error).lower() else REFUSED
        return Cell(check, host, "red", f"{folder}: {error}; {free}", hint.format(setting=setting))
    mb_s = float(str(answer["mb_s"]))
    value = f"{free}, writes {rate(mb_s)}"
    if free_mib < TOO_LITTLE_MIB:
        return Cell(check, host, "red", f"{folder}: {value}", FULL.format(setting=setting))
    if free_mib < LITTLE_MIB:
        return Cell(check, host, "yellow", f"{folder}: {value}", FULL.format(setting=setting))
    if mb_s < SLOW_MB_S:
        return Cell(check, host, "yellow", f"{folder}: {value}", SLOW.format(setting=setting, minutes=1e4 / mb_s / 60))
    return Cell(check, host, "green", value)


def existing_parent(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(each for each in (folder, *folder.absolute().parents) if each.is_dir())


def _sharing(conductor: Conductor, setting: str) -> Iterable[Cell]:
    first, *others = conductor.firsts
    name = f".tandem-preflight-{uuid.uuid4().hex}"
    conductor.ask([first.rank], "mark", setting=setting, name=name, there=True)
    answers = conductor.ask([member.rank for member in others], "look", setting=setting, name=name)
    conductor.ask([first.rank], "mark", setting=setting, name=name, there=False)
    yield from lost_cells("disk", conductor)
    apart = [member for member in others if member.rank in answers and not answers[member.rank].get("seen")]
    if apart:
        own = "has a folder of its own" if len(apart) == 1 else "have folders of their own"
        text = f"{hosts_of(apart)} {own}: {OWN[setting]}"
        yield Cell(f"disk {setting}", hosts_of(apart), "grey", text)
    else:
        yield Cell(f"disk {setting}", hosts_of(conductor.firsts), "green", "one folder, shared by all hosts")


def _write(path: Path, size: int, deadline: float) -> float:
    """MB per second until the bytes are on the disk for good; stops early at the deadline."""
    chunk, written, began = os.urandom(_CHUNK), 0, time.perf_counter()
    with path.open("wb", buffering=0) as file:
        while written < size and time.monotonic() < deadline:
            written += file.write(chunk)
            os.fsync(file.fileno())
    return written / 1e6 / max(time.perf_counter() - began, 1e-9)


OWN = {
    "runs_dir": "backups and samples lie with rank 0 only",
    "cache_dir": "each machine prepares all pictures on its own",
}
FULL = "Free space on that disk, lower backups_kept, or set {setting} to another disk."
REFUSED = "Give yourself write permission there, or set {setting} to a folder you may write to."
SLOW = "A slow disk: a backup of 10 GB takes {minutes:.0f} min. Set {setting} to a faster one."
