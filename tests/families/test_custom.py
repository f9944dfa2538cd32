"""A family that is a user's own Python file with functions: data of any form, under the same trainer."""

from __future__ import annotations

import json
import pickle
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modules import ROOT
from modules.config import ConfigError, DataError, TrainConfig
from modules.data.batch import Batch, DataSets
from modules.data.loading.item_batches import TEST, TRAIN, VALIDATION, ItemBatches, item_loader
from modules.data.loading.loader import Loader
from modules.data.loading.order import Order, TrainingRows, item_steps
from modules.families._by_name import family_class
from modules.families._custom import custom_family
from modules.families._custom_code import CustomCode
from modules.training.data.custom_dataset import RESCAN_IS_UNUSED
from modules.training.device.precision import Precision
from modules.training.memory.model_setup import prepare_model
from modules.training.studies.parity import loss_difference, weight_difference
from tests import points
from tests.runs import (
    Run,
    assert_error_message,
    group_settings,
    run_command,
    same_state,
    train_alone,
    train_command,
)

FILE = points.__file__


def config_of(place: Path, **settings: object) -> TrainConfig:
    data: dict[str, object] = {
        "family": FILE,
        "runs_dir": str(place / "runs"),
        "cache_dir": str(place / "cache"),
        "run_name": "x",
        "precision": "fp64",
        "loader_workers": 0,
        "pin_memory": False,
        "max_steps": 6,
        "epochs": 100,
        "batch_size": 4,
        "global_batch_size": 8,
        "learning_rate": 0.01,
        "tensorboard": False,
        "device": "cpu",
        "backup_every": "never",
    }
    return TrainConfig.model_validate({**data, **settings})


def loader_of(world_size: int, rank: int, batch_size: int = 4, workers: int = 0) -> Loader:
    items = ItemBatches(_sets())
    none = np.zeros(41, dtype=np.int32)
    order = Order(TrainingRows(items.rows(TRAIN), none, none, [1.0], [1.0], None), 0, 8)
    settings = config_of(Path(), loader_workers=workers)
    return item_loader(
        settings,
        items,
        order,
        batch_size=batch_size,
        rank=rank,
        world_size=world_size,
        min_micro_batches=1,
        equal_counts=False,
    )


def _sets() -> DataSets:
    built: Any = points.build_data(points.Options())
    return DataSets(built["train"], built["validation"], built["test"], cast(Any, points.collate))


def samples_of(batches: Iterator[Batch]) -> dict[int, tuple[object, ...]]:
    """Every sample's label and points, by its row."""
    found = {}
    for batch in batches:
        content = batch.content
        assert isinstance(content, dict)
        values, sample = content["graph"]
        assert content["count"] == len(batch) == len(content["labels"])
        for number, row in enumerate(batch.ids.tolist()):
            found[row] = (float(content["labels"][number]), *values[sample == number].flatten().tolist())
    return found


def test_random_items_are_the_same_for_any_number_of_ranks_and_workers() -> None:
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    alone = samples_of(loader_of(1, 0).epoch(3))
    assert len(alone) == 41
    together: dict[int, tuple[object, ...]] = {}
    for rank in range(3):
        loader = loader_of(3, rank, batch_size=2, workers=int(rank == 0))
        together |= samples_of(loader.epoch(3))
        loader.close()
    assert together == alone
    assert samples_of(loader_of(1, 0).epoch(4)) != alone
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1:] == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]


def test_a_batch_that_cannot_be_cut_is_read_anew() -> None:
    batch = next(loader_of(1, 0, batch_size=8).epoch(0)).to(torch.device("cpu"), torch.float64)
    pieces = list(batch.split(3))
    assert [len(piece) for piece in pieces] == [3, 3, 2]
    assert [piece.is_last_of_step for piece in pieces] == [False, False, True]
    assert all(tensor.dtype != torch.float32 for piece in pieces for tensor in piece.tensors.values())
    assert samples_of(iter(pieces)) == samples_of(iter([batch]))


@pytest.mark.slow
def test_out_of_memory_reads_fewer_items_at_once(tmp_path: Path) -> None:
    """The step in which memory ran out is skipped; how the items then come together changes nothing."""
    runs = []
    for size in (3, 4):
        code, run = train_alone(config_of(tmp_path / str(size), family_options={"fault": "memory"}, batch_size=size))
        assert code == 0, run.failure(0)
        assert "micro-batches now hold at most 2" in run.warnings
        assert [np.isfinite(loss) for loss in run.losses] == [False, *[True] * 5]
        runs.append(run)
    assert loss_difference(runs[0].losses[1:], runs[1].losses[1:]) < 1e-12
    assert weight_difference(runs[0].state, runs[1].state) < 1e-12


