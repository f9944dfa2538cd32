"""A config file of sd-scripts, once imported, trains a LoRA."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from modules.config import load_config
from scripts import import_config
from tests.families.tiny_pipelines import tiny_sdxl
from tests.runs import train_alone

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


THEIRS = """
[model]
pretrained_model_name_or_path = "tiny_xl"
[data]
train_data_dir = "img"
resolution = "64,64"
max_data_loader_n_workers = 0
[training]
network_module = "networks.lora"
network_dim = 4
network_alpha = 2
unet_lr = 1e-3
network_train_unet_only = true
learning_rate = 1e-4
optimizer_type = "AdamW8bit"
lr_scheduler = "cosine"
max_train_steps = 2
min_snr_gamma = 5
sample_prompts = "prompts.txt"
sample_every_n_steps = 2
sample_sampler = "euler_a"
output_dir = "output"
output_name = "disc"
"""


def test_an_imported_config_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_sdxl(tmp_path / "tiny_xl")
    images = tmp_path / "img" / "2_red disc"
    images.mkdir(parents=True)
    for number in range(2):
        Image.new("RGB", (64, 64), (200, 20 * number, 0)).save(images / f"{number}.png")
    (tmp_path / "prompts.txt").write_text("red disc --w 64 --h 64 --s 2 --l 1 --d 7\n", encoding="utf-8")
    (tmp_path / "theirs.toml").write_text(THEIRS, encoding="utf-8")

    monkeypatch.chdir(tmp_path)
    assert import_config.main(["theirs.toml", "-o", "ours.yaml"]) == 0
    config = load_config(tmp_path / "ours.yaml")
    assert (config.max_steps, config.lora_rank, config.concepts[0].repeats) == (2, 4, 2)
    code, run = train_alone(config.model_copy(update={"device": "cpu"}))
    assert code == 0, run.failure(0)

    done = tmp_path / "output" / "disc"
    assert (done / "model" / "lora_kohya.safetensors").is_file()
    assert list((done / "samples").glob("*.png"))
