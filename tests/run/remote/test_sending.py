"""Which files of a config another machine gets, and how the config there names them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.config import ConfigError, DataError, TrainConfig
from modules.run.hosts.host import Host
from modules.run.remote.link import home_of
from modules.run.remote.sending import code_uploads, config_there, data_uploads, own_settings, place_there
from tests.conftest import draw_images
from tests.runs import ROOT

HOME = "/home/me/.tandem"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the paths of a config begin."""
    monkeypatch.chdir(tmp_path)
    for name in ("images", "before", "off", "base"):
        (tmp_path / name).mkdir()
    for name in ("images", "before", "off"):
        draw_images(tmp_path / name, 1)
    (tmp_path / "images" / "masks").mkdir()
    draw_images(tmp_path / "images" / "masks", 1)
    for name in ("images/notes.docx", "images/.hidden", "base/config.json", "lora.safetensors"):
        (tmp_path / name).write_bytes(b"a")
    return tmp_path


def config_of(**settings: object) -> TrainConfig:
    """A run with a path in every kind of setting that has one."""
    concepts = [{"path": "images", "references": "before"}, {"path": "off", "enabled": False}]
    data = {"base_model": "base", "method": "lora", "lora_from": "lora.safetensors", "concepts": concepts}
    return TrainConfig.model_validate({"family": "flux_kontext", **data, **settings})


def test_what_is_sent_and_how_it_is_named_there(place: Path) -> None:
    config = config_of(samples=[{"prompt": "a", "reference": "before/00.png"}])
    host = Host.make("beta", "me@beta", "~/.tandem/code", settings=["loader_workers=7"])
    uploads = data_uploads(config, own_settings(host))
    names = {path: {each.file.name for each in files} for path, files in uploads.items()}
    assert names["images"] == {"00.png", "00.txt"}
    assert [each.place for each in uploads["base"]] == [place_there(str(place / "base" / "config.json"))]
    assert names.keys() == {"base", "lora.safetensors", "images", "before", "before/00.png"}
    there = json.loads(config_there(config, host, HOME, "x"))
    data = f"{HOME}/data{place.as_posix()}"
    assert there["base_model"] == f"{data}/base"
    assert there["concepts"][0]["path"] == f"{data}/images"
    assert there["concepts"][0]["references"] == f"{data}/before"
    assert there["concepts"][1]["path"] == "off"
    assert (there["runs_dir"], there["cache_dir"], there["run_name"]) == (f"{HOME}/runs", f"{HOME}/cache", "x")
    assert there["loader_workers"] == 7


def test_what_the_machine_has_itself_is_not_sent(place: Path) -> None:
    config = config_of(base_model="black-forest-labs/FLUX.1-dev", lora_from=None)
    host = Host.make("beta", "me@beta", "~/.tandem/code", settings=["concepts.0.path=/cats", "concepts.0.references="])
    assert data_uploads(config, own_settings(host)) == {}
    there = json.loads(config_there(config, host, HOME, "x"))
    assert there["base_model"] == "black-forest-labs/FLUX.1-dev"
    assert there["concepts"][0]["path"] == "/cats"
    assert place.is_dir()


def test_missing_images_are_said_before_anything_is_sent(place: Path) -> None:
    with pytest.raises(DataError, match="there is no folder 'none'"):
        data_uploads(config_of(concepts=[{"path": "none"}]), ())
    assert place.is_dir()


def test_the_code_is_whole_and_nothing_else() -> None:
    places = {each.place for each in code_uploads()}
    assert {
        "code/scripts/train.py",
        "code/scripts/setup.sh",
        "code/requirements.lock",
        "code/presets/demo.yaml",
    } <= places
    assert not [place for place in places if "__pycache__" in place or "/tests/" in place or "/mine/" in place]
    assert (ROOT / "tests").is_dir()


def test_a_machine_that_somebody_set_up_by_hand_is_left_alone() -> None:
    for folder in ("~/tandem", "~/code", "/code", "~"):
        with pytest.raises(ConfigError, match="set up there by hand"):
            home_of(Host.make("beta", "me@beta", folder))
    assert home_of(Host.make("beta", "me@beta", "~/.tandem/code")) == "~/.tandem"
