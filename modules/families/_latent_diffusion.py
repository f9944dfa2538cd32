"""What Stable Diffusion 1, 2 and XL have in common; their own files add the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from PIL import Image
from torch import Tensor, nn

from modules.config import TrainConfig
from modules.data.batch import Batch, Example
from modules.diffusion import noise, placeholder_tokens, samplers
from modules.diffusion.base_model_files import find_base_model
from modules.diffusion.caption_cache import encode_captions
from modules.diffusion.component_files import copy_with_weights, weights_fingerprint
from modules.diffusion.components import (
    Components,
    check_small_parts,
    load_components,
    required_hub_model,
    save_pipeline,
)
from modules.diffusion.diffusion_model import DiffusionModel
from modules.diffusion.dtypes import HALF_DTYPES
from modules.diffusion.fitting_weights import require_fitting
from modules.diffusion.hub.model import HubModel
from modules.diffusion.latents import Latents, blank_inpainting_input, decode_image, encode_images, pad_batch
from modules.diffusion.meta_networks import meta_networks
from modules.diffusion.objectives import Ddpm, DenoisingLoss
from modules.diffusion.options import DiffusionOptions
from modules.diffusion.pixels import downsample_mask, inpaint_mask, mask_or_ones
from modules.diffusion.quantized import QUANTIZED
from modules.diffusion.quantized_networks import require_plain
from modules.diffusion.resolve_options import (
    has_fixed_captions,
    resolve_prediction_type,
    resolve_prompt_encoding,
    resolve_zero_terminal_snr,
)
from modules.diffusion.sample_inputs import SampleInputs
from modules.diffusion.sample_transform import LatentSampleTransform, sample_training_timestep
from modules.diffusion.schedule_note import schedule_note
from modules.diffusion.text_encoders import HIDDEN, POOLED, TOKENS, Layer, encode_tokens
from modules.diffusion.token_chunks import PromptTokenizer
from modules.diffusion.uncached_images import IMAGE, LatentExample, encode_batch_images
from modules.families._diffusion_family import DiffusionFamily, on_device
from modules.families._family import FrozenNetwork, NoiseLevels, SampleRequest, read_options, trained_submodules
from modules.families._find_family import check_family
from modules.families._frozen_networks import frozen_networks
from modules.families._vae_estimates import meta_encoder

_TIMESTEPS = 1000  # of every base model's schedule; only the window's histogram does not read it from there
_TOKENS = 77  # of a chunk
_PIXELS_PER_LATENT = 8
_SIZES = 6  # numbers of SDXL's size conditioning


class LatentDiffusion(DiffusionFamily):
    """A UNet that denoises the latents of an autoencoder, conditioned on CLIP embeddings of a prompt."""

    Options: ClassVar[type[DiffusionOptions]] = DiffusionOptions
    methods = ("fine_tune", "lora", "embedding")
    size_step = 64  # the autoencoder divides sides by 8, the UNet by up to 8 again
    adapter_prefixes = {"unet": ("unet", "lora_unet"), "text_encoder": ("text_encoder", "lora_te")}  # noqa: RUF012
    single_file = True
    layer: ClassVar[Layer]  # of the text encoders
    placeholder_warnings: Sequence[str] = ()

    model: DiffusionModel
    sample_transform: LatentSampleTransform

    def __init__(self, config: TrainConfig, options: DiffusionOptions, components: Components) -> None:
        self.options, self.components = options, components
        self.precision = config.precision
        self.masked = config.masked_training
        self.sample_inputs = SampleInputs()
        self.encoding = resolve_prompt_encoding(self.layer, options, components.encoders)
        self.prediction = resolve_prediction_type(components.scheduler, options)
        objective = Ddpm(self.prediction, options.loss_weighting, options.min_snr_gamma)
        self.denoising_loss = DenoisingLoss(objective, options.loss, options.huber_delta)
        self.zero_terminal_snr = resolve_zero_terminal_snr(components.scheduler, options)
        samplers.check_sampler(options.sample_scheduler, components.scheduler, self._scheduler_overrides())
        trained = trained_submodules(config, self.submodules)
        encoders = components.encoders
        trained_encoders = {name: encoder for name, encoder in encoders.items() if name in trained}
        self.model = DiffusionModel(components.unet, trained_encoders, tuple(encoders), self.encoding)
        self.encoders = {"vae": components.vae} | {n: e for n, e in encoders.items() if n not in trained}
        self._freeze(config)
        caches_captions = config.cache_latents and has_fixed_captions(config)
        self.cached_encoders = tuple(n for n in encoders if n in self.encoders) if caches_captions else ()
        if not config.cache_latents:
            self.example_transform = LatentExample(
                self.masked, components.is_inpainting, self._pixels_per_latent(), type(self).size_conditioning
            )
        self.sample_transform = self._make_sample_transform(config)

    @classmethod
    def load_for_training(cls, config: TrainConfig) -> Self:
        options = read_options(cls.Options, config.family_options)
        check_family(config, cls.facts.pipelines)
        return cls(config, options, load_components(config.base_model, options.layout, cls.facts))

    @classmethod
    def hub_model(cls, config: TrainConfig) -> HubModel | None:
        """The base model if it is named by its hub name, or the configuration of a single file."""
        options = read_options(cls.Options, config.family_options)
        check_family(config, cls.facts.pipelines)
        return required_hub_model(config.base_model, options.layout, cls.facts)

    @classmethod
    def base_model_notes(cls, config: TrainConfig) -> Sequence[str]:
        """What the base model predicts; see `schedule_note`. And formats that frozen text encoders do not have."""
        options = read_options(cls.Options, config.family_options)
        check_family(config, cls.facts.pipelines)
        base = find_base_model(config.base_model, cls.facts.pipelines, cls.facts.components)
        folder = base.cached_folder() if isinstance(base, HubModel) else base
        model: Any = cls.meta_model(config) if folder is not None and folder.is_dir() else None
        if folder is not None and model is not None:
            require_plain(folder, "unet")
            require_fitting(folder, "unet", model.unet)
        note = schedule_note(config.base_model, options, cls.facts)
        return [*([note] if note else []), *_unused_formats(config, cls.submodules)]

    @classmethod
    def check_small_parts(cls, config: TrainConfig) -> None:
        options = read_options(cls.Options, config.family_options)
        check_small_parts(config.base_model, options.layout, cls.facts)

    @classmethod
    def noise_levels(cls, config: TrainConfig) -> NoiseLevels:
        options = read_options(cls.Options, config.family_options)
        return NoiseLevels(lambda generator: sample_training_timestep(options, _TIMESTEPS, generator) / _TIMESTEPS)

    @abstractmethod
    def architecture(self) -> str:
        """Its modelspec 1.0.1 name."""

    @staticmethod
    @abstractmethod
    def size_conditioning(example: Example) -> dict[str, Tensor]:
        """The UNet's size conditioning as `sizes` fp32 [6]; empty if it has none."""

    def fingerprint(self) -> str:
        """The weights of the autoencoder, and how it is used."""
        options, used = self.options, {"vae": weights_fingerprint(self.encoders["vae"])}
        flags = f"masked={self.masked} hole={self.components.is_inpainting} tiles={options.vae_tiling}"
        return f"{self.facts.pipelines[0]} 1 {used} {options.latents} {flags} "

    def text_fingerprint(self) -> str:
        """The weights of the text encoders that are cached, and how they are used."""
        options, used = self.options, {name: weights_fingerprint(self.encoders[name]) for name in self.cached_encoders}
        return (
            f"{self.facts.pipelines[0]} 1 {used} {options.clip_skip} {options.chunks} {self.precision}" if used else ""
        )

    def encode_captions(self, captions: Sequence[str], size: int) -> list[dict[str, Tensor]]:
        """NAME.hidden [T, D] and NAME.pooled [P] of each cached encoder."""
        embeddings = self._encode_captions(captions, size)
        return [embeddings[caption] for caption in captions]

    @torch.no_grad()
    def encode_batch(self, examples: Sequence[Example], size: int) -> list[dict[str, Tensor]]:
        """Each is a dictionary of mean (and spread) fp32 [4, h, w]; sizes fp32 [6] for SDXL; mask uint8 [1, h, w] with
        masked training; of inpainting models hole uint8 [1, h, w] and kept fp32 [4, h, w], the latents of the image
        outside it."""
        pixels = torch.stack([example.pixels for example in examples])
        latents = self._encode_latents(pixels, self.options.latents, size)
        encoded = [{name: tensor[place] for name, tensor in latents.items()} for place in range(len(examples))]
        for own, example in zip(encoded, examples, strict=True):
            if self.masked:
                own["mask"] = downsample_mask(mask_or_ones(example), own["mean"].shape[-2:])
            own |= self.size_conditioning(example)
        if self.components.is_inpainting:
            masks = [inpaint_mask(example) for example in examples]
            masked = torch.where(torch.stack(masks) > 0, torch.full_like(pixels, 128), pixels)
            masked_latents = self._encode_latents(masked, "mode", size)["mean"]
            for own, mask, kept in zip(encoded, masks, masked_latents, strict=True):
                own["kept"] = kept
                own["hole"] = (downsample_mask(mask, kept.shape[-2:]) > 127).to(torch.uint8)
        return encoded

    def loss(self, batch: Batch) -> Tensor:
        """Loss of the predicted epsilon or v for each sample, weighted by its noise level: [B]."""
        tensors = self._with_latents(batch.tensors)
        conditioning = self._encode_frozen(
            {n: t for n, t in tensors.items() if n.endswith((HIDDEN, POOLED, TOKENS)) or n == "sizes"}
        )

        def predict(x_t: Tensor) -> Tensor:
            if "inpaint_mask" in tensors:
                x_t = torch.cat([x_t, tensors["inpaint_mask"], tensors["masked_latents"]], dim=1)
            return cast(Tensor, self.model(x_t, tensors["timestep"], conditioning))

        x_0, level = tensors["latents"], tensors["alpha_bar"].to(tensors["latents"].dtype)
        return self.denoising_loss.of(predict, x_0, tensors["noise"], level, tensors.get("weights"))

    def export(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """A folder for diffusers' pipeline; components that are not trained are written as they were loaded."""
        trained = {}
        for name, module in self.model.named_children():
            weights = {key.removeprefix(f"{name}."): t for key, t in state.items() if key.startswith(f"{name}.")}
            trained[name] = copy_with_weights(module, weights)
        scheduler = samplers.saved_config(self.components.scheduler, self._scheduler_overrides())
        save_pipeline(replace(self.components, scheduler=scheduler), self.facts, trained, folder)

    def modelspec(self) -> Mapping[str, str]:
        return {
            "architecture": self.architecture(),
            "prediction_type": "v" if self.prediction == "v_prediction" else "epsilon",
            **self._encoder_layer(),
        }

    def blocks(self) -> Sequence[nn.Module]:
        """The UNet's down, middle and up blocks, and the layers of trained text encoders."""
        return self.model.blocks()

    def offload_frozen(self) -> None:
        """With the option `offload_frozen`: all but the encoders that run in every step."""
        if self.options.offload_frozen:
            for name in () if self.example_transform is not None else ("vae", *self.cached_encoders):
                self._encoder_on(name, torch.device("cpu"))

    def prompt_warnings(self, captions: Sequence[str]) -> list[str]:
        """Truncated captions, and an initial text longer than the placeholder token's vectors."""
        return [*self.placeholder_warnings, *self.sample_transform.tokenizer.truncation_warnings(captions)]

    def add_placeholder_token(self, token: str, vectors: int, init: str) -> Mapping[str, list[int]]:
        """An empty `init` starts from "*"."""
        tokenizer = self.sample_transform.tokenizer
        encoders = {name: getattr(self.model, name) for name in tokenizer.tokenizers}
        tables, self.placeholder_warnings = placeholder_tokens.add_placeholder_token(
            tokenizer, encoders, token, vectors, init
        )
        return tables

    def sample_metadata(self) -> Mapping[str, str]:
        """The sampler; for "model" the name of the base model's scheduler."""
        name = self.options.sample_scheduler
        return {"sampler": str(self.components.scheduler["_class_name"]) if name == "model" else name}

    def generate(self, request: SampleRequest) -> Image.Image:
        device = self.sampling_device()
        guided = request.guidance_scale > 1.0
        prompts = [request.negative_prompt, request.prompt] if guided else [request.prompt]
        each = [self._encode_prompt(prompt, request, device) for prompt in prompts]
        self.offload_frozen()  # leaves the device's memory to the UNet
        conditioning = {name: torch.cat([one[name] for one in each]) for name in each[0]}
        generator = torch.Generator().manual_seed(request.seed)
        shape = self.components.latent_shape(request.height, request.width)
        x_1 = torch.randn(shape, generator=generator, dtype=self.master_dtype()).to(device)
        extra = self._blank_inpainting_input(request, device) if self.components.is_inpainting else None

        def predict(x_t: Tensor, timestep: Tensor) -> Tensor:
            if extra is not None:
                x_t = torch.cat([x_t, extra.to(x_t).expand(len(x_t), -1, -1, -1)], dim=1)
            return cast(Tensor, self.model(x_t, timestep, conditioning))

        scheduler = samplers.make_scheduler(
            self.options.sample_scheduler, self.components.scheduler, self._scheduler_overrides()
        )
        x_0 = samplers.denoise(
            predict, scheduler, x_1, request.steps, request.guidance_scale, generator, self.on_sampling_step
        )
        return decode_image(cast(Any, self._encoder_on("vae", device)), x_0 / self.components.scaling_factor)

    @classmethod
    def meta_model(cls, config: TrainConfig) -> nn.Module | None:
        options = read_options(cls.Options, config.family_options)
        networks = meta_networks(config.base_model, options.layout, cls.facts)
        if networks is None:
            return None
        encoding = resolve_prompt_encoding(cls.layer, options, networks.encoders)
        trained = trained_submodules(config, cls.submodules)
        trained_encoders = {name: encoder for name, encoder in networks.encoders.items() if name in trained}
        for encoder in trained_encoders.values():
            encoding.freeze_unused_layers(encoder)
        return DiffusionModel(networks.unet, trained_encoders, tuple(networks.encoders), encoding)

    @classmethod
    def meta_loss(cls, config: TrainConfig, model: nn.Module, size: tuple[int, int], samples: int) -> Tensor:
        assert isinstance(model, DiffusionModel)
        options = read_options(cls.Options, config.family_options)
        unet: Any = model.unet
        dtype = torch.float64 if config.precision == "fp64" else torch.float32
        trained = [name for name in model.encoder_names if hasattr(model, name)]
        frozen = [name for name in model.encoder_names if name not in trained]
        conditioning: dict[str, Tensor] = {
            name + TOKENS: torch.zeros(samples, options.chunks, _TOKENS, dtype=torch.int64) for name in trained
        }
        width = unet.config.cross_attention_dim - sum(getattr(model, name).config.hidden_size for name in trained)
        for place, name in enumerate(frozen):  # only their sum matters
            own = width // len(frozen) + (width % len(frozen) if place == 0 else 0)
            conditioning[name + HIDDEN] = torch.zeros(samples, options.chunks * _TOKENS, own, dtype=dtype)
        if unet.config.addition_embed_type == "text_time":
            conditioning["sizes"] = torch.zeros(samples, _SIZES, dtype=dtype)
            pooled = unet.config.projection_class_embeddings_input_dim - _SIZES * unet.config.addition_time_embed_dim
            if frozen and frozen[-1] == model.encoder_names[-1]:
                conditioning[frozen[-1] + POOLED] = torch.zeros(samples, pooled, dtype=dtype)
        sides = [side // _PIXELS_PER_LATENT for side in reversed(size)]
        x_t = torch.zeros(samples, unet.config.in_channels, *sides, dtype=dtype)
        prediction: Tensor = model(x_t, torch.zeros(samples, dtype=torch.int64), conditioning)
        return prediction.to(dtype).square().flatten(1).mean(1)

    @classmethod
    def meta_encoder(cls, config: TrainConfig) -> Callable[[Tensor], Tensor] | None:
        options = read_options(cls.Options, config.family_options)
        base = find_base_model(config.base_model, cls.facts.pipelines, cls.facts.components)
        folder = base.cached_folder() if isinstance(base, HubModel) else base
        if folder is not None and not folder.is_dir():
            return None  # of a single file nothing is known before it is read
        return meta_encoder(folder, str(config.base_model), tiling=options.vae_tiling)

    @classmethod
    def frozen_networks(cls, config: TrainConfig) -> Sequence[FrozenNetwork]:
        options = read_options(cls.Options, config.family_options)
        base = find_base_model(config.base_model, cls.facts.pipelines, cls.facts.components)
        if not isinstance(base, HubModel) and not base.is_dir():
            return ()  # of a single file nothing is known before it is read
        trained = trained_submodules(config, cls.submodules)
        given = {part.part: HALF_DTYPES.get(part.weights, torch.float32) for part in config.parts}
        names = ("vae", *(name for name in cls.facts.encoders if name not in trained))
        dtypes = {name: given.get(name, torch.float32) for name in names}
        return frozen_networks(config, base, dtypes, offload=options.offload_frozen, discards_encoders=False)

    def _encoder_layer(self) -> dict[str, str]:
        """With CLIP skip: the text encoders' layer counted from the end, 1 for the last, as A1111 and kohya count."""
        first = 2 if self.encoding.layer == "penultimate" else 1
        return {"encoder_layer": str(first + self.encoding.clip_skip)} if self.encoding.clip_skip else {}

    def _freeze(self, config: TrainConfig) -> None:
        """Freeze the encoders, in the number format that `config.parts` asks for, and unused layers of trained ones."""
        dtypes = {part.part: HALF_DTYPES.get(part.weights) for part in config.parts}
        for name, encoder in self.components.encoders.items():
            if name not in self.encoders:
                self.encoding.freeze_unused_layers(encoder)
        for name, frozen in self.encoders.items():
            # not diffusers' own `to`, which warns of layers in float32 even if there are none
            nn.Module.to(frozen.requires_grad_(False).eval(), dtypes.get(name) or torch.float32)
        if self.options.vae_tiling:
            self.components.vae.enable_tiling()

    def _make_sample_transform(self, config: TrainConfig) -> LatentSampleTransform:
        components, options = self.components, self.options
        transform = LatentSampleTransform(
            options=options,
            alphas_cumprod=noise.alphas_cumprod(components.scheduler, self.zero_terminal_snr),
            scaling_factor=components.scaling_factor,
            unmasked_weight=config.unmasked_weight,
            normalize_mask=config.normalize_masked_area_loss,
            tokenizer=PromptTokenizer(components.tokenizers, options.chunks),
            uncached_encoders=tuple(name for name in components.encoders if name not in self.cached_encoders),
            empty_caption={},
            latent_channels=components.latent_shape(self.size_step, self.size_step)[1],
            pixels_per_latent=self._pixels_per_latent(),
        )
        if not (self.cached_encoders and config.drops_captions):
            return transform
        self.sample_transform = transform
        return replace(transform, empty_caption=self._encode_captions([""], 1)[""])

    def _pixels_per_latent(self) -> int:
        return self.size_step // self.components.latent_shape(self.size_step, self.size_step)[2]

    def _with_latents(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a batch, with its images encoded if they are not cached."""
        if IMAGE not in tensors:
            return tensors
        vae = cast(Any, self._encoder_on("vae", tensors[IMAGE].device))
        return encode_batch_images(tensors, vae, self.options.latents, self.components.scaling_factor)

    def _encode_latents(self, pixels: Tensor, latents: Latents, size: int) -> dict[str, Tensor]:
        """The output of `encode_images` for pixels uint8 [B, 3, H, W], on the CPU."""
        vae = cast(Any, self._encoder_on("vae", self.device))
        encoded = encode_images(vae, pad_batch(pixels, size).to(self.device), latents)
        return {name: tensor[: len(pixels)].cpu() for name, tensor in encoded.items()}

    def _encode_captions(self, captions: Sequence[str], size: int) -> dict[str, dict[str, Tensor]]:
        """The output of `encode_captions` for the cached encoders; empty if there are none."""
        encoders = {name: self._encoder_on(name, self.device) for name in self.cached_encoders}
        if not encoders:
            return {}
        dtype = HALF_DTYPES.get(self.precision, torch.float32)
        return encode_captions(captions, size, encoders, self.sample_transform.tokenizer, self.encoding, dtype)

    def _encode_prompt(self, prompt: str, request: SampleRequest, device: torch.device) -> dict[str, Tensor]:
        """The UNet's conditioning for one prompt, each tensor [1, ...]."""
        tokenizer, size = self.sample_transform.tokenizer, (request.height, request.width)
        conditioning: dict[str, Tensor] = {}
        for name in self.components.encoders:
            input_ids, key = tokenizer.input_ids(name, prompt)[None], name + TOKENS
            if name in self.encoders:
                encode = partial(self._encode_frozen_one, key)
                conditioning |= self.sample_inputs.get(name, input_ids, device, encode)
            else:
                conditioning[key] = input_ids.to(device)
        example = Example(torch.empty(3, *size, dtype=torch.uint8), None, (), size, (0, 0), flipped=False)
        sizes = {n: t[None].to(device, self.master_dtype()) for n, t in self.size_conditioning(example).items()}
        return cast(dict[str, Tensor], self.model(None, None, conditioning | sizes))

    def _encode_frozen_one(self, key: str, input_ids: Tensor) -> dict[str, Tensor]:
        return self._encode_frozen({key: input_ids})

    def _encode_frozen(self, conditioning: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`conditioning` with the tokens of frozen text encoders encoded."""
        names = [name for name in self.encoders if name + TOKENS in conditioning]
        encoders = {name: self._encoder_on(name, conditioning[name + TOKENS].device) for name in names}
        with torch.no_grad():
            return encode_tokens(conditioning, encoders, self.encoding, self.master_dtype())

    def _blank_inpainting_input(self, request: SampleRequest, device: torch.device) -> Tensor:
        """See `blank_inpainting_input`."""

        def encode(size: Tensor) -> dict[str, Tensor]:
            vae, (height, width) = cast(Any, self._encoder_on("vae", device)), size.tolist()
            return {"blank": blank_inpainting_input(vae, (height, width), self.components.scaling_factor)}

        size = torch.tensor([request.height, request.width])
        return self.sample_inputs.get("vae", size, device, encode)["blank"]

    def _scheduler_overrides(self) -> dict[str, object]:
        """The options' changes to the config of the base model's scheduler."""
        overrides: dict[str, object] = {"prediction_type": self.prediction}
        if self.zero_terminal_snr:
            overrides["rescale_betas_zero_snr"] = True
        if self.options.zero_terminal_snr:
            overrides["timestep_spacing"] = "trailing"
        return overrides

    def _encoder_on(self, name: str, device: torch.device) -> nn.Module:
        """The encoder, moved to `device` if it is elsewhere."""
        return on_device(self.encoders[name], device)


def _unused_formats(config: TrainConfig, submodules: Sequence[str]) -> list[str]:
    """Only layers under an adapter are quantised: text encoders that are not trained are CLIP's, which are small."""
    trained = trained_submodules(config, submodules)
    return [
        f"parts.{number}.weights {part.weights} has no effect: {part.part} is not trained, and is kept in fp32 (bf16 "
        "and fp16 would halve that)."
        for number, part in enumerate(config.parts)
        if part.weights in QUANTIZED and part.part in submodules[1:] and part.part not in trained
    ]
