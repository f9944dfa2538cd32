"""Trainer: a program's own model, data and loss on one device and on several, with the engine of every run."""

from __future__ import annotations

import copy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from modules.config import TrainConfig, load_config, save_config
from modules.families import _by_name
from modules.library import ConfigError, DataError, FitResult, Trainer, TrainingError
from modules.library.fit_result import read_result
from modules.run import EventLog, Failure, RunFolder, record_failure
from modules.run.remote.run_copy import Copy, mark_copy
from modules.training.memory.model_setup import check_available
from tests.library.trainer_programs import (
    SAMPLES,
    Interrupting,
    Killing,
    Sums,
    absolute_error,
    adagrad,
    failing_loss,
    halving,
    make_model,
    squared_error,
)
from tests.ports import free_port
from tests.runs import ROOT, Run, environment

SETTINGS: dict[str, object] = {
    "epochs": 4,
    "batch_size": 4,
    "global_batch_size": 8,
    "learning_rate": 0.02,
    "precision": "fp64",
    "loader_workers": 0,
    "tensorboard": False,
    "run_name": "x",
}


def trainer(place: Path, model: nn.Module, data: Sums | None = None, **more: object) -> Trainer:
    arguments = {"loss": squared_error, **SETTINGS, "runs_dir": str(place), **more}
    return Trainer(model, Sums() if data is None else data, **arguments)  # type: ignore[arg-type]


def same(first: nn.Module, other: nn.Module, *, rtol: float = 0.0) -> bool:
    pairs = zip(first.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.allclose(a, b, rtol=rtol, atol=0.0) for a, b in pairs)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, FitResult]:
    """One device, with everything that is validated and tested."""
    model = make_model()
    held_out: dict[str, Any] = {"validation_data": Sums(11), "test_data": Sums(7), "metrics": absolute_error}
    return model, trainer(tmp_path_factory.mktemp("runs"), model, **held_out).fit()


def test_the_trained_weights_are_in_the_model_and_saved(trained: tuple[nn.Module, FitResult]) -> None:
    model, result = trained
    assert (result.reason, result.is_complete, result.step) == ("finished", True, 20)  # 4 epochs of 37 samples
    assert result.model_path is not None
    saved = load_file(result.model_path / "model.safetensors")
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    assert {value.dtype for value in saved.values()} == {torch.float64}
    start = make_model()
    assert torch.equal(model[0].weight, start[0].weight)  # type: ignore[index]
    assert not torch.equal(model[2].weight, start[2].weight)  # type: ignore[index]
    assert [weight.requires_grad for weight in model.parameters()] == [False, False, True, True]


def test_a_model_without_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model has no values yet: 'weight' is on the meta device") as caught:
        trainer(tmp_path, nn.Linear(4, 1, device="meta"))
    assert "to_empty" in caught.value.advice


def test_the_figures_are_those_of_the_whole_data(trained: tuple[nn.Module, FitResult]) -> None:
    model, result = trained
    for name, size in (("validation", 11), ("test", 7)):
        batch = torch.utils.data.default_collate([Sums()[index] for index in range(size)])
        with torch.no_grad():
            loss, error = squared_error(model, batch).mean(), absolute_error(model, batch)["absolute_error"].mean()
        assert result.metrics[f"{name}_loss"] == pytest.approx(float(loss), rel=1e-12)
        assert result.metrics[f"{name}_absolute_error"] == pytest.approx(float(error), rel=1e-12)
    assert list(result.losses) == list(range(1, 21))
    assert result.metrics["train_loss"] == result.losses[20]
    assert list(result.validations) == [5, 10, 15, 20]
    assert result.validations[20]["validation_loss"] == result.metrics["validation_loss"]
    assert result.best["validation_loss"] <= result.metrics["validation_loss"] < result.losses[1]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", adagrad])
