"""Stable Diffusion from a hub that speaks the real protocol, through the families' own loading."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch

from modules.checkpoint.formats import write_single_file
from modules.config import ConfigError, TrainConfig
from modules.families._by_name import family_class
from tests.families.diffusion_checks import REQUEST, load
from tests.families.stills import still
from tests.hub_server import HubServer, hub_server

SD15 = "stable-diffusion-v1-5/stable-diffusion-v1-5"  # where diffusers looks for the configuration of a single file


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub, and an empty cache of this computer."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        yield server


def image(family: str, name: str | Path) -> bytes:
    return still(load(family, name), REQUEST).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["stable_diffusion", "stable_diffusion_xl"])
def test_hub_pipeline_equals_the_one_on_disk(
    family: str, hub: HubServer, sd_folder: Path, sdxl_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sd_folder if family == "stable_diffusion" else sdxl_folder
    hub.add("owner/model", folder)
    config = TrainConfig(family=family, base_model="owner/model@main")
    model = family_class(family).hub_model(config)
    assert model is not None
    assert model.download(lambda done, total: None) == ""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert image(family, "owner/model") == image(family, folder)
    asked = hub.downloaded("owner/model")
    assert len(asked) == len(set(asked)), "once"
    assert not [name for name in asked if "safetensors" in name and not name.startswith(("unet", "vae", "text"))]
    assert family_class(family).hub_model(TrainConfig(family=family, base_model=str(folder))) is None


@pytest.mark.slow
def test_fp16_only_weights_on_the_hub(hub: HubServer, sd_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sd_folder, tmp_path / "half")
    for file in folder.rglob("*.safetensors"):
        file.rename(file.with_name(file.name.replace(".safetensors", ".fp16.safetensors")))
    hub.add("owner/half", folder)
    assert image("stable_diffusion", "owner/half") == image("stable_diffusion", sd_folder)


@pytest.mark.slow
def test_single_file_takes_its_configuration_from_the_hub(hub: HubServer, sd_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    write_single_file(sd_folder, file, torch.float32, {})
    with pytest.raises(ConfigError, match=rf"model.safetensors' contains weights only.*{SD15}.*family_options.layout"):
        load("stable_diffusion", file)
    hub.add(SD15, sd_folder)
    assert image("stable_diffusion", file) == image("stable_diffusion", sd_folder)
    asked = hub.downloaded(SD15)
    assert not [name for name in asked if os.path.splitext(name)[1] not in {".json", ".txt"}], "no weights"
    before = hub.calls(SD15)
    load("stable_diffusion", file)
    assert hub.calls(SD15) == before