@pytest.mark.slow
def test_a_new_process_reads_data_whose_classes_are_in_the_file(tmp_path: Path) -> None:
    """As a loader worker on Windows, which starts with nothing but what it is sent."""
    family = family_class(FILE).load(config_of(tmp_path))
    (tmp_path / "items").write_bytes(pickle.dumps((family.source, ItemBatches(family.data_sets()))))
    program = (
        "import pathlib, pickle, sys; from modules.data.batch import MicroBatch\n"
        "_, items = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "print(items.batch(MicroBatch((4, 5), (4, 5), (1.0, 1.0), True, 2)).content['count'])"
    )
    done = run_command([sys.executable, "-c", program, str(tmp_path / "items")])
    assert done.stdout.strip() == "2", done.stderr


def test_rows_count_through_the_data_sets() -> None:
    items = ItemBatches(_sets())
    assert [items.rows(name).tolist()[::40] for name in (TRAIN, VALIDATION, TEST)] == [[0, 40], [41], [48]]
    assert len(items) == 53


def test_a_full_shared_memory_is_no_fault_of_the_data() -> None:
    """What torch raises in a worker, seen with a /dev/shm that was filled while a run trained."""

    def collate(_: list[object]) -> object:
        raise RuntimeError(
            "unable to allocate shared memory(shm) for file </torch_7_1_0>: No space left on device (28)"
        )

    items = ItemBatches(DataSets(torch.arange(4), collate=collate))
    with pytest.raises(DataError, match=r"/dev/shm \(shared memory\) is full") as caught:
        items._collated([1], (0,))
    assert "--shm-size=8g" in caught.value.advice


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with everything, with a backup in its middle."""
    config = config_of(
        tmp_path_factory.mktemp("whole"),
        family_options={"dropout": 0.2},
        backup_every="3 steps",
        backups_kept=3,
        ema=True,
        validate_every="3 steps",
        validation_split=0.1,
    )
    code, run = train_alone(config)
    assert code == 0, run.failure(0)
    return run


def test_a_mean_is_as_good_as_a_loss_for_each_sample(whole: Run, tmp_path: Path) -> None:
    options = {"dropout": 0.2, "loss": "mean"}
    settings: dict[str, object] = {"family_options": options, "ema": True, "validation_split": 0.1}
    code, mean = train_alone(config_of(tmp_path, **settings, rescan="epoch"))
    assert code == 0, mean.failure(0)
    assert RESCAN_IS_UNUSED in mean.warnings
    assert loss_difference(mean.losses, whole.losses) < 1e-12
    assert weight_difference(mean.state, whole.state) < 1e-12


def test_a_resumed_run_is_the_same_to_the_last_bit(whole: Run) -> None:
    config = TrainConfig.model_validate_json(whole.folder.config_file.read_text())
    middle = whole.folder.backup_dir / "step-000003"
    code, resumed = train_alone(config.model_copy(update={"run_name": "again"}), resume=str(middle))
    assert code == 0, resumed.failure(0)
    assert resumed.losses == whole.losses[3:]
    assert same_state(resumed.state, whole.state)


def test_metrics_are_means_over_all_samples(whole: Run, tmp_path: Path) -> None:
    """A model loaded from what was saved, asked for each sample alone."""
    events = {(event["set"], event["step"]): event for event in whole.events("validation")}
    assert list(events) == [("validation", 3), ("validation", 6), ("test", 6)]
    family = family_class(FILE).load(config_of(tmp_path, base_model=str(whole.folder.model_dir)))
    model = family.model.double().eval()
    items = ItemBatches(family.data_sets())
    losses, right = [], []
    rows = items.rows(TEST)
    loader = loader_of(1, 0, batch_size=1)
    for batch in loader.validation(item_steps(rows, np.arange(len(rows)), config_of(tmp_path).seed, 8)):
        content = batch.to(torch.device("cpu"), torch.float64).content
        assert isinstance(content, dict)
        losses.append(points.loss(model, content, points.Options()).item())
        right.append(float(points.metrics(model, content)["accuracy"].double().mean()))
    assert len(losses) == 5
    tested = events["test", 6]
    assert tested["loss"] == pytest.approx(np.mean(losses), rel=1e-5)  # the file's numbers are rounded
    assert tested["metrics"]["accuracy"] == np.mean(right)  # type: ignore[index]
    assert 0 < tested["metrics"]["error"] < 1  # type: ignore[index]


class Deep(nn.Module):
    """Layers that can be recomputed, as docs/custom_models.md shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)) for _ in range(4))
        self.recomputed = False

    def enable_gradient_checkpointing(self) -> None:
        self.recomputed = True

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recomputed else layer(x)
        return x


