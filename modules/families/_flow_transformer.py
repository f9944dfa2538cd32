"""What transformers trained by flow matching have in common; a family's own file adds the rest."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self

import diffusers
import torch
from PIL import Image
from torch import Tensor, nn

from modules.config import ConfigError, TrainConfig
from modules.data.batch import LENGTH, REFERENCE, REFERENCES, Batch, Example
from modules.diffusion.component_files import weights_fingerprint
from modules.diffusion.dtypes import HALF_DTYPES
from modules.diffusion.fitting_weights import require_fitting
from modules.diffusion.flow_matching import SigmaShift, sample_sigma
from modules.diffusion.flow_options import FirstFrameOptions, FlowOptions, GuidedFlowOptions
from modules.diffusion.flow_pipeline import (
    FlowComponents,
    TransformerModel,
    TransformerStandIn,
    check_small_parts,
    find_flow_model,
    find_scheduler,
    load_flow_components,
    meta_transformer,
)
from modules.diffusion.flow_sample_transform import FlowExample, FlowSampleTransform
from modules.diffusion.hub.model import HubModel
from modules.diffusion.latent_space import LatentSpace
from modules.diffusion.latents import pad_batch
from modules.diffusion.library_errors import damage_refused
from modules.diffusion.meta_encoders import meta_encoders
from modules.diffusion.objectives import DenoisingLoss, FlowMatching
from modules.diffusion.pixels import downsample_mask, mask_or_ones, rgb_image, rgb_pixels
from modules.diffusion.references import References
from modules.diffusion.resolve_options import has_fixed_captions
from modules.diffusion.sample_inputs import SampleInputs
from modules.diffusion.text_states import (
    CAPTION,
    PICTURE,
    STATES,
    FullTexts,
    TextBatch,
    caption_bytes,
    caption_of,
    pack_captions,
)
from modules.diffusion.transformer_files.base import FlowBase
from modules.diffusion.transformer_files.loading import check_transformer_file
from modules.diffusion.transformer_files.notes import base_notes
from modules.diffusion.uncached_images import IMAGE, LATENT_NOISE
from modules.families._diffusion_family import DiffusionFamily, on_device
from modules.families._family import FrozenNetwork, NoiseLevels, SampleRequest, read_options
from modules.families._find_family import check_family, distillation_notes
from modules.families._frozen_networks import frozen_networks
from modules.families._stored_quantization import stored_notes
from modules.families._vae_estimates import meta_encoder
from modules.files.videos import Clip

USUAL_TOKENS = 256  # of a caption whose states are as long as it is


class FlowTransformer(DiffusionFamily):
    """A transformer that predicts the velocity from image to noise in an autoencoder's latents, given a prompt.

    Text encoders are frozen. Captions are encoded once, and then the encoders leave memory, unless captions change
    (tags that are shuffled or dropped) or nothing is cached.
    """

    Options: ClassVar[type[FlowOptions]] = FlowOptions
    methods = ("fine_tune", "lora")
    submodules = ("transformer",)
    # kohya's layout has other names for the layers of these models; ComfyUI reads diffusers' (comfy/lora.py)
    adapter_prefixes = {"transformer": ("transformer", "")}  # noqa: RUF012
    size_step = 16  # the autoencoder divides sides by 8, the transformer's patches by 2
    half_frozen_weights = True
    single_file = True
    packed_latents: ClassVar[int] = 4  # of the autoencoder's, that are one token before the transformer sees them
    pixels_per_latent: ClassVar[int] = 8  # of x_t, on a side
    batch_norm_eps: ClassVar[float | None] = None  # of the latents, if not that of the autoencoder's config
    caption_tokenizer = "tokenizer"  # the one that decides which captions are too long
    max_tokens: ClassVar[int] = 512  # of a caption, that the model was trained with
    text_names: ClassVar[tuple[str, ...]]  # the tensors of a caption: NAME.states of varying length, others fixed
    # of the pipeline's `calculate_shift`
    shift_defaults: ClassVar[Mapping[str, float]] = {
        "base_image_seq_len": 256,
        "max_image_seq_len": 4096,
        "base_shift": 0.5,
        "max_shift": 1.15,
    }

    def __init__(self, config: TrainConfig, options: FlowOptions, components: FlowComponents) -> None:
        self.options, self.components = options, components
        self.config, self.precision = config, config.precision
        self.sample_inputs = SampleInputs()
        self._text_pipeline: Any = None  # the text encoders, while they are needed
        self._encoded: tuple[Sequence[SampleRequest], str] = ((), "")  # expected requests, and the type of device
        self.denoising_loss = DenoisingLoss(FlowMatching(options.loss_weighting), options.loss, options.huber_delta)
        self.masked = config.masked_training
        self.drops_captions = config.drops_captions
        self.mask_weights = (config.unmasked_weight, config.normalize_masked_area_loss)
        self.freeze_unused(components.transformer)
        self.model = TransformerModel(components.transformer)
        self.encoders = {"vae": components.vae}
        with damage_refused(f"base_model: vae/config.json of the model in {str(components.folder)!r} cannot be used"):
            space = LatentSpace.of(components.vae, self.batch_norm_eps)
            self.space = space if self.facts.clips is None else space.of_clips(self.facts.clips.step)
        with damage_refused(f"base_model: the scheduler of the model in {str(components.folder)!r} cannot be used"):
            self.shift = self.shift_of(options, components.scheduler, components.index)
        self.caches_captions = config.cache_latents and has_fixed_captions(config)
        self.encodes_captions = self.caches_captions and self._text_sees_references
        if options.vae_tiling:
            components.vae.enable_tiling()
        if not config.cache_latents:
            self.example_transform = FlowExample(self.masked, self.space.pixels, self.sees_pictures)

    @classmethod
    def load_for_training(cls, config: TrainConfig) -> Self:
        options = read_options(cls.Options, config.family_options)
        check_family(config, cls.facts.pipelines)
        dtype = torch.float64 if config.precision == "fp64" else torch.float32
        return cls(config, options, load_flow_components(cls._base(config), cls.facts, dtype))

    @classmethod
    def hub_model(cls, config: TrainConfig) -> HubModel | None:
        """The base model if it is named by its hub name, or what a transformer's file lacks."""
        check_family(config, cls.facts.pipelines)
        return cls._base(config).hub_model

    @classmethod
    def base_model_notes(cls, config: TrainConfig) -> Sequence[str]:
        """What a transformer's file is completed with; see Family for the errors."""
        check_family(config, cls.facts.pipelines)
        base = cls._base(config)
        folder = base.folder()
        notes = [] if folder is None else stored_notes(config, folder, cls._networks(base))
        model: Any = cls.meta_model(config)
        with damage_refused(f"base_model: transformer/config.json of {config.base_model!r} cannot be used"):
            longest = None if model is None else cls.covered_side(model.transformer.config)
            most = None if model is None else cls.covered_frames(model.transformer.config)
        if longest is not None and config.largest_resolution > longest:
            raise ConfigError(
                f"resolution is {config.largest_resolution}, but the positions of {config.base_model!r} cover "
                f"{longest} pixels along a side.",
                f"Use at most {longest}, and less for images that are not square.",
            )
        if most is not None and config.frames > most:
            raise ConfigError(
                f"frames is {config.frames}, but the positions of {config.base_model!r} cover {most} frames.",
                f"Use at most {most}.",
            )
        if base.transformer is not None and model is not None:
            check_transformer_file(base.transformer, model.transformer, base.label)
        elif model is not None and folder is not None:
            require_fitting(folder, "transformer", model.transformer)
        return [*distillation_notes(config), *base_notes(base), *notes]

    @classmethod
    def check_small_parts(cls, config: TrainConfig) -> None:
        check_small_parts(cls._base(config), cls.facts)

    @classmethod
    def noise_levels(cls, config: TrainConfig) -> NoiseLevels:
        """An image of `resolution` x `resolution` has one token for each square of `size_step` pixels."""
        options = read_options(cls.Options, config.family_options)
        found = find_scheduler(config.base_model, options.layout, cls.facts, options.text_encoder_files)
        if found is None and options.timestep_shift == "model":
            unknown = "without the base model's shift, which is known once the model is on this computer"
            return NoiseLevels(partial(sample_sigma, options, 1.0), unknown)
        with damage_refused(f"base_model: scheduler/scheduler_config.json of {config.base_model!r} cannot be used"):
            shift = cls.shift_of(options, *(found or ({}, {}))).of_tokens((config.resolution // cls.size_step) ** 2)
        note = f"shifted by {shift:.3g} at {config.resolution} × {config.resolution} pixels"
        return NoiseLevels(partial(sample_sigma, options, shift), note)

    @abstractmethod
    def velocity(self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None) -> Tensor:
        """The model's prediction of noise - x_0, [B, C, h, w], for x_t [B, C, h, w] and noise levels `sigma` [B]; of
        clips both are [B, C, f, h, w], and sigma is [B, f] where first frames may be given.

        `guidance` [B] is the input of a guidance-distilled model, None for others.
        """

    def edit_velocity(
        self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None, references: References
    ) -> Tensor:
        """`velocity` given reference images, of a family whose facts say that it takes some."""
        raise NotImplementedError

    @abstractmethod
    def encode_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        """The tensors `text_names` of one prompt, without a batch dimension, by the pipeline's own `encode_prompt`."""

    def encode_negative_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        """As `encode_prompt`, for negative prompts and empty captions: override it if the pipeline treats negative
        prompts in another way."""
        return self.encode_prompt(pipeline, prompt, device)

    def encode_instruction(
        self, pipeline: Any, prompt: str, device: torch.device, pictures: Sequence[Image.Image]
    ) -> dict[str, Tensor]:
        """As `encode_prompt`, by a text encoder that sees `pictures` as well."""
        raise NotImplementedError

    @property
    def sees_pictures(self) -> bool:
        """Whether the text encoder sees references in the size that the facts say, not as the transformer does."""
        return False

    @abstractmethod
    def pipeline_arguments(
        self, prompt: Mapping[str, Tensor], negative: Mapping[str, Tensor], guidance_scale: float
    ) -> dict[str, Any]:
        """The pipeline's arguments for the tensors of a prompt and a negative prompt, each [1, ...]."""

    def reference_arguments(self, request: SampleRequest) -> dict[str, Any]:
        """The pipeline's arguments for the reference images of a sample, of a family that takes some."""
        return {}

    def reference_images(self, request: SampleRequest) -> list[Image.Image]:
        """The reference images of a sample, scaled as beside images of its size in training."""
        side = math.isqrt(request.width * request.height)
        return [
            each.image.resize(
                self.config.reference_size(*each.image.size, side, self.size_step), Image.Resampling.LANCZOS
            )
            for each in request.references
        ]

    def seen_images(self, request: SampleRequest) -> list[Image.Image]:
        """What a text encoder that sees the reference images of a sample sees of them."""
        if not self.sees_pictures:
            return self.reference_images(request)
        images = [each.image for each in request.references]
        sizes = [self.config.picture_size(*each.size) or each.size for each in images]
        return [each.resize(size, Image.Resampling.LANCZOS) for each, size in zip(images, sizes, strict=True)]

    @classmethod
    def freeze_unused(cls, transformer: nn.Module) -> None:
        """Freeze weights that the prediction does not depend on: they get no gradient, which DDP treats as an error."""

    @classmethod
    def covered_side(cls, config: Mapping[str, Any]) -> int | None:
        """The pixels that the table of positions of a transformer with this config covers; None without a table."""
        return None

    @classmethod
    def covered_frames(cls, config: Mapping[str, Any]) -> int | None:
        """As `covered_side`, the frames of a clip."""
        return None

    @classmethod
    def text_shapes(cls, config: Mapping[str, Any], tokens: int) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the tensors `text_names` of a caption of so many tokens, for a transformer of this config."""
        (prompt,) = cls.text_names
        return {prompt: (tokens, config["joint_attention_dim"])}

    def fingerprint(self) -> str:
        """The weights of the autoencoder, and the files of text encoders that see references; how they are used."""
        options = self.options
        text = self._encoders_fingerprint() if self.encodes_captions else ""
        if self._text_sees_references:
            text += f" {self.components.pipeline_class.__name__} {self.encodes_captions and self.drops_captions}"
        vae = weights_fingerprint(self.components.vae)
        return f"{self.facts.pipelines[0]} 1 {vae} {options.latents} masked={self.masked} {options.vae_tiling} {text}"

    def text_fingerprint(self) -> str:
        """The files of the text encoders, and how they are used."""
        is_own = self.caches_captions and not self._text_sees_references
        return f"{self.facts.pipelines[0]} 1 {self._encoders_fingerprint()}" if is_own else ""

    def encode_captions(self, captions: Sequence[str], size: int) -> list[dict[str, Tensor]]:
        """The tensors `text_names` of each, one by one: encoders round differently in other batches."""
        return [self.text_states(caption, self.device) for caption in captions]

    @torch.no_grad()
    def encode_batch(self, examples: Sequence[Example], size: int) -> list[dict[str, Tensor]]:
        """Each is a dictionary of mean (and spread) fp32 [C, h, w] or [C, f, h, w]; mask uint8 [1, h, w] with masked
        training; reference.0 and so on, the most likely latents of references; of text encoders that see these, the
        output of `pack_captions` for N captions, encoded one by one."""
        pixels = pad_batch(torch.stack([example.pixels for example in examples]), size)
        vae = self._vae_on(self.device)
        latents = self.space.encode(vae, pixels.to(self.device), self.options.latents)
        references = dict[str, Tensor]()
        for number, own_references in enumerate(zip(*(example.references for example in examples), strict=True)):
            pixels = pad_batch(torch.stack(own_references), size)
            references[f"{REFERENCE}{number}"] = self.space.encode(vae, pixels.to(self.device), "mode")["mean"]
        encoded = []
        for place, example in enumerate(examples):
            own = {name: tensor[place].cpu() for name, tensor in latents.items()}
            own |= {name: tensor[place].cpu() for name, tensor in references.items()}
            if self.masked:
                own["mask"] = downsample_mask(mask_or_ones(example), own["mean"].shape[-2:])
            seen = example.pictures if self.sees_pictures else example.references if self._text_sees_references else ()
            pictures = [rgb_image(each) for each in seen]
            if self.encodes_captions:
                captions = example.captions or ("",)
                if self.drops_captions:
                    captions = (*captions, "")
                states = {text: self.text_states(text, self.device, pictures) for text in captions}
                own |= pack_captions(captions, states)
            else:
                own |= {f"{PICTURE}{number}": rgb_pixels(each) for number, each in enumerate(pictures)}
            encoded.append(own)
        return encoded

    @cached_property
    def sample_transform(self) -> FlowSampleTransform:  # type: ignore[override]  # encoded when it is first needed
        empty = self.caches_captions and self.drops_captions and not self._text_sees_references
        return FlowSampleTransform(
            options=self.options,
            space=self.space,
            shift=self.shift,
            latents_per_token=self._latents_per_token(),
            unmasked_weight=self.mask_weights[0],
            normalize_mask=self.mask_weights[1],
            text_names=self.text_names if self.caches_captions else (),
            empty_caption=self.text_states("", self.device) if empty else {},
        )

    def loss(self, batch: Batch) -> Tensor:
        """Loss of the predicted velocity for each sample, weighted by its noise level: [B]."""
        tensors = batch.tensors
        sigma, text, references = tensors["sigma"], self._text(tensors), self._references(tensors)

        def predict(x_t: Tensor) -> Tensor:
            if references is None:
                return self.velocity(x_t, sigma, text, self._guidance(x_t))
            return self.edit_velocity(x_t, sigma, text, self._guidance(x_t), references)

        x_0 = self._latents(tensors)
        return self.denoising_loss.of(predict, x_0, tensors["noise"], sigma, tensors.get("weights"))

    def export(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """A folder for diffusers' pipeline; components that are not trained are copied."""
        self.components.save({name.removeprefix("transformer."): tensor for name, tensor in state.items()}, folder)

    def modelspec(self) -> Mapping[str, str]:
        config, pipeline = self.components.transformer.config, self.components.pipeline_class.__name__
        return {"architecture": self.facts.architecture_of(config, pipeline), "prediction_type": "flow"}

    def blocks(self) -> Sequence[nn.Module]:
        """The transformer's blocks, as its diffusers class names them."""
        transformer = self.components.transformer
        names = set(transformer._no_split_modules or ()) | set(transformer._repeated_blocks or ())
        return [module for module in transformer.modules() if type(module).__name__ in names]

    def longest_side(self) -> int | None:
        return self.covered_side(self.components.transformer.config)

    def prompt_warnings(self, captions: Sequence[str]) -> list[str]:
        """Truncated captions."""
        limit = self.caption_limit
        likely = [caption for caption in dict.fromkeys(captions) if len(caption.encode()) > limit // 2]
        truncated = [caption for caption in likely if self.count_tokens(caption) > limit]
        if not truncated:
            return []
        count = "1 text is" if len(truncated) == 1 else f"{len(truncated)} texts are"
        return [
            f"{count} longer than {limit} tokens and truncated, for example {truncated[0][:60]!r}... (shorten them"
            + (
                ", or raise family_options.max_caption_tokens)."
                if self.options.max_caption_tokens < self.max_tokens
                else ")."
            )
        ]

    @property
    def caption_limit(self) -> int:
        """After how many tokens captions are truncated."""
        return min(self.options.max_caption_tokens, self.max_tokens)

    def count_tokens(self, caption: str) -> int:
        """The tokens of a caption with all that the pipeline adds to it."""
        return len(self.components.tokenizers[self.caption_tokenizer](caption, verbose=False).input_ids)

    @torch.no_grad()
    def text_states(self, prompt: str, device: torch.device, pictures: Sequence[Image.Image] = ()) -> dict[str, Tensor]:
        """The tensors of one prompt beside `pictures`, on the CPU, in the dtype of the text encoders."""
        encoded = self._encode_on(prompt, device, pictures, negative=not prompt)
        return {name: tensor.cpu() for name, tensor in encoded.items()}

    def offload_frozen(self) -> None:
        """The prompts of samples are encoded, then text encoders leave memory, and the autoencoder the device, if
        training needs neither."""
        if self.caches_captions:
            device, (encoded, kind) = self.sampling_device(), self._encoded
            if encoded is not self.expected_requests or kind != device.type:
                for request in self.expected_requests:
                    self._prompts(request, device)
                self._encoded = self.expected_requests, device.type
            self._text_pipeline = None
        if self.options.offload_frozen and self.example_transform is None:
            self._vae_on(torch.device("cpu"))

    def check_request(self, request: SampleRequest) -> None:
        """Raises ConfigError for an image larger, or a clip longer, than the model has positions for."""
        if (longest := self.longest_side()) is not None and max(request.width, request.height) > longest:
            raise ConfigError(
                f"the sample {request.prompt!r} is {request.width}x{request.height}, but the positions of this model "
                f"end at {longest} pixels; use width and height of at most {longest}."
            )
        most = self.covered_frames(self.components.transformer.config)
        if most is not None and request.frames > most:
            raise ConfigError(
                f"the sample {request.prompt!r} has {request.frames} frames, but the positions of this model end at "
                f"{most}; use frames of at most {most}."
            )

    def sample_metadata(self) -> Mapping[str, str]:
        """The name of the base model's scheduler."""
        return {"sampler": str(self.components.scheduler["_class_name"])}

    def generate(self, request: SampleRequest) -> Image.Image | Clip:
        device = self.sampling_device()
        texts = self._prompts(request, device)
        if self.caches_captions:
            self._text_pipeline = None
        dtype = self.master_dtype()
        prompt, negative = (
            {
                name: tensor.to(dtype)[None] if tensor.is_floating_point() else tensor[None]
                for name, tensor in text.items()
            }
            for text in texts
        )
        pipeline = self.sampling_pipeline(request, self._vae_on(device))
        arguments = self.pipeline_arguments(prompt, negative, request.guidance_scale)
        if self.facts.clips is not None:
            arguments |= {"num_frames": request.frames, "output_type": "pil"}
        output = pipeline(
            **arguments,
            **self.reference_arguments(request),
            width=request.width,
            height=request.height,
            num_inference_steps=request.steps,
            generator=torch.Generator().manual_seed(request.seed),
            callback_on_step_end=self._after_step,
        )
        frames: list[Image.Image] = output.images[:1] if self.facts.clips is None else output.frames[0]
        return frames[0] if request.frames == 1 else Clip(tuple(frames), self.config.clip_rate)

    def sampling_pipeline(self, request: SampleRequest, vae: Any) -> Any:
        """The pipeline that generates the sample, without text encoders."""
        transformer = TransformerStandIn(self.components.transformer, self.model)
        return self.components.pipeline(transformer=transformer, vae=vae)

    @classmethod
    def meta_model(cls, config: TrainConfig) -> nn.Module | None:
        transformer = meta_transformer(cls._base(config), cls.facts)
        if transformer is None:
            return None
        cls.freeze_unused(transformer)
        return TransformerModel(transformer)

    @classmethod
    def meta_loss(cls, config: TrainConfig, model: nn.Module, size: tuple[int, int], samples: int) -> Tensor:
        """Captions are as long as the model takes them, or of 256 tokens where it masks padding."""
        family: Any = object.__new__(cls)
        transformer: Any = model.get_submodule("transformer")
        family.model, family.options = model, read_options(cls.Options, config.family_options)
        family.components = FlowComponents(
            folder=Path(),
            facts=cls.facts,
            pipeline_class=getattr(diffusers, cls.facts.pipeline_class),
            classes={},
            transformer=transformer,
            vae=None,
            scheduler={},
            tokenizers={},
            index={},
        )
        dtype = torch.float64 if config.precision == "fp64" else torch.float32
        channels = transformer.config["in_channels"] // cls.packed_latents
        step = config.clip_step
        frames = () if step is None else (1 + (config.frames - 1) // step,)
        places = (side // cls.pixels_per_latent for side in reversed(size))
        x_t = torch.zeros(samples, channels, *frames, *places, dtype=dtype)
        limit = family.caption_limit
        tokens = min(limit, USUAL_TOKENS) if any(name.endswith(STATES) for name in cls.text_names) else limit
        shapes = cls.text_shapes(transformer.config, tokens)
        text = FullTexts({name: torch.zeros(samples, *shape, dtype=dtype) for name, shape in shapes.items()})
        has_levels = isinstance(family.options, FirstFrameOptions) and family.options.first_frame_conditioning
        sigma = torch.zeros(samples, *(frames if has_levels else ()), dtype=dtype)
        given = (x_t, sigma, text, family._guidance(x_t))
        count = max((len(each.reference_folders) for each in config.concepts if each.enabled), default=0)
        if count:
            width, height = config.reference_size(*size, config.largest_resolution, cls.size_step)
            latents = x_t.new_zeros(samples, channels, height // cls.pixels_per_latent, width // cls.pixels_per_latent)
            prediction: Tensor = family.edit_velocity(*given, References((latents,) * count, (True,) * samples))
        else:
            prediction = family.velocity(*given)
        return (prediction.to(dtype) - x_t).square().flatten(1).mean(1)

    @classmethod
    def meta_encoder(cls, config: TrainConfig) -> Callable[[Tensor], Tensor] | None:
        options = read_options(cls.Options, config.family_options)
        base = cls._base(config)
        return meta_encoder(base.folder(), base.label, tiling=options.vae_tiling)

    @classmethod
    def frozen_networks(cls, config: TrainConfig) -> Sequence[FrozenNetwork]:
        options = read_options(cls.Options, config.family_options)
        vae = torch.float64 if config.precision == "fp64" else torch.float32
        dtypes = {"vae": vae, **dict.fromkeys(cls.facts.encoders, HALF_DTYPES.get(config.precision, torch.float32))}
        base = cls._base(config)
        folder = base.folder()
        weights = options.text_encoder_weights
        is_counted = folder is not None and weights == "run" and not base.encoders  # in the headers of its files
        return frozen_networks(
            config,
            base.model,
            dtypes,
            offload=options.offload_frozen,
            discards_encoders=True,
            encoders={} if is_counted else meta_encoders(base.label, folder, cls.facts),
            encoder_weights=weights,
        )

    @classmethod
    def shift_of(cls, options: FlowOptions, scheduler: Mapping[str, Any], index: Mapping[str, Any]) -> SigmaShift:
        """The shift for a model with this scheduler config and model_index.json."""
        if options.timestep_shift == "static":
            return SigmaShift(options.shift)
        return SigmaShift.of_scheduler(scheduler, cls.shift_defaults)

    def frozen_dtype(self) -> torch.dtype:
        """In which text encoders are kept."""
        return HALF_DTYPES.get(self.precision, torch.float32)

    @classmethod
    def _base(cls, config: TrainConfig) -> FlowBase:
        """What `base_model` names. Raises ConfigError if it is no model."""
        options = read_options(cls.Options, config.family_options)
        return find_flow_model(config.base_model, options.layout, cls.facts, options.text_encoder_files)

    @classmethod
    def _networks(cls, base: FlowBase) -> tuple[str, ...]:
        """Those that are read from the base's folder, without the autoencoder."""
        transformer = ("transformer",) if base.transformer is None else ()
        return (*transformer, *(name for name in cls.facts.encoders if name not in base.encoders))

    def _latents_per_token(self) -> int:
        """The latents of one token of the transformer, which the shift by resolution counts."""
        return 1 if self.space.patch > 1 else 4

    def _guidance(self, x_t: Tensor) -> Tensor | None:
        """The guidance input [B]; None for a model that has none."""
        if not self.components.transformer.config.get("guidance_embeds", False):
            return None
        assert isinstance(self.options, GuidedFlowOptions)
        return torch.full((len(x_t),), self.options.guidance, device=x_t.device, dtype=x_t.dtype)

    def _latents(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """x_0 [B, C, h, w] or [B, C, f, h, w]; of images that are not cached, encoded now."""
        if IMAGE not in tensors:
            return tensors["latents"]
        dtype = tensors["noise"].dtype
        vae = self._vae_on(tensors[IMAGE].device)
        encoded = self.space.encode(vae, tensors[IMAGE], self.options.latents)
        x_0 = encoded["mean"].to(dtype)
        if "spread" in encoded:
            x_0 = x_0 + encoded["spread"].to(dtype) * tensors[LATENT_NOISE]
        return self.space.normalize(x_0)

    def _references(self, tensors: Mapping[str, Tensor]) -> References | None:
        """Those of a batch, encoded now if they are not cached; None if no sample is shown any."""
        shown = tensors[REFERENCES + LENGTH].tolist() if REFERENCES + LENGTH in tensors else []
        if not any(shown):
            return None
        found = list[Tensor]()
        for number in range(max(shown)):
            latents = tensors[f"{REFERENCE}{number}"]
            if not latents.is_floating_point():
                encoded = self.space.encode(self._vae_on(latents.device), latents, "mode")["mean"]
                latents = self.space.normalize(encoded.to(tensors["noise"].dtype))
            found.append(latents)
        return References(tuple(found), tuple(count > 0 for count in shown))

    def _text(self, tensors: Mapping[str, Tensor]) -> TextBatch:
        """The captions' tensors; of captions that are not cached, encoded now."""
        if CAPTION not in tensors:
            return TextBatch(tensors)
        noise = tensors["noise"]
        lengths = tensors[CAPTION + LENGTH].tolist()
        captions = [caption_of(row[:length]) for row, length in zip(tensors[CAPTION], lengths, strict=True)]
        with torch.autocast(noise.device.type, enabled=False):
            texts = [
                self.text_states(caption, noise.device, self._pictures(tensors, sample))
                for sample, caption in enumerate(captions)
            ]
        return TextBatch.of(texts, noise.device, noise.dtype)

    def _pictures(self, tensors: Mapping[str, Tensor], sample: int) -> list[Image.Image]:
        """What the text encoder sees of the references of a sample whose caption is not cached."""
        if not self._text_sees_references:
            return []
        prefix = PICTURE if f"{PICTURE}0" in tensors else REFERENCE
        count = sum(name.startswith(prefix) for name in tensors)
        return [rgb_image(tensors[f"{prefix}{number}"][sample]) for number in range(count)]

    @property
    def _text_sees_references(self) -> bool:
        return self.facts.references is not None and self.facts.references.seen_by_text

    def _encoders_fingerprint(self) -> str:
        weights = self.options.text_encoder_weights
        own = "" if weights == "run" else f" {weights}"
        return f"{self.components.encoders_fingerprint()} {self.caption_limit} {self.precision}{own}"

    def _after_step(self, pipeline: Any, step: int, timestep: Tensor, tensors: dict[str, Any]) -> dict[str, Any]:
        if self.on_sampling_step is not None:
            self.on_sampling_step(step + 1, len(pipeline.scheduler.timesteps))
        return tensors

    def _prompts(self, request: SampleRequest, device: torch.device) -> list[Mapping[str, Tensor]]:
        """The tensors of the two prompts of a sample, each encoded once in a run."""
        pictures = self.seen_images(request) if self._text_sees_references else []
        with torch.autocast(device.type, enabled=False):  # under which nothing would be known that was encoded before
            return [
                self._prompt(request.prompt, pictures, device, negative=False),
                self._prompt(request.negative_prompt, pictures, device, negative=True),
            ]

    def _prompt(
        self, prompt: str, pictures: Sequence[Image.Image], device: torch.device, *, negative: bool
    ) -> Mapping[str, Tensor]:
        return self.sample_inputs.get(
            f"{'negative ' if negative else ''}prompt {[each.size for each in pictures]}",
            torch.cat([caption_bytes(prompt), *(rgb_pixels(each).flatten() for each in pictures)]),
            device,
            lambda _: self._encode_on(prompt, device, pictures, negative=negative),
        )

    def _encode_on(
        self, prompt: str, device: torch.device, pictures: Sequence[Image.Image], *, negative: bool
    ) -> dict[str, Tensor]:
        if self._text_pipeline is None or self._text_pipeline.device.type != device.type:
            weights = self.options.text_encoder_weights
            encoders = self.components.load_encoders(self.frozen_dtype(), device, weights)
            self._text_pipeline = self.components.pipeline(**encoders)
        encode = self.encode_negative_prompt if negative else self.encode_prompt
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            if pictures:
                return self.encode_instruction(self._text_pipeline, prompt, device, pictures)
            return encode(self._text_pipeline, prompt, device)

    def _vae_on(self, device: torch.device) -> Any:
        return on_device(self.components.vae, device)
