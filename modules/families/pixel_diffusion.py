"""Pixel diffusion: a small text-to-image model, trained from scratch on pixels; needs no download."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, cast

import torch
from diffusers.models.modeling_utils import ModelMixin
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from PIL import Image
from pydantic import JsonValue
from torch import Tensor, nn
from torch.nn import functional

from modules.config import ConfigError, TrainConfig
from modules.data.batch import Batch, Example
from modules.diffusion.base_model_files import check_folder, read_shapes, weight_files
from modules.diffusion.component_files import load_network
from modules.diffusion.flow_matching import integrate, sample_t
from modules.diffusion.pixels import mask_loss_weights, mask_or_ones, normalize_pixels
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.diffusion.text_tokens import CaptionEmbedding, tokenize
from modules.facts.pixel_diffusion import FACTS
from modules.families._family import Family, NoiseLevels, SampleRequest, read_options
from modules.families._pixel_unet import CaptionedUNet, PixelOptions, build_model
from modules.families._saved_model import require_described
from modules.files import FileFault, read_json

MIN_T = 0.05  # in training: the velocity is the error of x_0 divided by t, so its square is weighted by 1 / t^2
PIPELINE_NAME = "PixelDiffusionPipeline"
PARTS = ("unet", "text_embedding")  # of the saved model and of `model`
ARCHITECTURE_OPTIONS = frozenset({"width", "patch", "tokens", "vocabulary"})  # fixed once a model is trained


def sample_training_t(options: PixelOptions, generator: torch.Generator) -> Tensor:
    """t of one training sample, fp32 []."""
    return sample_t(options.timesteps, options.shift, generator).clamp_min(MIN_T)


@dataclass(frozen=True)
class PixelSampleTransform:
    """Samples noise and t, and tokenizes the caption."""

    options: PixelOptions
    unmasked_weight: float
    normalize_mask: bool

    def __call__(self, cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
        """pixels and noise fp32 [3, H, W], timestep fp32 [], tokens int64 [T]; with a mask, weights fp32 [1, H, W]."""
        pixels = normalize_pixels(cached["pixels"])
        t = sample_training_t(self.options, generator)
        sample = {
            "pixels": pixels,
            "noise": torch.randn(pixels.shape, generator=generator),
            "timestep": t,
            "tokens": token_ids(caption, self.options),
        }
        if "mask" in cached:
            sample["weights"] = mask_loss_weights(cached["mask"], self.unmasked_weight, normalize=self.normalize_mask)
        return sample


@dataclass(frozen=True)
class PixelExample:
    """Keeps the pixels of an example, and its mask if `masked`."""

    masked: bool

    def __call__(self, example: Example) -> dict[str, Tensor]:
        """pixels uint8 [3, H, W]; with masked training also mask uint8 [1, H, W]."""
        return {"pixels": example.pixels, **({"mask": mask_or_ones(example)} if self.masked else {})}


class PixelDiffusion(Family):
    """Flow matching on pixels."""

    facts = FACTS
    Options = PixelOptions
    methods = ("fine_tune", "lora")
    image_cache = "optional"
    model: CaptionedUNet
    example_transform: PixelExample

    def __init__(self, config: TrainConfig, options: PixelOptions, model: CaptionedUNet) -> None:
        self.options = options
        self.model = model
        self.encoders: dict[str, nn.Module] = {}
        self.sample_transform = PixelSampleTransform(options, config.unmasked_weight, config.normalize_masked_area_loss)
        self.masked = config.masked_training
        self.example_transform = PixelExample(self.masked)

    @classmethod
    def base_model_notes(cls, config: TrainConfig) -> Sequence[str]:
        """Nothing; see Family for the errors."""
        if config.base_model is not None:
            _check_weights(Path(config.base_model), cls.meta_model(config))
        return []

    @classmethod
    def noise_levels(cls, config: TrainConfig) -> NoiseLevels:
        options = read_options(cls.Options, config.family_options)
        return NoiseLevels(partial(sample_training_t, options), f"shifted by {options.shift:g}")

    @classmethod
    def meta_model(cls, config: TrainConfig) -> nn.Module:
        given = config.family_options
        options = given if config.base_model is None else _options_of(Path(config.base_model), given)
        with torch.device("meta"):
            return build_model(read_options(cls.Options, options))

    @classmethod
    def load(cls, config: TrainConfig) -> Self:
        """From `base_model`, a folder written by `export`, or from scratch with weights initialised from `seed`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            if config.base_model is None:
                options = read_options(cls.Options, config.family_options)
                return cls(config, options, build_model(options))
            folder = Path(config.base_model)
            options = read_options(cls.Options, _options_of(folder, config.family_options))
            _check_weights(folder, cls.meta_model(config))
            return cls(config, options, _load_model(folder, options))

    def fingerprint(self) -> str:
        """Pixels are cached unchanged, so only the presence of a mask matters."""
        return f"pixel_diffusion 1 masked={self.masked}"

    def encode(self, example: Example) -> dict[str, Tensor]:
        """Pixels are cached as they are."""
        return self.example_transform(example)

    def loss(self, batch: Batch) -> Tensor:
        """Mean squared error of the velocity, fp32 [B]."""
        x_0, x_1, t = (batch.tensors[name] for name in ("pixels", "noise", "timestep"))
        t_over_pixels = t.view(-1, 1, 1, 1)
        x_t = (1 - t_over_pixels) * x_0 + t_over_pixels * x_1
        velocity: Tensor = self.model(x_t, t, batch.tensors["tokens"])
        error = functional.mse_loss(velocity, x_1 - x_0, reduction="none")
        if "weights" in batch.tensors:
            error = error * batch.tensors["weights"]
        return error.mean(dim=(1, 2, 3))

    @torch.no_grad()
    def sample(self, request: SampleRequest) -> Image.Image:
        """`steps` Euler steps from noise to an image, with classifier-free guidance."""
        was_training = self.model.training
        self.model.eval()
        try:
            pixels = self._x_0(request)
        finally:
            self.model.train(was_training)
        levels = ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return Image.fromarray(levels.permute(1, 2, 0).contiguous().cpu().numpy(), mode="RGB")

    def export(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """unet/ and scheduler/ in diffusers' format, text_embedding/ in the same way, and model_index.json."""
        for name in PARTS:
            own = {key.removeprefix(name + "."): value for key, value in state.items() if key.startswith(name + ".")}
            _save_component(getattr(self.model, name), own, folder / name)
        FlowMatchEulerDiscreteScheduler(shift=self.options.shift).save_pretrained(folder / "scheduler")
        components = {
            "unet": ["diffusers", "UNet2DConditionModel"],
            "text_embedding": [CaptionEmbedding.__module__, "CaptionEmbedding"],
            "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        }
        index = {"_class_name": PIPELINE_NAME, "options": self.options.model_dump()} | components
        (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def blocks(self) -> Sequence[nn.Module]:
        """The U-Net's down, middle and up blocks."""
        unet = self.model.unet
        return [*unet.down_blocks.children(), unet.get_submodule("mid_block"), *unet.up_blocks.children()]

    def _x_0(self, request: SampleRequest) -> Tensor:
        """The generated image, [3, H, W] in [-1, 1]."""
        weights = next(self.model.parameters())
        guided = request.guidance_scale != 1.0
        captions = [request.prompt, request.negative_prompt] if guided else [request.prompt]
        tokens = torch.stack([token_ids(caption, self.options) for caption in captions]).to(weights.device)

        def velocity(x_t: Tensor, t: Tensor) -> Tensor:
            output: Tensor = self.model(x_t.expand(len(tokens), -1, -1, -1), t.expand(len(tokens)), tokens)
            # classifier-free guidance (Ho & Salimans 2022, arXiv:2207.12598)
            return output[1:] + request.guidance_scale * (output[:1] - output[1:]) if guided else output

        # On the CPU: a GPU's generator would give a different image for the same seed.
        generator = torch.Generator().manual_seed(request.seed)
        x_1 = torch.randn(1, 3, request.height, request.width, generator=generator).to(weights)
        return integrate(velocity, x_1, request.steps, self.options.shift)[0]


def token_ids(caption: str, options: PixelOptions) -> Tensor:
    """int64 [tokens], padded with 0."""
    return tokenize(caption, tokens=options.tokens, vocabulary=options.vocabulary)


def _options_of(folder: Path, given: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The options that the model in `folder` was trained with, overridden by `given`."""
    try:
        index = read_json(folder / "model_index.json")
        if not isinstance(index, dict):
            raise FileFault("is not an object")
    except (OSError, FileFault) as error:
        reason = f"its model_index.json {error}" if isinstance(error, FileFault) else str(error)
        raise ConfigError(
            f"base_model: {str(folder)!r} is not a model folder ({reason}).",
            "Give a folder with a model_index.json, for example the model folder of an earlier run.",
        ) from error
    if index.get("_class_name") != PIPELINE_NAME:
        raise ConfigError(
            f"base_model: {str(folder)!r} contains a {index.get('_class_name')}, not a {PIPELINE_NAME}.",
            "Choose the family of that model, or a model trained with pixel_diffusion.",
        )
    trained = index.get("options")
    if not isinstance(trained, dict):
        raise ConfigError(
            f"base_model: the model_index.json in {str(folder)!r} is damaged: it has no options.",
            "Copy the model folder again.",
        )
    for name in ARCHITECTURE_OPTIONS & given.keys() & trained.keys():
        if given[name] != trained[name]:
            raise ConfigError(
                f"family_options.{name} is {given[name]!r}, but the model in base_model has {trained[name]!r}.",
                f"Omit family_options.{name} to continue with that model.",
            )
    return trained | given


def _check_weights(folder: Path, described: nn.Module) -> None:
    check_folder(folder, [PIPELINE_NAME], PARTS)
    shapes = {f"{part}.{name}": s for part in PARTS for name, s in read_shapes(weight_files(folder, part)).items()}
    require_described(folder, shapes, described, "model_index.json")


def _load_model(folder: Path, options: PixelOptions) -> CaptionedUNet:
    with quiet_libraries():
        unet = load_network(folder, "unet", UNet2DConditionModel, torch.float32)
        text = load_network(folder, "text_embedding", CaptionEmbedding, torch.float32)
    return CaptionedUNet(unet, text, options.patch)


def _save_component(module: UNet2DConditionModel | CaptionEmbedding, state: Mapping[str, Tensor], folder: Path) -> None:
    with torch.device("meta"):  # initialising weights would advance the random state
        copy = cast(ModelMixin, module.from_config(module.config))
    plain = {name: value.to("cpu", torch.float32).contiguous() for name, value in state.items()}
    copy.load_state_dict(plain, assign=True)
    copy.save_pretrained(folder)
