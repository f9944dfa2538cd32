"""Loader workers survive a SIGTERM that is meant for the trainer."""

from __future__ import annotations

import atexit
import multiprocessing
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from modules.data.loading.worker_batches import ignore_foreign_sigterm, prepare_worker


def work(pipe: Connection) -> None:
    ignore_foreign_sigterm()
    while True:
        pipe.send(pipe.recv() + 1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports who sent a signal")
def test_only_the_parent_can_end_a_worker() -> None:
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.get_context("spawn").Process(target=work, args=(theirs,), daemon=True)
    worker.start()
    ours.send(1)
    assert ours.recv() == 2
    subprocess.run(["sh", "-c", f"kill -TERM {worker.pid}"], check=True)
    time.sleep(0.2)
    ours.send(2)
    assert ours.recv() == 3
    worker.terminate()
    worker.join(30)
    assert worker.exitcode == 0


def end(file: Path) -> None:
    prepare_worker(0)
    atexit.register(file.touch)


def test_a_worker_that_was_not_forked_leaves_as_forked_ones_do(tmp_path: Path) -> None:
    """Without taking down, for seconds, all that it has imported: the trainer waits for it."""
    worker = multiprocessing.get_context("spawn").Process(target=end, args=(tmp_path / "taken_down",))
    worker.start()
    worker.join(200)
    assert worker.exitcode == 0
    assert not (tmp_path / "taken_down").exists()
