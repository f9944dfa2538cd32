"""Kills writers of backups at random moments: `backup_killer.py FOLDER counting|same KILLS`.

Counting, the backups are written by a thread while what they were copied from is changed. Prints the step of the newest
valid backup after each kill; fails where there is none or its weights are wrong. Forks, so that torch is imported once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from modules.checkpoint import Backups, read_backup
from modules.monitoring import SilentReport
from modules.training.backup.writer import BackupWriter
from tests.checkpoint.states import state_at

SIZE = 200_000


def main(folder: Path, is_same: bool, kills: int) -> None:
    moments = random.Random(1)
    backups = Backups(folder, keep=1 if is_same else 2)
    backups.write(state_at(1, SIZE), "{}")
    for _ in range(kills):
        newest, _ = backups.newest_valid()
        assert newest is not None, sorted(path.name for path in folder.iterdir())
        state = read_backup(newest)
        assert torch.equal(state.weights["layer.weight"], torch.full((SIZE,), float(state.position.step)))
        print(state.position.step, flush=True)
        child = os.fork()
        if child == 0:
            write_for_ever(backups, state.position.step, 0 if is_same else 1)
        time.sleep(moments.uniform(0.005, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def write_for_ever(backups: Backups, step: int, stride: int) -> None:
    writer = BackupWriter(backups, SilentReport(), merges=False)
    while True:
        step += stride
        state = state_at(step, SIZE)
        if stride == 0:
            backups.write(state, "{}")
            continue
        writer.submit(state, "{}")
        state.weights["layer.weight"].fill_(-1.0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2] == "same", int(sys.argv[3]))
