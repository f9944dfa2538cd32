"""The metadata of saved files: modelspec 1.0.1, and kohya's ss_* names, which many viewers show.

modelspec: https://github.com/Stability-AI/ModelSpec; the ss_* names: train_util.py of kohya's sd-scripts. All values
are text. Names of folders and tags are included only if `metadata_dataset` is on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, Literal

from modules.checkpoint.formats.safetensors_file import HASH_KEY
from modules.config import TrainConfig, effective_batch
from modules.facts import all_facts, family_of_architecture, whole_models

FileLayout = Literal["original", "diffusers"]

SDXL: Final = "stable-diffusion-xl-v1-base"  # its architecture in modelspec

_ARCHITECTURE_SUFFIX: Final = {"fine_tune": "", "lora": "/lora", "embedding": "/textual-inversion"}


@dataclass(frozen=True)
class ImageFolder:
    """The folder of one concept."""

    name: str  # without its path
    images: int
    repeats: float
    prior: bool  # regularisation images
    tags: Mapping[str, int]  # how often each occurs


@dataclass(frozen=True)
class BucketCount:
    """A bucket of images, with repeats."""

    width: int
    height: int
    images: int


@dataclass(frozen=True)
class LoraSize:
    """What most layers of a trained LoRA have."""

    rank: int
    alpha: float
    dora: bool


@dataclass(frozen=True)
class RunMetadata:
    """What the config does not say about a run."""

    run_name: str
    modelspec: Mapping[str, str]  # architecture, prediction_type, encoder_layer, from Family.modelspec; may be empty
    date: str  # of saving, ISO 8601
    step: int
    epoch: int
    total_steps: int
    total_epochs: int  # begun by the last step
    world_size: int
    images: int  # 0 if they are not known
    folders: Sequence[ImageFolder]
    started_at: float = 0.0  # of the session, in seconds since 1970; 0 if unknown
    buckets: Sequence[BucketCount] = ()
    aspect_error: float = 0.0  # the mean difference between the aspect ratios of images and their buckets
    lora: LoraSize | None = None
    best: Mapping[str, str] = field(default_factory=dict)  # metric and value, if the weights are those of the best step


def file_metadata(config: TrainConfig, run: RunMetadata, layout: FileLayout) -> dict[str, str]:
    """The metadata of a file in `layout`, without empty values."""
    found = {**_modelspec(config, run, layout), **_kohya_metadata(config, run)}
    found |= {f"tandem.best_{name}": value for name, value in run.best.items()}
    if config.metadata_dataset:
        found |= _dataset_metadata(run.folders)
    return {name: value for name, value in found.items() if value} | {HASH_KEY: ""}


def original_implementation(architecture: str) -> str:
    """The code that defines the original layout; empty if it is not known."""
    facts = all_facts().get(family_of_architecture(architecture))
    return "" if facts is None else facts.code


def _modelspec(config: TrainConfig, run: RunMetadata, layout: FileLayout) -> dict[str, str]:
    architecture = run.modelspec.get("architecture", "")
    phrase = config.embedding_token if config.method == "embedding" else config.trigger_phrase
    values = {
        "sai_model_spec": "1.0.1" if architecture else "",  # it requires an architecture
        "architecture": architecture + _ARCHITECTURE_SUFFIX[config.method] if architecture else "",
        "implementation": original_implementation(architecture) if layout == "original" else "diffusers",
        "title": config.model_title or run.run_name,
        "author": config.model_author,
        "license": config.model_license,
        "date": run.date,
        "resolution": f"{config.resolution}x{config.resolution}",
        "prediction_type": run.modelspec.get("prediction_type", ""),
        "encoder_layer": run.modelspec.get("encoder_layer", ""),
        "trigger_phrase": phrase,
    }
    return {f"modelspec.{name}": value for name, value in values.items()}


def _kohya_metadata(config: TrainConfig, run: RunMetadata) -> dict[str, str]:
    rates = {part.part: part.learning_rate or config.learning_rate for part in config.parts if part.train}
    text_rates = [rate for part, rate in rates.items() if part.startswith("text_encoder")]
    architecture = run.modelspec.get("architecture", "")
    whole = whole_models().get(architecture)
    values: dict[str, object] = {
        "output_name": run.run_name,
        "sd_model_name": "" if config.base_model is None else PurePath(config.base_model).name,
        "base_model_version": "" if whole is None else whole.kohya_version,
        "v2": "v2" in architecture,
        "learning_rate": config.learning_rate,
        "unet_lr": rates.get("unet", ""),
        "text_encoder_lr": text_rates[0] if text_rates else "",
        "optimizer": getattr(config.optimizer, "target", "") or config.optimizer.name,
        "lr_scheduler": (config.scheduler == "custom" and config.scheduler_target) or config.scheduler,
        "lr_warmup_steps": config.warmup_fraction or config.warmup_steps,
        "num_epochs": run.total_epochs,
        "epoch": run.epoch,
        "steps": run.step,
        "max_train_steps": run.total_steps,
        "batch_size_per_device": config.batch_size,
        "total_batch_size": effective_batch(config, run.world_size),
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "gradient_checkpointing": config.gradient_checkpointing,
        "mixed_precision": config.precision,
        "seed": config.seed,
        "resolution": f"({config.resolution}, {config.resolution})",
        "enable_bucket": config.aspect_ratio_bucketing,
        "caption_dropout_rate": config.caption_dropout,
        "max_grad_norm": config.max_grad_norm,
        "num_train_images": run.images or "",
    }
    if run.started_at:
        values["training_started_at"] = run.started_at
    if architecture:
        values["clip_skip"] = run.modelspec.get("encoder_layer")  # "None" if it is not set, as kohya's scripts write it
    if config.aspect_ratio_bucketing and run.buckets:
        values["bucket_info"] = json.dumps(_bucket_info(run))
    if config.method == "lora":
        lora = run.lora or LoraSize(config.lora_rank, config.lora_alpha, config.lora_weight_decompose)
        values |= {
            # an OFT of peft has no counterpart in kohya's scripts
            "network_module": {"lora": "networks.lora", "oft": ""}.get(config.lora_algorithm, "lycoris.kohya"),
            "network_dim": lora.rank,
            "network_alpha": lora.alpha,
            "network_dropout": config.lora_dropout,
            "network_args": json.dumps(
                {
                    **({} if config.lora_algorithm == "lora" else {"algo": config.lora_algorithm}),
                    "targets": config.lora_targets,
                    "dora": lora.dora,
                    **{
                        name: value
                        for name, value in (("conv_dim", config.lora_conv_rank), ("conv_alpha", config.lora_conv_alpha))
                        if value is not None
                    },
                }
            ),
        }
    return {f"ss_{name}": str(value) for name, value in values.items()}


def _bucket_info(run: RunMetadata) -> dict[str, object]:
    """As BaseDataset.make_buckets of library/train_util.py: buckets in the order of their sizes, numbered from 0."""
    ordered = sorted(run.buckets, key=lambda bucket: (bucket.width, bucket.height))
    return {
        "buckets": {
            str(number): {"resolution": [bucket.width, bucket.height], "count": bucket.images}
            for number, bucket in enumerate(ordered)
        },
        "mean_img_ar_error": run.aspect_error,
    }


def _dataset_metadata(folders: Sequence[ImageFolder]) -> dict[str, str]:
    """As in sd-scripts, with prior images separate; folders with the same name become "cats" and "cats (2)"."""
    named: dict[str, ImageFolder] = {}
    for folder in folders:
        name, number = folder.name, 2
        while name in named:
            name, number = f"{folder.name} ({number})", number + 1
        named[name] = folder
    values = {
        "dataset_dirs": {name: _folder_counts(folder) for name, folder in named.items() if not folder.prior},
        "reg_dataset_dirs": {name: _folder_counts(folder) for name, folder in named.items() if folder.prior},
        "tag_frequency": {name: dict(folder.tags) for name, folder in named.items()},
    }
    return {f"ss_{name}": json.dumps(value, ensure_ascii=False) for name, value in values.items()}


def _folder_counts(folder: ImageFolder) -> dict[str, float]:
    is_whole = folder.repeats.is_integer()  # viewers expect an int
    return {"n_repeats": int(folder.repeats) if is_whole else folder.repeats, "img_count": folder.images}
