"""A base model from the hub, by the real command: one process a cache downloads, and everybody hears how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modules.config import TrainConfig
from modules.run import request_command
from tests.end_to_end.conftest import TrainingProcess
from tests.hub_server import HubServer, hub_server
from tests.ports import free_port
from tests.runs import ROOT, assert_error_message, group_settings, run_command, tiny_config, train_command

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

NAME = "owner/model"
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"
FILES = ["model_index.json", "unet/config.json", WEIGHTS]
Start = Callable[..., TrainingProcess]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    """A hub with a model of one megabyte."""
    folder = tmp_path / "model"
    (folder / "unet").mkdir(parents=True)
    (folder / "model_index.json").write_text('{"_class_name": "TinyPipeline"}')
    (folder / "unet" / "config.json").write_text("{}")
    (folder / WEIGHTS).write_bytes(b"x" * 1_000_000)
    with hub_server() as server:
        server.add(NAME, folder)
        yield server


def config(images: Path, place: Path, **settings: object) -> TrainConfig:
    given: dict[str, object] = {"family": str(ROOT / "tests" / "hub_family.py"), "base_model": NAME, "max_steps": 2}
    return tiny_config(images, place, **{**given, **settings})


def variables(hub: HubServer, home: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_TOKEN": "", "HF_HUB_OFFLINE": ""}


def test_one_process_per_cache_downloads_and_keeps_whole_files(
    start: Start, hub: HubServer, images: Path, tmp_path: Path
) -> None:
    held = threading.Event()
    hub.repositories[NAME].hold = {WEIGHTS: held}
    home = tmp_path / "hf"
    training = start(config(images, tmp_path, **group_settings(2)), **variables(hub, home))
    training.wait_for(lambda: any(event.get("done") for event in training.run.events("phase")), "bytes")
    event = training.run.events("phase")[-1]
    assert (event["phase"], event["total"], event["unit"]) == ("downloading", 1_000_002, "bytes")
    training.processes()
    request_command(training.run.folder, "stop")
    code, output = training.wait()
    assert code == 130, output
    assert "Traceback" not in output
    assert training.leftovers() == []
    assert training.run.events()[-1]["reason"] == "stopped"
    assert list(home.rglob("*.incomplete")) == []
    assert sorted(hub.downloaded(NAME)) == FILES, "the other rank asked for nothing"

    held.set()  # two machines: one that goes on with this cache, one with another
    hub.asked.clear()
    both = _on_two_machines(start, config(images, tmp_path, run_name="two"), hub, (home, tmp_path / "other"))
    ends = [each.wait(within_s=240) for each in both]
    assert [code for code, _ in ends] == [0, 0], ends
    assert "downloading: 1.0 of 1.0 MB" in ends[0][1]
    assert sorted(hub.downloaded(NAME)) == sorted([*FILES, WEIGHTS])

    alone = train_command(config(images, tmp_path, run_name="alone"), tmp_path / "alone.json")
    done = run_command(alone, **{**variables(hub, home), "HF_ENDPOINT": "http://127.0.0.1:9"})
    assert done.returncode == 0, done.stderr
    assert "Warning: base_model: using the 'owner/model' that was downloaded earlier" in done.stdout


def _on_two_machines(
    start: Start, settings: TrainConfig, hub: HubServer, homes: tuple[Path, Path]
) -> list[TrainingProcess]:
    """One rank each, started as a scheduler does."""
    port = str(free_port())
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    return [
        start(settings, **group, **variables(hub, home), RANK=str(rank), GROUP_RANK=str(rank), MASTER_PORT=port)
        for rank, home in enumerate(homes)
    ]


def test_all_ranks_together_say_one_sentence(hub: HubServer, images: Path, tmp_path: Path) -> None:
    hub.repositories[NAME].gated = True
    argv = train_command(config(images, tmp_path, **group_settings(2)), tmp_path / "c.json")
    done = run_command(argv, **variables(hub, tmp_path / "hf"))
    assert_error_message(
        done, 2, "Training did not start: base_model: 'owner/model' requires accepting its licence", "hf auth login"
    )
    output = done.stdout + done.stderr
    assert output.count("requires accepting its licence") == 1, output
