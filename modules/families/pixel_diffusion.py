"""Pixel diffusion: a small caption-to-picture model trained from scratch on the pixels themselves; needs no download.

Rectified flow (Liu et al. 2022, arXiv:2209.03003; Lipman et al. 2022, arXiv:2210.02747): between a picture x_0 and noise
x_1 lies the straight line x_t = (1 - t) x_0 + t x_1; the network learns its velocity dx_t/dt = x_1 - x_0.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from PIL import Image
from pydantic import JsonValue, ValidationError, field_validator
from torch import Tensor, nn
from torch.nn import functional

from modules.config import ConfigError, Section, TrainConfig, setting
from modules.config.explain import explain
from modules.data.batch import Batch, Example
from modules.families.family import Family, SampleRequest

NORM_GROUPS = 8
TIMESTEP_SCALE = 1000.0  # diffusers' networks and schedulers count t in [0, 1] as 0 to 1000
SMALLEST_T = 0.05  # trained with; a predicted picture's error counts 1 / t^2, which must stay finite
PIPELINE_NAME = "PixelDiffusionPipeline"
SHAPE_OPTIONS = frozenset(
    {"width", "patch", "layers", "tokens", "vocabulary", "prediction"}
)  # a trained model cannot change these


class Options(Section):
    """What `family_options` may say for this family."""

    width: int = setting(
        32,
        ge=8,
        le=512,
        title="Width",
        help="Channels at full resolution; the lower resolutions have twice as many. Cost grows with its square.",
    )
    patch: int = setting(
        2,
        ge=1,
        le=8,
        title="Patch",
        help="The network sees squares of so many pixels as one: 2 is about four times as fast as 1, and less sharp.",
    )
    layers: int = setting(1, ge=1, le=4, title="Layers", help="Residual blocks at each of the three resolutions.")
    tokens: int = setting(
        16, ge=1, le=256, title="Words", help="Words of a caption that are read; the rest is cut off."
    )
    vocabulary: int = setting(
        2048,
        ge=16,
        le=1_000_000,
        title="Vocabulary",
        help="Rows of the word table; words are hashed into it, so more rows mean fewer words that share one.",
    )
    prediction: Literal["picture", "velocity"] = setting(
        "picture",
        title="Prediction",
        help="What the network's output is. A picture without noise is easier to tell for a small network.",
    )
    timesteps: Literal["uniform", "logit_normal"] = setting(
        "logit_normal",
        title="Timesteps",
        help="How t is drawn: evenly, or more often in the middle (Esser et al. 2024), where shapes are decided.",
    )
    shift: float = setting(
        4.0,
        ge=0.1,
        le=100,
        title="Shift towards noise",
        help="Above 1, training and drawing spend more of their steps on noisy pictures, where the caption matters: "
        "large even shapes show through the noise early.",
    )

    @field_validator("width")
    @classmethod
    def _width_fits_groups(cls, width: int) -> int:
        if width % NORM_GROUPS:
            lower = width - width % NORM_GROUPS
            raise ValueError(f"use a multiple of {NORM_GROUPS}, such as {lower} or {lower + NORM_GROUPS}")
        return width


class CaptionEmbedding(ModelMixin, ConfigMixin):
    """Word numbers [B, T] to one vector per word [B, T, C]; a word's place in the sentence is part of its vector."""

    @register_to_config
    def __init__(self, vocabulary: int, tokens: int, channels: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, channels, padding_idx=0)  # no word adds nothing to the sum
        self.places = nn.Embedding(tokens, channels)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The words with their places [B, T, C], and the sum of the words alone [B, C]."""
        words = self.words(tokens)
        return words + self.places.weight, words.sum(dim=1)


class CaptionedUNet(nn.Module):
    """The one module that is trained: the velocity [B, 3, H, W] at x_t, given t [B] and the caption [B, T]."""

    def __init__(self, unet: UNet2DConditionModel, text_embedding: CaptionEmbedding, options: Options) -> None:
        super().__init__()
        self.predicts_picture = options.prediction == "picture"
        self.unet = unet
        self.text_embedding = text_embedding
        self.patch = options.patch

    def forward(self, x_t: Tensor, t: Tensor, tokens: Tensor) -> Tensor:
        """See the class."""
        words, caption = self.text_embedding(tokens)
        patches: Tensor = self.unet(
            functional.pixel_unshuffle(x_t, self.patch),
            t * TIMESTEP_SCALE,
            encoder_hidden_states=words,
            class_labels=caption,
            return_dict=False,
        )[0]
        predicted = functional.pixel_shuffle(patches, self.patch)
        if self.predicts_picture:  # x_t - x_0 = t (x_1 - x_0); Li & He 2025, arXiv:2511.13720
            return (x_t - predicted) / t.view(-1, 1, 1, 1)
        return predicted


@dataclass(frozen=True)
class PixelDraw:
    """Draws noise and timestep, and turns the caption into word numbers."""

    options: Options
    unmasked_weight: float

    def __call__(self, cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
        """pixels and noise [3, H, W], timestep [], tokens [T]; weights [1, H, W] of mean 1 where there is a mask."""
        pixels = cached["pixels"].to(torch.float32) / 127.5 - 1.0
        timestep = torch.rand((), generator=generator)
        if self.options.timesteps == "logit_normal":
            timestep = torch.sigmoid(torch.randn((), generator=generator))
        drawn = {
            "pixels": pixels,
            "noise": torch.randn(pixels.shape, generator=generator),
            "timestep": shifted(timestep, self.options.shift).clamp_min(SMALLEST_T),
            "tokens": tokenize(caption, self.options),
        }
        if "mask" in cached:
            inside = cached["mask"].to(torch.float32) / 255.0
            weights = self.unmasked_weight + (1.0 - self.unmasked_weight) * inside
            drawn["weights"] = weights / weights.mean().clamp_min(1e-6)  # an empty mask may leave nothing to learn
        return drawn


class PixelDiffusion(Family):
    """The family of this file."""

    Options: ClassVar[type[Section]] = Options
    size_step: ClassVar[int] = 8  # two halvings, and one more to spare

    def __init__(self, config: TrainConfig, options: Options, model: CaptionedUNet) -> None:
        self.options = options
        self.model = model
        self.encoders: dict[str, nn.Module] = {}
        self.draw = PixelDraw(options, config.unmasked_weight)
        self.masked = config.masked_training

    @classmethod
    def load(cls, config: TrainConfig) -> Self:
        """From `base_model`, a folder written by `export`, or else from scratch with weights drawn from `seed`."""
        if config.base_model is not None:
            folder = Path(config.base_model)
            options = _options(config.family_options, of_folder=_options_of(folder))
            return cls(config, options, _load_model(folder, options))
        options = _options(config.family_options, of_folder={})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return cls(config, options, build_model(options))

    def fingerprint(self) -> str:
        """Pixels are cached as they are, so only the presence of a mask matters."""
        return f"pixel_diffusion 1 masked={self.masked}"

    def encode(self, example: Example) -> dict[str, Tensor]:
        """pixels uint8 [3, H, W]; with masked training also mask uint8 [1, H, W], all inside where there is none."""
        encoded = {"pixels": example.pixels}
        if self.masked:
            whole = torch.full_like(example.pixels[:1], 255)
            encoded["mask"] = whole if example.mask is None else example.mask
        return encoded

    def loss(self, batch: Batch) -> Tensor:
        """Mean squared error of the velocity, for each sample: [B]."""
        x_0, x_1, t = (batch.tensors[name] for name in ("pixels", "noise", "timestep"))
        t_over_pixels = t.view(-1, 1, 1, 1)
        x_t = (1 - t_over_pixels) * x_0 + t_over_pixels * x_1
        velocity = self.model(x_t, t, batch.tensors["tokens"])
        error = (velocity - (x_1 - x_0)).square()
        if "weights" in batch.tensors:
            error = error * batch.tensors["weights"]
        return error.mean(dim=(1, 2, 3))

    @torch.no_grad()
    def sample(self, request: SampleRequest) -> Image.Image:
        """Follow the velocity from noise to a picture in `steps` Euler steps, guided away from the negative prompt."""
        was_training = self.model.training
        self.model.eval()
        try:
            pixels = self._integrate(request)
        finally:
            self.model.train(was_training)
        levels = ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return Image.fromarray(levels.permute(1, 2, 0).contiguous().cpu().numpy(), mode="RGB")

    def export(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """unet/ and scheduler/ as diffusers knows them, text_embedding/ in the same manner, model_index.json."""
        for name in ("unet", "text_embedding"):
            part = {key.removeprefix(name + "."): value for key, value in state.items() if key.startswith(name + ".")}
            _save_part(getattr(self.model, name), part, folder / name)
        FlowMatchEulerDiscreteScheduler(shift=self.options.shift).save_pretrained(folder / "scheduler")
        index = {
            "_class_name": PIPELINE_NAME,
            "options": self.options.model_dump(),
            "unet": ["diffusers", "UNet2DConditionModel"],
            "text_embedding": [__name__, "CaptionEmbedding"],
            "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        }
        (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def blocks(self) -> Sequence[nn.Module]:
        """The U-Net's down, middle and up blocks."""
        unet = self.model.unet
        return [*unet.down_blocks, unet.mid_block, *unet.up_blocks]

    def _integrate(self, request: SampleRequest) -> Tensor:
        weights = next(self.model.parameters())
        guided = request.guidance_scale != 1.0
        captions = [request.prompt, request.negative_prompt] if guided else [request.prompt]
        tokens = torch.stack([tokenize(caption, self.options) for caption in captions]).to(weights.device)
        # The noise is drawn on the CPU: a GPU's generator would give another picture for the same seed.
        generator = torch.Generator().manual_seed(request.seed)
        x_t = torch.randn(1, 3, request.height, request.width, generator=generator).to(weights)
        scheduler = FlowMatchEulerDiscreteScheduler(shift=self.options.shift)
        # By default the last of its steps would only lead from t = 0.001 to 0.
        scheduler.set_timesteps(sigmas=[1 - step / request.steps for step in range(request.steps)])
        for timestep in scheduler.timesteps:
            t = (timestep / TIMESTEP_SCALE).to(weights).expand(len(captions))
            velocity = self.model(x_t.expand(len(captions), -1, -1, -1), t, tokens)
            if guided:  # Ho & Salimans 2022, arXiv:2207.12598
                wanted, unwanted = velocity.chunk(2)
                velocity = unwanted + request.guidance_scale * (wanted - unwanted)
            x_t = scheduler.step(velocity, timestep, x_t, return_dict=False)[0]
        return x_t[0]


