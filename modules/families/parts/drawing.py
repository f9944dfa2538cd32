"""From noise to latents with diffusers' schedulers, step by step as its pipelines do it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import diffusers
import torch
from torch import Tensor

from modules.config import ConfigError

Scheduler = Literal[
    "model",
    "ddim",
    "ddpm",
    "pndm",
    "euler",
    "euler_a",
    "heun",
    "dpmpp_2m",
    "dpmpp_2m_karras",
    "dpmpp_2m_sde_karras",
    "unipc",
]
SCHEDULERS: Mapping[str, tuple[str, dict[str, object]]] = {
    "ddim": ("DDIMScheduler", {}),
    "ddpm": ("DDPMScheduler", {}),
    "pndm": ("PNDMScheduler", {"skip_prk_steps": True}),
    "euler": ("EulerDiscreteScheduler", {}),
    "euler_a": ("EulerAncestralDiscreteScheduler", {}),
    "heun": ("HeunDiscreteScheduler", {}),
    "dpmpp_2m": ("DPMSolverMultistepScheduler", {"algorithm_type": "dpmsolver++"}),
    "dpmpp_2m_karras": ("DPMSolverMultistepScheduler", {"algorithm_type": "dpmsolver++", "use_karras_sigmas": True}),
    "dpmpp_2m_sde_karras": (
        "DPMSolverMultistepScheduler",
        {"algorithm_type": "sde-dpmsolver++", "use_karras_sigmas": True},
    ),
    "unipc": ("UniPCMultistepScheduler", {}),
}


def check_scheduler(name: Scheduler, config: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Raises ConfigError where the scheduler `name` cannot follow the schedule that the model is trained with."""
    kind = SCHEDULERS.get(name, (config["_class_name"], {}))[0]
    known = inspect.signature(getattr(diffusers, kind).__init__).parameters
    if changes.get("rescale_betas_zero_snr") and "rescale_betas_zero_snr" not in known:
        raise ConfigError(
            f"family_options.sample_scheduler is {name!r}, which draws with {kind}; that cannot begin at pure noise, "
            "as family_options.zero_terminal_snr needs it.",
            "Choose ddim, ddpm, euler, dpmpp_2m or unipc.",
        )


def make_scheduler(name: Scheduler, config: Mapping[str, Any], changes: Mapping[str, Any]) -> Any:
    """The scheduler `name` (model: the one of the config) with the noise schedule of a diffusers `config`."""
    kind, settings = SCHEDULERS.get(name, (config["_class_name"], {}))
    known = inspect.signature(getattr(diffusers, kind).__init__).parameters
    fitting = {key: value for key, value in {**config, **settings, **changes}.items() if key in known}
    return getattr(diffusers, kind).from_config(fitting)


def draw(
    predict: Callable[[Tensor, Tensor], Tensor],
    scheduler: Any,
    noise: Tensor,
    steps: int,
    guidance_scale: float,
    generator: torch.Generator,
) -> Tensor:
    """Latents [1, C, h, w] from `noise` of the same shape.

    `predict` tells the prediction [N, C, h, w] for x_t [N, C, h, w] and a timestep []. With `guidance_scale` above 1
    N is 2, first without the prompt, then with it, and the result is pushed away from the first
    (Ho & Salimans 2022, arXiv:2207.12598).
    """
    scheduler.set_timesteps(steps, device=noise.device)
    x_t: Tensor = noise * scheduler.init_noise_sigma
    known = inspect.signature(scheduler.step).parameters
    more: dict[str, object] = {"generator": generator} if "generator" in known else {}
    guided = guidance_scale > 1.0
    for timestep in scheduler.timesteps:
        entering = scheduler.scale_model_input(torch.cat([x_t] * 2) if guided else x_t, timestep)
        prediction = predict(entering, timestep).to(x_t.dtype)
        if guided:
            without, with_prompt = prediction.chunk(2)
            prediction = without + guidance_scale * (with_prompt - without)
        x_t = scheduler.step(prediction, timestep, x_t, **more, return_dict=False)[0].to(x_t.dtype)
    return x_t
