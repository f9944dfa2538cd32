"""Early stopping by any metric, the best weights, and the same decision on every rank."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from modules.checkpoint import Backups, BestValidation, BestWeights, read_best
from modules.config import ConfigError, TrainConfig, validate
from modules.distributed import RankEnv
from modules.monitoring import SilentReport
from modules.run import RunFolder
from modules.training.memory.model_setup import check_available
from modules.training.state.early_stopping import EarlyStopping, value_of_rank0
from modules.training.worker import join_ranks
from tests.checkpoint.states import state_at
from tests.classes import classifier_config, write_classes
from tests.ports import free_port
from tests.runs import Run, group_exit_codes, in_ranks, same_state, same_tensors, tiny_config, train_alone

pytestmark = pytest.mark.xdist_group("pair")

# the loss of the validations falls, then rises
DIVERGING: dict[str, object] = {
    "max_steps": 20,
    "learning_rate": 0.05,
    "validation_split": 0.2,
    "validate_every": "2 steps",
    "early_stopping_patience": 2,
}

RESTORED: dict[str, object] = {**DIVERGING, "ema": True, "restore_best": True, "precision": "fp64"}
PAIR_JOBS: dict[str, dict[str, object]] = {
    "best": RESTORED,
    "sharded best": {**RESTORED, "training_mode": "fully_sharded"},
}


def stopping(mode: str = "auto", min_delta: float = 0.0, metric: str = "loss") -> EarlyStopping:
    return EarlyStopping.of(config_of(mode, min_delta, metric))


def config_of(mode: str = "auto", min_delta: float = 0.0, metric: str = "loss", patience: int = 2) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "early_stopping_patience": patience,
            "early_stopping_mode": mode,
            "early_stopping_min_delta": min_delta,
            "early_stopping_metric": metric,
            "validate_every": "1 epoch",
            "validation_split": 0.1,
        }
    )


@pytest.mark.parametrize(
    ("judge", "values", "best", "step", "waits"),
    [
        (stopping(), [3.0, 2.0, 2.5], 2.0, 1, 1),
        (stopping(metric="accuracy"), [0.5, 0.7, 0.6], 0.7, 1, 1),
        (stopping(metric="top5_accuracy"), [0.5, 0.4], 0.5, 0, 1),
        (stopping("max"), [3.0, 2.0], 3.0, 0, 1),
        (stopping("min", metric="accuracy"), [0.5, 0.4], 0.4, 1, 0),
        (stopping(min_delta=0.5), [3.0, 2.6, 2.4], 2.4, 2, 0),
        (stopping(min_delta=0.5), [3.0, 2.5], 3.0, 0, 1),
        (stopping("max", 0.1), [0.5, 0.55, 0.59, 0.7], 0.7, 3, 0),
        (stopping("max"), [-math.inf, math.inf, math.nan], None, None, 3),
    ],
)
def test_what_counts_as_an_improvement(
    judge: EarlyStopping, values: list[float], best: float | None, step: int | None, waits: int
) -> None:
    for number, value in enumerate(values):
        judge.update(value, number)
    assert (judge.best, judge.best_step, judge.wait_count) == (best, step, waits)


def test_a_metric_whose_direction_is_unknown_needs_a_mode() -> None:
    given = json.loads(config_of("max", metric="f1").model_dump_json())
    with pytest.raises(ConfigError, match="auto, but whether higher values of 'f1' are better is not known"):
        validate({**given, "early_stopping_mode": "auto"}, "the test")


def test_another_metric_in_a_resumed_run_starts_anew() -> None:
    position, former = state_at(4).position, json.loads(config_of().model_dump_json())
    same = stopping()
    assert same.restore(position, config_of(), former)
    assert (same.best, same.best_step, same.wait_count) == (0.5, 4, 1)
    assert stopping().restore(position, config_of(), {}), "version 0.1 had the loss only"
    for mode, metric in (("auto", "accuracy"), ("max", "loss")):
        other = stopping(mode, metric=metric)
        assert not other.restore(position, config_of(mode, metric=metric), former)
        assert (other.best, other.wait_count) == (None, 0)


@pytest.fixture(scope="module")
def diverged(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that stopped early; its model is the last one."""
    place = tmp_path_factory.mktemp("diverged")
    code, run = train_alone(tiny_config(images, place, **DIVERGING, ema=True))
    assert code == 0
    return run


def best_folder(run: Run) -> Path:
    (folder,) = run.folder.best_dir.iterdir()
    return folder


