"""Options that families with an autoencoder have in common: each function declares one field of a `Section`."""

from __future__ import annotations

from typing import Any

from modules.config import setting


def loss_function(*, advanced: bool = False) -> Any:
    """LossType."""
    return setting(
        "mse",
        title="Loss function",
        titles={"mse": "MSE", "smooth_l1": "Smooth L1"},
        help="mse: the usual choice; large errors count most. huber and smooth_l1: outliers count less.",
        advanced=advanced,
        resume="warn",
    )


def huber_delta() -> Any:
    """A float, of the field `loss`."""
    return setting(
        0.1,
        title="Huber delta",
        help="Errors above this count linearly instead of squared; smaller is more tolerant of outliers.",
        advanced=True,
        depends_on="loss=huber|smooth_l1",
        gt=0,
        le=100,
        resume="warn",
    )


def latents() -> Any:
    """Latents."""
    return setting(
        "sample",
        title="Latents (sampled or fixed)",
        titles={"sample": "Sampled in every step", "mode": "Always the same"},
        help="The autoencoder encodes an image as a distribution of latents. sample: new latents are drawn from it in "
        "every step. mode: the most likely latents, the same in every step; the cache takes half the disk space.",
        advanced=True,
        resume="warn",
    )


def vae_tiling() -> Any:
    """A bool."""
    return setting(
        False,
        title="VAE tiling (saves GPU memory)",
        help="The autoencoder encodes large images in tiles, which takes less GPU memory. The tiles' borders change "
        "slightly.",
        advanced=True,
        resume="warn",
    )
