"""Schedules, learning-rate scaling and what is due when: plain functions of the config and the progress."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from modules.config import Interval, TrainConfig
from modules.config.schedules import learning_rate_factor, long_warmup
from modules.data.loading.progress import Progress
from modules.run.folder.commands import COMMAND_NAMES, REGROUP
from modules.training.actions import ACTIONS
from modules.training.state.early_stopping import EarlyStopping
from modules.training.state.plan import plan_run
from modules.training.step.triggers import TimeTrigger, is_due


def config(**settings: object) -> TrainConfig:
    return TrainConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"scheduler": "constant"}, [1, 1, 1, 1]),
        ({"scheduler": "linear"}, [1, 0.75, 0.5, 0.25]),
        ({"scheduler": "cosine"}, [1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125)]),
        ({"scheduler": "cosine_with_restarts", "scheduler_cycles": 2}, [1, 0.5, 1, 0.5]),
        ({"scheduler": "polynomial", "scheduler_power": 2}, [1, 0.5625, 0.25, 0.0625]),
        ({"scheduler": "rex"}, [1, 0.75 / 0.775, 0.5 / 0.55, 0.25 / 0.325]),
        ({"scheduler": "linear", "min_learning_rate_factor": 0.2}, [1, 0.8, 0.6, 0.4]),
    ],
)
def test_schedules_have_these_values_at_quarters(settings: dict[str, object], expected: list[float]) -> None:
    found = [learning_rate_factor(step, 100, config(**settings)) for step in (0, 25, 50, 75)]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "steps", "named"),
    [
        ({"warmup_steps": 500}, 100, "warmup_steps: the learning rate rises over 500 steps, but"),
        ({"warmup_fraction": 1.0}, 100, "warmup_fraction: the learning rate rises over 100 steps"),
        ({"warmup_steps": 99}, 100, ""),
        ({"warmup_steps": 5}, 0, ""),
    ],
)
def test_a_warm_up_that_lasts_the_whole_run_is_told(settings: dict[str, object], steps: int, named: str) -> None:
    found = long_warmup(config(**settings), steps)
    assert found.startswith(named)
    assert bool(found) == bool(named)


@pytest.mark.parametrize("scheduler", ["linear", "cosine", "cosine_with_restarts", "polynomial", "rex"])
def test_schedules_end_at_the_floor_and_stay_there(scheduler: str) -> None:
    settings = config(scheduler=scheduler, min_learning_rate_factor=0.1)
    assert learning_rate_factor(100, 100, settings) == pytest.approx(0.1)
    assert learning_rate_factor(500, 100, settings) == pytest.approx(0.1)


def test_warm_up_rises_evenly_and_the_schedule_begins_after_it() -> None:
    settings = config(scheduler="linear", warmup_steps=3)
    found = [learning_rate_factor(step, 13, settings) for step in (0, 1, 2, 3, 8)]
    assert found == pytest.approx([0.25, 0.5, 0.75, 1, 0.5])


def test_a_warm_up_may_be_a_fraction_of_the_run() -> None:
    settings = config(scheduler="linear", warmup_fraction=0.25)
    found = [learning_rate_factor(step, 15, settings) for step in (0, 1, 2, 3, 9)]
    assert found == pytest.approx([0.25, 0.5, 0.75, 1, 0.5]), "three steps: rounded down"
    with pytest.raises(ValidationError, match="warmup_fraction") as caught:
        config(warmup_steps=3, warmup_fraction=0.25)
    assert "is 0.25, and warmup_steps is 3; set one of them to 0" in str(caught.value.errors())


def test_a_warm_up_longer_than_the_run_is_no_fault() -> None:
    settings = config(scheduler="cosine", warmup_steps=50)
    assert all(0 < learning_rate_factor(step, 10, settings) < 1 for step in range(10))


@pytest.mark.parametrize(("scaling", "factor"), [("sqrt", 2.0), ("linear", 4.0), ("none", 1.0)])
def test_the_learning_rate_is_scaled_with_the_ranks(scaling: str, factor: float) -> None:
    plan = plan_run(config(lr_scaling=scaling, batch_size=3, gradient_accumulation_steps=2, learning_rate=0.1), 4)
    assert plan.global_batch_size == 24
    assert plan.original_learning_rate == 0.1
    assert plan.learning_rate == pytest.approx(0.1 * factor)
    assert (scaling in plan.explanation) == (factor != 1)


def test_a_fixed_effective_batch_keeps_the_learning_rate() -> None:
    plan = plan_run(config(lr_scaling="linear", batch_size=3, global_batch_size=10, learning_rate=0.1), 4)
    assert (plan.global_batch_size, plan.learning_rate, plan.explanation) == (10, 0.1, "")


def test_one_rank_is_not_scaled() -> None:
    assert plan_run(config(lr_scaling="linear", batch_size=3, learning_rate=0.1), 1).learning_rate == 0.1


def due_at(interval: Interval, steps: int = 20) -> list[int]:
    """The steps after which `interval` is due, with 41 samples an epoch and 8 a step."""
    before, found = Progress(0, 41, 8), []
    for _ in range(steps):
        after = before.after(before.step_samples)
        if is_due(interval, before, after):
            found.append(after.step)
        before = after
    return found


def test_intervals_in_steps_and_epochs_are_due_when_complete() -> None:
    assert due_at(Interval(7, "steps")) == [7, 14]
    assert due_at(Interval(1, "epochs")) == [6, 12, 18]
    assert due_at(Interval(2, "epochs")) == [12]
    assert due_at(Interval(0.5, "epochs")) == [3, 6, 9, 12, 15, 18]
    assert due_at(Interval.never()) == []
    assert due_at(Interval(1, "minutes")) == []


def test_time_triggers_know_minutes_only_and_are_due_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("modules.training.step.triggers.time.monotonic", lambda: now[0])
    trigger = TimeTrigger({"backup": Interval(2, "minutes"), "sample": Interval(5, "steps")})
    assert trigger.due() == []
    now[0] += 120
    assert trigger.due() == ["backup"]
    assert trigger.due() == []


def test_early_stopping_after_validations_without_improvement() -> None:
    stopping = EarlyStopping(2)
    for loss in (3.0, 2.0, 2.0, 1.9, 2.5):
        stopping.update(loss)
        assert not stopping.should_stop
    stopping.update(1.9)
    assert stopping.should_stop
    assert stopping.best == 1.9


def test_without_patience_there_is_no_early_stopping() -> None:
    stopping = EarlyStopping(None)
    for loss in range(100):
        stopping.update(loss)
    assert not stopping.should_stop


def test_a_nan_loss_is_no_improvement() -> None:
    stopping = EarlyStopping(1, best=2.0)
    stopping.update(math.nan)
    assert stopping.should_stop


def test_a_first_nan_loss_does_not_stay_the_best() -> None:
    stopping = EarlyStopping(2)
    for loss in (math.nan, 1.0, 1.5):
        stopping.update(loss)
    assert stopping.best == 1.0
    assert not stopping.should_stop


def test_the_requestable_actions_are_the_commands_of_the_run_folder() -> None:
    assert {action.name for action in ACTIONS if action.can_be_requested} | {"stop", REGROUP} == set(COMMAND_NAMES)
