"""The trained module on its device, as the config wants it computed."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from modules.config import ConfigError, TrainConfig, uneven_resolution
from modules.families.family import Family, family_class
from modules.training.adapters import prepare
from modules.training.lora import lay_plain
from modules.training.optimizers import check_installed
from modules.training.precision import Precision
from modules.training.trained_parts import check_parts, keep_frozen_small

SWITCHES = ("enable_gradient_checkpointing", "activation_checkpointing_enable")  # diffusers' and transformers'
TRANSLATIONS = 64  # of one block that torch.compile keeps: widths of the network, sizes, with gradients and without


def load_family(config: TrainConfig) -> Family:
    """The config's family with its model on the CPU. Raises ConfigError where it cannot do what the config asks."""
    return check_available(config).load(config)


def check_available(config: TrainConfig) -> type[Family]:
    """The config's family. Raises ConfigError for an unknown one, for a method, part or resolution that it has not, and
    for an optimizer that is not installed."""
    kind = family_class(config.family)
    if config.method not in kind.methods:
        raise ConfigError(
            f"method is {config.method!r}; the family {config.family!r} offers {', '.join(kind.methods)}."
        )
    if config.save_single_file and config.method == "fine_tune" and not kind.single_file:
        raise ConfigError(
            f"save_single_file is true, but models of the family {config.family!r} have no single-file layout that "
            "other tools read; set it to false."
        )
    if config.lora_layouts == "kohya" and config.method == "lora" and not kind.adapter_names:
        raise ConfigError(
            f"lora_layouts is 'kohya', but kohya's layout has no names for the family {config.family!r}; use diffusers."
        )
    for path, sentence in uneven_resolution(config.resolution, config.family, kind.size_step):
        raise ConfigError(f"{path} {sentence}.")
    check_parts(kind, config)
    check_installed(config)
    return kind


def prepare_model(family: Family, config: TrainConfig, precision: Precision) -> None:
    """`family.model`, still on the CPU, with what the method adds and only that to be trained, in training mode.

    In the precision's format, but for frozen weights that are to be kept in a smaller one. Raises ConfigError where
    the method does not fit the model.
    """
    prepare(family, config)
    model = family.model.to(precision.weights)
    keep_frozen_small(family, config)
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    lay_plain(model)
    if config.gradient_checkpointing:
        _checkpoint_gradients(model, config.family)
    model.train()
    family.model = model


def compiled(model: nn.Module) -> nn.Module:
    """`model`, translated by torch.compile; weights keep their names, or are shared with a wrapper around them.

    diffusers' networks name the blocks that they repeat: only these are translated, for all sizes of pictures. A whole
    UNet takes many times as long, and for a second size of pictures inductor fails at its convolutions. A network that
    names none is translated as a whole, for each size anew.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, TRANSLATIONS)
    repeated = {name for module in model.modules() for name in getattr(module, "_repeated_blocks", None) or ()}
    blocks = [module for module in model.modules() if type(module).__name__ in repeated]
    for block in blocks:
        block.compile()
    return model if blocks else cast(nn.Module, torch.compile(model, dynamic=False))


def seed_draws(seed: int) -> None:
    """torch.manual_seed for CPU and CUDA only; it takes 170 us where there is no GPU, as it keeps the call stack."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def _checkpoint_gradients(model: nn.Module, family: str) -> None:
    """Compute activations again in the backward instead of keeping them."""
    parts = [part for part in model.modules() if getattr(part, "_supports_gradient_checkpointing", True)]
    able = [getattr(part, switch) for part in parts for switch in SWITCHES if hasattr(part, switch)]
    if not able:
        raise ConfigError(
            f"gradient_checkpointing is on, but no part of the family {family!r} supports it; switch it off."
        )
    for switch_on in able:
        switch_on()
