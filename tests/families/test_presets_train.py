"""The presets for Stable Diffusion, each trained for two steps with a tiny model in place of the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import TrainConfig, load_preset, preset_names
from tests.conftest import draw_images
from tests.runs import Run, train_alone

PRESETS = [name for name in preset_names() if name.startswith(("sd15", "sdxl", "textual"))]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_images(tmp_path_factory.mktemp("images"), 3)


def test_all_that_were_promised_are_there() -> None:
    wanted = {"sd15_lora", "sd15_fine_tune", "sdxl_lora_12gb", "sdxl_lora_multi_gpu", "sdxl_fine_tune"}
    assert {*wanted, "textual_inversion"} <= set(PRESETS)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_trains(name: str, images: Path, tmp_path: Path, sd_folder: Path, sdxl_folder: Path) -> None:
    base = sdxl_folder if load_preset(name).family == "stable_diffusion_xl" else sd_folder
    code, run = trained(name, base, images, load_preset(name).embedding_token + " ", tmp_path)
    assert code == 0, run.failure(0)
    assert len(run.losses) == 2
    assert all(loss == loss for loss in run.losses)
    assert any(run.folder.model_dir.rglob("*.safetensors"))
    assert "captions" not in run.warnings


@pytest.mark.slow
def test_a_word_that_stands_in_no_caption_is_told(images: Path, tmp_path: Path, sd_folder: Path) -> None:
    code, run = trained("textual_inversion", sd_folder, images, "", tmp_path)
    assert code == 0, run.failure(0)
    assert "The token '<my-concept>' is in none of the 3 captions" in run.warnings


def trained(name: str, base: Path, images: Path, prefix: str, tmp_path: Path) -> tuple[int, Run]:
    preset = load_preset(name)
    changes: dict[str, object] = {
        "base_model": str(base),
        "concepts": [{"path": str(images), "prompt_prefix": prefix}],
        "resolution": 64,
        "max_steps": 2,
        "cache_dir": str(tmp_path / "cache"),
        "runs_dir": str(tmp_path / "runs"),
        "run_name": "x",
        "loader_workers": 0,
        "pin_memory": False,
        "tensorboard": False,
        "enable_multi_gpu": False,
        "training_mode": "auto",
        "samples": [{"prompt": "a red disc", "width": 64, "height": 64, "steps": 2}],
    }
    return train_alone(TrainConfig.model_validate(preset.model_dump() | changes))
