"""The trained module on its device, as the config wants it computed."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import cast

import torch
from torch import nn

from modules.config import ConfigError, TrainConfig, unsupported_resolution
from modules.distributed import RankGroup
from modules.families._by_name import family_class
from modules.families._family import Family
from modules.files.private import make_private
from modules.monitoring.wandb_log import check_wandb
from modules.torch_compat import COMPILER_CACHE, allow_recompiles, compiler_cache
from modules.training.device.precision import Precision
from modules.training.memory.move_model import move_model
from modules.training.methods.adapter_layers import NAMES
from modules.training.methods.lora_files import has_kohya_names, has_lycoris_names
from modules.training.methods.lora_from import check_lora_from
from modules.training.methods.method import prepare
from modules.training.methods.submodules import check_submodules
from modules.training.methods.training_adapter import check_training_adapter
from modules.training.optim.optimizers import check_optimizer
from modules.training.optim.own_schedule import check_scheduler
from modules.training.state.early_stopping import LOSS, keeps_best

SWITCHES = ("enable_gradient_checkpointing", "activation_checkpointing_enable")  # diffusers' and transformers'
MAX_RECOMPILES = 64  # of one block: widths of the network, image sizes, with gradients and without


def load_family(config: TrainConfig) -> Family:
    """The config's family, its model still as `Family.load_for_training` leaves it: to be prepared, or for encoding.

    Raises ConfigError if it cannot do what the config asks.
    """
    return check_available(config).load_for_training(config)


def check_available(config: TrainConfig) -> type[Family]:
    """The config's family. Raises ConfigError for an unknown one, for a method, submodule or resolution that it
    does not offer, and for an optimizer or W&B if they are not installed.
    """
    kind = family_class(config.family)
    check_wandb(config)
    if config.method not in kind.methods:
        raise ConfigError(
            f"method is {config.method!r}; the family {config.family!r} offers {', '.join(kind.methods)}."
        )
    if config.save_single_file and config.method == "fine_tune" and not kind.single_file:
        raise ConfigError(
            f"save_single_file is true, but models of the family {config.family!r} have no single-file layout that "
            "other tools read; set it to false."
        )
    if config.lora_layouts == "kohya" and config.method == "lora" and not has_kohya_names(kind):
        raise ConfigError(
            f"lora_layouts is 'kohya', but kohya's layout has no names for the family {config.family!r}; use diffusers."
        )
    is_lora = config.method == "lora"
    if is_lora and config.lora_algorithm != "lora" and config.lora_layouts == "diffusers" and has_lycoris_names(kind):
        raise ConfigError(
            f"lora_layouts is 'diffusers', but diffusers reads no {NAMES[config.lora_algorithm]} (lora_algorithm); use "
            "kohya or both, which then mean the layout of LyCORIS."
        )
    sides = {"resolution": [config.resolution]}
    sides |= {f"concepts.{n}.resolutions": list(each.resolution_list) for n, each in enumerate(config.concepts)}
    wrong = [
        each
        for field, some in sides.items()
        for side in some
        for each in unsupported_resolution(side, config.family, kind.size_step, field)
    ]
    for path, sentence in wrong:
        raise ConfigError(f"{path} {sentence}.")
    step = math.lcm(kind.size_step, config.bucket_step or 1)
    if step > (least := min(side for some in sides.values() for side in some)):
        raise ConfigError(
            f"bucket_step is {config.bucket_step}, with which sides are multiples of {step}: more than the resolution "
            f"{least}.",
            "Use 64, or leave it out.",
        )
    _check_image_cache(kind, config)
    _check_metric(kind, config)
    check_submodules(kind, config)
    check_lora_from(config)
    check_training_adapter(config)
    check_optimizer(config, kind.own_optimizer(config))
    check_scheduler(config, kind.own_scheduler(config), kind.own_optimizer(config))
    return kind


def _check_metric(kind: type[Family], config: TrainConfig) -> None:
    """Families that summarize no counts measure the loss only; others show their metrics at the first validation."""
    if config.early_stopping_metric != LOSS and keeps_best(config) and kind.summarize is Family.summarize:
        raise ConfigError(
            f"early_stopping_metric is {config.early_stopping_metric!r}, but a validation of the family "
            f"{config.family!r} measures the loss only; set it to {LOSS}."
        )


def _check_image_cache(kind: type[Family], config: TrainConfig) -> None:
    if not config.cache_latents and kind.image_cache == "required":
        raise ConfigError(
            f"cache_latents is false, but the family {config.family!r} can only be trained on cached images; set it to "
            "true."
        )
    if config.cache_precision != "fp32" and kind.image_cache != "none" and not kind.latent_names:
        raise ConfigError(
            f"cache_precision is {config.cache_precision}, but the family {config.family!r} caches images as they are, "
            "and no latents; set it to fp32."
        )
    if config.cache_only and kind.image_cache == "none":
        raise ConfigError(f"cache_only is true, but the family {config.family!r} caches no images; set it to false.")


def prepare_model(family: Family, config: TrainConfig, precision: Precision, ranks: RankGroup | None = None) -> None:
    """Prepare `family.model`, still on the CPU, for training: what the method adds, frozen weights, dtypes, layout.

    For a GPU, dtypes and layout follow when it is moved (`move_model`): until then its weights stay in their files.
    Called by all `ranks`, if they are given. Raises ConfigError if the method does not fit the model.
    """
    prepare(family, config)
    if precision.device.type == "cpu":
        move_model(family, config, precision.device, ranks=ranks)
    if config.gradient_checkpointing:
        _checkpoint_gradients(family.model, config.family)
    family.model.train()


def compile_model(model: nn.Module) -> nn.Module:
    """`model` with torch.compile applied; weights keep their names, or are shared with a wrapper around them.

    diffusers' networks name the blocks that they repeat: only these are compiled, for all image sizes. A whole UNet
    takes many times as long, and for a second image size inductor fails at its convolutions. A network that names none
    is compiled as a whole, once per size.
    """
    _keep_compiler_cache_private()
    allow_recompiles(MAX_RECOMPILES)
    repeated = {name for module in model.modules() for name in getattr(module, "_repeated_blocks", None) or ()}
    blocks = [module for module in model.modules() if type(module).__name__ in repeated]
    for block in blocks:
        block.compile()
    return model if blocks else cast(nn.Module, torch.compile(model, dynamic=False))


def _keep_compiler_cache_private() -> None:
    """Have inductor not load code from a folder in /tmp that another user has made beforehand under its name."""
    folder = compiler_cache()  # which torch has perhaps written into the environment already
    if os.environ.get(COMPILER_CACHE, folder) == folder and not make_private(Path(folder)):
        os.environ[COMPILER_CACHE] = tempfile.mkdtemp(prefix="tandem-inductor-")


def _checkpoint_gradients(model: nn.Module, family: str) -> None:
    """Recompute activations in the backward instead of keeping them."""
    modules = [each for each in model.modules() if getattr(each, "_supports_gradient_checkpointing", True)]
    switches = [getattr(each, name) for each in modules for name in SWITCHES if hasattr(each, name)]
    if not switches:
        raise ConfigError(
            f"gradient_checkpointing is on, but no part of the family {family!r} supports it; set it to false.",
            "A model of your own supports it with a method enable_gradient_checkpointing (docs/custom_models.md).",
        )
    for switch_on in switches:
        switch_on()
