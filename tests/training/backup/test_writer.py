"""Backups in the background: complete, unchanged by training, none lost in silence, and nothing waits for ever."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.checkpoint import Backups, TrainingState, find_damage, read_backup
from modules.machine.host import Memory
from modules.monitoring import SilentReport
from modules.training.backup import writer as backup_writer
from modules.training.backup.writer import BackupWriter
from tests.checkpoint.states import state_at
from tests.runs import tiny_config, train_alone

WAIT_S = 30.0


class Recorded(SilentReport):
    """What a run reports of its backups."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def backing_up(self, step: int | None) -> None:
        self.events.append(f"backing up {step}")

    def backup(self, folder: Path, step: int) -> None:
        assert find_damage(folder) is None
        self.events.append(f"backup {step}")

    def note(self, text: str) -> None:
        self.events.append(text)

    def warning(self, text: str) -> None:
        self.events.append(text)


class SlowDisk(Backups):
    """Writes nothing until `is_fast` is set; the first `refuses` writes fail."""

    def __init__(self, folder: Path, keep: int = 9, refuses: int = 0) -> None:
        super().__init__(folder, keep)
        self.is_fast, self.has_started = threading.Event(), threading.Event()
        self.refuses = refuses

    def write(self, state: TrainingState, config_json: str) -> Path:
        self.has_started.set()
        assert self.is_fast.wait(WAIT_S)
        self.refuses -= 1
        if self.refuses >= 0:
            raise OSError(28, "No space left on device", "weights.safetensors")
        return super().write(state, config_json)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SlowDisk]:
    """Left with no thread writing to it."""
    disk = SlowDisk(tmp_path / "backup")
    yield disk
    disk.is_fast.set()


def steps_of(disk: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in disk.iterdir())


def test_training_goes_on_and_does_not_change_what_is_written(disk: SlowDisk, tmp_path: Path) -> None:
    report, state = Recorded(), state_at(3)
    kept = state_at(3)
    writer = BackupWriter(disk, report, merges=True)
    writer.submit(state, "{}")
    for tensor in (*state.weights.values(), *(state.ema or {}).values(), *state.optimizer.tensors.values()):
        tensor.fill_(9)
    assert report.events == ["backing up 3"]
    assert disk.has_started.wait(WAIT_S)
    disk.is_fast.set()
    assert writer.wait() is None
    assert report.events == ["backing up 3", "backup 3", "backing up None"]
    read = read_backup(tmp_path / "backup" / "step-000003")
    assert read.ema is not None
    assert kept.ema is not None
    for own, expected in (
        (read.weights, kept.weights), (read.ema, kept.ema), (read.optimizer.tensors, kept.optimizer.tensors)
    ):  # fmt: skip
        assert own.keys() == expected.keys()
        assert all(torch.equal(own[name], expected[name]) for name in own)


def test_the_newest_that_waits_replaces_an_older_one(disk: SlowDisk, tmp_path: Path) -> None:
    report = Recorded()
    writer = BackupWriter(disk, report, merges=True)
    for step in (1, 2, 3):
        writer.submit(state_at(step), "{}")
        assert disk.has_started.wait(WAIT_S)
    assert writer.best_steps() == {1, 3}, "the weights of a best validation stay for a backup under way"
    disk.is_fast.set()
    writer.wait()
    assert steps_of(tmp_path / "backup") == [1, 3]
    assert "The backup of step 2 is left out" in str(report.events)
    assert [each for each in report.events if str(each).startswith("backup ")] == ["backup 1", "backup 3"]