def test_gradient_checkpointing_keeps_less_for_the_backward() -> None:
    kept: list[int] = []
    gradients = []

    def note(tensor: Tensor) -> Tensor:
        kept[-1] += tensor.nbytes if tensor.grad_fn is not None else 0
        return tensor

    for recomputed in (False, True):
        torch.manual_seed(1)
        deep = Deep()
        code = CustomCode("a script", lambda deep=deep: deep, list, points.loss, options=points.Options)
        config = TrainConfig.model_validate({"gradient_checkpointing": recomputed})
        family = custom_family(code).load(config)
        prepare_model(family, config, Precision("fp32", torch.device("cpu")))
        kept.append(0)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = family.model(torch.ones(16, 8)).square().sum()
        loss.backward()
        gradients.append([weight.grad for weight in family.model.parameters()])
    assert kept[1] < kept[0] / 4
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    code = CustomCode("a script", lambda: nn.Linear(2, 1), list, points.loss, options=points.Options)
    with pytest.raises(ConfigError, match=r"no part of the family .* supports it") as caught:
        prepare_model(custom_family(code).load(config), config, Precision("fp32", torch.device("cpu")))
    assert "enable_gradient_checkpointing" in caught.value.advice


def test_a_saved_model_continues_with_its_options(whole: Run, tmp_path: Path) -> None:
    saved = json.loads((whole.folder.model_dir / "config.json").read_text())
    assert saved["options"]["dropout"] == 0.2
    family = family_class(FILE).load(config_of(tmp_path, base_model=str(whole.folder.model_dir)))
    assert family.options.dropout == 0.2  # type: ignore[attr-defined]


def test_the_file_in_the_guide_trains(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "custom_models.md").read_text(encoding="utf-8")
    file = tmp_path / "lines.py"
    file.write_text(guide.split("```python\n")[1].split("```")[0])
    code, run = train_alone(
        config_of(tmp_path, family=str(file), max_steps=100, batch_size=8, validate_every="50 steps")
    )
    assert code == 0, run.failure(0)
    losses = [float(str(event["loss"])) for event in run.events("validation")]
    assert losses[-1] < 0.5 * run.losses[0]


EXITING = """
import os, sys
from os import _exit
import torch
from torch import nn

def leave():
    {exit}

class Data:
    def __len__(self):
        return 16
    def __getitem__(self, number):
        {item}
        return torch.full((2,), float(number))

def build_model():
    {model}
    return nn.Linear(2, 1)

def build_data():
    {data}
    return Data()

def loss(model, batch):
    {loss}
    return model(batch).square().mean()
"""
PLACES = ("item", "model", "data", "loss")


@pytest.mark.parametrize("exits", ["sys.exit(7)", "os._exit(7)", "_exit(7)", "raise SystemExit(7)"])
@pytest.mark.parametrize("place", PLACES)
def test_code_that_ends_the_program_is_named(tmp_path: Path, place: str, exits: str) -> None:
    file = tmp_path / "leaving.py"
    text = EXITING.format(exit=exits, **{name: "leave()" if name == place else "pass" for name in PLACES})
    file.write_text(text)
    code, run = train_alone(config_of(tmp_path, family=str(file), loader_workers=int(place == "item")))
    assert code != 0
    line = 1 + text.splitlines().index(f"    {exits}")
    said = f"leaving.py, line {line}, in leave: it ended the program, with exit code 7."
    assert said in run.failure(0)
    assert len(run.events("error")) <= 1


@pytest.mark.slow
def test_code_that_ends_one_rank_is_named_by_the_run(tmp_path: Path) -> None:
    file = tmp_path / "leaving.py"
    text = EXITING.format(exit="os._exit(0)", item="pass", model="pass", data="pass", loss="leave()")
    file.write_text(text)
    config = config_of(tmp_path, family=str(file), **group_settings(2))
    done = run_command(train_command(config, tmp_path / "config.json"))
    assert_error_message(done, 3, "leaving.py", "in leave: it ended the program, with exit code 0.")
