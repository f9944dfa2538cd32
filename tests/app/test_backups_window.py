"""The window's list of a run's backups: checks them, goes back to one and removes old ones (scripts/backup.py)."""

from __future__ import annotations

import json
import tkinter as tk
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.windows.backups import BackupsWindow
from modules.run import RunFolder
from tests.app.fake_runs import make_fake_run
from tests.app.run_driver import Driven
from tests.checkpoint.states import state_at

pytestmark = pytest.mark.slow


@pytest.fixture
def driven(home: Path, preferences: Path) -> Iterator[Driven]:
    driven = Driven()
    yield driven
    driven.close()


@pytest.fixture
def run(home: Path) -> RunFolder:
    from modules.checkpoint import Backups

    folder = make_fake_run(home / "runs" / "cats", steps=20, backups_kept=2)
    for step in (5, 10, 15):
        Backups(folder.backup_dir, keep=9).write(state_at(step), "{}")
    return folder


def opened(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> BackupsWindow:
    """The window that the button of the Runs page opens for the one selected run."""
    shown: list[BackupsWindow] = []
    show = BackupsWindow.show
    monkeypatch.setattr(BackupsWindow, "show", lambda window: (shown.append(window), show(window))[1])
    page = driven.monitor("runs")
    driven.until(lambda: "cats" in page.runs, "the run")
    page.select(["cats"])
    driven.until(lambda: page.bar.backups.cget("state") == "normal", "the button")
    driven.click(page.bar.backups)
    driven.until(lambda: shown and shown[0].child is None and shown[0].backups, "the list")
    return shown[0]


def rows(window: BackupsWindow) -> list[tuple[Any, ...]]:
    return [tuple(window.table.item(item, "values")) for item in window.table.get_children()]


def manifest_number(run: RunFolder, step: int) -> int:
    data = json.loads((run.backup_dir / f"step-{step:06d}" / "manifest.json").read_text())
    return int(data["number"])


def test_backups_are_listed_checked_restored_and_removed(
    driven: Driven, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = run.backup_dir / "step-000010" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    window = opened(driven, monkeypatch)
    assert [row[0] for row in rows(window)] == ["15", "10", "5"]
    assert {row[4] for row in rows(window)} == {"complete"}
    assert window.restore_button.cget("state") == "disabled", "nothing is selected"

    driven.click(window.verify_button)
    driven.until(lambda: window.child is None, "the check")
    assert [row[4] == "undamaged" for row in rows(window)] == [True, False, True]
    assert rows(window)[1][4].startswith("damaged: the checksum of weights.safetensors")
    assert "1 of 3 cannot be used" in window.status.cget("text")
    window.table.selection_set(window.table.get_children()[1])
    driven.live(0.1)
    assert window.restore_button.cget("state") == "disabled", "a damaged one"
    assert "step-000010 is damaged" in window.status.cget("text")

    window.table.selection_set(window.table.get_children()[2])
    driven.live(0.1)
    driven.click(window.restore_button)
    driven.until(lambda: window.child is None and rows(window)[0][0] == "5", "the restored one first")
    assert "continues at step 5" in window.status.cget("text")
    assert manifest_number(run, 5) > manifest_number(run, 15)

    driven.click(window.remove_button)
    driven.until(lambda: len(toplevels(window)) == 1, "the question")
    driven.press("Escape")
    driven.until(lambda: not toplevels(window), "the question gone")
    assert len(list(run.backup_dir.iterdir())) == 3, "Escape removes nothing"
    driven.click(window.remove_button)
    driven.until(lambda: len(toplevels(window)) == 1, "the question")
    remove = next(
        each for each in widgets(toplevels(window)[0]) if hasattr(each, "invoke") and each.cget("text") == "Remove"
    )
    driven.click(remove)
    driven.until(lambda: window.child is None and len(rows(window)) == 2, "the removal")
    assert sorted(path.name for path in run.backup_dir.iterdir()) == ["step-000005", "step-000015"]
    driven.press("Escape")
    driven.until(lambda: not window.dialog.window.winfo_exists(), "closed")


def toplevels(window: BackupsWindow) -> list[tk.Misc]:
    return [each for each in widgets(window.dialog.window) if isinstance(each, tk.Toplevel)]


def widgets(parent: tk.Misc) -> list[tk.Misc]:
    return [each for child in parent.winfo_children() for each in (child, *widgets(child))]
