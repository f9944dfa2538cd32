"""What SimpleTuner and ai-toolkit ship, imported: each row is what that trainer does with the settings of its files.

Of every shipped config of a model that Tandem has, the settings that say what is trained and how (bghira/SimpleTuner at
bc8e6ab, simpletuner/examples/*/config.json; ostris/ai-toolkit at 27a03a9, config/examples and the window's jobConfig.ts
with options.tsx), next to what its code makes of them. A row changes what its trainer's first row has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from modules.config import dump
from modules.importers import ImportResult, import_file
from tests.importers.rates import rates

Given = Mapping[str, Any]
HELD: Final = {"base_model": None}  # it is to be set first, and the report says why

SIMPLE_TUNER: Final[Given] = {
    "model_type": "lora", "lora_type": "standard", "model_family": "flux", "lora_rank": 16, "lora_alpha": 16,
    "base_model_precision": "int8-quanto", "flow_schedule_shift": 3, "learning_rate": 1e-4, "lr_scheduler": "constant",
    "max_train_steps": 100, "num_train_epochs": 0, "train_batch_size": 1, "gradient_checkpointing": True,
    "optimizer": "adamw_bf16", "checkpoint_step_interval": 50, "seed": 42, "use_ema": False,
}  # fmt: skip
SIMPLE_TUNER_DOES: Final[Given] = {
    "family": "flux", "method": "lora", "base_model": "black-forest-labs/FLUX.1-Krea-dev", "lora_algorithm": "lora",
    "lora_rank": 16, "lora_alpha": 16, "lora_dropout": 0.1, "lora_targets": "attention", "parts.0.weights": "int8",
    "learning_rate": 1e-4, "scheduler": "constant", "warmup_steps": 0, "max_steps": 100, "batch_size": 1,
    "gradient_accumulation_steps": 1, "gradient_checkpointing": True, "optimizer.name": "adamw", "optimizer.eps": 1e-6,
    "optimizer.weight_decay": 0.01, "optimizer.betas": [0.9, 0.999], "max_grad_norm": 2.0, "precision": "bf16",
    "ema": False, "seed": 42, "resolution": 1024, "caption_dropout": 0.1, "backup_every": "50 steps",
    "backups_kept": 5, "lr_scaling": "none", "family_options.timestep_shift": "static", "family_options.shift": 3.0,
}  # fmt: skip
LION: Final[Given] = {
    "optimizer.name": "lion", "optimizer.betas": [0.9, 0.99], "optimizer.weight_decay": 0.0, "optimizer.eps": None,
}  # fmt: skip
IMAGE_LAYERS: Final = r"\.(to_[qkv]|to_out\.0)$"
NO_FLOW: Final[Given] = {"family_options.timestep_shift": None, "family_options.shift": None}
RANK_64: Final[Given] = {"lora_rank": 64, "lora_alpha": None, "max_grad_norm": 0.01, "optimizer": "optimi-lion",
                         "caption_dropout_probability": 0.0, "lr_scheduler": "constant_with_warmup",
                         "flow_schedule_shift": None}  # fmt: skip
DOES_RANK_64: Final[Given] = {"lora_rank": 64, "lora_alpha": 64, "max_grad_norm": 0.01, "caption_dropout": 0.0, **LION}
LOKR: Final[Given] = {"lora_algorithm": "lokr", "lora_rank": 4096, "lora_alpha": 1.0, "lora_dropout": 0.0}
TURBO: Final[Given] = {**RANK_64, "model_family": "z_image", "model_flavour": "turbo"}
DOES_TURBO: Final[Given] = {**DOES_RANK_64, "family": "z_image", **HELD}


def lycoris(factor: int, *classes: str, full: bool) -> Given:
    preset = {"target_module": list(classes), "module_algo_map": {classes[0]: {"factor": factor}}}
    return {"algo": "lokr", "linear_dim": 10000, "linear_alpha": 1, "full_matrix": full, "apply_preset": preset}


SIMPLE_TUNER_ROWS: Final[dict[str, tuple[Given, Given]]] = {
    "flux.peft-lora, flux.peft-lora+TREAD": ({"checkpoint_step_interval": 10}, {"backup_every": "10 steps"}),
    "flux.peft-controlnet-lora": (
        {"controlnet": True, "lora_rank": 64, "lora_alpha": 64}, {"lora_rank": 64, "lora_alpha": 64, **HELD},
    ),
    "kontext.peft-lora": (
        {"model_flavour": "kontext", "learning_rate": 1e-8, "optimizer": "optimi-lion", "resolution": 512,
         "flow_schedule_shift": None},
        {"family": "flux_kontext", "learning_rate": 1e-8, "resolution": 512, **LION, **HELD},
    ),
    "flux2.peft-lora, flux2.peft-lora+TREAD": (
        {"model_family": "flux2", "base_model_precision": "int8-sdnq", "checkpoint_step_interval": 10},
        {"family": "flux2", "backup_every": "10 steps", "base_model": "black-forest-labs/FLUX.2-klein-base-9B",
         "lora_targets": r"\.(to_[qkv]|to_out\.0|to_qkv_mlp_proj)$"},
    ),
    "flux2-klein-9b-i2i.lycoris-lokr": (
        {"model_family": "flux2", "model_flavour": "klein-9b", "lora_type": "lycoris", "lora_rank": 128,
         "base_model_precision": "int8-torchao", "train_batch_size": 3,
         "lycoris_config": lycoris(2, "Flux2Attention", "Flux2FeedForward", "Flux2ParallelSelfAttention", full=True),
         "data_backend_config": [{"id": "a", "conditioning": {"conditioning_type": "reference_strict"}}]},
        {"family": "flux2", "batch_size": 3, **LOKR, "lokr_factor": 2, "lora_targets": "attention_mlp", **HELD},
    ),
    "chroma.peft-lora": (
        {"model_family": "chroma", "checkpoint_step_interval": 10},
        {"family": "chroma", "base_model": "lodestones/Chroma1-Base", "backup_every": "10 steps"},
    ),
    "lumina2.peft-lora": (
        {"model_family": "lumina2", "flow_schedule_auto_shift": True, "flow_schedule_shift": 0.0,
         "train_batch_size": 2},
        {"family": "lumina2", "base_model": "Alpha-VLLM/Lumina-Image-2.0", "batch_size": 2, **NO_FLOW},
    ),
    "krea2.peft-lora": (
        {**RANK_64, "model_family": "krea2", "model_flavour": "raw", "lr_warmup_steps": 100, "max_train_steps": 1000,
         "base_model_precision": "int8-sdnq"},
        {**DOES_RANK_64, "family": "krea2", "base_model": "krea/Krea-2-Raw", "warmup_steps": 100, "max_steps": 1000},
    ),
    "qwen_image.peft-lora": (
        {**RANK_64, "model_family": "qwen_image", "model_flavour": "v1.0", "lora_rank": 8, "lora_alpha": 8,
         "base_model_precision": "int2-quanto", "flow_schedule_shift": 1.73, "lr_warmup_steps": 10},
        {**DOES_RANK_64, "family": "qwen_image", "base_model": "Qwen/Qwen-Image", "lora_rank": 8, "lora_alpha": 8,
         "parts.0.weights": None, "family_options.shift": 1.73, "warmup_steps": 10, "lora_targets": IMAGE_LAYERS},
    ),
    "sd1x-dreamshaper.peft-lora": (
        {"model_family": "sd1x", "pretrained_model_name_or_path": "Lykon/dreamshaper-8", "resolution": 512,
         "resolution_type": "pixel", "base_model_precision": "no_change", "lora_alpha": None,
         "flow_schedule_shift": None},
        {"family": "stable_diffusion", "base_model": "Lykon/dreamshaper-8", "resolution": 512,
         "parts.0.weights": None, **NO_FLOW},
    ),
    "sd3.peft-lora": (
        {"model_family": "sd3", "lora_rank": 128, "lora_alpha": 128, "base_model_precision": "no_change",
         "train_batch_size": 3},
        {"family": "stable_diffusion_3", "base_model": "stabilityai/stable-diffusion-3.5-medium", "lora_rank": 128,
         "lora_alpha": 128, "batch_size": 3, "parts.0.weights": None, "lora_targets": IMAGE_LAYERS},
    ),
    "sd3.peft-controlnet-lora": (
        {"model_family": "sd3", "controlnet": True, "lora_rank": 64, "lora_alpha": 64},
        {"family": "stable_diffusion_3", "lora_targets": IMAGE_LAYERS, "lora_rank": 64, "lora_alpha": 64, **HELD},
    ),
    "sdxl.lycoris-lokr": (
        {"model_family": "sdxl", "lora_type": "lycoris", "lycoris_config": lycoris(12, "Attention", full=False),
         "learning_rate": 3e-7, "loss_type": "huber", "base_model_precision": None, "flow_schedule_shift": None},
        {"family": "stable_diffusion_xl", "base_model": "stabilityai/stable-diffusion-xl-base-1.0",
         "learning_rate": 3e-7, "family_options.loss": "huber", "lokr_factor": 12, "parts.0.weights": None,
         **LOKR, **NO_FLOW},
    ),
    "sdxl.peft-controlnet-lora": (
        {"model_family": "sdxl", "controlnet": True, "base_model_precision": None, "flow_schedule_shift": None,
         "lora_rank": 128, "lora_alpha": 128},
        {"family": "stable_diffusion_xl", "lora_rank": 128, "lora_alpha": 128, "parts.0.weights": None, **HELD,
         **NO_FLOW},
    ),
    "z-image.peft-lora": (
        {**TURBO, "model_flavour": "base", "lr_warmup_steps": 100, "max_train_steps": 1000},
        {**DOES_TURBO, "base_model": "Tongyi-MAI/Z-Image", "warmup_steps": 100, "max_steps": 1000},
    ),
    "z-image-turbo.peft-lora": (
        {**TURBO, "lr_warmup_steps": 100, "max_train_steps": 1000},
        {**DOES_TURBO, "warmup_steps": 100, "max_steps": 1000},
    ),
    **{
        f"z-image-turbo.peft-lora+canny-conditioning{more}": (
            {**TURBO, "lr_warmup_steps": 50, "max_train_steps": steps, "resolution": 512},
            {**DOES_TURBO, "warmup_steps": 50, "max_steps": steps, "resolution": 512},
        )
        for more, steps in (("", 500), ("-ddp8", 1250))
    },
}  # fmt: skip

# Schedules of all its configs, 93 of them of models that Tandem does not have: lr_scheduler, lr_warmup_steps,
# max_train_steps, and the factors on the rate at the start, the quarters and the end.
SCHEDULES: Final = (
    ("constant", None, 100, (1, 1, 1, 1, 1)), ("constant", None, 250, (1, 1, 1, 1, 1)),
    ("constant_with_warmup", None, 1000, (1, 1, 1, 1, 1)), ("constant_with_warmup", 0, 100, (1, 1, 1, 1, 1)),
    ("constant_with_warmup", 10, 100, (0, 1, 1, 1, 1)), ("constant_with_warmup", 50, 100, (0, 0.5, 1, 1, 1)),
    ("constant_with_warmup", 100, 100, (0, 0.25, 0.5, 0.75, 1)), ("constant_with_warmup", 10, 250, (0, 1, 1, 1, 1)),
    ("constant_with_warmup", 50, 200, (0, 1, 1, 1, 1)), ("constant_with_warmup", 50, 500, (0, 1, 1, 1, 1)),
    ("constant_with_warmup", 100, 1000, (0, 1, 1, 1, 1)), ("constant_with_warmup", 250, 1000, (0, 1, 1, 1, 1)),
    ("constant_with_warmup", 250, 1500, (0, 1, 1, 1, 1)), ("constant_with_warmup", 1000, 6000, (0, 1, 1, 1, 1)),
    ("constant_with_warmup", 1000, 8000, (0, 1, 1, 1, 1)), ("constant_with_warmup", 250, 20_000, (0, 1, 1, 1, 1)),
    ("constant_with_warmup", 50, 1250, (0, 1, 1, 1, 1)), ("constant_with_warmup", 0, 1, (1, 1, 1, 1, 1)),
    ("cosine", 400_000, 100, (1, 1, 1, 1, 1)), ("cosine", 50, 100, (1, 0.5, 0.01, 0.5, 1)),
)  # fmt: skip

AI_TOOLKIT: Final[dict[str, Given]] = {
    "network": {"type": "lora", "linear": 16, "linear_alpha": 16},
    "model": {"name_or_path": "black-forest-labs/FLUX.1-dev", "is_flux": True, "quantize": True},
    "train": {
        "batch_size": 1, "steps": 2000, "gradient_accumulation_steps": 1, "train_unet": True,
        "train_text_encoder": False, "gradient_checkpointing": True, "noise_scheduler": "flowmatch",
        "optimizer": "adamw8bit", "lr": 1e-4, "ema_config": {"use_ema": True, "ema_decay": 0.99}, "dtype": "bf16",
    },
    "save": {"dtype": "float16", "save_every": 250, "max_step_saves_to_keep": 4},
}  # fmt: skip
AI_TOOLKIT_DOES: Final[Given] = {
    "family": "flux", "method": "lora", "base_model": "black-forest-labs/FLUX.1-dev", "lora_rank": 16,
    "lora_alpha": 16, "lora_targets": "blocks", "lora_conv_rank": None, "parts.0.weights": "fp8",
    "family_options.text_encoder_weights": "fp8", "family_options.timestep_distribution": "logit_normal",
    "family_options.timestep_shift": "static", "family_options.shift": 1.0, "learning_rate": 1e-4,
    "scheduler": "constant", "warmup_steps": 0, "max_steps": 2000, "batch_size": 1, "gradient_accumulation_steps": 1,
    "gradient_checkpointing": True, "optimizer.name": "adamw", "optimizer.eps": 1e-6, "optimizer.weight_decay": 0.01,
    "max_grad_norm": 1.0, "precision": "bf16", "ema": True, "ema_decay": 0.99, "save_every": "250 steps",
    "saves_kept": 4, "save_dtype": "fp16", "lr_scaling": "none",
}  # fmt: skip
OWN_SHIFT: Final[Given] = {
    "family_options.timestep_distribution": "uniform", "family_options.timestep_shift": None,
    "family_options.shift": None,
}  # fmt: skip
FINE_TUNE: Final[Given] = {
    "method": "fine_tune", "lora_rank": None, "lora_alpha": None, "lora_targets": None, "parts.0.weights": None,
    "optimizer.name": "adafactor", "optimizer.eps": None, "optimizer.weight_decay": 0.0, "learning_rate": 3e-5,
}  # fmt: skip
LUMINA: Final[Given] = {"name_or_path": "Alpha-VLLM/Lumina-Image-2.0", "is_lumina2": True, "quantize_te": True}
DOES_LUMINA: Final[Given] = {
    "family": "lumina2", "base_model": "Alpha-VLLM/Lumina-Image-2.0", "parts.0.weights": None, **OWN_SHIFT,
}  # fmt: skip
SAVE: Final[Given] = {"dtype": "bf16", "max_step_saves_to_keep": 2}
DOES_SAVE: Final[Given] = {"save_dtype": "bf16", "saves_kept": 2}
SD_1: Final[Given] = {"is_flux": None, "quantize": None}
CIVITAI: Final[Given] = {"name_or_path": "https://civitai.com/models/128453?modelVersionId=142465"}

# The window's job for a model: rank 32 with alpha and convolutions, which it hides for transformers.
WINDOW: Final[dict[str, Given]] = {
    "network": {"linear": 32, "linear_alpha": 32, "conv": 16, "conv_alpha": 16, "lokr_full_rank": True},
    "train": {"steps": 3000, "optimizer_params": {"weight_decay": 1e-4}, "ema_config": {"use_ema": False}},
    "save": {"dtype": "bf16"},
}  # fmt: skip
DOES_WINDOW: Final[Given] = {
    "lora_rank": 32, "lora_alpha": 32, "max_steps": 3000, "optimizer.weight_decay": 1e-4, "ema": False,
    "ema_decay": None, "save_dtype": "bf16",
}  # fmt: skip
WEIGHTED: Final[Given] = {"family_options.timestep_distribution": "uniform"}


def window(arch: str, base: str, timesteps: str = "", **model: object) -> dict[str, Given]:
    drawn = {"timestep_type": timesteps} if timesteps else {}
    both = {"is_flux": None, "quantize": True, "quantize_te": True, **model}
    own = {"model": {**both, "name_or_path": base, "arch": arch}, "train": {**WINDOW["train"], **drawn}}
    return {**WINDOW, **own}


def does(family: str, base: str | None, **more: object) -> Given:
    return {**DOES_WINDOW, "family": family, "base_model": base, **more}


AI_TOOLKIT_ROWS: Final[dict[str, tuple[dict[str, Any], Given]]] = {
    "train_lora_flux_24gb, modal_train_lora_flux_24gb": ({}, {}),
    "train_lora_flux_schnell_24gb, modal_train_lora_flux_schnell_24gb": (
        {"model": {"name_or_path": "black-forest-labs/FLUX.1-schnell",
                   "assistant_lora_path": "ostris/FLUX.1-schnell-training-adapter"}},
        {"base_model": "black-forest-labs/FLUX.1-schnell",
         "training_adapter": "ostris/FLUX.1-schnell-training-adapter"},
    ),
    "train_lora_flex_24gb": (
        {"model": {"name_or_path": "ostris/Flex.1-alpha"}}, {"base_model": "ostris/Flex.1-alpha"},
    ),
    "train_lora_chroma_24gb": (
        {"model": {"name_or_path": "lodestones/Chroma", "arch": "chroma", "is_flux": None}},
        {"family": "chroma", "base_model": "lodestones/Chroma"},
    ),
    "train_lora_lumina": (
        {"model": {**LUMINA, "is_flux": None, "quantize": None}, "train": {"timestep_type": "lumina2_shift"},
         "save": SAVE},
        {**DOES_LUMINA, **DOES_SAVE},
    ),
    "train_lora_sd35_large_24gb": (
        {"model": {"name_or_path": "stabilityai/stable-diffusion-3.5-large", "is_v3": True, "is_flux": None},
         "train": {"timestep_type": "linear"}},
        {"family": "stable_diffusion_3", "base_model": "stabilityai/stable-diffusion-3.5-large", **WEIGHTED},
    ),
    "train_lora_qwen_image_24gb": (
        {"model": {"name_or_path": "Qwen/Qwen-Image", "arch": "qwen_image", "is_flux": None,
                   "qtype": "uint3|a.safetensors"}, "train": {"ema_config": None}},
        {"family": "qwen_image", "base_model": "Qwen/Qwen-Image", "parts.0.weights": None, "ema": False,
         "ema_decay": None},
    ),
    "train_full_fine_tune_flex": (
        {"network": None, "train": {"optimizer": "adafactor", "lr": 3e-5},
         "model": {"name_or_path": "ostris/Flex.1-alpha", "quantize": None, "quantize_te": True}, "save": SAVE},
        {**FINE_TUNE, **DOES_SAVE, "base_model": "ostris/Flex.1-alpha"},
    ),
    "train_full_fine_tune_lumina": (
        {"network": None, "model": {**LUMINA, "is_flux": None, "quantize": None},
         "train": {"optimizer": "adafactor", "lr": 3e-5, "timestep_type": "lumina2_shift", "ema_config": None},
         "save": SAVE},
        {**DOES_LUMINA, **FINE_TUNE, **DOES_SAVE, "ema": False, "ema_decay": None},
    ),
    "train_flex_redux": ({"network": None, "adapter": {"type": "redux"}}, HELD),
    "train_slider.example": ({"type": "slider", "model": SD_1}, HELD),
    "image_reference_slider_trainer, ultimate_slider_trainer": (
        {"type": "image_reference_slider_trainer", "model": SD_1}, HELD,
    ),
    "sd_trainer, advanced_generator, concept_replacer": (
        {"type": "textual_inversion_trainer", "network": None, "model": {**SD_1, **CIVITAI},
         "embedding": {"trigger": "a", "tokens": 12, "init_words": "man"}, "save": {"save_every": 100,
                                                                                    "max_step_saves_to_keep": 5},
         "train": {"optimizer": "adamw", "lr": 5e-5, "steps": 3000, "batch_size": 4, "ema_config": None}},
        {"family": "stable_diffusion", "method": "embedding", "embedding_vectors": 12, "base_model": None,
         "max_steps": 3000, "batch_size": 4, "ema": False, "ema_decay": None, "save_every": "100 steps",
         "saves_kept": 5, "learning_rate": 5e-5, "lora_rank": None, "lora_alpha": None, "lora_targets": None,
         "parts.0.weights": None,
         "family_options.text_encoder_weights": None, **NO_FLOW, "family_options.timestep_distribution": None},
    ),
    "window: flux": (window("flux", "a/b"), does("flux", "a/b")),
    "window: flex1": (window("flex1", "ostris/Flex.1-alpha"), does("flux", "ostris/Flex.1-alpha")),
    "window: chroma": (window("chroma", "a/b"), does("chroma", "a/b")),
    "window: lumina2": (
        window("lumina2", "a/b", quantize=False), does("lumina2", "a/b", **{"parts.0.weights": None}),
    ),
    "window: qwen_image": (window("qwen_image", "a/b", "weighted"), does("qwen_image", "a/b", **WEIGHTED)),
    "window: qwen_image:2512": (window("qwen_image:2512", "a/b", "weighted"), does("qwen_image", "a/b", **WEIGHTED)),
    "window: flux2": (window("flux2", "a/b", "weighted"), does("flux2", "a/b", **WEIGHTED)),
    "window: flux2_klein_4b": (window("flux2_klein_4b", "a/b", "weighted"), does("flux2", "a/b", **WEIGHTED)),
    "window: flux2_klein_9b": (window("flux2_klein_9b", "a/b", "weighted"), does("flux2", "a/b", **WEIGHTED)),
    "window: krea2": (window("krea2", "a/b", "linear"), does("krea2", "a/b", **WEIGHTED)),
    "window: krea2:turbo": (
        window("krea2:turbo", "a/b", "linear", assistant_lora_path="c/d"),
        does("krea2", "a/b", **WEIGHTED, training_adapter="c/d"),
    ),
    "window: krea2:o_edit": (window("krea2:o_edit", "a/b", "linear"), does("krea2", None, **WEIGHTED)),
    "window: zimage, zimage:deturbo": (
        window("zimage", "a/b", "weighted"),
        does("z_image", "a/b", **WEIGHTED, lora_targets=r"(^|\.)layers\.\d+\."),
    ),
    "window: zimage:turbo": (
        window("zimage:turbo", "a/b", "weighted", assistant_lora_path="c/d"),
        does("z_image", "a/b", **WEIGHTED, training_adapter="c/d", lora_targets=r"(^|\.)layers\.\d+\."),
    ),
    **{
        f"window: {arch}": (
            window(arch, "a/b"),
            does(
                family, "a/b", lora_targets="all", lora_conv_rank=16,
                **{**NO_FLOW, "parts.0.weights": None, "family_options.text_encoder_weights": None,
                   "family_options.timestep_distribution": None},
            ),
        )
        for arch, family in (("sd15", "stable_diffusion"), ("sdxl", "stable_diffusion_xl"))
    },
}  # fmt: skip


def compare(found: ImportResult, does: Given) -> None:
    """Field by field. None: there is no base model, the family's or part's default, or it does not matter there."""
    assert bool(found.report.problems) == (does["base_model"] is None and "download" not in str(found.report.lines()))
    config = dump(found.config)
    ours = {path: value_at(config, path) for path in does}
    checked = [
        path
        for path, value in does.items()
        if value is not None or path.startswith(("base_model", "parts", "family_options"))
    ]
    assert {path: ours[path] for path in checked} == {path: does[path] for path in checked}


def value_at(config: Any, path: str) -> object:
    """None if it is not there, or the part is in the run's precision."""
    for name in path.split("."):
        if isinstance(config, list):
            config = config[int(name)] if config else {}
        else:
            config = config.get(name) if isinstance(config, dict) else None
    return None if config == "run" and path.startswith("parts") else config


