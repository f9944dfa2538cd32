"""What a start would refuse is found beforehand: by --dry_run, by an import, and by the window in a child process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from modules.config import ConfigError, DataError, TrainConfig
from modules.training.dry_run import dry_run
from modules.training.loop.checks import check_startable, startup_problems
from modules.training.loop.run_info import batch_norm_note
from tests.runs import ROOT, TINY

XL: dict[str, object] = {"family": "stable_diffusion_xl", "base_model": "a/b", "resolution": 1024}


@pytest.fixture
def usable(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "images").mkdir()
    return {**XL, "concepts": [{"path": str(tmp_path / "images")}]}


def problems(settings: dict[str, object]) -> list[str]:
    return [str(error) for error in startup_problems(TrainConfig.model_validate(settings))]


def test_a_config_without_problems(usable: dict[str, object]) -> None:
    assert problems(usable) == []
    assert check_startable(TrainConfig.model_validate(usable)) == []
    to_come = TrainConfig.model_validate({**usable, "concepts": [{"path": "/nowhere/cats"}]})
    assert check_startable(to_come, has_data=False) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"base_model": None}, "base_model is empty; this family starts from a pretrained model"),
        ({"base_model": "/nowhere/model.safetensors"}, "base_model: there is no '/nowhere/model.safetensors'"),
        ({"concepts": []}, "concepts: there is no concept that is switched on"),
        ({"concepts": [{"path": ".", "enabled": False}]}, "concepts: there is no concept that is switched on"),
        ({"concepts": [{"path": "/nowhere/cats"}]}, "concepts: the folder '/nowhere/cats' does not exist"),
        (
            {"concepts": [{"path": "/nowhere/cifar-10-python.tar.gz"}]},
            "concepts: the archive '/nowhere/cifar-10-python.tar.gz' does not exist. Download cifar-10-python.tar.gz "
            "from https://www.cs.toronto.edu/~kriz/cifar.html and put it there",
        ),
        ({"resolution": 888}, "resolution is 888; stable_diffusion_xl needs a multiple of 64, for example 896"),
        ({"samples": [{"prompt": "a", "width": 1000}]}, "samples.0.width is 1000; stable_diffusion_xl needs"),
        ({"family": "dalle"}, "family is 'dalle'; use one of"),
    ],
)
def test_each_problem_is_found_alone(usable: dict[str, object], settings: dict[str, object], said: str) -> None:
    config = TrainConfig.model_validate({**usable, **settings})
    (found,) = problems({**usable, **settings})
    assert found.startswith(said)
    with pytest.raises(DataError if said.startswith("concepts") else ConfigError, match=re.escape(said)):
        check_startable(config)


def test_a_base_model_that_a_start_refuses_is_found(usable: dict[str, object], tmp_path: Path) -> None:
    """The folder of a LoRA, an incomplete folder, and single files with the layout of another family or damaged."""
    lora, bare, whole, layout = (tmp_path / name for name in ("lora", "bare", "sdxl.safetensors", "layout"))
    for folder, names in ((lora, ()), (bare, ("unet",)), (layout, ("scheduler", "tokenizer"))):
        for name in ("", *names):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "config.json").write_text("{}")
    save_file({"unet.a.lora_A.weight": torch.ones(2, 2)}, lora / "pytorch_lora_weights.safetensors")
    (bare / "model_index.json").write_text('{"_class_name": "StableDiffusionXLPipeline"}')
    (layout / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    names = ("model.diffusion_model.x", "conditioner.embedders.1.model.x")
    save_file({name: torch.ones(1) for name in names}, whole)
    sd = {"family": "stable_diffusion", "family_options": {"layout": str(layout)}}
    xl = {"family_options": {"layout": str(layout)}}
    for settings, said in (
        ({"base_model": str(lora)}, "holds a LoRA"),
        ({"base_model": str(bare)}, "has no unet|has no vae|has no text_encoder|has no weights"),
        ({**sd, "base_model": str(whole)}, "is a model of Stable Diffusion XL"),
        ({"family": "pixel_diffusion", "base_model": str(lora)}, "is not a model folder"),
        ({**xl, "base_model": str(whole)}, "family_options.layout: .*contains a StableDiffusionPipeline"),
    ):
        (found,) = problems({**usable, **settings})
        assert re.search(said, found), found


@pytest.mark.slow
def test_a_lora_without_layers_is_found_without_weights(usable: dict[str, object], tmp_path: Path) -> None:
    """In folders, in single files whose configuration is in `layout`, and in a family that starts from nothing."""
    single = tmp_path / "sdxl.safetensors"
    keys = ("model.diffusion_model.x", "conditioner.embedders.1.model.x")
    save_file({name: torch.ones(1) for name in keys}, single)
    from tests.families.tiny_pipelines import tiny_sdxl  # takes seconds to import

    folder = tiny_sdxl(tmp_path / "base")
    in_file = {"base_model": str(single), "family_options": {"layout": str(folder)}}
    pixels = {"family": "pixel_diffusion", "base_model": None}
    unet = {"parts": [{"part": "unet"}]}
    encoder = {"parts": [{"part": "text_encoder"}]}
    for settings, targets, said in (
        ({"base_model": str(folder)}, "to_q,foo", r"whose pattern 'foo' matches none of the \d+ layers .* are unet\."),
        (in_file, "foo", r"whose pattern 'foo' matches none"),
        (in_file | encoder, "to_q", r"whose pattern 'to_q' matches none of the \d+ layers .* are text_encoder\."),
        (pixels, "foo", r"whose pattern 'foo' matches none"),
        ({"base_model": str(folder)} | unet, "to_q", ""),
        ({"base_model": str(folder)} | encoder, "q_proj", ""),
        (pixels, "kohya", ""),
    ):
        found = problems({**usable, **settings, "method": "lora", "lora_targets": targets})
        assert len(found) == bool(said), found
        assert all(re.search(said, sentence) for sentence in found), found


def test_all_problems_are_found_at_once() -> None:
    config = TrainConfig.model_validate({**XL, "base_model": None, "resolution": 888})
    words = [sentence.split()[0] for sentence in dry_run(config)]
    assert words == ["resolution", "base_model", "concepts:"]


def test_the_windows_child_process_says_the_same() -> None:
    config = TrainConfig.model_validate({"family": TINY, "resolution": 17})  # which imports no diffusers
    child = subprocess.run(
        [sys.executable, "-m", "modules.training.dry_run"],
        cwd=ROOT, input=config.model_dump_json(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(child.stdout) == dry_run(config)
    assert len(dry_run(config)) == 2


def test_batch_norm_on_several_gpus_is_said() -> None:
    model, gpu, cpu = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), torch.device("cuda"), torch.device("cpu")
    config = TrainConfig(batch_size=4)
    assert "1 BatchNorm layers average over the 4 images" in batch_norm_note(model, config, gpu, 2)
    assert not batch_norm_note(model, config, gpu, 1)
    assert not batch_norm_note(model, config, cpu, 2), "torch has no SyncBatchNorm there"
    assert not batch_norm_note(model, config.model_copy(update={"sync_batch_norm": True}), gpu, 2)
    assert not batch_norm_note(model.eval(), config, gpu, 2), "its averages are frozen"