def test_the_best_and_the_last_weights_are_kept(diverged: Run) -> None:
    events = diverged.events("validation")
    losses = {int(str(event["step"])): float(str(event["loss"])) for event in events}
    step = min(losses, key=lambda at: losses[at])
    assert step < max(losses), "the test needs a run that becomes worse"
    folder = best_folder(diverged)
    assert folder.name == f"step-{step:06d}-loss-{losses[step]:.4g}"
    with safe_open(folder / "weights.safetensors", "pt") as file:
        assert file.metadata() == {"step": str(step), "metric": "loss", "value": repr(losses[step])}
    best, last = load_file(folder / "weights.safetensors"), diverged.state
    assert last.ema is not None
    saved = load_file(diverged.folder.model_dir / "weights.safetensors")
    assert all(torch.equal(saved[name], last.ema[name]) for name in last.ema), "the model is the last one"
    assert any(not torch.equal(saved[name], best[name]) for name in last.ema)
    assert (last.position.best_step, last.position.best_validation) == (step, losses[step])


def trained_weights(run: Run) -> dict[str, torch.Tensor]:
    return load_file(run.folder.model_dir / "weights.safetensors")


def test_the_best_weights_are_tested_and_saved_at_the_end(images: Path, tmp_path: Path, diverged: Run) -> None:
    """Also by a run that had ended already."""
    place = Path(shutil.copytree(diverged.folder.path.parent, tmp_path / "runs")).parent
    best = load_file(best_folder(diverged) / "weights.safetensors")
    step = diverged.state.position.best_step
    config = tiny_config(images, place, **DIVERGING, ema=True, restore_best=True)
    code, resumed = train_alone(config, "latest")
    assert code == 0
    assert resumed.events()[-1]["reason"] == "early_stopping"
    code, whole = train_alone(tiny_config(images, tmp_path / "whole", **DIVERGING, ema=True, restore_best=True))
    assert code == 0
    for run in (resumed, whole):
        assert same_tensors(trained_weights(run), best)
        assert same_state(run.state, diverged.state), "the last backup is that of the last step"
        info = json.loads((run.folder.model_dir / "tandem.json").read_text())
        assert info["step"] == step
        assert info["metadata"]["tandem.best_metric"] == "loss"
        assert info["metadata"]["tandem.best_value"] == repr(diverged.state.position.best_validation)
        assert "restore_best" not in run.warnings
    log = next(whole.folder.log_dir.glob("rank-0.txt")).read_text()
    assert f"restore_best: the weights of step {step}, whose loss of" in log


