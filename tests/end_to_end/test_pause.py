"""SIGUSR1 pauses a run, whichever of its processes hears it; and a start that only fills the cache."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from modules.run.pause import PAUSE_SIGNAL
from tests.end_to_end.conftest import Started
from tests.runs import group_settings, tiny_config, train_alone

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.skipif(not PAUSE_SIGNAL, reason="there is no SIGUSR1 here"),
]

Start = Callable[..., Started]


def assert_paused(training: Started) -> None:
    code, said = training.end()
    assert code == 138, said
    assert "Traceback" not in said
    assert training.left() == []
    last = training.run.events()[-1]
    assert (last["type"], last["reason"], last["exit_code"]) == ("finished", "paused", 138)


def test_one_rank_that_hears_it_pauses_all(start: Start, pictures: Path, tmp_path: Path) -> None:
    endless = {"max_steps": 100_000, "epochs": 1_000_000, "family_options": {"slow_step_s": 0.01}}
    training = start(tiny_config(pictures, tmp_path, **endless, **group_settings(2)))
    training.wait_for_step(3)
    [second] = [each for each in training.family() if each.environ().get("RANK") == "1"]
    torchrun = second.parent()
    assert torchrun is not None
    assert torchrun.pid != training.process.pid
    torchrun.send_signal(PAUSE_SIGNAL)  # it must not die of it
    training.wait_for_step(len(training.run.events("step")) + 20)
    assert torchrun.status() != psutil.STATUS_ZOMBIE
    second.send_signal(PAUSE_SIGNAL)
    assert_paused(training)
    assert training.run.state.position.step == training.run.events("step")[-1]["step"]


def test_the_supervisor_hears_it_while_pictures_are_prepared(start: Start, pictures: Path, tmp_path: Path) -> None:
    training = start(tiny_config(pictures, tmp_path, family_options={"slow_encode_s": 1.0}))
    is_caching = lambda: any(event.get("phase") == "caching" for event in training.run.events("phase"))  # noqa: E731
    training.wait_for(is_caching, "caching")
    training.process.send_signal(PAUSE_SIGNAL)
    assert_paused(training)


def test_a_repeated_pause_and_then_a_signal_to_end(start: Start, pictures: Path, tmp_path: Path) -> None:
    """Slurm says it to every process of a task, srun once more; SIGTERM at the time limit then finds a backup."""
    endless = {"max_steps": 100_000, "epochs": 1_000_000, "family_options": {"slow_step_s": 0.4}}
    training = start(tiny_config(pictures, tmp_path, **endless))
    training.wait_for_step(1)
    for process in training.family():
        process.send_signal(PAUSE_SIGNAL)
    training.process.send_signal(PAUSE_SIGNAL)
    training.process.send_signal(signal.SIGTERM)
    code, said = training.end()
    assert code in {138, 143}, said
    assert "Pausing after a backup" in said
    assert training.run.state.position.step >= 1
    assert training.left() == []


def test_cache_only_fills_the_cache_and_leaves_the_run_to_be_trained(
    start: Start, pictures: Path, tmp_path: Path
) -> None:
    caching = start(tiny_config(pictures, tmp_path, cache_only=True, **group_settings(2)))
    code, said = caching.end()
    assert code == 0, said
    assert "nothing was trained" in said
    assert caching.left() == []
    last = caching.run.events()[-1]
    assert (last["type"], last["reason"], last["exit_code"]) == ("finished", "cached", 0)
    assert caching.run.events("started") == caching.run.events("step") == caching.run.events("backup") == []
    assert not caching.run.folder.model_dir.exists()
    assert {folder.name for folder in (tmp_path / "cache").glob("rank-*")} == {"rank-0", "rank-1"}

    code, run = train_alone(tiny_config(pictures, tmp_path))  # under the same name
    assert code == 0
    told = run.events("phase")
    assert [event for event in told[told.index(caching.run.events("phase")[-1]) + 1 :] if event.get("total")] == []