def test_an_interrupted_fit_resumes_exactly(tmp_path: Path, optimizer: object) -> None:
    expected, model, steps = make_model(), make_model(), 100
    trainer(tmp_path / "whole", expected, epochs=20, optimizer=optimizer).fit()
    interrupted = trainer(tmp_path, model, Interrupting(), epochs=20, optimizer=optimizer)
    first = interrupted.fit()
    assert (first.reason, first.is_complete, first.model_path) == ("interrupted", False, None)
    assert 10 <= first.step < steps
    assert not same(model, make_model())  # of the backup
    model.load_state_dict(make_model().state_dict())
    record_failure(RunFolder(first.folder), Failure(1, "vm", "error", "of an earlier start with two ranks"))
    mark_copy(RunFolder(first.folder), Copy(machine="beta", stage="complete"))
    result = interrupted.fit(resume=True)
    assert (result.reason, result.step) == ("finished", steps)
    assert not RunFolder(first.folder).remote_file.exists(), "it is no copy of a run on another machine any more"
    assert same(model, expected)


def test_settings_of_the_engine_work(tmp_path: Path) -> None:
    held_out: dict[str, Any] = {
        "validation_data": Sums(5),
        "learning_rate": 1e-9,
        "early_stopping_patience": 1,
        "ema": True,
    }
    result = trainer(tmp_path, make_model(), **held_out, early_stopping_min_delta=0.1).fit()
    assert (result.reason, result.step) == ("early_stopping", 10)
    assert result.model_path is not None


def test_where_settings_come_from(tmp_path: Path) -> None:
    data, model = Sums(), make_model()
    make = partial(Trainer, model, data, loss=squared_error)
    assert make(config={"epochs": 3}, batch_size=2).config.epochs == 3
    assert make(config={"version": 1, "masked_training": True}).config.normalize_masked_area_loss, "as in a file"
    assert make(config=TrainConfig(epochs=3, batch_size=8), batch_size=2).config.batch_size == 2
    save_config(TrainConfig(epochs=5), tmp_path / "mine.yaml")
    assert make(config=tmp_path / "mine.yaml").config.epochs == 5
    assert make(config=str(tmp_path / "mine.yaml"), epochs=6).config.epochs == 6
    assert make().config.enable_multi_gpu
    assert not make(training_mode="single").config.enable_multi_gpu
    assert str(make().config.validate_every) == "never"
    assert str(make(validation_data=data).config.validate_every) == "1 epoch"
    assert str(make(validation_data=data, validate_every="5 steps").config.validate_every) == "5 steps"


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"epoch": 3}, ConfigError, "epoch .* is not a known setting; did you mean epochs?"),
        ({"config": 3}, ConfigError, "config is int; give a TrainConfig, a mapping"),
        ({"loss": nn.MSELoss()}, ConfigError, r"loss is MSELoss, which cannot be called as loss\(model, batch\)"),
        ({"loss": None}, ConfigError, "loss is NoneType, which cannot be called"),
        ({"metrics": lambda batch: {}}, ConfigError, "metrics is <lambda>, which cannot be called as metrics"),
        ({"model": squared_error}, ConfigError, "model is function; give a torch.nn.Module"),
        ({"train_data": []}, DataError, "the training data is empty"),
        ({"validation_data": iter([1])}, DataError, "no length or no items by number"),
    ],
)
def test_what_cannot_be_trained(arguments: dict[str, object], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        Trainer(**{"model": make_model(), "train_data": Sums(), "loss": squared_error, **arguments})  # type: ignore[arg-type]


def test_an_error_of_the_program_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"rank 0 failed: trainer_programs.py, line \d+.*my own mistake") as caught:
        trainer(tmp_path, make_model(), loss=failing_loss).fit()
    assert 'raise ValueError("my own mistake")' in caught.value.__notes__[0]


def test_a_run_that_ends_without_a_word_is_an_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert read_result(folder).reason == ""  # another machine, which does not see it
    log = EventLog(folder.events_file)
    log.write("finished", reason="interrupted", exit_code=130)
    assert read_result(folder).reason == "interrupted"
    log.write("phase", phase="training")  # resumed
    log.close()
    with pytest.raises(TrainingError, match="ended in the middle of the run, without an error"):
        read_result(folder)


def test_a_lambda_trains_on_one_device_only(tmp_path: Path) -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return squared_error(model, batch)

    assert trainer(tmp_path, make_model(), loss=loss, epochs=1).fit().is_complete
    with pytest.raises(
        ConfigError, match=r"loss cannot be sent to them: .*\. Define it at the top level of a .py file"
    ):
        trainer(tmp_path, make_model(), loss=loss, world_size=2, run_name="y").fit()
    assert not (tmp_path / "y").exists()


