"""The events, TensorBoard file and logs of a real run follow the run folder protocol."""

from __future__ import annotations

import json
import threading
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from modules.monitoring.report import RunReport
from modules.run import EventLog
from modules.run.folder.event_reader import read_events
from tests.runs import Run, tiny_config, train_alone

FIELDS = {
    "started": {
        "config",
        "world",
        "backend",
        "host",
        "devices",
        "ranks",
        "versions",
        "trainable_parameters",
        "global_batch_size",
        "steps_per_epoch",
        "total_steps",
        "original_learning_rate",
        "learning_rate",
    },
    "step": {"step", "epoch", "samples_seen", "loss", "lr", "samples_per_s", "grad_norm", "eta_s"},
    "ranks": {"ranks", "steps"},
    "sample": {"file", "prompt", "step"},
    "backing_up": {"step"},
    "backup": {"path", "step"},
    "validation": {"loss", "deviation", "step", "set"},
    "warning": {"message"},
    "data": {"lines", "concepts"},
    "ranks_summary": {"ranks"},
    "finished": {"reason", "exit_code"},
}
PHASES = {"loading", "indexing", "caching", "training", "sampling", "saving", "validation"}


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = {
        "samples": [{"prompt": "a red disc", "steps": 1}, {"prompt": "off", "enabled": False}],
        "sample_every": "4 steps",
        "backup_every": "3 steps",
        "validation_split": 0.2,
        "validate_every": "2 steps",
        "tensorboard": True,
        "histograms_every": "2 steps",
        "family_options": {"faults": ["nan:0:7"]},
    }
    code, run = train_alone(tiny_config(images, tmp_path_factory.mktemp("events"), **settings))
    assert code == 0
    return run


def test_events_have_exactly_the_fields_of_the_protocol(run: Run) -> None:
    for event in run.events():
        assert event["v"] == 1
        assert isinstance(event["t"], float)
        kind, fields = str(event["type"]), set(event) - {"v", "t", "type"}
        if kind == "phase":
            assert fields in ({"phase"}, {"phase", "done", "total"})
            assert event["phase"] in PHASES
        else:
            assert fields == FIELDS[kind], kind
    assert {str(event["type"]) for event in run.events()} == {*FIELDS, "phase"}


def test_step_events_are_in_order_and_finished_is_last(run: Run) -> None:
    assert [event["step"] for event in run.events("step")] == [1, 2, 3, 4, 5, 6]
    assert run.events("step")[0]["samples_seen"] == 8
    assert run.exit_code == 0
    assert run.events()[-1]["reason"] == "finished"


def test_actions_run_once_at_their_step(run: Run) -> None:
    assert [event["step"] for event in run.events("backup")] == [3, 6]
    assert [event["step"] for event in run.events("sample")] == [4, 6]
    assert [event["step"] for event in run.events("validation")] == [2, 4, 6]
    names = sorted(path.name for path in run.folder.samples_dir.iterdir())
    assert names == [f"step-00000{step}-{kind}.png" for step in (4, 6) for kind in ("00", "grid")]


def test_events_are_valid_json_without_nan(run: Run) -> None:
    text = run.folder.events_file.read_text()
    assert "NaN" not in text
    assert all(json.loads(line) for line in text.splitlines())
    assert any(event["grad_norm"] is None for event in run.events("step"))


def test_ranks_event_has_the_step_times(run: Run) -> None:
    ranks = run.events("ranks")[0]["ranks"]
    assert isinstance(ranks, list)
    assert len(ranks) == 1
    assert set(ranks[0]) >= {"rank", "host", "step_s", "data_s", "own_s", "samples"}
    assert 0 <= ranks[0]["data_s"] <= ranks[0]["own_s"] <= ranks[0]["step_s"]
    assert ranks[0]["samples"] == 8


