"""The options that families of latent diffusion share."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from modules.config import Section, setting
from modules.config.section import broken_rules
from modules.families.parts.drawing import Scheduler
from modules.families.parts.latents import Latents
from modules.families.parts.objectives import Error, Weighting
from modules.families.parts.prompts import LongPrompts
from modules.families.parts.timesteps import Distribution


class DiffusionOptions(Section):
    """What `family_options` may say for Stable Diffusion."""

    prediction_type: Literal["auto", "epsilon", "v_prediction"] = setting(
        "auto",
        title="The model predicts",
        help="auto: what the base model was trained for. epsilon is the noise (SD 1.x, SDXL), v_prediction a mixture "
        "of noise and picture (SD 2.x at 768 pixels). A wrong choice gives pictures of mere colours.",
        resume="fixed",
    )
    loss: Error = setting(
        "mse",
        title="Loss",
        help="mse: large errors count most, the usual choice. huber and smooth_l1: a few odd pictures count less.",
        resume="told",
    )
    huber_delta: float = setting(
        0.1,
        title="Loss bends at",
        help="Errors above this count in proportion instead of squared; smaller is more forgiving.",
        advanced=True,
        depends_on="loss=huber|smooth_l1",
        gt=0,
        le=100,
        resume="told",
    )
    loss_weighting: Weighting = setting(
        "none",
        title="Weight of noise levels",
        help="min_snr: almost clean pictures count less, so that training is steadier and faster. debiased: the same "
        "idea, stronger. none: all count alike.",
        resume="told",
    )
    min_snr_gamma: float = setting(
        5.0,
        title="Min-SNR gamma",
        help="Where the limit lies; smaller is stronger. 5 is usual, 1 for v_prediction with zero terminal SNR.",
        advanced=True,
        depends_on="loss_weighting=min_snr",
        gt=0,
        le=1000,
        resume="told",
    )
    offset_noise: float = setting(
        0.0,
        title="Offset noise",
        help="Lets the model learn very dark and very bright pictures. 0.05 to 0.1 is usual; 0 switches it off.",
        advanced=True,
        ge=0,
        le=1,
        resume="told",
    )
    zero_terminal_snr: bool = setting(
        False,
        title="Last step is pure noise",
        help="Rescales the noise so that nothing of the picture is left at its end, for true black and white. Needs "
        "v_prediction, and a model that learned it.",
        advanced=True,
        resume="fixed",
    )
    timestep_distribution: Distribution = setting(
        "uniform",
        title="Timesteps",
        help="Which noise levels are trained: all alike, or those in the middle, where shapes are decided, more often.",
        advanced=True,
        resume="told",
    )
    min_timestep: float = setting(
        0.0,
        title="Lowest noise level",
        help="Only noise levels above this share of all are trained; 0 has no limit. More noise: composition.",
        advanced=True,
        ge=0,
        lt=1,
        resume="told",
    )
    max_timestep: float = setting(
        1.0,
        title="Highest noise level",
        help="Only noise levels below this share of all are trained; 1 has no limit. Less noise: details.",
        advanced=True,
        gt=0,
        le=1,
        resume="told",
    )
    clip_skip: int = setting(
        0,
        title="CLIP skip",
        help="So many of the last layers of the text encoders are left out. 0 as the model was made; 1 for many SD 1.5 "
        "models of drawings (other programs call it clip skip 2). SDXL wants 0, also where others are told 2.",
        unit="layers",
        advanced=True,
        ge=0,
        le=11,
        resume="fixed",
    )
    latents: Latents = setting(
        "sample",
        title="Latents",
        help="sample: a little of the autoencoder's own noise, anew each time. mode: always the same latents, and "
        "half the disk space.",
        advanced=True,
        resume="told",
    )
    long_prompts: LongPrompts = setting(
        "truncate",
        title="Long captions",
        help="The text encoder reads 75 tokens, about 50 words. truncate: what follows is left out. chunk: it is read "
        "in several parts.",
        resume="told",
    )
    prompt_windows: int = setting(
        3,
        title="Parts of a caption",
        help="How many parts of 75 tokens are read; every caption is filled up to so many.",
        advanced=True,
        depends_on="long_prompts=chunk",
        ge=2,
        le=8,
        resume="told",
    )
    offload_frozen: bool = setting(
        True,
        title="Unload what is not trained",
        help="The autoencoder and text encoders that are not needed while training leave the GPU after preparing the "
        "pictures and come back for samples.",
        advanced=True,
    )
    vae_tiling: bool = setting(
        False,
        title="Prepare pictures in tiles",
        help="The autoencoder works on parts of the picture, for large pictures on little GPU memory. The parts' "
        "borders change slightly.",
        advanced=True,
        resume="told",
    )
    sample_scheduler: Scheduler = setting(
        "model",
        title="Sampler",
        help="How samples are drawn from noise. model: as the base model says. euler_a and dpmpp_2m_karras are what "
        "many people use.",
    )
    layout: str = setting(
        "",
        title="Layout of a single file",
        help="Only for a base model in one .safetensors file, on a computer without a connection: a diffusers folder "
        "of the same kind, whose configuration and tokenizer are used (its weights are not). Empty: from the hub.",
        advanced=True,
    )

    @model_validator(mode="after")
    def _fit_each_other(self) -> Self:
        rules = []
        if self.min_timestep >= self.max_timestep:
            rules.append(
                ("min_timestep", f"is {self.min_timestep}; it must be below max_timestep, {self.max_timestep}")
            )
        if self.zero_terminal_snr and self.prediction_type == "epsilon":
            rules.append(
                ("zero_terminal_snr", "is true, but from pure noise the noise says nothing; use v_prediction for it")
            )
        if rules:
            raise broken_rules(rules)
        return self

    @property
    def windows(self) -> int:
        """How many windows every prompt has."""
        return self.prompt_windows if self.long_prompts == "chunk" else 1