def test_the_test_phase_measures_the_best_weights(images: Path, tmp_path: Path) -> None:
    """As a run of the saved model does, which learns nothing."""
    concepts = {"concepts": [{"path": str(images)}, {"path": str(images), "kind": "test"}]}
    _, run = train_alone(tiny_config(images, tmp_path, **DIVERGING, **concepts, ema=True, restore_best=True))
    (tested,) = (event for event in run.events("validation") if event["set"] == "test")
    assert tested["step"] == run.state.position.best_step
    still = {"base_model": str(run.folder.model_dir), "learning_rate": 1e-30, "max_steps": 1}
    _, again = train_alone(tiny_config(images, tmp_path, **concepts, **still, run_name="y"))
    (expected,) = (event["loss"] for event in again.events("validation") if event["set"] == "test")
    assert tested["loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_several_ranks_restore_the_best_weights_of_one(images: Path, tmp_path: Path, pair: dict[str, Run]) -> None:
    code, alone = train_alone(tiny_config(images, tmp_path, **RESTORED))
    assert code == 0
    for name in PAIR_JOBS:
        run = pair[name]
        assert group_exit_codes(run, 2) == [0, 0]
        assert run.state.position.best_step == alone.state.position.best_step
        assert run.state.position.step == alone.state.position.step
        assert best_folder(run).name == best_folder(alone).name
        for weight, expected in trained_weights(alone).items():
            torch.testing.assert_close(trained_weights(run)[weight], expected, rtol=1e-5, atol=1e-6)


def test_without_the_best_weights_the_last_ones_are_saved(images: Path, tmp_path: Path, diverged: Run) -> None:
    damage = {
        "none": (lambda folder: shutil.rmtree(folder), "are not in"),
        "cut": (lambda folder: (folder / "weights.safetensors").write_bytes(b"cut"), "does not match"),
        "info": (lambda folder: (folder / "best.json").write_text("{}"), "is wrong in"),
    }
    for name, (break_it, said) in damage.items():
        place = Path(shutil.copytree(diverged.folder.path.parent, tmp_path / name / "runs")).parent
        copy = Run(RunFolder(place / "runs" / "x"))
        break_it(best_folder(copy))
        code, run = train_alone(tiny_config(images, place, **DIVERGING, ema=True, restore_best=True), "latest")
        assert code == 0
        assert said in run.warnings
        assert run.state.ema is not None
        assert same_tensors(trained_weights(run), run.state.ema)


def test_a_resumed_run_keeps_the_same_best_weights(images: Path, tmp_path: Path, diverged: Run) -> None:
    settings = {**DIVERGING, "ema": True}
    _, first = train_alone(tiny_config(images, tmp_path, **{**settings, "max_steps": 3}))
    assert first.state.position.best_step == 2
    _, resumed = train_alone(tiny_config(images, tmp_path, **settings), "latest")
    assert resumed.state.position == diverged.state.position
    names = {folder.name for folder in resumed.folder.best_dir.iterdir()}
    assert best_folder(diverged).name in names
    kept = resumed.folder.best_dir / best_folder(diverged).name
    assert same_tensors(
        load_file(kept / "weights.safetensors"), load_file(best_folder(diverged) / "weights.safetensors")
    )


def test_only_best_weights_that_a_backup_needs_are_kept(tmp_path: Path) -> None:
    best, backups = BestWeights(tmp_path / "best"), Backups(tmp_path / "backup", keep=1)
    for step in (2, 4, 6):
        weights = {"w": torch.full((3,), float(step))}
        position = state_at(step).position
        folder = best.write(weights, BestValidation("top 5/x", 1 / step, position), backups.best_steps())
        assert folder.name == f"step-{step:06d}-top-5-x-{1 / step:.4g}"
        if step == 2:
            backups.write(state_at(2), "{}")
    assert best.find(4) is None
    assert best.find(2) is not None, "a resume from the backup of step 2 needs them"
    found = best.find(6)
    assert found is not None
    best.write({"w": torch.full((3,), 6.0)}, BestValidation("top 5/x", 1 / 6, state_at(6).position), {2})  # once more
    found.rename(found.with_name(f".partial-former-{found.name}"))  # as if killed while replacing them
    assert best.find(6) == found
    assert {path.name[:11] for path in (tmp_path / "best").iterdir()} == {"step-000002", "step-000006"}
    described, read = read_best(found)
    assert described == BestValidation("top 5/x", 1 / 6, state_at(6).position)
    assert torch.equal(read["w"], torch.full((3,), 6.0))


def test_accuracy_decides_and_an_unknown_metric_ends_the_run(tmp_path: Path) -> None:
    images = write_classes(tmp_path / "images", 12)
    settings = {"validation_split": 0.4, "validate_every": "1 step", "early_stopping_patience": 9, "max_steps": 2}
    config = classifier_config(images, tmp_path, **settings, resolution=16, early_stopping_metric="accuracy")
    code, run = train_alone(config)
    assert code == 0, run.failure(0)
    accuracies = [event["metrics"]["accuracy"] for event in run.events("validation")]  # type: ignore[index]
    assert run.state.position.best_validation == max(accuracies)
    assert "-accuracy-" in best_folder(run).name
    other = config.model_copy(update={"early_stopping_metric": "top5_accuracy", "run_name": "y"})
    code, run = train_alone(other)
    assert code == 2
    assert "a validation of this model measures accuracy, loss; use one of them" in run.failure(0)
    alone = tiny_config(images, tmp_path, **{**DIVERGING, "early_stopping_metric": "accuracy"})
    with pytest.raises(ConfigError, match="measures the loss only; set it to loss"):
        check_available(alone)


@pytest.mark.slow
def test_random_metrics_end_all_ranks_at_the_same_step(tmp_path: Path) -> None:
    """50 trials. Each rank has random numbers of its own; those of rank 0 decide."""
    in_ranks(stop_in_trials, 2, free_port(), (tmp_path, free_port()))
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert first == [expected_stop(trial) for trial in range(TRIALS)]
    assert len({stop for stop, _ in first}) > 5, "the trials differ"


TRIALS = 50


def judge_of(trial: int) -> EarlyStopping:
    return EarlyStopping(1 + trial % 5, "max" if trial % 2 else "min", 0.05 * (trial % 3))


def metrics_of(trial: int, rank: int) -> Iterator[float]:
    numbers = random.Random(f"{trial} {rank}")
    while True:
        yield math.nan if numbers.random() < 0.05 else numbers.gauss(0, 1)


def expected_stop(trial: int) -> list[float]:
    """The step at which the rule by hand ends the trial, and the best value until then."""
    sign, judge, best, bad = (-1 if trial % 2 else 1), judge_of(trial), math.inf, 0
    for step, value in enumerate(metrics_of(trial, rank=0)):
        if math.isfinite(value) and (best == math.inf or sign * value + judge.min_delta < best):
            best, bad = sign * value, 0
        else:
            bad += 1
        if bad == judge.patience:
            return [step, sign * best]
    raise AssertionError


def stop_in_trials(rank_env: RankEnv, place: Path, port: int) -> None:
    """One of the ranks."""
    config = TrainConfig(runs_dir=str(place / f"runs-{rank_env.rank}"), run_name="x", initial_port=port)
    folder = RunFolder.create(config)
    stops = []
    with join_ranks(config, folder, SilentReport(), rank_env, None, supervised=True) as ranks:
        for trial in range(TRIALS):
            judge = judge_of(trial)
            for step, value in enumerate(metrics_of(trial, ranks.rank)):
                judge.update(value_of_rank0(ranks, {"score": value}, "score"), step)
                if judge.should_stop:
                    stops.append([step, judge.best])
                    break
    (place / f"rank-{rank_env.rank}.json").write_text(json.dumps(stops))
