"""What is said of a file that other programs use otherwise."""

from __future__ import annotations

import pytest
import torch

from modules.checkpoint.formats.lora_limits import limits_of_layout
from modules.checkpoint.formats.lora_weights import LoraWeights


@pytest.mark.parametrize(
    ("alphas", "said"), [((2.0, 4.0), "set it to 0.5 to 1,"), ((2.0, 2.0), "set it to 0.5,"), ((4.0, 4.0), "")]
)
def test_strengths_of_layers_that_differ(alphas: tuple[float, ...], said: str) -> None:
    """Each layer counts, also one whose alpha is its rank."""
    layers = [
        LoraWeights("transformer", f"blocks.{index}", torch.ones(4, 3), torch.ones(3, 4), alpha, None)
        for index, alpha in enumerate(alphas)
    ]
    found = limits_of_layout(layers, "diffusers", "a.safetensors", {"transformer": ("transformer", "lora_unet")}, "")
    assert said in found
    assert bool(found) is bool(said)
