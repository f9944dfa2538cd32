"""Realistic files of each trainer, in the folder layout that it expects."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

FILES = Path(__file__).parent / "files"


@pytest.fixture
def onetrainer(tmp_path: Path) -> Path:
    """A preset two folders below OneTrainer's root, with concepts and samples in its default locations."""
    for name in ("training_presets/SDXL", "training_concepts", "training_samples", "pictures/cat"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(FILES / "onetrainer.json", tmp_path / "training_presets/SDXL/my.json")
    shutil.copy(FILES / "onetrainer_concepts.json", tmp_path / "training_concepts/concepts.json")
    shutil.copy(FILES / "onetrainer_samples.json", tmp_path / "training_samples/samples.json")
    return tmp_path / "training_presets/SDXL/my.json"


@pytest.fixture
def kohya(tmp_path: Path) -> Path:
    """A config file of sd-scripts next to its folders <repeats>_<words>."""
    for name in ("img/10_sks cat", "img/2_dog", "reg/1_cat", "pictures/a", "pictures/b"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "img/2_dog/rex.txt").write_text("a dog, outdoors", encoding="utf-8")
    for file in FILES.glob("kohya*"):
        shutil.copy(file, tmp_path)
    return tmp_path / "kohya.toml"


@pytest.fixture
def ai_toolkit(tmp_path: Path) -> Path:
    """A job next to its folder of images."""
    (tmp_path / "pictures").mkdir()
    return Path(shutil.copy(FILES / "ai_toolkit.yaml", tmp_path))


@pytest.fixture
def other_trainers(tmp_path: Path) -> Path:
    """A folder with the files of diffusion-pipe and SimpleTuner next to their images."""
    (tmp_path / "pictures").mkdir()
    for file in (*FILES.glob("diffusion_pipe*"), *FILES.glob("simple_tuner*")):
        shutil.copy(file, tmp_path)
    return tmp_path
