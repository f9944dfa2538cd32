"""Settings of other trainers that save memory, and what they become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.importers import import_file
from modules.importers.report import ImportResult

KOHYA_LORA = 'pretrained_model_name_or_path = "{}"\nnetwork_module = "networks.lora_{}"\nmixed_precision = "bf16"\n'
KOHYA_TUNED = 'pretrained_model_name_or_path = "x/flux"\nmodel_type = "flux"\nmax_train_epochs = 1\n'
PIPE = (
    'micro_batch_size_per_gpu = 1\n{}\n[model]\ntype = "{}"\ndtype = "bfloat16"\n{}\n[optimizer]\ntype = "adamw"\n{}\n'
)
LORA = '[adapter]\ntype = "lora"\nrank = 8'


def imported(folder: Path, name: str, text: str) -> ImportResult:
    (folder / name).write_text(text, encoding="utf-8")
    return import_file(folder / name)


def reasons(result: ImportResult) -> dict[str, str]:
    return {entry.source: entry.why for entry in result.report.not_imported}


@pytest.mark.parametrize(
    ("base", "script", "count", "fraction"),
    [
        ("black-forest-labs/FLUX.1-dev", "flux", 18, 0.47),  # 9 double blocks and 18 single ones of 57
        ("black-forest-labs/FLUX.1-dev", "flux", 35, 0.93),
        ("stabilityai/stable-diffusion-3.5-medium", "sd3", 12, 0.5),
        ("stabilityai/stable-diffusion-3.5-large", "sd3", 19, 0.5),
        ("C:\\models\\sd3.5_large_fp8.safetensors", "sd3", 19, 0.5),
        ("models/sd3_medium_incl_clips.safetensors", "sd3", 12, 0.5),
        ("Alpha-VLLM/Lumina-Image-2.0", "lumina", 15, 0.5),
        ("black-forest-labs/FLUX.1-dev", "flux", 0, 0.0),
    ],
)
def test_kohya_blocks_to_swap(base: str, script: str, count: int, fraction: float, tmp_path: Path) -> None:
    text = KOHYA_LORA.format(base.replace("\\", "\\\\"), script) + f"blocks_to_swap = {count}\n"
    result = imported(tmp_path, "a.toml", text)
    assert result.config.block_offload == fraction
    assert any(entry.source == "blocks_to_swap" for entry in result.report.changed) == (count > 0)


@pytest.mark.parametrize(
    ("kind", "file", "swapped", "blocks"),
    [  # of FLUX, half of 8 are double blocks, twice the other half and one more are single ones
        ("flux", "flux1-dev.safetensors", 13, 57),
        ("flux2", "flux2-dev.safetensors", 13, 56),
        ("flux2", "flux-2-klein-base-9b.safetensors", 13, 32),
        ("flux2", "flux-2-klein-4b.safetensors", 13, 25),
        ("krea2", "krea2_raw_bf16.safetensors", 8, 28),
        ("lumina_2", "lumina_2_model_bf16.safetensors", 8, 30),
        ("z_image", "z_image_turbo_bf16.safetensors", 8, 34),
        ("flux2", "mine.safetensors", 0, 1),
    ],
)
def test_diffusion_pipes_blocks_to_swap(kind: str, file: str, swapped: int, blocks: int, tmp_path: Path) -> None:
    text = PIPE.format("blocks_to_swap = 8", kind, f'diffusion_model = "/models/{file}"', LORA)
    result = imported(tmp_path, "a.toml", text)
    assert result.config.block_offload == round(swapped / blocks, 2)
    assert ("blocks_to_swap" in reasons(result)) is (swapped == 0)


def test_blocks_of_a_model_of_unknown_size(tmp_path: Path) -> None:
    result = imported(tmp_path, "a.toml", KOHYA_LORA.format("my-sd3", "sd3") + "blocks_to_swap = 12\n")
    assert result.config.block_offload == 0
    assert reasons(result)["blocks_to_swap"].startswith("set block_offload")


def test_blocks_of_a_fine_tune_are_not_offloaded(tmp_path: Path) -> None:
    result = imported(tmp_path, "a.toml", KOHYA_TUNED + "blocks_to_swap = 18\n")
    assert result.config.block_offload == 0
    assert "fine_tune trains the blocks themselves" in reasons(result)["blocks_to_swap"]


def test_kohya_fp8_base(tmp_path: Path) -> None:
    text = KOHYA_LORA.format("black-forest-labs/FLUX.1-dev", "flux") + "fp8_base = true\n"
    config = imported(tmp_path, "a.toml", text).config
    assert [(part.part, part.weights) for part in config.parts] == [("transformer", "fp8")]
    result = imported(tmp_path, "b.toml", KOHYA_TUNED + "fp8_base = true\n")
    assert all(part.weights == "run" for part in result.config.parts)
    assert "under a LoRA" in reasons(result)["fp8_base"]


def test_kohya_fused_backward_and_rounding(tmp_path: Path) -> None:
    more = 'fused_backward_pass = true\nfull_bf16 = true\nmixed_precision = "bf16"\noptimizer_type = "Adafactor"\n'
    more += 'optimizer_args = ["relative_step=False", "scale_parameter=False"]\n'
    config = imported(tmp_path, "a.toml", KOHYA_TUNED + more + "max_grad_norm = 0\n").config
    assert (config.fused_backward, config.stochastic_rounding) == (True, True)
    result = imported(tmp_path, "b.toml", KOHYA_TUNED + more + "max_grad_norm = 1.0\n")
    assert not result.config.fused_backward
    assert "leave max_grad_norm empty" in reasons(result)["fused_backward_pass"]
    grouped = imported(tmp_path, "c.toml", KOHYA_TUNED + "fused_optimizer_groups = 4\nmax_grad_norm = 0\n")
    assert grouped.config.fused_backward
    lora = imported(tmp_path, "d.toml", KOHYA_LORA.format("x/y", "flux") + "full_bf16 = true\n")
    assert not lora.config.stochastic_rounding
    assert "always trained in fp32" in reasons(lora)["full_bf16"]


def test_diffusion_pipe(tmp_path: Path) -> None:
    text = PIPE.format("blocks_to_swap = 30", "qwen_image", 'transformer_dtype = "float8"', LORA)
    config = imported(tmp_path, "a.toml", text).config
    assert config.block_offload == 0.5
    assert [(part.part, part.weights) for part in config.parts] == [("transformer", "fp8")]
    text = PIPE.format("gradient_clipping = 0", "qwen_image", "", "gradient_release = true")
    assert imported(tmp_path, "b.toml", text).config.fused_backward
    text = PIPE.format("blocks_to_swap = 8", "sdxl", "", LORA)
    result = imported(tmp_path, "c.toml", text)
    assert reasons(result)["blocks_to_swap"] == "for models trained by flow matching"


ONETRAINER: dict[str, Any] = {
    "__version": 10, "model_type": "FLUX_DEV_1", "base_model_name": "black-forest-labs/FLUX.1-dev",
    "training_method": "LORA", "train_dtype": "BFLOAT_16", "learning_rate": 1e-4,
}  # fmt: skip


def onetrainer(folder: Path, **given: object) -> ImportResult:
    return imported(folder, "o.json", json.dumps({**ONETRAINER, **given}))


def test_onetrainer_layer_offload_fraction(tmp_path: Path) -> None:
    given = {"layer_offload_fraction": 0.4, "gradient_checkpointing": "CPU_OFFLOADED"}
    assert onetrainer(tmp_path, **given).config.block_offload == 0.4
    result = onetrainer(tmp_path, **given | {"gradient_checkpointing": "ON"})
    assert result.config.block_offload == 0
    assert "layer_offload_fraction" in reasons(result)


def test_onetrainer_fused_and_rounding(tmp_path: Path) -> None:
    optimizer = {"optimizer": "ADAFACTOR", "stochastic_rounding": True, "fused_back_pass": True}
    given = {
        "model_type": "STABLE_DIFFUSION_XL_10_BASE", "training_method": "FINE_TUNE", "optimizer": optimizer,
        "clip_grad_norm": 0, "unet": {"weight_dtype": "BFLOAT_16"}, "text_encoder": {"train": False},
        "text_encoder_2": {"train": False},
    }  # fmt: skip
    config = onetrainer(tmp_path, **given).config
    assert (config.fused_backward, config.stochastic_rounding) == (True, True)
    kept = onetrainer(tmp_path, **given | {"optimizer": optimizer | {"stochastic_rounding": False}})
    assert not kept.config.stochastic_rounding
    assert reasons(kept)["unet.weight_dtype"] == "weights that are trained are kept in fp32"
    lora = onetrainer(tmp_path, **given | {"training_method": "LORA", "unet": {"weight_dtype": "FLOAT_8"}})
    assert not lora.config.stochastic_rounding
    assert {part.part: part.weights for part in lora.config.parts}["unet"] == "fp8"


def test_onetrainer_trains_the_transformer(tmp_path: Path) -> None:
    part = {"train": True, "weight_dtype": "FLOAT_8", "learning_rate": 2e-4, "stop_training_after": 3,
            "stop_training_after_unit": "EPOCH"}  # fmt: skip
    result = onetrainer(tmp_path, transformer=part)
    (found,) = result.config.parts
    assert (found.part, found.train, found.weights, found.learning_rate) == ("transformer", True, "fp8", 2e-4)
    assert str(found.stop_after) == "3 epochs"
    assert not [name for name in reasons(result) if name.startswith("transformer")]
    encoders = {"text_encoder": {"weight_dtype": "FLOAT_8", "train": False}}
    encoders["text_encoder_2"] = {"weight_dtype": "NFLOAT_4", "train": False}
    quantized = onetrainer(tmp_path, model_type="FLUX_DEV_1", transformer=part, **encoders)
    assert quantized.config.family_options["text_encoder_weights"] == "nf4", "of T5; CLIP stays"
    given = {"training_method": "FINE_TUNE", "transformer": {"weight_dtype": "BFLOAT_16"}}
    rounded = onetrainer(tmp_path, **given, optimizer={"optimizer": "ADAMW", "stochastic_rounding": True})
    assert rounded.config.stochastic_rounding
    offloaded = {"offload_fraction": 0.3, "gradient_checkpointing": "CPU_OFFLOADED"}
    assert onetrainer(tmp_path, transformer=offloaded).config.block_offload == 0.3
    assert not onetrainer(tmp_path, transformer={"gradient_checkpointing": False}).config.gradient_checkpointing
    other = onetrainer(tmp_path, model_type="STABLE_DIFFUSION_15", transformer={"weight_dtype": "FLOAT_8"})
    assert reasons(other)["transformer.weight_dtype"] == "the model type has no transformer"


@pytest.mark.parametrize(("qtype", "weights"), [("qfloat8", "fp8"), ("int8", "int8"), ("uint4", "run")])
def test_ai_toolkit_quantize(qtype: str, weights: str, tmp_path: Path) -> None:
    model = {"name_or_path": "black-forest-labs/FLUX.1-dev", "arch": "flux", "quantize": True, "qtype": qtype,
             "quantize_te": True, "qtype_te": qtype}  # fmt: skip
    process = {"type": "sd_trainer", "network": {"type": "lora", "linear": 4}, "model": model, "datasets": []}
    text = json.dumps({"job": "extension", "config": {"name": "a", "process": [process]}})
    result = imported(tmp_path, "t.json", text)
    assert [part.weights for part in result.config.parts] == [weights]
    assert result.config.family_options.get("text_encoder_weights", "run") == weights
    assert any("model.qtype" in source for source in reasons(result)) == (weights == "run")
    assert any("model.qtype_te" in source for source in reasons(result)) == (weights == "run")


@pytest.mark.parametrize(
    ("kind", "name", "weights"),
    [
        ("lora", "int8-quanto", "int8"), ("lora", "fp8-torchao", "fp8"), ("lora", "nf4-bnb", "nf4"),
        ("lora", "int2-quanto", "run"), ("full", "int8-quanto", "run"), ("lora", "no_change", "run"),
    ],
)  # fmt: skip
def test_simple_tuner_base_model_precision(kind: str, name: str, weights: str, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text("[]")
    settings = {
        "--model_type": kind, "--model_family": "flux", "--data_backend_config": "data.json",
        "--pretrained_model_name_or_path": "black-forest-labs/FLUX.1-dev", "--base_model_precision": name,
        "--text_encoder_2_precision": name,
    }  # fmt: skip
    result = imported(tmp_path, "s.json", json.dumps(settings))
    assert [part.weights for part in result.config.parts if part.weights != "run"] == [weights] * (weights != "run")
    is_known = name.startswith(("int8", "fp8", "nf4"))
    assert result.config.family_options.get("text_encoder_weights", "run") == (
        name.partition("-")[0] if is_known else "run"
    )
    assert ("base_model_precision" in " ".join(reasons(result))) == (weights == "run" and name != "no_change")
