"""Weights & Biases: with the real package in its offline mode, and what happens without it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from modules.config import ConfigError, TrainConfig
from modules.config.hyperparameters import hyperparameters
from modules.monitoring import Histogram, RunReport, StepRecord
from modules.monitoring.wandb_log import WandbLog, _run_id, check_wandb
from modules.run import EventLog
from modules.run.folder.event_reader import read_events

SECRET, PLACE = "hf_" + "a1B2" * 8, "/home/somebody/pictures"
GIVEN = {
    "wandb": "offline",
    "learning_rate": 3e-4,
    "cache_dir": PLACE,
    "base_model": f"{PLACE}/model",
    "model_author": SECRET,
    "concepts": [{"path": PLACE}],
    "optimizer": {"name": "adamw", "eps": 1e-5},
}


@pytest.fixture
def config() -> TrainConfig:
    return TrainConfig.model_validate(GIVEN)


def test_what_is_sent_of_a_config_names_no_places_and_no_secrets(config: TrainConfig) -> None:
    sent = hyperparameters(config, world_size=1)
    assert sent["learning_rate"] == 3e-4
    assert sent["optimizer.eps"] == 1e-5
    assert sent["batch_size"] == config.batch_size
    assert "somebody" not in json.dumps(sent)
    assert SECRET not in json.dumps(sent)
    assert "ema_decay" not in sent


def test_what_is_compared_says_on_how_many_ranks_and_how_but_not_where() -> None:
    given = {
        "enable_multi_gpu": True,
        "lr_scaling": "linear",
        "gradient_compression": "bf16",
        "num_nodes": 2,
        "master_addr": "10.1.2.3",
        "device_ids": [1, 2],
        "initial_port": 4711,
    }
    sent = hyperparameters(TrainConfig.model_validate(given), world_size=4)
    expected = {"world_size": 4, "enable_multi_gpu": True, "lr_scaling": "linear", "gradient_compression": "bf16"}
    assert expected.items() <= sent.items()
    assert sent["num_nodes"] == 2
    assert not {"master_addr", "device_ids", "initial_port", "node_rank"} & sent.keys()
    assert "4711" not in json.dumps(sent)
    alone = hyperparameters(TrainConfig(), world_size=1)
    assert alone["world_size"] == 1, "of every run, so that the column has no gaps"


@pytest.mark.skipif(find_spec("wandb") is not None, reason="the package is there")
def test_a_missing_package_is_one_sentence(config: TrainConfig) -> None:
    check_wandb(TrainConfig())
    with pytest.raises(ConfigError, match="wandb is 'offline', which needs the package wandb") as refused:
        check_wandb(config)
    assert "pip install wandb" in str(refused.value)


def test_a_failure_of_wandb_is_one_warning(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").write_text("in the way of its folder")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "no" / "such"))
    for step in (1, 2):
        _reported(config.model_copy(update={"wandb_project": "no / such\\project"}), tmp_path, [step])
    events = read_events(tmp_path / "events.jsonl")
    warnings = [str(event["message"]) for event in events if event["type"] == "warning"]
    assert len(warnings) == 2  # one for each run
    assert all(text.startswith("Weights & Biases gets nothing more of this run: ") for text in warnings)
    assert sum(event["type"] == "step" for event in events) == 2


@pytest.mark.filterwarnings("default")  # of the package, whose warnings are not ours
def test_offline_files_hold_scalars_images_and_settings_of_a_resumed_run(config: TrainConfig, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is optional and not installed")
    Image.new("RGB", (8, 8)).save(tmp_path / "step-000002-00.png")
    for steps in ([1, 2], [3]):
        _reported(config, tmp_path, steps, tmp_path / "step-000002-00.png")
    assert not [event for event in read_events(tmp_path / "events.jsonl") if event["type"] == "warning"]
    runs = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(runs) == 2
    assert len({file.name for file in runs}) == 1  # one id
    content = b"".join(file.read_bytes() for file in runs)
    scalars = (b"loss/train", b"loss/validation", b"final/best_validation_loss", b"weights/last", b"histogram")
    for text in (*scalars, b"samples/00", b"optimizer.eps", tmp_path.name.encode(), b"tandem"):
        assert text in content, text
    for text in (SECRET.encode(), b"somebody", b"Linux"):
        assert text not in content, text
    assert list((tmp_path / "wandb").rglob("*.png"))


def _reported(config: TrainConfig, folder: Path, steps: list[int], image: Path | None = None) -> None:
    sent = hyperparameters(config, world_size=1)
    report = RunReport(EventLog(folder / "events.jsonl"), None, wandb=lambda warn: WandbLog(config, sent, folder, warn))
    report.started({}, 0, 3, 3)
    for step in steps:
        report.step(StepRecord(step, 0, step, 0.5, 1e-4, 1.0, 0.1), shown=True)
    report.histograms(lambda: {"weights/last": Histogram(-1.0, 1.0, 0.0, 4.0, [0.0, 1.0], [3, 5])}, steps[-1])
    report.validation("validation", 0.25, 0.1, steps[-1])
    if image is not None:
        report.sample(image, "a prompt", 2)
    report.finished("stopped", 0)
    report.close()


@pytest.mark.parametrize("foreign", ["[" * 999, "[1]", '{"id": 7}', '{"id": "../x"}', "{"])
def test_an_id_file_that_is_none_is_replaced(tmp_path: Path, foreign: str) -> None:
    (tmp_path / "wandb.json").write_text(foreign)
    found = _run_id(tmp_path)
    assert found.isalnum()
    assert _run_id(tmp_path) == found
