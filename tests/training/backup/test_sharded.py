"""Backups in parts: two ranks, each a thread here, with the store, the files and the writers of a run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch.distributed as dist
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.torch import save_file

from modules.checkpoint import (
    Backups,
    Rotation,
    Shard,
    ShardRows,
    TrainingState,
    find_damage,
    open_backup,
    read_backup,
)
from modules.checkpoint.hashed_files import HashedFile
from modules.checkpoint.manage_backups import go_back_to
from modules.config import ResumeError
from modules.distributed import DistributedRanks, RunStore, SharedFolderGroups
from modules.monitoring import SilentReport
from modules.training.backup import part_channel, sharded
from modules.training.backup.part_channel import Announcement
from modules.training.backup.sharded import sharded_backup_writer
from modules.training.backup.state_copy import size_of
from modules.training.backup.writer import BackupWriter
from tests.checkpoint.states import state_at
from tests.checkpoint.test_foreign_backups import fault_of, seal
from tests.runs import same_state

SIZE, FIRST = 101, 51  # rows of a weight, and how many of them rank 0 has


class Recorded(SilentReport):
    def __init__(self) -> None:
        self.events: list[str] = []

    def backup(self, folder: Path, step: int) -> None:
        self.events.append(f"backup {step}")

    def warning(self, text: str) -> None:
        self.events.append(text)


def part_of(state: TrainingState, rank: int) -> TrainingState:
    """What one of two ranks holds of a state whose matrices are divided."""
    begin, end = ((0, FIRST), (FIRST, SIZE))[rank]

    def part(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        own = {name: tensor[begin:end] for name, tensor in tensors.items() if len(tensor) == SIZE}
        return {**({} if rank else tensors), **own}

    assert state.ema is not None
    kinds = {"weights": state.weights, "ema": state.ema, "optimizer": dict(state.optimizer.tensors)}
    rows = {
        kind: {name: ShardRows(begin, SIZE) for name, tensor in tensors.items() if len(tensor) == SIZE}
        for kind, tensors in kinds.items()
    }
    return replace(
        state,
        weights=part(kinds["weights"]),
        ema=part(kinds["ema"]),
        optimizer=replace(state.optimizer, tensors=part(kinds["optimizer"])),
        part=Shard(rank, 2, rows),
    )


class Pair:
    """Two ranks; `is_near` says whether rank 1 sees the run folder of rank 0."""

    def __init__(self, folder: Path, *, is_near: bool = True, merges: bool = False, keep: int = 9) -> None:
        self.folder, self.report = folder, Recorded()
        self._barrier, self._texts = threading.Barrier(2, timeout=30), ["", ""]
        self._threads = ThreadPoolExecutor(2)
        store, groups = RunStore(dist.HashStore(), None), ((0, 1),) if is_near else ((0,), (1,))

        def writer(rank: int) -> BackupWriter:
            ranks = SimpleNamespace(
                rank=rank,
                world_size=2,
                gather=lambda name, text: self._gather(rank, text),
                process_group=SimpleNamespace(store=store),
                shared_folder_groups=lambda name, folder: SharedFolderGroups(rank, groups),
            )
            report = self.report if rank == 0 else SilentReport()
            place = folder if is_near or rank == 0 else folder / "elsewhere"
            return sharded_backup_writer(
                place, Rotation(keep), cast(DistributedRanks, ranks), (0, 1), report, merges=merges
            )

        self.writers = [writer(0), writer(1)]

    def _gather(self, rank: int, text: str) -> list[str]:
        self._texts[rank] = text
        self._barrier.wait()
        texts = list(self._texts)
        self._barrier.wait()
        return texts

    def both(self, work: Callable[[BackupWriter, int], object]) -> None:
        """Each rank does it in a thread."""
        for done in [self._threads.submit(work, self.writers[rank], rank) for rank in (0, 1)]:
            done.result(60)

    def submit(self, step: int) -> None:
        self.both(lambda writer, rank: writer.submit(part_of(state_at(step, SIZE), rank), "{}"))

    def steps(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.mark.parametrize("is_near", [True, False])
def test_the_parts_are_a_backup_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_near: bool) -> None:
    monkeypatch.setattr(part_channel, "CHUNK_BYTES", 64)
    pair, whole = Pair(tmp_path / "backup", is_near=is_near), state_at(3, SIZE)
    states = [part_of(whole, rank) for rank in (0, 1)]
    assert all(size_of(state) < 0.6 * size_of(whole) for state in states)
    pair.both(lambda writer, rank: writer.submit(states[rank], "{}"))
    for tensor in (*states[0].weights.values(), *states[1].weights.values()):
        tensor.zero_()
    pair.writers[0].wait()
    pair.both(lambda writer, rank: writer.write(part_of(state_at(4, SIZE), rank), "{}"))
    assert pair.steps() == ["step-000003", "step-000004"]
    assert pair.report.events == ["backup 3", "backup 4"]
    for step in (3, 4):
        assert same_state(read_backup(tmp_path / "backup" / f"step-00000{step}"), state_at(step, SIZE))
    assert not (tmp_path / "backup" / "elsewhere").exists()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("is_near", [True, False])
def test_a_part_that_cannot_be_written_costs_this_backup_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, is_near: bool
) -> None:
    class FullDisk(HashedFile):
        def add(self, data: memoryview | bytes) -> None:
            if self._path.parent.name.endswith("step-000002") and f"-0000{rank + 1}-of" in self._path.name:
                raise OSError(28, "No space left on device", str(self._path))
            super().add(data)

    monkeypatch.setattr(sharded, "HashedFile", FullDisk)
    pair = Pair(tmp_path, is_near=is_near)
    for step in (1, 2):
        pair.submit(step)
        failed = pair.writers[0].wait()
    assert failed == 2
    assert pair.steps() == ["step-000001"]
    assert Backups(tmp_path, keep=9).newest_valid() == (tmp_path / "step-000001", [])
    pair.submit(3)
    assert pair.writers[0].wait() is None
    assert pair.steps() == ["step-000001", "step-000003"]
    (warning,) = (event for event in pair.report.events if not event.startswith("backup "))
    assert "The backup at step 2 could not be written" in warning
    assert "No space left on device" in warning
    assert ("rank 1 (" in warning) == (rank == 1 and is_near)


def test_a_rank_without_memory_makes_all_write_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "fits", lambda size: False)  # on rank 1
    pair = Pair(tmp_path)
    pair.submit(1)
    assert pair.steps() == ["step-000001"]
    assert same_state(read_backup(tmp_path / "step-000001"), state_at(1, SIZE))


def test_a_copy_that_rank_0_no_longer_wants_is_dropped_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_fast = threading.Event()

    class SlowDisk(HashedFile):
        def __init__(self, path: Path, *more: int) -> None:
            assert is_fast.wait(30)
            super().__init__(path, *more)

    monkeypatch.setattr(sharded, "HashedFile", SlowDisk)
    pair = Pair(tmp_path, merges=True)
    for step in (1, 2, 3):
        pair.submit(step)
    is_fast.set()
    pair.writers[0].wait()
    assert pair.steps() == ["step-000001", "step-000003"]
    assert same_state(read_backup(tmp_path / "step-000003"), state_at(3, SIZE))


def test_a_rank_that_is_gone_leaves_the_former_backup_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(tmp_path)
    pair.submit(1)
    pair.writers[0].wait()
    monkeypatch.setattr(pair.writers[1], "_add", lambda job: None)  # it is killed once it has its copy
    pair.submit(2)
    with pytest.raises(ValueError, match="the other rank is lost"), pair.writers[0].completing(alone=False):
        raise ValueError("the other rank is lost")
    assert Backups(tmp_path, keep=9).newest_valid() == (tmp_path / "step-000001", [])
    assert pair.writers[0].wait(30) == 2, "the thread ends"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_whose_system_refuses_a_thread_costs_this_backup_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    pair, start = Pair(tmp_path), threading.Thread.start
    target = "_write_all" if rank == 0 else "_write_parts"
    pair.submit(1)
    pair.writers[0].wait()
    pair.both(lambda writer, _: wait_for_end_of_thread(writer))

    def refuse(thread: threading.Thread) -> None:
        if getattr(thread, "_target", None) == getattr(pair.writers[rank], target):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        pair.submit(2)
        assert pair.writers[0].wait(20) == 2
    pair.submit(3)
    assert pair.writers[0].wait(20) is None
    assert pair.steps() == ["step-000001", "step-000003"]
    (warning,) = (event for event in pair.report.events if not event.startswith("backup "))
    assert "The backup at step 2 could not be written" in warning
    assert "can't start new thread" in warning


def wait_for_end_of_thread(writer: BackupWriter) -> None:
    thread = getattr(writer, "_thread", None)
    if thread is not None:
        thread.join(20)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    pair = Pair(folder)
    pair.both(lambda writer, rank: writer.write(part_of(state_at(3, SIZE), rank), "{}"))
    pair.both(lambda writer, rank: writer.write(part_of(state_at(4, SIZE), rank), "{}"))
    return folder


def test_only_the_rows_that_are_asked_for_are_read(written: Path) -> None:
    tensor = open_backup(written / "step-000003").weights["layer.weight"]
    assert tensor.shape == (SIZE,)
    for first, last in ((0, 40), (40, 60), (60, 200), (101, 102)):
        assert len(tensor[first:last]) == max(0, min(last, SIZE) - first)
    (written / "step-000003" / "weights-00001-of-00002.safetensors").rename(written / "aside")
    try:
        with pytest.raises(ResumeError, match=r"weights-00001-of-00002\.safetensors is missing"):
            open_backup(written / "step-000003")
    finally:
        (written / "aside").rename(written / "step-000003" / "weights-00001-of-00002.safetensors")


def test_it_is_restored_under_another_number(written: Path, tmp_path: Path) -> None:
    restored = go_back_to(tmp_path, written / "step-000003")
    assert same_state(read_backup(restored), state_at(3, SIZE))
    assert Backups(tmp_path, keep=1).newest_valid() == (restored, [])


SECOND = "weights-00002-of-00002.safetensors"


def _swapped(folder: Path) -> None:
    shutil.copy(folder.parent / "good" / "weights-00001-of-00002.safetensors", folder / SECOND)


def _of_another_kind(folder: Path) -> None:
    shutil.copy(folder.parent / "good" / SECOND.replace("weights", "ema"), folder / SECOND)


def _of_another_backup(folder: Path) -> None:
    shutil.copy(folder.parent / "other" / SECOND, folder / SECOND)


def _manifest(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "manifest.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def _without_file(folder: Path) -> None:
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["files"][SECOND]
    file.write_text(json.dumps(manifest))


def _named_elsewhere(folder: Path) -> None:
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"][f"../{SECOND}"] = manifest["files"].pop(SECOND)
    file.write_text(json.dumps(manifest))


def _rows(rows: object, weight: torch.Tensor | None = None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with safe_open(folder / SECOND, framework="pt") as file:
            metadata = dict(file.metadata())
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        metadata["rows"] = json.dumps(rows)
        save_file(tensors if weight is None else {"layer.weight": weight}, folder / SECOND, metadata)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_swapped, "does not belong to this backup: its part is 1 instead of 2"),
        (_of_another_kind, "does not belong to this backup: its kind is ema instead of weights"),
        (_of_another_backup, "does not belong to this backup: its step is 4 instead of 3"),
        (_without_file, f"{SECOND} is not listed"),
        (_named_elsewhere, "is not listed"),
        (_manifest(parts=None), "version 2 needs a number of parts"),
        (_manifest(version=1), "version 1 has no number of parts"),
        (_manifest(version=3), "version 3 needs data.safetensors"),
        (_manifest(parts=3), "is not listed"),
        (_manifest(parts=10**9), "'parts'"),
        (_manifest(parts=-2), "'parts'"),
        (_rows({"layer.weight": [51, 2**53 - 1]}), "has another shape or type in one part than in another"),
        (_rows({"layer.weight": [50, 101]}), "has rows from 50 on"),
        (_rows({"layer.weight": [60, 101]}), "has rows from 60 on"),
        (_rows({"layer.weight": [-1, 101]}), "the list of rows in its header"),
        (_rows({"layer.weight": [51, 101, 1]}), "the list of rows in its header"),
        (_rows({"layer.weight": [51, 101], "x": [0, 1]}), "it has no 'x', whose rows it names"),
        (_rows({}), "one of them has it as a whole"),
        (_rows([[[]]]), "the list of rows in its header"),
        (_rows({"layer.weight": [51, 101]}, torch.zeros(49)), "has 100 rows in all parts, and 101"),
        (_rows({"layer.weight": [51, 101]}, torch.zeros(50, 2)), "has another shape or type"),
        (_rows({"layer.weight": [51, 101]}, torch.zeros(50, dtype=torch.int8)), "has another shape or type"),
        (_rows({"layer.weight": [51, 101]}, torch.tensor(0.0)), "is a single number, but has rows"),
    ],
)
def test_parts_that_do_not_make_up_a_backup_are_refused(
    written: Path, tmp_path: Path, change: Callable[[Path], None], said: str
) -> None:
    folder = Path(shutil.copytree(written / "step-000003", tmp_path / "step-000003"))
    shutil.copytree(written / "step-000003", tmp_path / "good")
    shutil.copytree(written / "step-000004", tmp_path / "other")
    change(folder)
    if "weights-00002" in str(find_damage(folder)) and "listed" not in str(find_damage(folder)):
        seal(folder)  # so that the checksums match
    fault = fault_of(folder)
    assert said in fault
    assert fault.count("\n") == 0
    assert len(fault) < 1500


@pytest.mark.parametrize("change", [_swapped, _of_another_backup])
def test_a_part_that_the_manifest_does_not_fit_is_no_backup(
    written: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    for name, source in (("step-000003", 3), ("good", 3), ("other", 4)):
        shutil.copytree(written / f"step-00000{source}", tmp_path / name)
    change(tmp_path / "step-000003")
    newest, faults = Backups(tmp_path, keep=9).newest_valid()
    assert newest is None
    assert re.search(r"is damaged: .*weights-00002-of-00002\.safetensors (does not match|has another size)", faults[0])


@pytest.mark.parametrize("folder", ["..", ".", "a/b", "/etc", "../x", "..\\x", "step-1/.."])
def test_no_rank_is_sent_outside_of_the_backups(folder: str) -> None:
    assert Announcement(ticket=1, folder=".partial-step-000004").folder
    with pytest.raises(ValidationError):
        Announcement(ticket=1, folder=folder)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 30 inodes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=30", "tmpfs", str(folder)]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here: it needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("fault", ["inodes", "read-only"])
def test_a_disk_without_inodes_or_writes_is_a_warning(disk: Path, fault: str) -> None:
    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)

    pair = Pair(disk / "backup", keep=1)
    pair.submit(1)
    assert pair.writers[0].wait() is None
    for left in range(10) if fault == "inodes" else (0,):  # inodes; a backup needs ten and more
        if fault == "inodes":
            for number in range(30):
                try:
                    (disk / f"filler-{number}").touch()
                except OSError:
                    break
            for filler in list(disk.glob("filler-*"))[:left]:
                filler.unlink()
        else:
            remount("ro")
        pair.submit(2 + left)
        assert pair.writers[0].wait() == 2 + left
        said = "No space left on device" if fault == "inodes" else "Read-only file system"
        assert said in pair.report.events[-1]
        if fault == "read-only":
            remount("rw")
        assert Backups(disk / "backup", keep=1).newest_valid() == (disk / "backup" / "step-000001", [])
    for filler in disk.glob("filler-*"):
        filler.unlink()
    pair.submit(50)
    assert pair.writers[0].wait() is None
    assert pair.steps() == ["step-000050"]