def test_tensorboard_has_loss_learning_rate_and_image(run: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    board = EventAccumulator(str(run.folder.tensorboard_dir))
    board.Reload()
    tags = board.Tags()
    assert {"loss/train", "lr/model", "loss/validation"} <= set(tags["scalars"])
    assert [scalar.step for scalar in board.Scalars("lr/model")] == [1, 2, 3, 4, 5, 6]
    assert tags["images"] == ["samples/00"], "one name for all steps"
    shown = board.Images("samples/00")
    assert [image.step for image in shown] == [4, 6]
    with Image.open(BytesIO(shown[0].encoded_image_string)) as image:
        assert image.size == (shown[0].width, shown[0].height)
    metadata = board.SummaryMetadata("_hparams_/session_start_info")
    start = HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info
    assert start.hparams["method"].string_value == "fine_tune"
    assert start.hparams["validation_split"].number_value == 0.2
    assert "cache_dir" not in start.hparams, "it is a place of this machine"


def test_tensorboard_has_histograms_of_weights_and_gradients(run: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(run.folder.tensorboard_dir), size_guidance={"histograms": 0})
    board.Reload()
    tags = board.Tags()["histograms"]
    weights = [tag.removeprefix("weights/") for tag in tags if tag.startswith("weights/")]
    assert weights
    assert {f"gradients/{name}" for name in weights} <= set(tags)
    for tag in tags:
        assert [each.step for each in board.Histograms(tag)] == [2, 4, 6]
    norms = {event["step"]: event["grad_norm"] for event in run.events("step")}
    for place, step in enumerate((2, 4, 6)):
        squares = sum(board.Histograms(f"gradients/{name}")[place].histogram_value.sum_squares for name in weights)
        assert squares**0.5 == pytest.approx(min(float(str(norms[step])), 1.0), rel=1e-5), "after clipping"


def test_every_log_line_names_the_rank(run: Run) -> None:
    lines = run.folder.log_file(0).read_text().splitlines()
    assert lines
    assert all(" rank 0 " in line for line in lines)


def test_log_every_reduces_step_events_only(images: Path, tmp_path: Path) -> None:
    code, run = train_alone(tiny_config(images, tmp_path, log_every="3 steps", max_steps=7))
    assert code == 0
    assert [event["step"] for event in run.events("step")] == [3, 6]
    assert not run.folder.tensorboard_dir.exists()


def test_a_small_validation_loss_keeps_its_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = RunReport(EventLog(tmp_path / "events.jsonl"), None)
    report.validation("validation", 4.7584e-06, 1.23e-07, 3)
    report.validation("validation", 0.0268, 0.0104, 4)
    report.validation("validation", 0.5, 0.0, 5)
    report.close()
    shown = "".join(capsys.readouterr())
    assert "Step 3: validation loss 4.7584e-06 ± 1.2e-07." in shown
    assert "Step 4: validation loss 0.0268 ± 0.01." in shown
    assert "Step 5: validation loss 0.5." in shown, "one image has no spread"


def test_a_drawing_is_written_in_a_thread_and_its_event_in_order(tmp_path: Path) -> None:
    report, may_draw, seen = RunReport(EventLog(tmp_path / "events.jsonl"), None), threading.Event(), []

    def draw() -> Image.Image:
        assert may_draw.wait(60)
        seen.append(threading.current_thread())
        return Image.new("P", (4, 4))

    def broken() -> Image.Image:
        raise ValueError("no ink")

    report.validation("validation", 1.5, 0.5, 7)
    report.drawing(tmp_path / "matrix.png", draw, "matrix (validation)", 7)
    report.drawing(tmp_path / "broken.png", broken, "broken (validation)", 7)
    report.backing_up(7)  # a later event, while nothing is drawn yet
    may_draw.set()
    report.close()
    events = read_events(tmp_path / "events.jsonl")
    assert [event["type"] for event in events] == ["validation", "sample", "warning", "backing_up"]
    assert events[2]["message"] == "The broken (validation) at step 7 could not be written: no ink. Training continues."
    assert seen != [threading.main_thread()]
    with Image.open(tmp_path / "matrix.png") as image:
        assert image.text["prompt"] == "matrix (validation)"  # type: ignore[attr-defined]
