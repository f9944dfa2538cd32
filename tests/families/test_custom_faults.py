"""What is wrong in a user's own file is one sentence, with the file and the line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from modules.config import ConfigError, DataError, TandemError
from modules.data.batch import DataSets
from modules.data.loading.item_batches import item_count
from modules.families._by_name import family_class, register_family
from modules.families._custom import CustomFamily, custom_family
from modules.families._custom_code import CustomCode, as_data_sets
from modules.training.loop.checks import startup_problems
from modules.training.memory.model_setup import check_available
from tests import points
from tests.families.test_custom import config_of
from tests.runs import train_alone

GOOD = "def build_model(): ...\ndef build_data(): ...\ndef loss(model, batch): ...\n"


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("def loss(model, batch)\n", r"line 1: SyntaxError: expected ':'"),
        ("import torch\n\n1 / 0\n", r"mine\.py, line 3: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit('no')\n", r"mine\.py, line 2: it ended the program: no"),
        ("import nowhere_to_be_found\n", r"line 1: ModuleNotFoundError.*Install nowhere_to_be_found"),
        ("import neighbour\n", r"ModuleNotFoundError.*neighbour is next to it: begin with `import sys"),
        ("def loss(model, batch): ...\n", r"mine\.py defines no build_model and no build_data"),
        ("x = 1\n", r"no build_model and no build_data and no loss.*or one Family class"),
        (GOOD + "Options = dict\n", r"Options in mine\.py is no Section"),
        (GOOD + "def metrics(model): ...\n", r"line 4: metrics\(model\) cannot be called.*metrics\(model, batch\) or"),
        (GOOD.replace("loss(model, batch)", "loss(out)"), r"line 3: loss\(out\) cannot be called"),
    ],
)
def test_a_broken_file_is_one_sentence(code: str, part: str, tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").touch()
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(ConfigError) as caught:
        family_class(str(tmp_path / "mine.py"))
    assert re.search(part, str(caught.value)), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        ("empty", r"The training data is empty"),
        ("item", r"Item 5 of the training data cannot be read: points\.py, line \d+, in __getitem__: KeyError: 'no su"),
        ("column", r"points\.py, line \d+: loss returned a tensor of shape \[\d, 1\] for \d samples.*squeeze"),
        ("pair", r"loss returned a tensor of shape \[2\] for 4 samples"),
        ("nan", r"1 steps? in a row had a gradient that is not finite \(the last was step 1\)"),
        ("detached", r"loss returned a loss without a gradient.*torch\.no_grad"),
        ("number", r"loss returned a float for 4 samples"),
        ("nothing", r"loss returned None \(is a `return` missing\?\)"),
        ("integers", r"loss returned torch\.int64 numbers; a loss is floating point"),
        ("error", r"points\.py, line \d+: RuntimeError: "),
        ("model", r"build_model failed: points\.py, line \d+, in build_model: ValueError: no model"),
        ("no model", r"points\.py, line \d+: build_model returned a dict instead of a torch\.nn\.Module"),
        ("data", r"points\.py, line \d+: build_data: the data is trian, which is no name of a data set"),
        ("collate", r"collate failed on \d items: points\.py, line \d+, in collate: IndexError"),
        ("metric", r"points\.py, line \d+: metrics, 'accuracy', returned a tensor of shape \[\d, 1\]"),
        ("forward", r"points\.py, line \d+, in forward: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_a_fault_in_a_run_is_one_sentence(fault: str, part: str, tmp_path: Path) -> None:
    """`item` in a worker process."""
    settings = {"loader_workers": int(fault == "item"), "max_nonfinite_steps": 1}
    config = config_of(tmp_path, family_options={"fault": fault}, **settings)
    code, run = train_alone(config)
    failure = json.loads(run.folder.failure_file(0).read_text())
    assert code in (2, 3, 4)
    assert re.search(part, f"{failure['message']} {failure['advice']}"), failure["message"]
    assert "\n" not in run.failure(0)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (iter([1]), "has no length"),
        (torch.utils.data.DataLoader([1, 2]), "DataLoader"),  # type: ignore[arg-type]
        (
            type("Stream", (torch.utils.data.IterableDataset,), {"__len__": lambda self: 3, "__iter__": iter})(),
            "map-style",
        ),
        (type("Broken", (), {"__len__": lambda self: 1 // 0, "__getitem__": None})(), "ZeroDivisionError"),
        (
            type("Endless", (), {"__len__": lambda self: 10**12, "__getitem__": None})(),
            "1,000,000,000,000 items; at most",
        ),
    ],
)
def test_a_data_set_needs_a_length(data: object, part: str) -> None:
    with pytest.raises(DataError, match=part):
        item_count(data, "training")  # type: ignore[arg-type]


def test_data_sets_come_in_several_forms() -> None:
    train, other = [1, 2], [3]
    assert as_data_sets(train) == DataSets(train)
    assert as_data_sets((train, other)) == as_data_sets({"train": train, "validation": other})
    assert as_data_sets(DataSets(train, None, other), len) == DataSets(train, None, other, len)
    for wrong in ({"training": train}, {"validation": other}, (), (1, 2, 3, 4), None):
        with pytest.raises(ConfigError, match="Return one data set"):
            as_data_sets(wrong)


@pytest.fixture
def registered() -> type[CustomFamily]:
    """The points as plain objects, without a file."""
    model, sets = points.build_model(points.Options()), points.build_data(points.Options())
    code = CustomCode(
        "a script",
        build_model=lambda: model,
        build_data=lambda: sets,
        loss=points.loss,
        collate=points.collate,
        options=points.Options,
    )
    kind = custom_family(code)
    register_family("custom", kind)
    return kind


def test_objects_of_a_program_are_trained_like_a_file(registered: type[CustomFamily], tmp_path: Path) -> None:
    code, run = train_alone(config_of(tmp_path, family="custom", loader_workers=1, max_steps=2))
    assert code == 0, run.failure(0)
    assert len(run.losses) == 2


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (nn.ReLU(), "returned a model without weights to train; it has 0, all of them frozen"),
        (nn.Linear(2, 1).requires_grad_(False), "returned a model without weights to train; it has 2, all"),
        (nn.LazyLinear(1), "returned a model whose 'weight' has no shape yet.*one forward"),
        (nn.Linear(2, 1, device="meta"), "returned a model whose 'weight' has no values.*not 'meta'"),
        (
            nn.ParameterDict({"phase": nn.Parameter(torch.ones(1, dtype=torch.complex64))}),
            "'phase' is complex64.*view_as",
        ),
    ],
)
def test_weights_that_cannot_be_trained_are_named(model: nn.Module, part: str, tmp_path: Path) -> None:
    code = CustomCode("a script", build_model=lambda: model, build_data=list, loss=points.loss)
    with pytest.raises(ConfigError, match=part):
        custom_family(code).load(config_of(tmp_path))


def test_a_complex_metric_is_refused(tmp_path: Path) -> None:
    code, run = train_alone(config_of(tmp_path, family_options={"fault": "complex metric"}))
    assert code == 3
    assert "metrics, 'accuracy', returned torch.complex64 numbers; a metric is real" in run.failure(0)


def test_an_unknown_metric_loses_nothing(registered: type[CustomFamily], tmp_path: Path) -> None:
    """A file without metrics is told before the start, one with others at the first validation, after a backup."""
    stopping = {"early_stopping_metric": "wer", "early_stopping_mode": "min", "restore_best": True}
    config = config_of(tmp_path, **stopping, validate_every="2 steps", max_steps=6)
    code, run = train_alone(config)
    assert code == 2
    assert "--resume latest" in json.loads(run.folder.failure_file(0).read_text())["advice"]
    assert [folder.name for folder in run.folder.backup_dir.iterdir()] == ["step-000002"]
    with pytest.raises(ConfigError, match="measures the loss only"):
        check_available(config.model_copy(update={"family": "custom"}))


def test_no_concepts_are_asked_for(tmp_path: Path) -> None:
    assert startup_problems(config_of(tmp_path)) == []
    assert "build_model" not in str(startup_problems(config_of(tmp_path, family="nothing.py")))
    settings: list[dict[str, object]] = [
        {"samples": [{"prompt": "a cat"}]},
        {"cache_only": True},
        {"base_model": str(tmp_path)},
        {"family_options": {"widht": 3}},
    ]
    for wrong in settings:
        found: list[TandemError] = startup_problems(config_of(tmp_path, **wrong))
        assert len(found) == 1, (wrong, found)


def test_early_stopping_needs_validation_data(tmp_path: Path) -> None:
    options = {"held_out": 0}
    config = config_of(tmp_path, family_options=options, early_stopping_patience=2, validate_every="1 epoch")
    code, run = train_alone(config)
    assert code == 2
    assert "early_stopping_patience is 2, but there is no validation data" in run.failure(0)


def test_a_file_for_another_version_is_told_what_its_names_are_now(tmp_path: Path) -> None:
    file = tmp_path / "older.py"
    file.write_text("from modules.families._pipeline_spec import PipelineSpec\n")
    with pytest.raises(ConfigError, match=r"written for another Tandem.*spec.*is now a record of facts"):
        family_class(str(file))
