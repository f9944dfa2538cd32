"""Recorded failures and the root cause among them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from modules.config import ConfigError
from modules.run import (
    Failure,
    RunFolder,
    clear_failures,
    create_reserve,
    record_failure,
    release_reserve,
    root_cause,
)


def test_root_cause_is_the_earliest_primary_failure(folder: RunFolder) -> None:
    assert root_cause(folder) is None
    record_failure(folder, Failure(0, "a", "peer_lost", "lost", time=1.0))
    assert root_cause(folder) == Failure(0, "a", "peer_lost", "lost", time=1.0)
    record_failure(folder, Failure(3, "b", "error", "later", time=3.0))
    cause = Failure(1, "b", "out_of_memory", "first", "less", "Traceback\n  line ü", time=2.0)
    record_failure(folder, cause)
    (folder.log_dir / "rank-9.error.json").write_text('{"rank": 9')
    assert root_cause(folder) == cause
    lines = folder.log_file(1).read_text(encoding="utf-8").splitlines()
    assert [line.split(" rank 1 ")[1] for line in lines] == ["Traceback", "  line ü"]
    clear_failures(folder, range(4))
    assert root_cause(folder) is None


def test_recording_never_hides_the_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("a file where the folder should be")
    record_failure(RunFolder(tmp_path / "x"), Failure(0, "a", "error", "the real reason"))
    assert "the real reason" in capfd.readouterr().err


def test_keep_existing_failure(folder: RunFolder) -> None:
    own = Failure(1, "b", "error", "its own message", time=1.0)
    record_failure(folder, own, keep_existing=True)
    record_failure(folder, Failure(1, "b", "gone", "it is gone", time=2.0), keep_existing=True, since=0.5)
    assert root_cause(folder) == own
    of_this_start = Failure(1, "b", "lost", "it cannot be reached", time=3.0)
    record_failure(folder, of_this_start, keep_existing=True, since=2.0)
    assert root_cause(folder) == of_this_start


def test_reserve_is_used_on_a_full_disk(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    create_reserve(folder, 1)
    monkeypatch.setattr(Path, "write_text", _full_disk)  # a real full disk is in tests/end_to_end/test_fault_suite.py
    failure = Failure(1, "b", "disk_full", "No space left on device", time=1.0)
    record_failure(folder, failure)
    assert root_cause(folder) == failure
    release_reserve(folder, range(2))
    assert [path.name for path in folder.log_dir.iterdir()] == ["rank-1.error.json"]


def _full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_failure_from_exception() -> None:
    failure = Failure.from_exception(ConfigError("bad", "good"), rank=2, traceback="Traceback")
    assert (failure.rank, failure.kind, failure.message, failure.advice) == (2, "config", "bad", "good")
    assert failure.host