def shifted(t: Tensor, shift: float) -> Tensor:
    """t in [0, 1] with its odds t / (1 - t) multiplied by `shift` (Esser et al. 2024, arXiv:2403.03206, eq. 23)."""
    return shift * t / (1 + (shift - 1) * t)


def tokenize(caption: str, options: Options) -> Tensor:
    """int64 [tokens]: each word's row in the word table, then 0 for every place without a word."""
    words = re.findall(r"\w+", caption.lower())[: options.tokens]
    rows = [_row_of_word(word, options.vocabulary) for word in words]
    return torch.tensor(rows + [0] * (options.tokens - len(rows)))


def build_model(options: Options) -> CaptionedUNet:
    """The network with fresh weights; it halves the patches' resolution twice and looks at the words at the lower two."""
    width, channels = options.width, 4 * options.width
    unet = UNet2DConditionModel(
        in_channels=3 * options.patch**2,
        out_channels=3 * options.patch**2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(width, 2 * width, 2 * width),
        layers_per_block=options.layers,
        norm_num_groups=NORM_GROUPS,
        attention_head_dim=2,  # the number of heads, in spite of its name (see UNet2DConditionModel)
        resnet_time_scale_shift="scale_shift",
        cross_attention_dim=channels,
        class_embed_type="projection",
        projection_class_embeddings_input_dim=channels,
    )
    # By keyword: diffusers takes positional arguments for defaults and leaves them out of config.json.
    text = CaptionEmbedding(vocabulary=options.vocabulary, tokens=options.tokens, channels=channels)
    return CaptionedUNet(unet, text, options)


