"""Making batches of the tiny Stable Diffusion families, and the loss as diffusers' training scripts write it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import DDPMScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline
from diffusers.training_utils import compute_snr
from torch import Tensor
from torch.nn import functional

from modules.config import TrainConfig
from modules.data.batch import Batch, Example
from modules.families._by_name import family_class
from modules.families._family import Family, SampleRequest
from modules.families._latent_diffusion import LatentDiffusion

PIPELINES = {"stable_diffusion": StableDiffusionPipeline, "stable_diffusion_xl": StableDiffusionXLPipeline}
CAPTIONS = ("a red disc", "a blue circle, number 2", "cat and dog")
REQUEST = SampleRequest("a red disc", "a blue square", 64, 128, steps=4, guidance_scale=4.0, seed=7)


def load(family: str, folder: Path | str, **settings: object) -> LatentDiffusion:
    """The family as a run loads it."""
    config = TrainConfig.model_validate({"family": family, "base_model": str(folder), **settings})
    loaded = family_class(family).load(config)
    assert isinstance(loaded, LatentDiffusion)
    return loaded


def pipeline(family: str, folder: Path) -> Any:
    """diffusers' own pipeline of the same folder."""
    loaded = PIPELINES[family].from_pretrained(folder)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def example(number: int, *, mask: Tensor | None = None, captions: tuple[str, ...] | None = None) -> Example:
    """A image of noise, 128 x 64 pixels."""
    generator = torch.Generator().manual_seed(number)
    pixels = torch.randint(0, 256, (3, 64, 128), generator=generator, dtype=torch.uint8)
    return Example(
        pixels, mask, captions or (CAPTIONS[number % 3],), (100 + number, 230), (0, 5 + number), flipped=False
    )


def encoded_text(family: Family, caption: str) -> Mapping[str, Tensor]:
    """What is cached of a caption by itself."""
    return family.encode_captions([caption], 1)[0] if family.text_fingerprint() else {}


def batch(family: LatentDiffusion, samples: int = 3, *, mask: Tensor | None = None) -> Batch:
    """As the loader makes it."""
    drawn = [
        family.sample_transform(
            {**family.encode(example(number, mask=mask)), **encoded_text(family, CAPTIONS[number % 3])},
            CAPTIONS[number % 3],
            torch.Generator().manual_seed(number),
        )
        for number in range(samples)
    ]
    return Batch(
        tensors={name: torch.stack([tensors[name] for tensors in drawn]) for name in drawn[0]},
        ids=torch.arange(samples),
        seeds=torch.arange(samples),
        weights=torch.ones(samples, dtype=torch.float64),
        is_last_of_step=True,
        step_samples=samples,
    )


@torch.no_grad()
def direct_loss(family: str, folder: Path, given: Batch, options: dict[str, Any]) -> Tensor:
    """[B], with the pipeline's UNet and text encoders and a DDPMScheduler."""
    pipe, tensors = pipeline(family, folder), given.tensors
    changes = {"rescale_betas_zero_snr": True} if options.get("zero_terminal_snr") else {}
    scheduler = DDPMScheduler.from_config(pipe.scheduler.config, **changes)
    prediction_type = options.get("prediction_type", "epsilon")
    latents, noise, timesteps = tensors["latents"], tensors["noise"], tensors["timestep"]
    noisy = scheduler.add_noise(latents, noise, timesteps)
    captions = [CAPTIONS[number % 3] for number in range(len(given))]
    if family == "stable_diffusion":
        text, _ = pipe.encode_prompt(captions, "cpu", 1, do_classifier_free_guidance=False)
        added = None
    else:
        text, _, pooled, _ = pipe.encode_prompt(captions, do_classifier_free_guidance=False)
        sizes = [[100 + n, 230, 0, 5 + n, 64, 128] for n in range(len(given))]
        added = {"text_embeds": pooled, "time_ids": torch.tensor(sizes, dtype=torch.float32)}
    predicted = pipe.unet(noisy, timesteps, text, added_cond_kwargs=added).sample
    is_v = prediction_type == "v_prediction"
    target = scheduler.get_velocity(latents, noise, timesteps) if is_v else noise
    delta = options.get("huber_delta", 0.1)
    losses = {
        "mse": lambda: functional.mse_loss(predicted, target, reduction="none"),
        "huber": lambda: functional.huber_loss(predicted, target, reduction="none", delta=delta),
        "smooth_l1": lambda: functional.smooth_l1_loss(predicted, target, reduction="none", beta=delta),
    }
    loss = losses[options.get("loss", "mse")]()
    snr = compute_snr(scheduler, timesteps)
    weighting = options.get("loss_weighting", "none")
    if weighting == "min_snr":  # as in diffusers' train_text_to_image.py
        least = torch.stack([snr, options.get("min_snr_gamma", 5.0) * torch.ones_like(snr)], dim=1).min(dim=1)[0]
        loss = loss * (least / (snr + 1 if is_v else snr)).view(-1, 1, 1, 1)
    elif weighting == "debiased":
        limited = snr.clamp(max=1000)
        loss = loss * (1 / (limited + 1) if is_v else 1 / limited.sqrt()).view(-1, 1, 1, 1)
    return loss.mean(dim=(1, 2, 3))
