"""Runs and backups that break: each kind is a program that prints a record for each case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from modules import ROOT
from modules.config import trusted_code
from tests import ssh_server
from tests.torture.shim import shim_environment
from tests.torture.watch import Plan, Tally

BREAKDOWNS = {
    "writes": "each call by which a backup is written fails in turn: full disk, quota, read-only, broken",
    "disks": "a whole run whose disk fails at some call, or from then on; then resumed",
    "orders": "the data of a run changes while it stands still and while it trains: each image comes exactly once",
    "cuts": "a run on another machine over a real ssh, cut, and either side killed, in each stage of it",
    "kills": "a run on 1 or 2 ranks (DDP, fully_sharded) that is killed (-9) at a moment of each phase; then resumed",
}
_PROGRAMS = {
    "writes": "failing_backups.py",
    "disks": "failing_runs.py",
    "kills": "killed_runs.py",
    "orders": "random_orders.py",
    "cuts": "cut_remotes.py",
}
_WITHOUT_SHIM = ("kills", "orders", "cuts")


def needs(kind: str) -> str:
    """Without what none of its cases can be run."""
    return "Linux, root and an sshd" if kind == "cuts" else "Linux and a C compiler"


def run_breakdowns(
    plan: Plan, seed: str, folder: Path, progress: Callable[[Tally], None] = lambda tally: None
) -> Tally | None:
    """Run the cases of `plan`; "refused" are those in which a backup failed, a run ended with a sentence, or had ended
    before it was killed. None if the kind needs what is not here: see `needs`."""
    folder.mkdir(parents=True, exist_ok=True)
    shim = {} if plan.kind in _WITHOUT_SHIM else shim_environment(folder)
    if shim is None or not hasattr(os, "fork") or (plan.kind == "cuts" and ssh_server.skip_reason()):
        return None
    tally = Tally(plan.kind)
    argv = [sys.executable, str(Path(__file__).with_name(_PROGRAMS[plan.kind])), str(folder / plan.kind), seed]
    trust = {trusted_code.VARIABLE: "any", "OMP_NUM_THREADS": "1"}
    errors = folder / f"{plan.kind}.txt"
    with (
        errors.open("w+") as stderr,
        subprocess.Popen(
            [*argv, str(plan.first), str(plan.last)],
            cwd=ROOT,
            env={**os.environ, **trust, **shim},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            record = json.loads(line)
            tally.add(record)
            tally.seconds += record["seconds"]
            progress(tally)
    if process.returncode:
        detail = f"the program ended with {process.returncode}: {errors.read_text()[-1500:]}"
        tally.add({"number": plan.first + tally.cases, "result": "crash", "detail": detail, "seconds": 0.0})
    return tally