def _row_of_word(word: str, vocabulary: int) -> int:
    """1 to vocabulary - 1, the same in every process (Python's own hash is not)."""
    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % (vocabulary - 1)


def _options(given: dict[str, JsonValue], *, of_folder: dict[str, JsonValue]) -> Options:
    """The family options, where not given those of the model's folder."""
    try:
        options = Options.model_validate(of_folder | given)
    except ValidationError as error:
        raise ConfigError.from_faults("family_options", explain(error, Options)) from error
    for name in SHAPE_OPTIONS & given.keys() & of_folder.keys():
        if getattr(options, name) != of_folder[name]:
            raise ConfigError(
                f"family_options.{name} is {given[name]!r}, but the model in base_model has {of_folder[name]!r}.",
                f"Leave family_options.{name} out to go on with that model.",
            )
    return options


def _options_of(folder: Path) -> dict[str, JsonValue]:
    try:
        index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(
            f"base_model: there is no model folder {str(folder)!r} ({error}).",
            "Name a folder with a model_index.json, such as the model folder of an earlier run.",
        ) from error
    if index.get("_class_name") != PIPELINE_NAME:
        raise ConfigError(
            f"base_model: {str(folder)!r} holds a {index.get('_class_name')}, but family pixel_diffusion needs a "
            f"{PIPELINE_NAME}.",
            "Choose the family of that model, or a model trained with this one.",
        )
    options: dict[str, JsonValue] = index["options"]
    return options


def _load_model(folder: Path, options: Options) -> CaptionedUNet:
    try:
        # low_cpu_mem_usage would need the package accelerate.
        unet = UNet2DConditionModel.from_pretrained(folder / "unet", low_cpu_mem_usage=False)
        text = CaptionEmbedding.from_pretrained(folder / "text_embedding", low_cpu_mem_usage=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"base_model: the model in {str(folder)!r} is damaged ({error}).") from error
    return CaptionedUNet(unet, text, options)


def _save_part(part: ModelMixin, state: Mapping[str, Tensor], folder: Path) -> None:
    with torch.device("meta"):  # weights come from `state`; drawing new ones would disturb the random state
        copy = type(part).from_config(part.config)
    plain = {name: value.to("cpu", torch.float32).contiguous() for name, value in state.items()}
    copy.load_state_dict(plain, assign=True)
    copy.save_pretrained(folder)
