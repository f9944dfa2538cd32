"""The trained module on its device, as the config wants it computed."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from modules.config import ConfigError, TrainConfig
from modules.families.family import Family, family_class
from modules.training.precision import Precision

AVAILABLE_METHODS = ("fine_tune",)
SWITCH = "enable_gradient_checkpointing"  # what diffusers and transformers call it


def load_family(config: TrainConfig) -> Family:
    """The config's family with its model on the CPU. Raises ConfigError where it cannot do what the config asks."""
    return check_available(config).load(config)


def check_available(config: TrainConfig) -> type[Family]:
    """The config's family. Raises ConfigError for an unknown one, and for what this version does not have yet."""
    kind = family_class(config.family)
    offered = [method for method in kind.methods if method in AVAILABLE_METHODS]
    if config.method not in offered:
        raise ConfigError(
            f"method is {config.method!r}; the family {config.family!r} offers {', '.join(offered)} in this version."
        )
    return kind


def prepare_model(family: Family, config: TrainConfig, precision: Precision) -> None:
    """`family.model`, still on the CPU, in the precision's format and in training mode."""
    model = family.model.to(precision.weights)
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.gradient_checkpointing:
        _checkpoint_gradients(model, config.family)
    model.train()
    family.model = model


def compiled(model: nn.Module) -> nn.Module:
    """torch.compile's wrapper, which shares the weights of `model`."""
    return cast(nn.Module, torch.compile(model))


def seed_draws(seed: int) -> None:
    """torch.manual_seed for CPU and CUDA only; it takes 170 us where there is no GPU, as it keeps the call stack."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def _checkpoint_gradients(model: nn.Module, family: str) -> None:
    """Compute activations again in the backward instead of keeping them."""
    parts = [part for part in model.modules() if hasattr(part, SWITCH)]
    able = [getattr(part, SWITCH) for part in parts if getattr(part, "_supports_gradient_checkpointing", True)]
    if not able:
        raise ConfigError(
            f"gradient_checkpointing is on, but no part of the family {family!r} supports it; switch it off."
        )
    for switch_on in able:
        switch_on()
