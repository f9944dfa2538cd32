"""What Stable Diffusion 1, 2 and XL have in common; each of their files says what is its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from PIL import Image
from torch import Tensor, nn

from modules.config import TrainConfig
from modules.data.batch import Batch, Example
from modules.families.family import Family, SampleRequest, changed_parts, read_options
from modules.families.parts import drawing, noise, objectives
from modules.families.parts.cached_text import read_captions, text_to_keep
from modules.families.parts.choices import captions_are_fixed, prediction_of, reading_of
from modules.families.parts.components import (
    Components,
    Kind,
    fingerprint,
    load_components,
    model_on_hub,
    save_components,
    with_weights,
)
from modules.families.parts.diffusion_model import DiffusionModel, read_tokens
from modules.families.parts.diffusion_options import DiffusionOptions
from modules.families.parts.hub import HubModel
from modules.families.parts.inpainting import hole_of, nothing_kept
from modules.families.parts.latent_draw import HIDDEN, POOLED, TOKENS, LatentDraw
from modules.families.parts.latents import Latents, decode_picture, encode_pictures, filled, shrink_mask, whole_mask
from modules.families.parts.new_words import cut_off, learn_word
from modules.families.parts.prompts import Prompts
from modules.families.parts.text_encoders import Layer

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class LatentDiffusion(Family):
    """A family whose UNet takes the noise from the latents of an autoencoder, guided by CLIP's reading of a prompt."""

    Options = DiffusionOptions
    methods = ("fine_tune", "lora", "embedding")
    size_step = 64  # the autoencoder divides sides by 8, the UNet by up to 8 once more
    single_file = True
    kind: ClassVar[Kind]
    layer: ClassVar[Layer]  # of the text encoders

    model: DiffusionModel
    draw: LatentDraw
    of_the_word: Sequence[str] = ()  # what to tell of a new word

    def __init__(self, config: TrainConfig, options: DiffusionOptions, components: Components) -> None:
        self.options, self.components = options, components
        self.precision = config.precision
        self.masked = config.masked_training
        self.read = reading_of(self.layer, options, components.encoders)
        self.prediction = prediction_of(components.scheduler, options)
        drawing.check_scheduler(options.sample_scheduler, components.scheduler, self._schedule_changes())
        trained = changed_parts(config, self.parts)
        encoders = components.encoders
        inside = {name: encoder for name, encoder in encoders.items() if name in trained}
        self.model = DiffusionModel(components.unet, inside, tuple(encoders), self.read)
        self.encoders = {"vae": components.vae} | {n: e for n, e in encoders.items() if n not in trained}
        self._keep_frozen(config)
        self.cached_text = tuple(n for n in encoders if n in self.encoders) if captions_are_fixed(config) else ()
        self.encodes_captions = bool(self.cached_text)
        self.draw = self._make_draw(config)

    @classmethod
    def load(cls, config: TrainConfig) -> Self:
        """From `base_model`; see `load_components`."""
        options = read_options(cls.Options, config.family_options)
        assert isinstance(options, DiffusionOptions)
        return cls(config, options, load_components(config.base_model, options.layout, cls.kind))

    @classmethod
    def on_hub(cls, config: TrainConfig) -> HubModel | None:
        """A base model given by its name there, or the configuration of a single file."""
        options = read_options(cls.Options, config.family_options)
        assert isinstance(options, DiffusionOptions)
        return model_on_hub(config.base_model, options.layout, cls.kind)

    @abstractmethod
    def architecture(self) -> str:
        """What modelspec 1.0.1 calls it."""

    @abstractmethod
    def sizes(self, example: Example) -> dict[str, Tensor]:
        """What the UNet is told of the picture's size, as `sizes` fp32 [6]; nothing where it knows none."""

    def fingerprint(self) -> str:
        """The weights of autoencoder and text encoders that are cached, and how they are used."""
        options = self.options
        used = {name: fingerprint(self.encoders[name]) for name in ("vae", *self.cached_text)}
        text = f"{options.clip_skip} {options.windows} {self.precision}" if self.cached_text else ""
        flags = f"masked={self.masked} hole={self.components.inpaints} tiles={options.vae_tiling}"
        return f"{self.kind.pipeline} 1 {used} {options.latents} {flags} {text}"

    def encode(self, example: Example) -> dict[str, Tensor]:
        """mean (and spread) fp32 [4, h, w]; mask uint8 [1, h, w] with masked training; sizes; the captions' text."""
        return self.encode_together([example], 1)[0]

    @torch.no_grad()
    def encode_together(self, examples: Sequence[Example], size: int) -> list[dict[str, Tensor]]:
        """See Family."""
        pixels = torch.stack([example.pixels for example in examples])
        latents = self._latents(pixels, self.options.latents, size)
        captions = [example.captions or ("",) for example in examples]
        texts = self._texts([caption for several in captions for caption in several], size)
        encoded = [{name: tensor[place] for name, tensor in latents.items()} for place in range(len(examples))]
        for own, example, several in zip(encoded, examples, captions, strict=True):
            if self.masked:
                own["mask"] = shrink_mask(whole_mask(example), own["mean"].shape[-2:])
            own |= self.sizes(example) | (text_to_keep(several, texts) if texts else {})
        if self.components.inpaints:
            holes = [hole_of(example) for example in examples]
            covered = torch.where(torch.stack(holes) > 0, torch.full_like(pixels, 128), pixels)
            kept = self._latents(covered, "mode", size)["mean"]
            for own, hole, rest in zip(encoded, holes, kept, strict=True):
                own["kept"] = rest
                own["hole"] = (shrink_mask(hole, rest.shape[-2:]) > 127).to(torch.uint8)
        return encoded

    def loss(self, batch: Batch) -> Tensor:
        """The error of the predicted noise or velocity for each sample, weighted as the options say: [B]."""
        tensors, options = batch.tensors, self.options
        x_0, e, share = tensors["latents"], tensors["noise"], tensors["share"]
        x_t = noise.add_noise(x_0, e, share)
        if "hole" in tensors:
            x_t = torch.cat([x_t, tensors["hole"], tensors["kept"]], dim=1)
        told = self._told({n: t for n, t in tensors.items() if n.endswith((HIDDEN, POOLED, TOKENS)) or n == "sizes"})
        prediction = self.model(x_t, tensors["timestep"], told).to(x_0.dtype)
        target = e if self.prediction == "epsilon" else noise.velocity(x_0, e, share)
        error = objectives.errors(prediction, target, options.loss, options.huber_delta)
        snr = noise.signal_to_noise(share.to(x_0.dtype))
        weights = objectives.level_weights(snr, self.prediction, options.loss_weighting, options.min_snr_gamma)
        return objectives.per_sample(error, tensors.get("weights")) * weights

    @torch.no_grad()
    def sample(self, request: SampleRequest) -> Image.Image:
        """As the diffusers pipeline draws it, from noise drawn on the CPU: a GPU's generator would differ."""
        was_training = self.model.training
        self.model.eval()
        try:
            return self._sample(request)
        finally:
            self.model.train(was_training)
            self.rest()

    def export(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """A folder that diffusers' pipeline loads; parts that are not trained are written as they were loaded."""
        changed = {}
        for name, part in self.model.named_children():
            weights = {key.removeprefix(f"{name}."): t for key, t in state.items() if key.startswith(f"{name}.")}
            changed[name] = with_weights(part, weights)
        scheduler = self.components.scheduler | self._schedule_changes()
        save_components(replace(self.components, scheduler=scheduler), self.kind, changed, folder)

    def modelspec(self) -> Mapping[str, str]:
        """See Family."""
        return {
            "architecture": self.architecture(),
            "prediction_type": "v" if self.prediction == "v_prediction" else "epsilon",
        }

    def blocks(self) -> Sequence[nn.Module]:
        """The UNet's down, middle and up blocks, and the layers of trained text encoders."""
        return self.model.blocks()

    def rest(self) -> None:
        """With `offload_frozen`: all but the text encoders that read captions in every step."""
        if self.options.offload_frozen:
            for name in ("vae", *self.cached_text):
                self._at_work(name, torch.device("cpu"))

    def sampling_facts(self) -> Mapping[str, str]:
        """The sampler; `model` is told as the scheduler that it stands for."""
        name = self.options.sample_scheduler
        return {"sampler": str(self.components.scheduler["_class_name"]) if name == "model" else name}

    def remarks(self, captions: Sequence[str]) -> list[str]:
        """How many captions are cut off, and of how much a new word begins with."""
        return [*self.of_the_word, *cut_off(self.draw.prompts, captions)]

    def learn_words(self, token: str, vectors: int, init: str) -> Mapping[str, list[int]]:
        """See Family; an empty `init` begins from "*"."""
        encoders = {name: getattr(self.model, name) for name in self.draw.prompts.tokenizers}
        tables, self.of_the_word = learn_word(self.draw.prompts, encoders, token, vectors, init)
        return tables

    # What the public methods above are made of

    def _keep_frozen(self, config: TrainConfig) -> None:
        formats = {part.part: FORMATS.get(part.weights) for part in config.parts}
        for name, encoder in self.components.encoders.items():
            if name not in self.encoders:
                self.read.freeze_unread(encoder)
        for name, frozen in self.encoders.items():
            frozen.requires_grad_(False).eval().to(formats.get(name))
        if self.options.vae_tiling:
            self.components.vae.enable_tiling()

    def _make_draw(self, config: TrainConfig) -> LatentDraw:
        components, options = self.components, self.options
        prompts = Prompts(components.tokenizers, options.windows)
        draw = LatentDraw(
            options=options,
            shares=noise.signal_shares(components.scheduler, options.zero_terminal_snr),
            latent_scale=components.latent_scale,
            unmasked_weight=config.unmasked_weight,
            prompts=prompts,
            read_later=tuple(name for name in components.encoders if name not in self.cached_text),
            no_caption={},
        )
        if not (self.cached_text and config.caption_dropout > 0):
            return draw
        self.draw = draw
        return replace(draw, no_caption=self._texts([""], 1)[""])

    def _latents(self, pixels: Tensor, latents: Latents, size: int) -> dict[str, Tensor]:
        """What the autoencoder makes of pixels uint8 [B, 3, H, W], by name, each [B, 4, h, w] on the CPU."""
        vae = cast(Any, self._at_work("vae", self.device))
        encoded = encode_pictures(vae, filled(pixels, size).to(self.device), latents)
        return {name: tensor[: len(pixels)].cpu() for name, tensor in encoded.items()}

    def _texts(self, captions: Sequence[str], size: int) -> dict[str, dict[str, Tensor]]:
        """By caption what the encoders make of it whose text is cached."""
        encoders = {name: self._at_work(name, self.device) for name in self.cached_text}
        dtype = FORMATS.get(self.precision, torch.float32)
        return read_captions(captions, size, encoders, self.draw.prompts, self.read, dtype) if encoders else {}

    def _told(self, told: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`told` with the tokens for frozen encoders read."""
        waiting = [name for name in self.encoders if name + TOKENS in told]
        encoders = {name: self._at_work(name, told[name + TOKENS].device) for name in waiting}
        with torch.no_grad():
            return read_tokens(told, encoders, self.read, self._weights_format())

    def _sample(self, request: SampleRequest) -> Image.Image:
        at_rest = next(self.model.parameters()).device  # with fsdp_cpu_offload in main memory
        device = at_rest if self.device.type == "cpu" else self.device
        guided = request.guidance_scale > 1.0
        prompts = [request.negative_prompt, request.prompt] if guided else [request.prompt]
        told = [self._told_by_prompt(prompt, request, device) for prompt in prompts]
        self.rest()  # the UNet then has the device for itself
        together = {name: torch.cat([one[name] for one in told]) for name in told[0]}
        generator = torch.Generator().manual_seed(request.seed)
        shape = self.components.latent_shape(request.height, request.width)
        x_1 = torch.randn(shape, generator=generator, dtype=self._weights_format()).to(device)
        size = (request.height, request.width)
        hole = (
            nothing_kept(self._at_work("vae", device), size, self.draw.latent_scale)
            if self.components.inpaints
            else None
        )

        def predict(x_t: Tensor, timestep: Tensor) -> Tensor:
            entering = x_t if hole is None else torch.cat([x_t, hole.to(x_t).expand(len(x_t), -1, -1, -1)], dim=1)
            return cast(Tensor, self.model(entering, timestep, together))

        scheduler = drawing.make_scheduler(
            self.options.sample_scheduler, self.components.scheduler, self._schedule_changes()
        )
        x_0 = drawing.draw(predict, scheduler, x_1, request.steps, request.guidance_scale, generator)
        return decode_picture(cast(Any, self._at_work("vae", device)), x_0 / self.components.latent_scale)

    def _told_by_prompt(self, prompt: str, request: SampleRequest, device: torch.device) -> dict[str, Tensor]:
        """What the UNet is told, each tensor [1, ...]."""
        numbers = self.draw.prompts.numbers
        told = {name + TOKENS: numbers(name, prompt)[None].to(device) for name in self.components.encoders}
        size = (request.height, request.width)
        picture = Example(torch.empty(3, *size, dtype=torch.uint8), None, (), size, (0, 0), flipped=False)
        sizes = {name: tensor[None].to(device, self._weights_format()) for name, tensor in self.sizes(picture).items()}
        return cast(dict[str, Tensor], self.model(None, None, self._told(told) | sizes))

    def _schedule_changes(self) -> dict[str, object]:
        """What the options say otherwise than the base model's scheduler."""
        changes: dict[str, object] = {"prediction_type": self.prediction}
        if self.options.zero_terminal_snr:
            changes |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
        return changes

    def _weights_format(self) -> torch.dtype:
        return torch.float64 if self.precision == "fp64" else torch.float32

    def _at_work(self, name: str, device: torch.device) -> nn.Module:
        encoder = self.encoders[name]
        here = next(encoder.parameters()).device
        if here.type != device.type or device.index not in (None, here.index):  # going through all weights takes 1 ms
            encoder.to(device)
        return encoder
