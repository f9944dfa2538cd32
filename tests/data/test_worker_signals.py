"""Loader processes outlive a SIGTERM that was meant for the trainer."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from multiprocessing.connection import Connection

import pytest

from modules.data.worker_signals import obey_only_the_trainer


def work(pipe: Connection) -> None:
    obey_only_the_trainer(0)
    while True:
        pipe.send(pipe.recv() + 1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who sent a signal")
def test_only_the_parent_ends_a_loader_process() -> None:
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
