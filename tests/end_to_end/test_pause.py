"""SIGUSR1 pauses a run, whichever of its processes receives it; and a run that only fills the cache."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from modules.run.supervise.signals import PAUSE_SIGNAL
from tests.end_to_end.conftest import TrainingProcess
from tests.runs import group_settings, tiny_config, train_alone

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.skipif(not PAUSE_SIGNAL, reason="there is no SIGUSR1 here"),
]

Start = Callable[..., TrainingProcess]


def assert_paused(training: TrainingProcess) -> None:
    code, output = training.wait()
    assert code == 138, output
    assert "Traceback" not in output
    assert training.leftovers() == []
    last = training.run.events()[-1]
    assert (last["type"], last["reason"], last["exit_code"]) == ("finished", "paused", 138)


def test_a_signal_to_one_rank_pauses_all(start: Start, images: Path, tmp_path: Path) -> None:
    endless = {"max_steps": 100_000, "epochs": 1_000_000, "family_options": {"slow_step_s": 0.01}}
    training = start(tiny_config(images, tmp_path, **endless, **group_settings(2)))
    training.wait_for_step(3)
    [second] = [each for each in training.processes() if each.environ().get("RANK") == "1"]
    torchrun = second.parent()
    assert torchrun is not None
    assert torchrun.pid != training.process.pid
    torchrun.send_signal(PAUSE_SIGNAL)  # it must not die of it
    training.wait_for_step(len(training.run.events("step")) + 20)
    assert torchrun.status() != psutil.STATUS_ZOMBIE
    second.send_signal(PAUSE_SIGNAL)
    assert_paused(training)
    assert training.run.state.position.step == training.run.events("step")[-1]["step"]


def test_a_signal_to_the_supervisor_pauses_caching(start: Start, images: Path, tmp_path: Path) -> None:
    training = start(tiny_config(images, tmp_path, family_options={"slow_encode_s": 1.0}))
    is_caching = lambda: any(event.get("phase") == "caching" for event in training.run.events("phase"))  # noqa: E731
    training.wait_for(is_caching, "caching")
    training.process.send_signal(PAUSE_SIGNAL)
    assert_paused(training)


def test_repeated_pause_signals_then_sigterm(start: Start, images: Path, tmp_path: Path) -> None:
    """Slurm signals every process of a task, srun once more; SIGTERM at the time limit then finds a backup."""
    endless = {"max_steps": 100_000, "epochs": 1_000_000, "family_options": {"slow_step_s": 0.4}}
    training = start(tiny_config(images, tmp_path, **endless))
    training.wait_for_step(1)
    for process in training.processes():
        with suppress(psutil.NoSuchProcess):  # this process may have to wait for the CPU until the run has paused
            process.send_signal(PAUSE_SIGNAL)
    training.process.send_signal(PAUSE_SIGNAL)
    training.process.send_signal(signal.SIGTERM)
    code, output = training.wait()
    assert code in {138, 143}, output
    # the supervisor reports it, unless the rank has paused and exited before the supervisor gets the CPU
    assert "Pausing after a backup" in output or "(SIGUSR1, or max_minutes), after a backup" in output
    assert training.run.state.position.step >= 1
    assert training.leftovers() == []


def test_a_time_limit_pauses_caching_and_training(images: Path, tmp_path: Path) -> None:
    slow = {"slow_encode_s": 0.2}
    code, run = train_alone(tiny_config(images, tmp_path, max_minutes=0.01, family_options=slow))
    assert (code, run.events()[-1]["reason"]) == (138, "paused")
    assert run.events("step") == []
    endless = {"max_steps": 100_000, "epochs": 1_000_000, "family_options": {"slow_step_s": 0.01}}
    code, run = train_alone(tiny_config(images, tmp_path, max_minutes=0.03, **endless), resume="latest")
    assert (code, run.exit_code) == (138, 138)
    assert run.state.position.step > 0
    assert run.events("step")[-1]["step"] == run.state.position.step
    first = run.state.position.step
    code, run = train_alone(tiny_config(images, tmp_path, max_steps=first + 1, epochs=100_000), resume="latest")
    assert (code, run.state.position.step) == (0, first + 1)


def test_cache_only_fills_the_cache_and_trains_nothing(start: Start, images: Path, tmp_path: Path) -> None:
    caching = start(tiny_config(images, tmp_path, cache_only=True, **group_settings(2)))
    code, output = caching.wait()
    assert code == 0, output
    assert "nothing was trained" in output
    assert caching.leftovers() == []
    last = caching.run.events()[-1]
    assert (last["type"], last["reason"], last["exit_code"]) == ("finished", "cached", 0)
    assert caching.run.events("started") == caching.run.events("step") == caching.run.events("backup") == []
    assert not caching.run.folder.model_dir.exists()
    assert {folder.name for folder in (tmp_path / "cache").glob("rank-*")} == {"rank-0", "rank-1"}

    code, run = train_alone(tiny_config(images, tmp_path))  # under the same name
    assert code == 0
    phases = run.events("phase")
    assert [event for event in phases[phases.index(caching.run.events("phase")[-1]) + 1 :] if event.get("total")] == []