def test_the_thread_has_the_gpu_of_the_rank(disk: SlowDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA does it, each thread begins with GPU 0."""
    current = threading.local()
    current.gpu = 3
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(current, "gpu", 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(current, "gpu", device))
    written_with = []

    def write(state: TrainingState, config_json: str) -> Path:
        written_with.append((threading.current_thread().name, torch.cuda.current_device()))
        return tmp_path

    disk.write = write  # type: ignore[method-assign]
    writer = BackupWriter(disk, SilentReport(), merges=True)
    writer.submit(state_at(1), "{}")
    writer.wait()
    assert written_with == [("backup", 3)]


def test_backups_of_certain_steps_are_all_written(disk: SlowDisk, tmp_path: Path) -> None:
    report = Recorded()
    writer = BackupWriter(disk, report, merges=False)
    threading.Timer(0.2, disk.is_fast.set).start()
    for step in range(1, 6):
        writer.submit(state_at(step), "{}")
    writer.wait()
    assert steps_of(tmp_path / "backup") == [1, 2, 3, 4, 5]
    weights = [read_backup(folder).weights["layer.weight"][0] for folder in sorted((tmp_path / "backup").iterdir())]
    assert weights == [1, 2, 3, 4, 5], "copies share their memory, one after the other"
    assert str(report.events).count("training waits") == 1


def test_a_failed_backup_is_a_warning_and_the_next_one_is_written(tmp_path: Path) -> None:
    report, disk = Recorded(), SlowDisk(tmp_path / "backup", refuses=1)
    disk.is_fast.set()
    writer = BackupWriter(disk, report, merges=True)
    writer.submit(state_at(4), "{}")
    assert writer.wait() == 4
    assert "The backup at step 4 could not be written: [Errno 28] No space left" in str(report.events)
    assert report.events[-1] == "backing up None"
    writer.submit(state_at(5), "{}")
    assert writer.wait() is None
    assert steps_of(tmp_path / "backup") == [5]


def test_too_little_memory_for_a_copy_writes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_writer, "usable_memory_mib", lambda: Memory(1000, 100))
    report, disk = Recorded(), SlowDisk(tmp_path / "backup", refuses=1)
    disk.is_fast.set()
    writer = BackupWriter(disk, report, merges=True)
    with pytest.raises(OSError, match="No space"):
        writer.submit(state_at(1), "{}")
    writer.submit(state_at(2), "{}")
    assert steps_of(tmp_path / "backup") == [2], "without waiting"
    assert str(report.events).count("too small for a copy") == 1
    assert report.events[-2:] == ["backup 2", "backing up None"]


def test_an_error_waits_for_a_backup_under_way_and_a_second_ctrl_c_does_not(disk: SlowDisk, tmp_path: Path) -> None:
    report = Recorded()
    writer = BackupWriter(disk, report, merges=True)
    writer.submit(state_at(1), "{}")
    with pytest.raises(KeyboardInterrupt), writer.completing(alone=True):
        raise KeyboardInterrupt
    disk.is_fast.set()
    writer.wait()
    assert report.events == ["backing up 1"], "a run that has ended reports nothing"
    disk.is_fast.clear()
    writer = BackupWriter(disk, report, merges=True)
    writer.submit(state_at(2), "{}")
    threading.Timer(0.1, disk.is_fast.set).start()
    with pytest.raises(ValueError, match="x"), writer.completing(alone=True):
        raise ValueError("x")
    assert steps_of(tmp_path / "backup") == [1, 2]
    assert report.events[-1] == "backing up None"
    disk.is_fast.clear()
    disk.refuses = 1
    writer = BackupWriter(disk, report, merges=True)
    writer.submit(state_at(3), "{}")
    threading.Timer(0.1, disk.is_fast.set).start()
    with pytest.raises(ValueError, match="x"), writer.completing(alone=True):
        raise ValueError("x")
    assert "The run ends because of an error, and does not try again" in str(report.events[-2])


def test_the_last_backup_waits_for_one_under_way_and_replaces_one_that_waits(disk: SlowDisk, tmp_path: Path) -> None:
    writer = BackupWriter(disk, Recorded(), merges=True)
    for step in (1, 2):
        writer.submit(state_at(step), "{}")
        assert disk.has_started.wait(WAIT_S)
    threading.Timer(0.1, disk.is_fast.set).start()
    writer.write(state_at(3), "{}")
    assert steps_of(tmp_path / "backup") == [1, 3]
    assert writer.wait() is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
@pytest.mark.parametrize(("size", "niceness"), [(1 << 30, 19), (1 << 20, 5)])
def test_only_the_threads_of_a_backup_get_a_lower_priority(size: int, niceness: int) -> None:
    found: list[int] = []

    def nested() -> None:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    def work() -> None:
        backup_writer.lower_priority(size)
        reads_back = threading.Thread(target=nested)
        reads_back.start()
        reads_back.join()

    before = os.getpriority(os.PRIO_PROCESS, 0)
    writes = threading.Thread(target=work)
    writes.start()
    writes.join()
    assert found == [max(before, niceness)]
    assert os.getpriority(os.PRIO_PROCESS, threading.main_thread().native_id or 0) == before


def test_nobody_waits_for_a_thread_that_could_not_report(tmp_path: Path) -> None:
    class Gone(Recorded):
        def backup(self, folder: Path, step: int) -> None:
            raise FileNotFoundError(2, "No such file or directory", str(folder))

    report = Gone()
    writer = BackupWriter(Backups(tmp_path, keep=1), report, merges=False)
    for step in (1, 2, 3):
        writer.submit(state_at(step), "{}")
    assert writer.wait(WAIT_S) == 3
    assert report.events[-1] == "backing up None"


def test_a_state_that_grows_is_copied_whole(tmp_path: Path) -> None:
    """An optimizer has no state before its first step."""
    writer = BackupWriter(Backups(tmp_path, keep=9), Recorded(), merges=True)
    for step, size in ((1, 10), (2, 30)):
        state = state_at(step, size, ema=step == 2)
        writer.submit(replace(state, optimizer=replace(state.optimizer, tensors={})) if step == 1 else state, "{}")
        writer.wait()
    read = read_backup(tmp_path / "step-000002")
    assert read.optimizer.tensors["layer.weight/exp_avg"].shape == read.weights["layer.weight"].shape == (30,)
    assert read.ema is not None


def test_a_last_backup_that_failed_is_written_again_before_the_run_ends(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, has_ended = Backups.write, threading.Event()
    refused: list[Any] = []
    complete = BackupWriter.complete

    def refuse_once(backups: Backups, state: TrainingState, config_json: str) -> Path:
        if state.position.step == 2 and not refused:
            refused.append(state.position.step)
            assert has_ended.wait(WAIT_S)
            raise OSError(28, "No space left on device")
        return write(backups, state, config_json)

    def complete_late(writer: BackupWriter) -> int | None:
        threading.Timer(0.1, has_ended.set).start()
        return complete(writer)

    monkeypatch.setattr(Backups, "write", refuse_once)
    monkeypatch.setattr(BackupWriter, "complete", complete_late)
    code, run = train_alone(tiny_config(images, tmp_path, backup_every="2 steps", max_steps=2))
    assert code == 0
    assert "The backup at step 2 could not be written" in run.warnings
    assert "another backup is tried before the run ends" in run.warnings
    assert "Training continues" not in run.warnings
    assert [event["step"] for event in run.events("backup")] == [2]
    assert run.state.position.step == 2
    assert run.events("backing_up")[-1]["step"] is None
    assert run.events()[-1]["type"] == "finished"


def test_the_events_of_a_step_precede_those_of_its_backup(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever resumes from the backup, after a kill or a loss of power, reports no step before it again."""
    synced: list[str] = []

    def fsync(descriptor: int, fsync: Callable[[int], None] = os.fsync) -> None:
        fsync(descriptor)
        for file in tmp_path.rglob("events.jsonl"):
            if os.path.samestat(os.fstat(descriptor), file.stat()):
                synced.append(file.read_text())

    monkeypatch.setattr(os, "fsync", fsync)
    _, run = train_alone(tiny_config(images, tmp_path, backup_every="3 steps", max_steps=7))
    order = [(event["type"], event["step"]) for event in run.events() if event["type"] in {"step", "backing_up"}]
    steps = [step for kind, step in order if kind == "step"]
    assert steps == list(range(1, 8))
    for backup in (3, 6):
        assert order[order.index(("backing_up", backup)) - 1] == ("step", backup)
    for text, backup in zip(synced, (3, 6), strict=False):
        assert f'"type":"step","step":{backup},' in text
        assert f'"backup/step-{backup:06d}"' not in text, "before the backup"
    assert len(synced) == len(run.events("backup")) >= 2