def merged(base: Given, row: Given) -> dict[str, Any]:
    """The row over the base, in groups, too; None takes away."""
    found = dict(base)
    for name, value in row.items():
        found[name] = merged(base.get(name) or {}, value) if isinstance(value, dict) else value
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize("names", SIMPLE_TUNER_ROWS)
def test_simple_tuner(names: str, tmp_path: Path) -> None:
    given, does = SIMPLE_TUNER_ROWS[names]
    data = merged(SIMPLE_TUNER, given)
    for name in ("lycoris_config", "data_backend_config"):
        if name in data:
            (tmp_path / f"{name}.json").write_text(json.dumps(data[name]), encoding="utf-8")
            data[name] = f"{name}.json"
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    compare(import_file(tmp_path / "config.json"), {**SIMPLE_TUNER_DOES, **does})


@pytest.mark.parametrize(("scheduler", "warmup", "steps", "factors"), SCHEDULES)
def test_schedules_of_simple_tuner(
    scheduler: str, warmup: int | None, steps: int, factors: tuple[float, ...], tmp_path: Path
) -> None:
    given = {"lr_scheduler": scheduler, "lr_warmup_steps": warmup, "max_train_steps": steps}
    (tmp_path / "config.json").write_text(json.dumps(merged(SIMPLE_TUNER, given)), encoding="utf-8")
    config = import_file(tmp_path / "config.json").config
    found = rates(config, steps + 1)
    quarters = [found[steps * n // 4] / config.learning_rate for n in range(5)]
    assert quarters == pytest.approx(factors, abs=0.1)  # the warm-up there starts at 0, here one step later


@pytest.mark.parametrize("names", AI_TOOLKIT_ROWS)
def test_ai_toolkit(names: str, tmp_path: Path) -> None:
    given, does = AI_TOOLKIT_ROWS[names]
    process = {"type": "sd_trainer", **merged(AI_TOOLKIT, given)}
    job = {"job": "extension", "config": {"name": "a", "process": [process]}}
    (tmp_path / "job.json").write_text(json.dumps(job), encoding="utf-8")
    compare(import_file(tmp_path / "job.json"), does if does == HELD else {**AI_TOOLKIT_DOES, **does})
