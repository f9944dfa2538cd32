"""Small models with parts and adapters, and losses on noise, for the tests of adapters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from modules.config import TrainConfig
from modules.data.batch import Batch
from modules.distributed import Weights
from modules.families._family import Family
from modules.training.device.precision import Precision
from modules.training.memory.model_setup import load_family, prepare_model
from modules.training.optim.optimizers import build_optimizer
from tests.runs import ROOT

CPU = torch.device("cpu")
PARTS = str(ROOT / "tests" / "parts_family.py")
BOTH = [{"part": "unet"}, {"part": "text_encoder"}]
LORA: dict[str, object] = {"family": PARTS, "method": "lora", "lora_rank": 3, "lora_alpha": 2.0, "lora_targets": "all"}


def ready(**settings: object) -> tuple[Family, TrainConfig]:
    """A family, prepared for training."""
    config = TrainConfig.model_validate({"family": PARTS, **settings})
    family = load_family(config)
    prepare_model(family, config, Precision(config.precision, CPU))
    return family, config


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def train_a_little(family: Family, config: TrainConfig, steps: int = 3) -> Weights:
    """Optimizer steps on noise."""
    weights = Weights(family.model)
    optimizer = build_optimizer(list(weights.local.values()), config)
    for step in range(steps):
        batch_of(step, family).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights


def batch_of(seed: int, family: Family) -> Tensor:
    """A loss."""
    torch.manual_seed(seed)
    tensors = {"pixels": torch.rand(4, 3, 16, 16) * 2 - 1, "noise": torch.randn(4, 3, 16, 16)}
    tensors |= {"timestep": torch.rand(4), "caption": torch.tensor([12, 7, 9, 104])}
    numbers = torch.arange(4)
    batch = Batch(tensors, numbers, numbers, torch.ones(4), is_last_of_step=True, step_samples=4)
    return family.loss(batch).mean()


def assert_close(first: Tensor, second: Tensor, tolerance: float = 1e-6) -> None:
    assert (first - second).abs().max() <= tolerance
