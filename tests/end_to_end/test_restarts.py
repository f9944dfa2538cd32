"""torchrun starts all ranks again after a failure: they resume exactly from the newest backup, with a warning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.conftest import TrainingProcess
from tests.runs import Job, group_settings, same_state, tiny_config, train_group

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

Start = Callable[..., TrainingProcess]
SETTINGS = {"max_steps": 40, "backup_every": "5 steps", "ema": True}


def test_a_restarted_run_ends_in_the_same_weights(start: Start, images: Path, tmp_path: Path) -> None:
    plain, struck = {"dropout": 0.2}, {"dropout": 0.2, "faults": ["FIRST:kill:1:30"]}
    again = start(tiny_config(images, tmp_path, **SETTINGS, **group_settings(2), max_restarts=2, family_options=struck))
    (tmp_path / "whole").mkdir()
    whole = tiny_config(images, tmp_path / "whole", **SETTINGS, **group_settings(2), family_options=plain)
    same = train_group(2, {"whole": Job(whole)})["whole"]
    code, output = again.wait()
    assert code == 0, output
    assert again.leftovers() == []
    assert same_state(again.run.state, same.state)
    (warning,) = [line for line in again.run.warnings.splitlines() if "Restart" in line]
    assert warning.startswith("Restart 1 of 2 from the newest backup, because rank 1 on ")
    assert "SIGKILL" in warning
    assert [event["type"] for event in again.run.events()].count("finished") == 1
    assert len(again.run.events("started")) == 2
    assert not list(again.run.folder.log_dir.glob("*.error.json"))


def test_if_every_restart_fails_the_last_failure_is_reported(start: Start, images: Path, tmp_path: Path) -> None:
    options = {"faults": ["error:1:9"], "slow_step_s": 0.02}
    settings = {**SETTINGS, **group_settings(2), "max_restarts": 1, "backup_every": "never"}
    run = start(tiny_config(images, tmp_path, **settings, family_options=options))
    code, output = run.wait()
    assert code == 3, output
    assert output.count("Training stopped") == 1
    message = output[output.index("Training stopped: rank 1 on ") :]
    assert "a mistake in the family's own code" in message
    assert "rank-1.txt" in message
    assert "Traceback (most" not in message
    assert "Restart 1 of 1" in run.run.warnings
    kinds = [event["type"] for event in run.run.events()]
    assert kinds[-2:] == ["error", "finished"]
    assert kinds.count("finished") == 1
    assert run.leftovers() == []
