"""One image of a diffusers pipeline, to check whether two models are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

PROMPT = "red disc and a cat"


def generate(pipeline: Any, prompt: str = PROMPT) -> np.ndarray[Any, Any]:
    """An image [H, W, 3] of numbers from 0 to 1, always from the same noise."""
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(7)
    output = pipeline(
        prompt, num_inference_steps=3, height=64, width=64, guidance_scale=3.0, generator=generator, output_type="np"
    )
    numbers: np.ndarray[Any, Any] = output.images[0]
    return numbers


def same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether no number differs by more than 1e-3."""
    return float(np.abs(one - other).max()) <= 1e-3
