"""Samplers: diffusers' schedulers, stepped as its pipelines step them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from modules.config import ConfigError
from modules.diffusion.quiet_libraries import quiet_libraries

Sampler = Literal[
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
SCHEDULERS: Mapping[str, tuple[str, dict[str, object]]] = {  # sampler -> diffusers' class and its arguments
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


def check_sampler(name: Sampler, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Raises ConfigError if the sampler `name` does not support the noise schedule that the model is trained with."""
    class_name, _, parameters = _scheduler_class(name, config)
    if overrides.get("rescale_betas_zero_snr") and "rescale_betas_zero_snr" not in parameters:
        raise ConfigError(
            f"family_options.sample_scheduler is {name!r} ({class_name}), which cannot start from pure noise, as "
            "zero terminal SNR requires (family_options.zero_terminal_snr, or the base model).",
            "Choose ddim, ddpm, euler, dpmpp_2m or unipc.",
        )


def saved_config(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The scheduler config for a saved model. A class that would lose zero terminal SNR is replaced by DDIM."""
    class_name, _, parameters = _scheduler_class("model", config)
    keeps = not overrides.get("rescale_betas_zero_snr") or "rescale_betas_zero_snr" in parameters
    return {**config, **overrides, "_class_name": class_name if keeps else "DDIMScheduler"}


def make_scheduler(name: Sampler, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """The diffusers scheduler of sampler `name` ("model": the base model's) with the noise schedule of `config`."""
    import diffusers  # here, for loader workers start without it

    class_name, arguments, parameters = _scheduler_class(name, config)
    accepted = {key: value for key, value in {**config, **arguments, **overrides}.items() if key in parameters}
    return getattr(diffusers, class_name).from_config(accepted)


def build_scheduler(kind: Any, config: Mapping[str, Any], **arguments: object) -> Any:
    """A scheduler of the class `kind` of diffusers with a model's config; keys that the class does not know have no
    effect, of which diffusers would log a line each time."""
    with quiet_libraries():
        return kind.from_config(dict(config), **arguments)


def _scheduler_class(name: Sampler, config: Mapping[str, Any]) -> tuple[str, dict[str, object], Mapping[str, object]]:
    """The class name of the sampler's scheduler, the arguments to set, and all that its constructor accepts."""
    import diffusers

    class_name, arguments = SCHEDULERS.get(name, (config["_class_name"], {}))
    return class_name, arguments, inspect.signature(getattr(diffusers, class_name).__init__).parameters


def denoise(
    predict: Callable[[Tensor, Tensor], Tensor],
    scheduler: Any,
    noise: Tensor,
    steps: int,
    guidance_scale: float,
    generator: torch.Generator,
    on_step: Callable[[int, int], object] | None = None,
) -> Tensor:
    """Latents x_0 [1, C, h, w] from `noise` [1, C, h, w].

    `predict(x_t, timestep)` takes x_t [N, C, h, w] and a timestep [], and returns the prediction [N, C, h, w]. N is 1,
    or 2 with a `guidance_scale` above 1: unconditional first, then conditional (classifier-free guidance,
    Ho & Salimans 2022, arXiv:2207.12598). `on_step` is called after each step with steps done and all steps.
    """
    scheduler.set_timesteps(steps, device=noise.device)
    x_t: Tensor = noise * scheduler.init_noise_sigma
    accepted = inspect.signature(scheduler.step).parameters
    arguments: dict[str, object] = {"generator": generator} if "generator" in accepted else {}
    guided = guidance_scale > 1.0
    for done, timestep in enumerate(scheduler.timesteps, 1):
        model_input = scheduler.scale_model_input(torch.cat([x_t] * 2) if guided else x_t, timestep)
        prediction = predict(model_input, timestep).to(x_t.dtype)
        if guided:
            unconditional, conditional = prediction.chunk(2)
            prediction = unconditional + guidance_scale * (conditional - unconditional)
        x_t = scheduler.step(prediction, timestep, x_t, **arguments, return_dict=False)[0].to(x_t.dtype)
        if on_step is not None:
            on_step(done, len(scheduler.timesteps))
    return x_t
