"""Disks that fail and runs that are killed, in short; `scripts/torture.py writes disks kills` is the whole."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from modules.checkpoint import Backups
from tests.torture.breakdowns import run_breakdowns
from tests.torture.failing_backups import every_call
from tests.torture.records import print_record
from tests.torture.shim import Faults
from tests.torture.test_torture import described
from tests.torture.watch import Plan

CASES = {"writes": 60, "disks": 3, "kills": 2}
FIRST = {"disks": 7}  # the last one has a slow disk


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_no_breakdown_loses_anything(tmp_path: Path, kind: str) -> None:
    tally = run_breakdowns(Plan(kind, FIRST.get(kind, 0), FIRST.get(kind, 0) + CASES[kind] - 1), "ci", tmp_path)
    if tally is None:
        pytest.skip("needs Linux and a C compiler")
    assert not described([tally])
    assert tally.cases == CASES[kind]
    assert tally.accepted > 0


class NoFaults(Faults):
    """Counts nothing."""

    def __init__(self) -> None:
        self.armed = 0

    def place(self, folder: Path, restart: str = "") -> None:
        pass

    def arm(self, call: int, error: int, *, lasts: bool) -> None:
        self.armed = call

    def disarm(self) -> None:
        self.armed = 0

    @property
    def count(self) -> int:
        return 99


def test_a_damaged_backup_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def truncated(backups: Backups, state: object, config_json: str) -> Path:
        folder = write(backups, state, config_json)  # type: ignore[arg-type]
        (folder / "weights.safetensors").write_bytes(b"")
        return folder

    write = Backups.write
    monkeypatch.setattr(Backups, "write", truncated)
    calls = every_call(tmp_path, NoFaults(), errno.EIO, lasts=False, is_same=False, in_parts=False)
    assert print_record(0, lambda: (next(calls), ""))
    assert "the checksum of weights.safetensors does not match" in capsys.readouterr().out
