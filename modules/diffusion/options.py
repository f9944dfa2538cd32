"""The options that latent diffusion families share."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from modules.config import Section, setting
from modules.config.section import broken_rules
from modules.diffusion import shared_options
from modules.diffusion.latents import Latents
from modules.diffusion.losses import LossType, SnrWeighting
from modules.diffusion.samplers import Sampler
from modules.diffusion.timesteps import TimestepDistribution
from modules.diffusion.token_chunks import LongPrompts


class DiffusionOptions(Section):
    """`family_options` of Stable Diffusion."""

    prediction_type: Literal["auto", "epsilon", "v_prediction"] = setting(
        "auto",
        title="Prediction type (epsilon or v)",
        titles={"auto": "Automatic", "v_prediction": "v-prediction"},
        help="auto: as the base model says, which the start and --dry_run show. epsilon is the noise (SD 1.x, SDXL), "
        "v_prediction (velocity) a mixture of noise and image (SD 2.x at 768 pixels, NoobAI-XL v-pred). The wrong type "
        "gives samples of mere colour blotches.",
        resume="fixed",
    )
    loss: LossType = shared_options.loss_function()
    huber_delta: float = shared_options.huber_delta()
    loss_weighting: SnrWeighting = setting(
        "none",
        title="Loss weighting (Min-SNR, debiased)",
        titles={"min_snr": "Min-SNR"},
        help="min_snr: nearly noise-free timesteps count less, for steadier and faster training. debiased: the same "
        "idea, stronger. none: all timesteps count equally.",
        resume="warn",
    )
    min_snr_gamma: float = setting(
        5.0,
        title="Min-SNR gamma",
        help="The signal-to-noise ratio at which weights are clipped; smaller is stronger. 5 is usual, 1 for "
        "v_prediction with zero terminal SNR.",
        advanced=True,
        depends_on="loss_weighting=min_snr",
        gt=0,
        le=1000,
        resume="warn",
    )
    offset_noise: float = setting(
        0.0,
        title="Offset noise",
        help="Lets the model learn very dark and very bright images. 0.05 to 0.1 is usual; 0 turns it off.",
        advanced=True,
        ge=0,
        le=1,
        resume="warn",
    )
    zero_terminal_snr: bool = setting(
        False,
        title="Zero terminal SNR (last step is pure noise)",
        help="Rescales the noise schedule to end in pure noise, for true black and white. Needs v_prediction, and a "
        "model trained this way. Base models that say so themselves need no switch.",
        advanced=True,
        resume="fixed",
    )
    timestep_distribution: TimestepDistribution = setting(
        "uniform",
        title="Timestep distribution",
        titles={"logit_normal": "Logit-normal"},
        help="uniform: all noise levels equally often. logit_normal: more often the middle ones, which decide shapes.",
        advanced=True,
        resume="warn",
    )
    min_timestep: float = setting(
        0.0,
        title="Minimum timestep",
        help="Train only noise levels above this fraction; 0 is no limit. High noise levels decide composition.",
        advanced=True,
        ge=0,
        lt=1,
        resume="warn",
    )
    max_timestep: float = setting(
        1.0,
        title="Maximum timestep",
        help="Train only noise levels below this fraction; 1 is no limit. Low noise levels decide details.",
        advanced=True,
        gt=0,
        le=1,
        resume="warn",
    )
    clip_skip: int = setting(
        0,
        title="CLIP skip",
        help="How many of the text encoders' last layers to skip. 0: as the model was trained. 1 for many anime models "
        "based on SD 1.5 (other programs call this clip skip 2). Keep 0 for SDXL, even if other programs use 2.",
        unit="layers",
        advanced=True,
        ge=0,
        le=11,
        resume="fixed",
    )
    latents: Latents = shared_options.latents()
    long_prompts: LongPrompts = setting(
        "truncate",
        title="Long prompts (token limit)",
        help="The text encoder reads 75 tokens, about 50 words. truncate: the rest is cut off. chunk: the prompt is "
        "encoded in several chunks.",
        resume="warn",
    )
    prompt_windows: int = setting(
        3,
        title="Chunks per prompt",
        help="How many chunks of 75 tokens are encoded; every caption is padded to this length.",
        advanced=True,
        depends_on="long_prompts=chunk",
        ge=2,
        le=8,
        resume="warn",
    )
    offload_frozen: bool = setting(
        True,
        title="Offload frozen models (saves GPU memory)",
        help="Moves the autoencoder and text encoders off the GPU once images are cached, if training does not need "
        "them, and back to generate samples.",
        advanced=True,
    )
    vae_tiling: bool = shared_options.vae_tiling()
    sample_scheduler: Sampler = setting(
        "model",
        title="Sampler",
        titles={
            "model": "The model's own",
            "ddim": "DDIM",
            "ddpm": "DDPM",
            "pndm": "PNDM",
            "dpmpp_2m": "DPM++ 2M",
            "dpmpp_2m_karras": "DPM++ 2M Karras",
            "dpmpp_2m_sde_karras": "DPM++ 2M SDE Karras",
            "unipc": "UniPC",
        },
        help="The scheduler for samples. model: the base model's own. euler_a and dpmpp_2m_karras are popular.",
    )
    layout: str = setting(
        "",
        title="Configuration of a single file",
        help="For a base model in one .safetensors file, on a computer without a connection: a diffusers folder of the "
        "same architecture, whose configuration and tokenizer are used (not its weights). Empty: from the hub.",
        advanced=True,
    )

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        rules = []
        if self.min_timestep >= self.max_timestep:
            rules.append(
                ("min_timestep", f"is {self.min_timestep}; it must be below max_timestep, {self.max_timestep}")
            )
        if self.zero_terminal_snr and self.prediction_type == "epsilon":
            rules.append(("zero_terminal_snr", "is true, but epsilon is undefined at pure noise; use v_prediction"))
        if rules:
            raise broken_rules(rules)
        return self

    @property
    def chunks(self) -> int:
        """How many chunks of tokens every prompt has."""
        return self.prompt_windows if self.long_prompts == "chunk" else 1
