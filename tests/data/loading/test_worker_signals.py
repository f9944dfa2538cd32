"""Loader workers survive a SIGTERM that is meant for the trainer."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from multiprocessing.connection import Connection

import pytest

from modules.data.loading.worker_batches import ignore_foreign_sigterm


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
