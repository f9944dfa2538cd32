"""How flow-matching transformers generate samples: by the diffusers pipeline itself, with prompts encoded once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor

from modules.config import ConfigError, TrainConfig
from modules.diffusion.flow_options import FlowOptions
from modules.diffusion.flow_pipeline import FlowComponents, TransformerStandIn
from modules.diffusion.sample_inputs import SampleInputs
from modules.diffusion.text_states import caption_bytes
from modules.families._diffusion_family import DiffusionFamily, on_device
from modules.families._family import SampleRequest


class FlowSampling(DiffusionFamily):
    """The part of FlowTransformer that encodes prompts and samples."""

    caption_tokenizer = "tokenizer"  # the one that decides which captions are too long
    max_tokens: ClassVar[int] = 512  # of a caption, that the model was trained with

    def __init__(self, config: TrainConfig, options: FlowOptions, components: FlowComponents) -> None:
        self.options, self.components = options, components
        self.precision = config.precision
        self.sample_inputs = SampleInputs()
        self.known_prompts = [(each.prompt, each.negative_prompt) for each in config.samples if each.enabled]
        self._text_pipeline: Any = None  # the text encoders, while they are needed

    @abstractmethod
    def encode_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        """The tensors `text_names` of one prompt, without a batch dimension, by the pipeline's own `encode_prompt`."""

    def encode_negative_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        """As `encode_prompt`, for negative prompts and empty captions: override it if the pipeline treats negative
        prompts in another way."""
        return self.encode_prompt(pipeline, prompt, device)

    @abstractmethod
    def pipeline_arguments(
        self, prompt: Mapping[str, Tensor], negative: Mapping[str, Tensor], guidance_scale: float
    ) -> dict[str, Any]:
        """The pipeline's arguments for the tensors of a prompt and a negative prompt, each [1, ...]."""

    @abstractmethod
    def frozen_dtype(self) -> torch.dtype:
        """In which text encoders are kept."""

    def longest_side(self) -> int | None:
        """See Family."""
        return self.covered_side(self.components.transformer.config)

    @classmethod
    def covered_side(cls, config: Mapping[str, Any]) -> int | None:
        """The pixels that the table of positions of a transformer with this config covers; None without a table."""
        return None

    @torch.no_grad()
    def text_states(self, prompt: str, device: torch.device) -> dict[str, Tensor]:
        """The tensors of one prompt, on the CPU, in the dtype of the text encoders."""
        return {name: tensor.cpu() for name, tensor in self._encode_on(prompt, device, negative=not prompt).items()}

    def offload_frozen(self) -> None:
        """The prompts of samples are encoded, then text encoders leave memory, and the autoencoder the device, if
        training needs neither."""
        if self.encodes_captions:
            for pair in self.known_prompts:
                self._prompts(*pair, self.sampling_device())
            self._text_pipeline = None
        if self.options.offload_frozen and self.example_transform is None:
            self._vae_on(torch.device("cpu"))

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

    def check_request(self, request: SampleRequest) -> None:
        """Raises ConfigError for an image larger than the model has positions for."""
        if (longest := self.longest_side()) is not None and max(request.width, request.height) > longest:
            raise ConfigError(
                f"the sample {request.prompt!r} is {request.width}x{request.height}, but the positions of this model "
                f"end at {longest} pixels; use width and height of at most {longest}."
            )

    def sample_metadata(self) -> Mapping[str, str]:
        """The name of the base model's scheduler."""
        return {"sampler": str(self.components.scheduler["_class_name"])}

    def generate(self, request: SampleRequest) -> Image.Image:
        """See DiffusionFamily."""
        device = self.sampling_device()
        texts = self._prompts(request.prompt, request.negative_prompt, device)
        if self.encodes_captions:
            self._text_pipeline = None
        dtype = self.master_dtype()
        prompt, negative = (
            {
                name: tensor.to(dtype)[None] if tensor.is_floating_point() else tensor[None]
                for name, tensor in text.items()
            }
            for text in texts
        )
        pipeline = self.components.pipeline(
            transformer=TransformerStandIn(self.components.transformer, self.model), vae=self._vae_on(device)
        )
        arguments = self.pipeline_arguments(prompt, negative, request.guidance_scale)
        image: Image.Image = pipeline(
            **arguments,
            width=request.width,
            height=request.height,
            num_inference_steps=request.steps,
            generator=torch.Generator().manual_seed(request.seed),
            callback_on_step_end=self._after_step,
        ).images[0]
        return image

    def _after_step(self, pipeline: Any, step: int, timestep: Tensor, tensors: dict[str, Any]) -> dict[str, Any]:
        if self.on_sampling_step is not None:
            self.on_sampling_step(step + 1, pipeline.num_timesteps)
        return tensors

    def _prompts(self, prompt: str, negative: str, device: torch.device) -> list[Mapping[str, Tensor]]:
        """The tensors of the two prompts of a sample, each encoded once in a run."""
        return [self._prompt(prompt, device, negative=False), self._prompt(negative, device, negative=True)]

    def _prompt(self, prompt: str, device: torch.device, *, negative: bool) -> Mapping[str, Tensor]:
        return self.sample_inputs.get(
            "negative prompt" if negative else "prompt",
            caption_bytes(prompt),
            device,
            lambda _: self._encode_on(prompt, device, negative=negative),
        )

    def _encode_on(self, prompt: str, device: torch.device, *, negative: bool) -> dict[str, Tensor]:
        if self._text_pipeline is None or self._text_pipeline.device.type != device.type:
            weights = self.options.text_encoder_weights
            encoders = self.components.load_encoders(self.frozen_dtype(), device, weights)
            self._text_pipeline = self.components.pipeline(**encoders)
        encode = self.encode_negative_prompt if negative else self.encode_prompt
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            return encode(self._text_pipeline, prompt, device)

    def _vae_on(self, device: torch.device) -> Any:
        return on_device(self.components.vae, device)
