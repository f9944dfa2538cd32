"""What the header of a saved file says of it: modelspec 1.0.1 for every tool, kohya's ss_* for those that show more.

modelspec: https://github.com/Stability-AI/ModelSpec; the ss_* names: train_util.py of kohya's sd-scripts. All values
are texts. Folders and tags of the pictures are told only where `metadata_dataset` allows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal

from modules.checkpoint.formats.tensor_files import HASH_KEY
from modules.config import TrainConfig, effective_batch

FileLayout = Literal["original", "diffusers"]

_ENDS: Final = {"fine_tune": "", "lora": "/lora", "embedding": "/textual-inversion"}
_KOHYAS_VERSION: Final = {
    "stable-diffusion-v1": "sd_v1",
    "stable-diffusion-v2-512": "sd_v2",
    "stable-diffusion-v2-768-v": "sd_v2_v",
    "stable-diffusion-xl-v1-base": "sdxl_base_v1-0",
}
# What each is made for, where nobody says it, as sd-scripts has it (library/sai_model_spec.py).
RESOLUTIONS: Final = {
    "stable-diffusion-v1": 512,
    "stable-diffusion-v2-512": 512,
    "stable-diffusion-v2-768-v": 768,
    "stable-diffusion-xl-v1-base": 1024,
}


@dataclass(frozen=True)
class PictureFolder:
    """One concept's folder; its name and its tags are told only where `metadata_dataset` allows it."""

    name: str  # without its path
    pictures: int
    repeats: float
    prior: bool  # whether it shows the kind in general
    tags: Mapping[str, int]  # how often each occurs


@dataclass(frozen=True)
class TrainingFacts:
    """What the config does not say of a run. `modelspec` is what the family says of its architecture."""

    run_name: str
    modelspec: Mapping[str, str]  # architecture and prediction_type, as modelspec names them; may be empty
    date: str  # of saving, ISO 8601
    step: int
    epoch: int
    total_steps: int
    world_size: int
    pictures: int
    folders: Sequence[PictureFolder]


def file_metadata(config: TrainConfig, facts: TrainingFacts, layout: FileLayout) -> dict[str, str]:
    """The header of a file in `layout`, without what is empty."""
    found = {**_modelspec(config, facts, layout), **_shown_by_viewers(config, facts)}
    if config.metadata_dataset:
        found |= _of_the_pictures(facts.folders)
    return {name: value for name, value in found.items() if value} | {HASH_KEY: ""}


def original_implementation(architecture: str) -> str:
    """Whose program the original layout is that of."""
    owner = "Stability-AI/generative-models" if "xl" in architecture else "CompVis/stable-diffusion"
    return f"https://github.com/{owner}"


def _modelspec(config: TrainConfig, facts: TrainingFacts, layout: FileLayout) -> dict[str, str]:
    architecture = facts.modelspec.get("architecture", "")
    phrase = config.embedding_token if config.method == "embedding" else config.trigger_phrase
    values = {
        "sai_model_spec": "1.0.1" if architecture else "",  # which asks for an architecture
        "architecture": architecture + _ENDS[config.method] if architecture else "",
        "implementation": original_implementation(architecture) if layout == "original" else "diffusers",
        "title": config.model_title or facts.run_name,
        "author": config.model_author,
        "license": config.model_license,
        "date": facts.date,
        "resolution": f"{config.resolution}x{config.resolution}",
        "prediction_type": facts.modelspec.get("prediction_type", ""),
        "trigger_phrase": phrase,
    }
    return {f"modelspec.{name}": value for name, value in values.items()}


def _shown_by_viewers(config: TrainConfig, facts: TrainingFacts) -> dict[str, str]:
    rates = {part.part: part.learning_rate or config.learning_rate for part in config.parts if part.train}
    texts = [rate for part, rate in rates.items() if part.startswith("text_encoder")]
    architecture = facts.modelspec.get("architecture", "")
    values: dict[str, object] = {
        "output_name": facts.run_name,
        "sd_model_name": "" if config.base_model is None else PurePath(config.base_model).name,
        "base_model_version": _KOHYAS_VERSION.get(architecture, ""),
        "v2": "v2" in architecture,
        "learning_rate": config.learning_rate,
        "unet_lr": rates.get("unet", ""),
        "text_encoder_lr": texts[0] if texts else "",
        "optimizer": config.optimizer.name,
        "lr_scheduler": config.scheduler,
        "lr_warmup_steps": config.warmup_steps,
        "num_epochs": config.epochs,
        "epoch": facts.epoch,
        "steps": facts.step,
        "max_train_steps": facts.total_steps,
        "batch_size_per_device": config.batch_size,
        "total_batch_size": effective_batch(config, facts.world_size),
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "gradient_checkpointing": config.gradient_checkpointing,
        "mixed_precision": config.precision,
        "seed": config.seed,
        "resolution": f"({config.resolution}, {config.resolution})",
        "enable_bucket": config.aspect_ratio_bucketing,
        "caption_dropout_rate": config.caption_dropout,
        "max_grad_norm": config.max_grad_norm,
        "num_train_images": facts.pictures,
    }
    if config.method == "lora":
        values |= {
            "network_module": "networks.lora",
            "network_dim": config.lora_rank,
            "network_alpha": config.lora_alpha,
            "network_dropout": config.lora_dropout,
            "network_args": json.dumps({"targets": config.lora_targets, "dora": config.lora_weight_decompose}),
        }
    return {f"ss_{name}": str(value) for name, value in values.items()}


def _of_the_pictures(folders: Sequence[PictureFolder]) -> dict[str, str]:
    """As sd-scripts writes it: prior pictures apart, and folders of one name as "cats" and "cats (2)"."""
    named: dict[str, PictureFolder] = {}
    for folder in folders:
        name, number = folder.name, 2
        while name in named:
            name, number = f"{folder.name} ({number})", number + 1
        named[name] = folder
    values = {
        "dataset_dirs": {name: _counted(folder) for name, folder in named.items() if not folder.prior},
        "reg_dataset_dirs": {name: _counted(folder) for name, folder in named.items() if folder.prior},
        "tag_frequency": {name: dict(folder.tags) for name, folder in named.items()},
    }
    return {f"ss_{name}": json.dumps(value, ensure_ascii=False) for name, value in values.items()}


def _counted(folder: PictureFolder) -> dict[str, float]:
    """Whole numbers as such, as viewers expect them."""
    whole = folder.repeats.is_integer()
    return {"n_repeats": int(folder.repeats) if whole else folder.repeats, "img_count": folder.pictures}
