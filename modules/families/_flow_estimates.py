"""What a flow-matching transformer needs in memory, found without weights, caches or text encoders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import diffusers
import torch
from torch import Tensor, nn

from modules.config import TrainConfig
from modules.diffusion.dtypes import HALF_DTYPES
from modules.diffusion.flow_options import FlowOptions
from modules.diffusion.flow_pipeline import FlowComponents, FlowPipelineSpec, find_flow_model
from modules.diffusion.meta_encoders import meta_encoders
from modules.diffusion.text_states import STATES, TextBatch
from modules.families._family import FrozenNetwork, read_options
from modules.families._flow_sampling import FlowSampling
from modules.families._frozen_networks import frozen_networks
from modules.families._vae_estimates import meta_encoder

USUAL_TOKENS = 256  # of a caption whose states are as long as it is


@dataclass(frozen=True)
class FullTexts(TextBatch):
    """Captions of equal length, without padding; no value is read from a tensor, since fake ones have none."""

    def lengths(self, name: str) -> list[int]:
        """That of the tensor, for each caption."""
        samples, length = self.tensors[name].shape[:2]
        return [length] * samples


class FlowEstimates(FlowSampling):
    """The part of FlowTransformer that estimates of memory use."""

    spec: ClassVar[FlowPipelineSpec]
    text_names: ClassVar[tuple[str, ...]]
    packed_latents: ClassVar[int] = 4  # of the autoencoder's, that are one token before the transformer sees them
    pixels_per_latent: ClassVar[int] = 8  # of x_t, on a side

    @abstractmethod
    def velocity(self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None) -> Tensor:
        """See FlowTransformer."""

    @classmethod
    def text_shapes(cls, config: Mapping[str, Any], tokens: int) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the tensors `text_names` of a caption of so many tokens, for a transformer of this config."""
        (prompt,) = cls.text_names
        return {prompt: (tokens, config["joint_attention_dim"])}

    @classmethod
    def meta_loss(cls, config: TrainConfig, model: nn.Module, size: tuple[int, int], samples: int) -> Tensor:
        """See Family; captions are as long as the model takes them, or of 256 tokens where it masks padding."""
        family: Any = object.__new__(cls)
        transformer: Any = model.get_submodule("transformer")
        family.model, family.options = model, read_options(cls.Options, config.family_options)
        family.components = FlowComponents(
            folder=Path(),
            spec=cls.spec,
            pipeline_class=getattr(diffusers, cls.spec.pipelines[0]),
            classes={},
            transformer=transformer,
            vae=None,
            scheduler={},
            tokenizers={},
            index={},
        )
        dtype = torch.float64 if config.precision == "fp64" else torch.float32
        channels = transformer.config["in_channels"] // cls.packed_latents
        x_t = torch.zeros(samples, channels, *(side // cls.pixels_per_latent for side in reversed(size)), dtype=dtype)
        limit = family.caption_limit
        tokens = min(limit, USUAL_TOKENS) if any(name.endswith(STATES) for name in cls.text_names) else limit
        shapes = cls.text_shapes(transformer.config, tokens)
        text = FullTexts({name: torch.zeros(samples, *shape, dtype=dtype) for name, shape in shapes.items()})
        sigma = torch.zeros(samples, dtype=dtype)
        prediction: Tensor = family.velocity(x_t, sigma, text, family._guidance(x_t))
        return (prediction.to(dtype) - x_t).square().flatten(1).mean(1)

    @classmethod
    def meta_encoder(cls, config: TrainConfig) -> Callable[[Tensor], Tensor] | None:
        """See Family."""
        options = read_options(cls.Options, config.family_options)
        assert isinstance(options, FlowOptions)
        base = find_flow_model(config.base_model, options.layout, cls.spec)
        return meta_encoder(base.folder(), base.label, tiling=options.vae_tiling)

    @classmethod
    def frozen_networks(cls, config: TrainConfig) -> Sequence[FrozenNetwork]:
        """See Family."""
        options = read_options(cls.Options, config.family_options)
        assert isinstance(options, FlowOptions)
        vae = torch.float64 if config.precision == "fp64" else torch.float32
        dtypes = {"vae": vae, **dict.fromkeys(cls.spec.encoders, HALF_DTYPES.get(config.precision, torch.float32))}
        base = find_flow_model(config.base_model, options.layout, cls.spec)
        folder = base.folder()
        weights = options.text_encoder_weights
        is_counted = folder is not None and weights == "run"  # in the headers of its files
        return frozen_networks(
            config,
            base.model,
            dtypes,
            offload=options.offload_frozen,
            discards_encoders=True,
            encoders={} if is_counted else meta_encoders(base.label, folder, cls.spec),
            encoder_weights=weights,
        )
