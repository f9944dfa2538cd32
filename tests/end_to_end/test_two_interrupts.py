"""Ctrl-C twice while a backup is written: the run ends at once, no backup is damaged, and it is resumed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.checkpoint import Backups
from tests.end_to_end.conftest import TrainingProcess
from tests.runs import group_settings, tiny_config

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

ENDLESS = {"max_steps": 1_000_000, "epochs": 1_000_000, "backup_every": "3 steps", "backups_kept": 2}
OPTIONS = {"slow_step_s": 0.02, "width": 512}


@pytest.mark.parametrize(
    ("ranks", "mode", "delays_s"),  # between the two, of which the first asks for a last backup
    [(1, "auto", (0.0, 0.03)), (2, "fully_sharded", (0.03,))],
)
def test_two_interrupts_during_a_backup(
    start: Callable[..., TrainingProcess],
    images: Path,
    tmp_path: Path,
    ranks: int,
    mode: str,
    delays_s: tuple[float, ...],
) -> None:
    many = {**group_settings(ranks), "training_mode": mode} if ranks > 1 else {}
    config = tiny_config(images, tmp_path, **ENDLESS, **many, family_options=OPTIONS)
    steps: list[int] = []
    for delay_s in delays_s:
        training = start(config, *(["--resume", "latest"] if steps else []))

        def begun(training: TrainingProcess = training) -> int:
            return sum(event.get("step") is not None for event in training.run.events("backing_up"))

        before = begun() if training.run.folder.events_file.exists() else 0
        training.wait_for(lambda count=before: training.run.folder.events_file.exists() and begun() > count + 1, "one")  # type: ignore[misc]  # noqa: B023
        training.process.send_signal(signal.SIGINT)
        time.sleep(delay_s)
        training.process.send_signal(signal.SIGINT)
        code, output = training.wait(60)
        assert code == 130, output
        assert "Traceback" not in output
        assert training.leftovers() == []
        newest, damaged = Backups(training.run.folder.backup_dir, keep=2).newest_valid()
        assert newest is not None
        assert not damaged
        steps.append(int(newest.name.removeprefix("step-")))
    assert steps == sorted(set(steps)), "the second run continues"
