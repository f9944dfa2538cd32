"""The real command, fully sharded: commands, stopping, resuming in another mode; test_three_ranks has real families."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from modules.run import request_command
from modules.training.studies.parity import weight_difference
from scripts import train
from tests.end_to_end.conftest import TrainingProcess
from tests.runs import ROOT, group_settings, tiny_config, train_alone, train_command

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

SETTINGS = {
    "family": str(ROOT / "tests" / "block_family.py"),
    "family_options": {"width": 5, "slow_step_s": 0.05},
    "precision": "fp64",
    "ema": True,
    "epochs": 1_000_000,
    "samples": [{"prompt": "a red disc", "steps": 1, "width": 16, "height": 16}],
}
SHARDED = {**SETTINGS, **group_settings(2), "training_mode": "fully_sharded"}


def test_it_obeys_commands_stops_and_resumes_unsharded(
    start: Callable[..., TrainingProcess], images: Path, tmp_path: Path
) -> None:
    training = start(tiny_config(images, tmp_path, max_steps=100_000, **SHARDED))
    training.wait_for_step(3)
    run = training.run
    for name, is_done in (
        ("sample", lambda: bool(run.events("sample"))),
        ("save", lambda: (run.folder.model_dir / "tandem.json").exists()),
        ("stop", lambda: bool(run.events("finished"))),
    ):
        request_command(run.folder, name)
        training.wait_for(is_done, name)
    code, output = training.wait()
    assert code == 130, output
    assert "Fully sharded in 4 units" in output
    assert training.leftovers() == []
    last = run.state.position.step
    whole = tiny_config(images, tmp_path, **{**SETTINGS, "max_steps": last + 3})
    code, _ = train_alone(whole, "latest")
    assert code == 0, run.failure(0)
    assert [event["step"] for event in run.events("step")][-3:] == [last + 1, last + 2, last + 3]
    _, alone = train_alone(tiny_config(images, tmp_path, **{**SETTINGS, "run_name": "alone", "max_steps": last + 3}))
    assert weight_difference(alone.state, run.state) <= 1e-9


def test_a_dry_run_shows_what_would_be_started(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = train_command(tiny_config(images, tmp_path, **SHARDED), tmp_path / "c.json")[2:]
    assert train.main([*argv, "--dry_run"]) == 0
    assert "2 processes (gloo)" in capsys.readouterr().out
    assert train.main([*argv, "--notify", "http://example.org/secret"]) == 2
    assert "notify is http://example.org/***, which is no https URL" in capsys.readouterr().err
    assert train.main([*argv, "--set", "optimizer=came"]) == 2
    assert "optimizer is came" in capsys.readouterr().err
