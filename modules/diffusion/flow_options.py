"""The options that flow-matching transformers share."""

from __future__ import annotations

from typing import Literal

from modules.config import Section, setting
from modules.diffusion import shared_options
from modules.diffusion.latents import Latents
from modules.diffusion.losses import LossType

SigmaDistribution = Literal["uniform", "logit_normal", "mode"]
Shift = Literal["model", "static"]
SigmaWeighting = Literal["none", "sigma_sqrt", "cosmap"]
EncoderWeights = Literal["run", "int8", "fp8", "nf4"]


class FlowOptions(Section):
    """`family_options` of a transformer trained by flow matching."""

    timestep_distribution: SigmaDistribution = setting(
        "logit_normal",
        title="Timestep distribution",
        titles={"logit_normal": "Logit-normal"},
        help="Which noise levels are trained how often. logit_normal: mostly the middle ones, which decide shapes; the "
        "usual choice. uniform: all equally often. mode: all, with more weight on the middle ones.",
        resume="warn",
    )
    logit_mean: float = setting(
        0.0,
        title="Logit-normal mean",
        help="Above 0 trains more of the high noise levels (composition), below 0 more of the low ones (details).",
        advanced=True,
        depends_on="timestep_distribution=logit_normal",
        ge=-5,
        le=5,
        resume="warn",
    )
    logit_std: float = setting(
        1.0,
        title="Logit-normal spread",
        help="Standard deviation; smaller concentrates training on fewer noise levels.",
        advanced=True,
        depends_on="timestep_distribution=logit_normal",
        gt=0,
        le=5,
        resume="warn",
    )
    mode_scale: float = setting(
        1.29,
        title="Mode scale",
        help="How strongly mode sampling prefers the middle noise levels; 0 is uniform.",
        advanced=True,
        depends_on="timestep_distribution=mode",
        ge=-1,
        le=1.75,
        resume="warn",
    )
    timestep_shift: Shift = setting(
        "model",
        title="Timestep shift",
        titles={"model": "The model's own"},
        help="Moves training towards high noise levels, which large images need more. model: as the model generates "
        "images: by a fixed factor, or more for larger images. static: by the factor below.",
        resume="warn",
    )
    shift: float = setting(
        3.0,
        title="Shift factor",
        help="1 is no shift; 3 is usual at 1024 pixels.",
        advanced=True,
        depends_on="timestep_shift=static",
        gt=0,
        le=100,
        resume="warn",
    )
    loss: LossType = shared_options.loss_function(advanced=True)
    huber_delta: float = shared_options.huber_delta()
    loss_weighting: SigmaWeighting = setting(
        "none",
        title="Loss weighting by noise level",
        titles={"cosmap": "CosMap"},
        help="none: all noise levels count equally. cosmap: the middle ones count slightly more. sigma_sqrt: low noise "
        "levels count much more.",
        advanced=True,
        resume="warn",
    )
    latents: Latents = shared_options.latents()
    max_caption_tokens: int = setting(
        512,
        title="Maximum caption length",
        help="Longer captions are truncated. 512 tokens are about 350 words; some models read fewer (docs/models.md).",
        unit="tokens",
        advanced=True,
        ge=32,
        le=1024,
        resume="warn",
    )
    text_encoder_weights: EncoderWeights = setting(
        "run",
        title="Text encoder precision (dtype)",
        titles={"run": "As the run"},
        help="How the weights of a large text encoder (a language model or T5) are kept while captions are encoded. "
        "run: as the run computes, bf16 with precision bf16. int8, fp8 and nf4 (4 bits) quantise its linear layers to "
        "about a half and a third of that, at a small loss of precision, for a text encoder that does not fit the GPU. "
        "Captions that are cached are encoded anew.",
        advanced=True,
        resume="warn",
    )
    layout: str = setting(
        "",
        title="Other components of a transformer file",
        help="For a base model that is a transformer in a file of its own, as ComfyUI uses them: where text "
        "encoders, autoencoder, tokenizer and scheduler come from, a diffusers folder or a name on the hub "
        "(owner/model). Empty: the model on the hub that the file is known to be of (docs/models.md).",
        advanced=True,
    )
    text_encoder_files: str = setting(
        "",
        title="Text encoder files",
        help="Files of text encoders as ComfyUI has them (models/text_encoders), separated by commas: .safetensors, "
        "also in fp8 or int8 with scales, or .gguf of T5 and Qwen. Each takes the place of that text encoder of the "
        "model, whose weights are then not downloaded.",
        advanced=True,
        resume="warn",
    )
    offload_frozen: bool = setting(
        True,
        title="Offload frozen models (saves GPU memory)",
        help="Moves the autoencoder off the GPU once images are cached, and back to generate samples.",
        advanced=True,
    )
    vae_tiling: bool = shared_options.vae_tiling()


class FirstFrameOptions(FlowOptions):
    """Of a model of videos that continues an image."""

    first_frame_conditioning: float = setting(
        0.5,
        title="First-frame conditioning (image to video)",
        help="The share of clips, drawn anew at each visit, whose first frame the model is given, so that it learns "
        "what follows, as when an image is animated. 0: text to video alone. 1: image to video alone. Images are "
        "always trained whole.",
        ge=0,
        le=1,
        resume="warn",
    )


class GuidedFlowOptions(FlowOptions):
    """With the guidance input of models that were distilled with classifier-free guidance."""

    guidance: float = setting(
        1.0,
        title="Training guidance",
        help="The guidance scale that a guidance-distilled model (FLUX.1 dev, FLUX.2 dev) is told while it is trained. "
        "1 is usual; samples use their own guidance scale. Other models ignore it.",
        advanced=True,
        ge=0,
        le=20,
        resume="warn",
    )
