"""The cells of scripts/gpu_check.py: which this machine has, trying them in processes of their own, and the record."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import psutil

from modules import __version__
from modules.config import trusted_code
from modules.machine import driver_version, visible_gpus
from modules.machine.torch_build import gpu_obstacle, torch_build
from modules.run import RunFolder, root_cause
from modules.run.join.keys import STORE_SECRET
from modules.run.launch.store_secret import new_secret
from modules.run.supervise.process_tree import kill_family
from scripts.gpu_check_list import ANSWER, FIRST, OF_A_CHECK, ONLY_ON_GPU, POINTS, ROOT, Limits, Order, checks

WORKS, FAILED, NO_GPU = 0, 3, 2
START = Limits(10, 120)  # of a process with torch
NO_TIME = "no time"
LASTING = ("CUDA", "NCCL")  # errors after which nothing works in the same process
OTHERS_RECORD_S = 2.0  # after the end of one process of a group
WORKER = ROOT / "scripts" / "gpu_worker.py"


@dataclass(frozen=True)
class Layout:
    """A backend and a number of processes on some devices."""

    label: str
    backend: str
    ranks: int
    visible: str | None  # CUDA_VISIBLE_DEVICES; None leaves it unchanged


@dataclass(frozen=True)
class Cell:
    """A cell of the table: `function` ("module:name") in each process of the layout gives its outcome."""

    layout: Layout
    name: str
    function: str
    more: Mapping[str, object] = field(hash=False)
    limits: Limits


def check_cells(device: str, words: Sequence[str], out: Path, *, resume: bool, deadline: float) -> int:
    """Try the cells whose name has one of the words, until `deadline` (of time.monotonic); returns an exit code."""
    layouts = available_layouts(device)
    if not layouts:
        print(f"There is no CUDA GPU that torch can use here. {gpu_obstacle() or ''}".rstrip())
        print("--device cpu runs the checks with two CPU processes.")
        return NO_GPU
    cells = [cell for cell in cells_of(layouts, device) if any(word in cell.name for word in words)]
    record = Record(out, describe_machine(device), resume=resume)
    with (
        tempfile.TemporaryDirectory(prefix="tandem-gpu-check-", ignore_cleanup_errors=True) as place,
        Workers(device, Path(place), out / "log.txt") as workers,
    ):
        for cell in cells:
            if record.outcome(cell) is None:
                started = time.monotonic()
                outcome = workers.outcome(cell, deadline - started)
                if outcome is not None:
                    record.add(cell, outcome, time.monotonic() - started)
    text, code = summary({cell: record.outcome(cell) or NO_TIME for cell in cells})
    (out / "table.md").write_text(f"# GPU check\n\n{record.machine}\n\n{text}\n", encoding="utf-8")
    print(f"\n{text}\nThe output of the runs is in {out / 'log.txt'}, this table in {out / 'table.md'}.")
    return code


class Workers:
    """The processes in which cells are tried: one for each rank of a layout.

    They are kept for its next cell, unless one hangs, ends them, or leaves them in a state in which all others fail.
    """

    def __init__(self, device: str, place: Path, log: Path) -> None:
        self._device, self._place, self._log = device, place, log
        self._of_layout: dict[Layout, list[subprocess.Popen[str]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for layout in list(self._of_layout):
            self._end(layout)

    def outcome(self, cell: Cell, left_s: float) -> str | None:
        """What a cell gives; None if the time that is left is too short for it."""
        if any(process.poll() is not None for process in self._of_layout.get(cell.layout, [])):
            self._end(cell.layout)  # after it had answered
        is_new = cell.layout not in self._of_layout
        limit_s = cell.limits.limit_s + (START.limit_s if is_new else 0)
        if left_s < cell.limits.typical_s + (START.typical_s if is_new else 0):
            return None
        place = self._place / cell.layout.label / cell.name.replace(" ", "-")
        place.mkdir(parents=True)
        if is_new:
            self._of_layout[cell.layout] = self._start(cell.layout)
        outcome = self._wait(cell, place, min(limit_s, left_s))
        too_long = f"FAILED: no result within {limit_s:g} s" if limit_s <= left_s else None
        if outcome is None or (outcome.startswith("FAILED") and any(word in outcome for word in LASTING)):
            self._end(cell.layout)
        return outcome or too_long

    def _start(self, layout: Layout) -> list[subprocess.Popen[str]]:
        environment = {
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **os.environ,
            trusted_code.VARIABLE: "any",  # the families of the tests
            STORE_SECRET: new_secret(),
            **({} if layout.visible is None else {"CUDA_VISIBLE_DEVICES": layout.visible}),
        }
        with self._log.open("ab") as log:
            return [
                subprocess.Popen(
                    [sys.executable, str(WORKER), self._device],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    encoding="utf-8",
                    start_new_session=True,  # Ctrl-C is for this process, which ends them
                )
                for _ in range(layout.ranks)
            ]

    def _wait(self, cell: Cell, place: Path, limit_s: float) -> str | None:
        """The answer of rank 0, or why there will be none; None after `limit_s`."""
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"\n=== {cell.layout.label}: {cell.name}\n")
        until, answer = time.monotonic() + limit_s, place / ANSWER
        processes = self._of_layout[cell.layout]
        for rank, process in enumerate(processes):
            order = Order(cell.function, str(place), {**cell.more, **({"rank": rank} if cell.more else {})}, not rank)
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended, which is found below
                process.stdin.write(json.dumps(asdict(order)) + "\n")
                process.stdin.flush()
        while not answer.exists():
            codes = [process.poll() for process in processes]
            if any(code is not None for code in codes):
                time.sleep(OTHERS_RECORD_S)
                causes = [root_cause(RunFolder(folder)) for folder in place.glob("runs/*")]
                reasons = [cause.message.splitlines()[0] for cause in causes if cause is not None]
                return f"FAILED: {(reasons or [f'its processes ended with the exit codes {codes}'])[0]}"
            if time.monotonic() > until:
                return None
            time.sleep(0.02)
        return answer.read_text(encoding="utf-8")

    def _end(self, layout: Layout) -> None:
        for process in self._of_layout.pop(layout):
            with suppress(psutil.Error):
                kill_family(psutil.Process(process.pid))
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


class Record:
    """cells.jsonl in a folder: a line that names the machine, then one for each cell, written when it ends.

    A file that another machine has written, or other versions, is continued by a line that names this one.
    """

    def __init__(self, folder: Path, machine: str, *, resume: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.machine = machine
        self._file = folder / "cells.jsonl"
        self._outcomes: dict[tuple[str, str], str] = {}
        text = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
        self._separator = "\n" if text and not text.endswith("\n") else ""  # it was cut off within a line
        before = self._read(text) if resume else ""
        if before == machine:
            cells = f"{len(self._outcomes)} cell{'s' * (len(self._outcomes) != 1)}"
            print(f"{machine}\nContinues {self._file}, which has {cells}.", flush=True)
            return
        if before:
            print(f"Starts anew: {self._file} is of another machine or other versions, {before}")
        self._outcomes = {}
        self._write({"machine": machine})
        print(machine, flush=True)

    def outcome(self, cell: Cell) -> str | None:
        """The outcome of a cell; None if it has none yet."""
        return self._outcomes.get((cell.layout.label, cell.name))

    def add(self, cell: Cell, outcome: str, seconds: float) -> None:
        """Write and print a cell."""
        layout, name = cell.layout.label, cell.name
        self._write({"layout": layout, "name": name, "outcome": outcome, "seconds": round(seconds, 1)})
        self._outcomes[layout, name] = outcome
        print(f"{layout}: {name}: {outcome} ({seconds:.1f} s)", flush=True)

    def _read(self, text: str) -> str:
        """Take over the cells after the last line with a machine, which is returned; empty without one."""
        machine = ""
        for line in text.splitlines():
            with suppress(ValueError):  # a line in which it was cut off
                entry = json.loads(line)
                if "machine" in entry:
                    machine, self._outcomes = entry["machine"], {}
                else:
                    self._outcomes[entry["layout"], entry["name"]] = entry["outcome"]
        return machine

    def _write(self, entry: Mapping[str, object]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{self._separator}{json.dumps(entry)}\n")
        self._separator = ""


def available_layouts(device: str) -> list[Layout]:
    """The layouts this machine has; none without a GPU."""
    if device == "cpu":
        return [Layout("gloo, 2 CPU processes", "gloo", 2, "")]
    build, gpus = torch_build(), visible_gpus()
    if build is None or build.cuda is None or not gpus:
        return []
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    alone = [Layout("NCCL, 1 process", "nccl", 1, first), Layout("gloo, 2 processes on 1 GPU", "gloo", 2, first)]
    return [*alone, *([Layout(f"NCCL, {len(gpus)} GPUs", "nccl", len(gpus), None)] if len(gpus) > 1 else [])]


def cells_of(layouts: Sequence[Layout], device: str) -> list[Cell]:
    """All cells, in the order in which they are tried."""
    alone = Layout("alone", "", 1, "" if device == "cpu" else None)
    first, points = (
        [Cell(alone, name, point.function, {}, point.limits) for name, point in found.items()]
        for found in (FIRST, POINTS)
    )
    modes = [
        Cell(
            layout,
            check.name,
            "scripts.gpu_modes:run_check",
            {"name": check.name, "backend": layout.backend, "ranks": layout.ranks},
            OF_A_CHECK,
        )
        for layout in layouts
        for check in checks(layout.ranks)
    ]
    return [*first, *modes, *points]


def describe_machine(device: str) -> str:
    """Devices and versions in one line."""
    build = torch_build()
    # of a package that is there twice, the first is used
    packages = {each.name: each.version for each in reversed(list(importlib.metadata.distributions()))}
    versions = [
        f"torch {build.version if build else 'missing'}",
        *(f"{name} {packages.get(name, 'missing')}" for name in ("diffusers", "transformers", "peft")),
        f"Python {platform.python_version()}",
        f"Tandem {__version__}",
    ]
    if device == "cpu":
        return ", ".join(["CPU", *versions])
    gpus = visible_gpus()
    nccl = [f"NCCL {version}" for name, version in packages.items() if name.startswith("nvidia-nccl")]
    names = ", ".join(sorted({gpu.name for gpu in gpus}))
    return ", ".join([f"{len(gpus)} GPU: {names}", *versions, f"driver {driver_version()}", *nccl])


def summary(outcomes: Mapping[Cell, str]) -> tuple[str, int]:
    """The table in Markdown with a verdict below it, and the exit code."""
    layouts = list(dict.fromkeys(cell.layout.label for cell in outcomes))
    table: dict[str, dict[str, str]] = {}
    for cell, outcome in outcomes.items():
        table.setdefault(cell.name, {})[cell.layout.label] = outcome
    rows = [["", *layouts], *([name, *(found.get(label, "") for label in layouts)] for name, found in table.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    failed, only_on_gpu, no_time = (
        sum(outcome.startswith(start) for outcome in outcomes.values()) for start in ("FAILED", ONLY_ON_GPU, NO_TIME)
    )
    tried = len(outcomes) - only_on_gpu - no_time
    verdict = f"{failed} of {tried} checks FAILED." if failed else f"All {tried} checks passed."
    verdict += f" {only_on_gpu} cannot run on the CPU." if only_on_gpu else ""
    verdict += f" For {no_time} there was no time: --resume tries them." if no_time else ""
    return "\n".join([*lines, "", verdict]), FAILED if failed else WORKS
