"""Runs whose disk fails at some call: `failing_runs.py FOLDER SEED FIRST LAST`, with the shim; prints a line for each.

Where a run goes on, it ends in the weights of one without a fault; where it ends, it says why in a sentence, every
backup is undamaged, and with a disk that is well again it is resumed to the same weights. Every tenth run has a slow
disk without locks instead, as a network share, and the clock goes back by an hour: it goes on to the same weights, and
the only warning is that there are no locks.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from modules.checkpoint import find_damage
from modules.config import TandemError, TrainConfig
from modules.run.folder.backup_list import complete_backups
from modules.run.folder.failures import read_failures
from tests.conftest import draw_images
from tests.runs import same_state, tiny_config, train_alone
from tests.torture.records import print_record
from tests.torture.shim import Faults

ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE)
INSIDE = ("backup", "log", "samples", "tensorboard", "saves", "model")
PLACES = ("runs", "runs", "cache", *(f"runs/x/{name}" for name in INSIDE))
SLOW = (5, 50, 1000)  # ms for each call, and for every 50th
IMAGES = 9
SETTINGS: dict[str, object] = {
    "max_steps": 5,
    "backup_every": "2 steps",
    "save_every": "2 steps",
    "saves_kept": 1,
    "sample_every": "3 steps",
    "samples": [{"prompt": "a disc", "width": 16, "height": 16, "steps": 1}],
    "validation_split": 0.2,
    "validate_every": "2 steps",
    "restore_best": True,
    "tensorboard": True,
    "ema": True,
}


class Cases:
    """The cases of a seed, in one process."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.folder, self.seed, self.faults = folder, seed, Faults()
        self.images = folder / "images"
        self.images.mkdir(parents=True)
        draw_images(self.images, IMAGES)
        self.faults.place(folder / "case")
        self.faults.disarm()
        code, run = train_alone(self.config(self.folder / "case"))
        assert code == 0, run.failure(0)
        self.calls = self.faults.count
        self.whole = run.state
        shutil.move(folder / "case", folder / "whole")

    def config(self, place: Path) -> TrainConfig:
        return tiny_config(self.images, place, **SETTINGS)

    def run_slowly(self, number: int) -> tuple[bool, str]:
        """As `run`, on a share that takes some milliseconds for each call, and for some of them a second; the clock
        goes back once there is a backup."""
        place = Random(f"{self.seed} {number}").choice(PLACES)
        case = self.folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        (case / "runs").mkdir(parents=True)
        self.faults.place(case / place)
        self.faults.delay(*SLOW)
        self.faults.without_locks()
        self.faults.turn_clock(-3600, case / "runs/x/backup/step-000002/manifest.json")
        try:
            code, run = train_alone(self.config(case))
        finally:
            self.faults.disarm()
        what = f"a slow share below {place}"
        assert code == 0, f"{what}: {run.failure(0)}"
        assert same_state(run.state, self.whole), f"{what}: other weights"
        assert all("has no locks" in line for line in run.warnings.splitlines()), f"{what}: {run.warnings}"
        times = [float(str(event["t"])) for event in run.events()]
        assert min(right - left for left, right in pairwise(times)) < -3500, f"{what}: the clock did not go back"
        return True, what

    def run(self, number: int) -> tuple[bool, str]:
        """Returns whether the run went on to its end, and what failed."""
        if number % 10 == 9:
            return self.run_slowly(number)
        draw = Random(f"{self.seed} {number}")
        error, place, lasts = draw.choice(ERRORS), draw.choice(PLACES), draw.random() < 0.7
        call = 1 + int(self.calls * draw.random() ** 2)
        what = f"call {call} below {place}: {errno.errorcode[error]}{' from then on' * lasts}"
        case = self.folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        (case / "runs").mkdir(parents=True)
        self.faults.place(case / place)
        self.faults.arm(call, error, lasts=lasts)
        try:
            code, run = train_alone(self.config(case))
        except TandemError as failed:  # the run folder cannot be created, which the command says
            return False, f"{what}: {failed}"
        finally:
            self.faults.disarm()
        damaged = [fault for backup in complete_backups(run.folder.backup_dir) if (fault := find_damage(backup))]
        assert not damaged, damaged
        failures = read_failures(run.folder)
        for failure in failures:
            assert failure.kind != "error" or failure.advice, f"{what}: {failure.message}\n{failure.traceback}"
        if code == 0:
            assert same_state(run.state, self.whole), f"{what}: other weights, with exit code 0"
        else:
            assert failures or lasts, f"{what}: it ended with {code} without a word"
        code, run = train_alone(self.config(case), "latest")
        assert code == 0, f"{what}: not resumed: {run.failure(0)}"
        assert same_state(run.state, self.whole), f"{what}: other weights"
        assert (run.folder.model_dir / "weights.safetensors").exists() or not failures, what
        return not failures, what


def main(folder: Path, seed: str, first: int, last: int) -> None:
    torch.set_num_threads(1)
    os.environ["HOME"] = str(folder / "no home")  # nothing is saved elsewhere
    with contextlib.redirect_stdout(io.StringIO()):
        cases = Cases(folder, seed)
    for number in range(first, last + 1):
        print_record(number, partial(_quietly, cases, number))


def _quietly(cases: Cases, number: int) -> tuple[bool, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        went_on, what = cases.run(number)
    assert "Traceback" not in said.getvalue(), f"{what}: {said.getvalue()}"
    return went_on, what


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
