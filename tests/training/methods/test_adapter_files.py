"""What adapters leave behind: files that others read, backups that resume, and a model folder that samples."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from modules.checkpoint import read_model_config
from modules.checkpoint.formats import read_embedding
from modules.config import ConfigError
from modules.distributed import Weights
from modules.training.memory.model_setup import load_family
from modules.training.methods.method import apply_adapter, export_of
from scripts.sample import main as draw_images
from tests.adapted_models import BOTH, LORA, assert_close, batch_of, ready, train_a_little
from tests.runs import Run, same_state, tiny_config, train_alone

# dropout, average, an own learning rate, and a part that stops within the run
TOUCHY: dict[str, object] = {
    **LORA,
    "lora_dropout": 0.2,
    "parts": [{"part": "unet"}, {"part": "text_encoder", "learning_rate": 0.003, "stop_after": "5 steps"}],
    "ema": True,
    "max_steps": 8,
    "batch_size": 8,
}


@pytest.mark.parametrize("decompose", [False, True])
@pytest.mark.parametrize("targets", ["all", "all_linear"])
def test_a_saved_lora_equals_the_model_in_memory(tmp_path: Path, targets: str, decompose: bool) -> None:
    settings = {**LORA, "parts": BOTH, "lora_targets": targets, "lora_weight_decompose": decompose, "seed": 9}
    family, config = ready(**settings, learning_rate=0.05)
    export_of(family, train_a_little(family, config), config, {})(tmp_path)
    reported = batch_of(3, family)
    assert abs(reported.item() - batch_of(3, ready(seed=9)[0]).item()) > 1e-3, "the LoRA says something"

    merged = load_family(config)
    apply_adapter(merged, config, tmp_path)
    assert_close(batch_of(3, merged), reported)

    read = load_family(config)
    tensors = load_file(tmp_path / "pytorch_lora_weights.safetensors")
    names = sorted({name.partition(".lora_")[0] for name in tensors})
    by_peft = LoraConfig(r=3, lora_alpha=2, target_modules=names, use_dora=decompose)
    inject_adapter_in_model(by_peft, read.model)
    left: Any = set_peft_model_state_dict(read.model, tensors)
    assert not left.unexpected_keys
    assert_close(batch_of(3, read), reported)


def test_a_lora_for_another_base_model_is_refused(tmp_path: Path) -> None:
    family, config = ready(**LORA)
    export_of(family, Weights(family.model), config, {})(tmp_path)
    wider = load_family(config.model_copy(update={"family_options": {"width": 8}}))
    with pytest.raises(ConfigError, match=r"'unet\.\w+' of the shape \[6, .*, but the base model has one of the shape"):
        apply_adapter(wider, config, tmp_path)
    with pytest.raises(ConfigError, match=r"has no pytorch_lora_weights\.safetensors"):
        apply_adapter(family, config, tmp_path / "nowhere")


def test_a_saved_word_is_the_model_in_memory(tmp_path: Path) -> None:
    family, config = ready(method="embedding", embedding_vectors=2, embedding_token="<my-cat>", learning_rate=0.05)
    export_of(family, train_a_little(family, config), config, {})(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["my-cat.safetensors"]
    token, vectors = read_embedding(tmp_path / "my-cat.safetensors")
    assert token == "<my-cat>"
    assert torch.equal(vectors["text_encoder"], Weights(family.model).local["text_encoder.table.rows"])
    again = load_family(config)
    apply_adapter(again, config, tmp_path)
    # the same vectors in other memory: some CPUs round the last bit of a product otherwise
    torch.testing.assert_close(batch_of(3, again), batch_of(3, family), rtol=1e-6, atol=0)
    wider = load_family(config.model_copy(update={"family_options": {"width": 8}}))
    with pytest.raises(ConfigError, match=r"vectors of 6 numbers, but text_encoder\.table of the base model has 8"):
        apply_adapter(wider, config, tmp_path)


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run without a pause, with a backup after each step."""
    place = tmp_path_factory.mktemp("whole")
    code, run = train_alone(tiny_config(images, place, backup_every="1 step", backups_kept=99, **TOUCHY))
    assert code == 0
    return run


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, 6])
def test_a_resumed_run_ends_in_the_same_bits(images: Path, tmp_path: Path, whole: Run, step: int) -> None:
    backup = whole.folder.backup_dir / f"step-{step:06d}"
    code, run = train_alone(tiny_config(images, tmp_path, **TOUCHY), str(backup))
    assert code == 0
    assert same_state(run.state, whole.state)
    assert run.losses == whole.losses[step:]


def test_frozen_submodules_keep_their_bits(whole: Run) -> None:
    kept = [load_file(whole.folder.backup_dir / f"step-{step:06d}" / "weights.safetensors") for step in range(1, 9)]
    assert all(".lora_" in name for name in kept[0])
    for name in kept[0]:
        moves = [not torch.equal(before[name], after[name]) for before, after in pairwise(kept)]
        if name.startswith("text_encoder"):
            assert moves == [True] * 4 + [False] * 3, name
        else:
            assert all(moves), name


def test_the_terminal_says_what_is_trained(whole: Run) -> None:
    reported = whole.folder.log_file(0).read_text()
    assert "LoRA of rank 3 and alpha 2 in 8 layers; 0.00 M weights are frozen." in reported
    assert "text_encoder: learning rate 0.003, for 5 steps." in reported


def test_another_choice_of_layers_cannot_go_on_from_a_backup(images: Path, tmp_path: Path, whole: Run) -> None:
    other = {**TOUCHY, "lora_targets": "all_linear"}
    code, run = train_alone(tiny_config(images, tmp_path, **other), str(whole.folder.backup_dir / "step-000003"))
    assert code == 2
    assert "lora_targets is 'all_linear', but the run of this backup has 'all'" in run.failure(0)


@pytest.mark.parametrize("decompose", [False, True])
def test_the_built_in_family_samples_with_its_lora(images: Path, tmp_path: Path, decompose: bool) -> None:
    """Trained, sampled at the end, and sampled again by scripts/sample.py from the model folder alone."""
    sample: Mapping[str, object] = {"prompt": "a red disc", "width": 32, "height": 32, "steps": 4, "seed": 7}
    settings = {
        "family": "pixel_diffusion",
        "family_options": {"width": 8},
        "method": "lora",
        "lora_rank": 4,
        "lora_targets": "all",
        "lora_weight_decompose": decompose,
        "learning_rate": 0.02,
        "samples": [{**sample, "guidance_scale": 2.0}],
        "sample_every": "1 epoch",
        "max_steps": 3,
        "batch_size": 8,
        "ema": True,
        "channels_last": True,
        "gradient_checkpointing": True,
    }
    code, run = train_alone(tiny_config(images, tmp_path, **settings))
    assert code == 0, run.failure(0)
    assert run.folder.model_dir.joinpath("pytorch_lora_weights.safetensors").stat().st_size < 200_000
    config = read_model_config(run.folder.model_dir)
    assert (config.method, config.base_model, config.seed) == ("lora", None, 42)
    command = ["--model", str(run.folder.model_dir), "--out", str(tmp_path / "out")]
    for name, value in {**sample, "guidance_scale": 2.0}.items():
        command += [f"--{name}", str(value)]
    assert draw_images(command) == 0
    sampled = image(tmp_path / "out" / "sample-00.png")
    during = image(run.folder.samples_dir / "step-000003-00.png")
    assert (sampled - during).abs().max() <= 1, "one of 255 levels"


def image(file: Path) -> Tensor:
    """Levels."""
    image = Image.open(file)
    return torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8).int()