def test_fit_within_a_group_of_the_program(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ConfigError, match="this process is in one already"):
            trainer(tmp_path, DistributedDataParallel(make_model())).fit()
    finally:
        dist.destroy_process_group()


def test_another_program_cannot_continue_the_run(
    trained: tuple[nn.Module, FitResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(trained[1].folder / "config.json")
    monkeypatch.delitem(_by_name._registered, config.family)
    with pytest.raises(ConfigError, match=r"started by a program .* Trainer\(\.\.\., run_name=\.\.\.\)\.fit"):
        check_available(config)


@pytest.mark.slow
def test_what_is_defined_on_the_command_line_cannot_be_sent() -> None:
    program = """
from tests.library.trainer_programs import *
from modules.library import ConfigError, Trainer
def my_loss(model, batch): return squared_error(model, batch)
try:
    Trainer(make_model(), Sums(), loss=my_loss, world_size=2).fit()
except ConfigError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "'my_loss' (loss) is defined in a notebook or on the command line" in done.stdout, done.stderr


@pytest.mark.slow
def test_two_ranks_train_like_one_and_a_killed_rank_is_named(tmp_path: Path) -> None:
    """Two fits of two processes: the second continues the first one's run, and loses rank 1."""
    alone, model, settings = make_model(), make_model(), {"world_size": 2, "initial_port": free_port()}
    trainer(tmp_path / "alone", alone, epochs=3).fit()
    two = trainer(tmp_path, model, Killing(file=tmp_path / "now"), epochs=3, **settings)
    result = two.fit()
    assert (result.reason, result.step) == ("finished", 15)
    assert SAMPLES % 8
    assert same(model, alone, rtol=1e-6)
    before = copy.deepcopy(model)
    (tmp_path / "now").touch()
    longer = trainer(tmp_path, model, Killing(file=tmp_path / "now"), epochs=6, **settings)
    with pytest.raises(TrainingError, match="rank 1 failed: The process was killed externally"):
        longer.fit(resume=True)
    assert same(model, before)


def test_it_trains_in_another_thread_where_stop_ends_it_after_a_backup(tmp_path: Path) -> None:
    expected, model, data = make_model(), make_model(), Interrupting()
    trainer(tmp_path / "whole", expected, epochs=20).fit()
    threaded = trainer(tmp_path, model, data, epochs=20)
    data.act = threaded.stop
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(threaded.fit).result()
        assert (first.reason, first.model_path) == ("interrupted", None)
        assert 10 <= first.step < 100
        second = pool.submit(threaded.fit, resume=True).result()
    assert (second.reason, second.step) == ("finished", 100)
    assert same(model, expected)
    threaded.stop()  # nothing is at work


@pytest.mark.slow
def test_one_device_trains_where_processes_form_no_group(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "doesnotexist")
    model, expected = make_model(), make_model()
    alone = trainer(tmp_path, model, world_size=2, epochs=1)
    assert alone.fit().reason == "finished"
    assert "could not form a group (see above), so one device trains instead" in capfd.readouterr().out
    trainer(tmp_path / "expected", expected, epochs=1).fit()
    assert same(model, expected)
    with pytest.raises(TrainingError, match="GLOO_SOCKET_IFNAME"):
        trainer(tmp_path / "refused", model, world_size=2, epochs=1).fit(require_multi_gpu=True)


def test_the_batch_size_is_found_without_training(tmp_path: Path) -> None:
    model = make_model()
    searching = trainer(tmp_path, model, loss=squared_error)
    found = searching.find_batch_size()
    assert (found.batch_size, found.most) == (SAMPLES, SAMPLES)
    assert same(model, make_model())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="memory_target is 2"):
        searching.find_batch_size(2.0)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("val_data", "validation_data"),
        ("train_loader", "train_data"),
        ("val_dataloaders", "validation_data"),
        ("collate_fn", "collate"),
        ("scheduler_fn", "scheduler"),
    ],
)
def test_a_name_of_another_library_is_told_ours(tmp_path: Path, name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is no argument and no setting; did you mean {meant}"):
        trainer(tmp_path, make_model(), **{name: None})


def test_an_optimizer_or_scheduler_that_exists_already_is_told_from_a_class(tmp_path: Path) -> None:
    made = torch.optim.SGD(make_model().parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"optimizer is a SGD that exists already.*functools\.partial\(SGD"):
        trainer(tmp_path, make_model(), optimizer=made)
    with pytest.raises(ConfigError, match="scheduler is a StepLR that exists already"):
        trainer(tmp_path, make_model(), scheduler=torch.optim.lr_scheduler.StepLR(made, 3))


def test_an_optimizer_of_ones_own_steps_as_it_does_in_torch(tmp_path: Path) -> None:
    model, expected = make_model(), make_model()
    everything: dict[str, Any] = {
        "batch_size": SAMPLES,
        "global_batch_size": SAMPLES,
        "max_grad_norm": None,
        "scheduler": "constant",
    }
    trainer(tmp_path, model, optimizer=adagrad, **everything).fit()
    batch = torch.utils.data.default_collate([Sums()[index] for index in range(SAMPLES)])
    optimizer = adagrad(list(expected[2].parameters()), 0.02)  # type: ignore[index]
    for _ in range(4):
        optimizer.zero_grad()
        squared_error(expected, batch).mean().backward()
        optimizer.step()
    assert same(model, expected, rtol=1e-12)


class Counting(torch.optim.SGD):
    """Counts its steps where no backup sees it."""

    steps = 0

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.velocity = [torch.zeros(1)]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        self.velocity[0].add_(1)
        super().step()


def test_what_an_optimizer_of_ones_own_keeps_beside_its_state_is_named_once(tmp_path: Path) -> None:
    folder = trainer(tmp_path, make_model(), optimizer=Counting, backup_every="1 step").fit().folder
    (told,) = (each for each in Run(RunFolder(folder)).warnings.splitlines() if "optimizer" in each)
    assert "keeps steps, velocity outside of its state and groups" in told


def test_a_scheduler_of_ones_own_is_stepped_as_in_torch(tmp_path: Path) -> None:
    model, expected = make_model(), make_model()
    everything: dict[str, Any] = {"batch_size": SAMPLES, "global_batch_size": SAMPLES, "max_grad_norm": None}
    trainer(tmp_path, model, optimizer=adagrad, scheduler=halving, **everything).fit()
    batch = torch.utils.data.default_collate([Sums()[index] for index in range(SAMPLES)])
    optimizer = adagrad(list(expected[2].parameters()), 0.02)  # type: ignore[index]
    scheduler = halving(optimizer)
    for _ in range(4):
        optimizer.zero_grad()
        squared_error(expected, batch).mean().backward()
        optimizer.step()
        scheduler.step()
    assert same(model, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"optimizer": lambda parameters, learning_rate: None}, "optimizer returned None"),
        (
            {"optimizer": lambda parameters, learning_rate: torch.optim.SGD([torch.zeros(1)], learning_rate)},
            "optimizer returned an optimizer of other weights",
        ),
        (
            {"optimizer": lambda parameters, learning_rate: torch.optim.SGD(parameters, 0.3)},
            "optimizer sets the learning rate 0.3, but learning_rate is 0.02",
        ),
        ({"optimizer": torch.optim.LBFGS}, "optimizer: LBFGS calls the loss several times in a step"),
        ({"optimizer": lambda parameters: None}, "Define it as optimizer(parameters, learning_rate)."),
        ({"optimizer": lambda parameters, learning_rate: 1 / 0}, "optimizer failed: test_trainer.py, line"),
        ({"scheduler": lambda optimizer: None}, "scheduler returned None"),
        ({"scheduler": lambda: None}, "Define it as scheduler(optimizer)."),
        ({"optimizer": "Adagrad"}, "did you mean torch.optim.Adagrad?"),
    ],
)
def test_what_builds_no_optimizer_or_scheduler_is_refused_by_the_name_that_the_user_wrote(
    tmp_path: Path, given: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        trainer(tmp_path, make_model(), **given).fit()
    assert fault in str(caught.value)
    assert "build_" not in str(caught.value)
