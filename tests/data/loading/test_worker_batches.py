"""Starting loader workers: with code of one's own in new processes, and where the system has no semaphores for them."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from modules.config import DataError, TandemError, TrainConfig
from modules.data.batch import Batch, MicroBatch
from modules.data.loading.worker_batches import (
    MicroBatchReader,
    MicroBatchSampler,
    _advice,
    data_loader,
    received,
    worker_obstacle,
)
from modules.families._by_name import family_class
from tests.full_disk import full_disk
from tests.runs import ROOT, TINY, environment

SETTINGS = TrainConfig(loader_workers=0, pin_memory=False)


class Reader(MicroBatchReader):
    def __init__(self, transform: Callable[..., dict[str, Tensor]]) -> None:
        self.transform = transform

    def batch(self, micro_batch: MicroBatch) -> Batch:
        raise NotImplementedError


def sent(file: Path) -> bytes:
    """What a new loader process gets of a run with the family in this file, which this process then forgets."""
    family = family_class(str(file))
    assert family.sample_transform is not None
    dataset = data_loader(SETTINGS, Reader(family.sample_transform), MicroBatchSampler(1), family.source).dataset
    content = bytes(ForkingPickler.dumps(dataset))
    del sys.modules[f"tandem_family_{file.stem}"]
    return content


def test_a_new_process_loads_the_file_of_a_family_class_before_its_functions(tmp_path: Path) -> None:
    file = Path(shutil.copy(TINY, tmp_path / "my_own_family.py"))
    received: Any = ForkingPickler.loads(sent(file))
    assert received.data.transform.__module__ == "tandem_family_my_own_family"


class Collects(MicroBatchReader):
    def batch(self, micro_batch: MicroBatch) -> Batch:
        gc.collect()
        raise DataError("collected")


class LeftBehind:
    """Unreachable, and not yet collected: as a process group, whose end in a fork waits for threads that it lacks."""

    def __init__(self) -> None:
        self.me, self.process = self, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.process:
            os._exit(1)


def test_a_forked_worker_does_not_collect_what_the_trainer_left() -> None:
    settings = TrainConfig(loader_workers=1, pin_memory=False, persistent_workers=False)
    request = MicroBatch((0,), (0,), (1.0,), is_last_of_step=True, step_samples=1)
    gc.disable()
    try:
        LeftBehind()
        with pytest.raises(DataError, match="collected"):
            next(received(data_loader(settings, Collects(), MicroBatchSampler(1, iter([request])))))
        assert not gc.isenabled(), "it is left as it was"
    finally:
        gc.enable()


def test_what_fails_while_a_new_process_reads_its_data_is_the_error(tmp_path: Path) -> None:
    file = Path(shutil.copy(TINY, tmp_path / "my_changing_family.py"))
    content = sent(file)
    file.write_text("raise ValueError('only in workers')\n")
    micro_batch: Any = None
    error = ForkingPickler.loads(content)[0, micro_batch].error
    assert isinstance(error, TandemError)
    assert "my_changing_family.py, line 1: ValueError: only in workers" in str(error)


@pytest.mark.parametrize(
    ("codes", "said"), [([0], "ended by itself"), ([0, 3], "ended by itself"), ([0, -9], "ran out of memory")]
)
def test_a_worker_that_was_not_killed_did_not_run_out_of_memory(codes: list[int], said: str) -> None:
    assert said in _advice(SimpleNamespace(_workers=[SimpleNamespace(exitcode=code) for code in codes]))


def test_a_process_that_may_write_nothing_loads_by_itself() -> None:
    assert worker_obstacle([2, 2]) == ""
    with full_disk():
        assert "File too large" in worker_obstacle([2, 2])


@pytest.mark.slow
def test_without_room_in_dev_shm_the_data_is_loaded_in_the_process() -> None:
    """Full, read-only, of one page, without inodes; then as it was."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare, to have a /dev/shm of its own")
    program = """
import subprocess
from modules.data.loading.worker_batches import worker_obstacle
for options in ("size=64k", "ro", "size=4k", "nr_inodes=1", "size=8m"):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", "/dev/shm"], check=True)
    if options == "size=64k":
        subprocess.run("dd if=/dev/zero of=/dev/shm/x bs=4k 2>/dev/null", shell=True)
    print(worker_obstacle([2, 2]).partition("because of ")[2].partition(".")[0])
"""
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", program],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    full = "/dev/shm: No space left on device"
    assert done.stdout.split("\n") == [full, "/dev/shm: Read-only file system", full, full, "", ""], done.stderr
