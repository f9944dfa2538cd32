"""What a latent diffusion model needs in memory, found without weights or caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from modules.config import TrainConfig
from modules.diffusion.base_model_files import find_base_model
from modules.diffusion.components import PipelineSpec
from modules.diffusion.diffusion_model import DiffusionModel
from modules.diffusion.dtypes import HALF_DTYPES
from modules.diffusion.hub.model import HubModel
from modules.diffusion.meta_networks import meta_networks
from modules.diffusion.options import DiffusionOptions
from modules.diffusion.resolve_options import resolve_prompt_encoding
from modules.diffusion.text_encoders import HIDDEN, POOLED, TOKENS, Layer
from modules.families._family import FrozenNetwork, read_options, trained_submodules
from modules.families._frozen_networks import frozen_networks
from modules.families._latent_sampling import LatentSampling
from modules.families._vae_estimates import meta_encoder

_TOKENS = 77  # of a chunk
_PIXELS_PER_LATENT = 8
_SIZES = 6  # numbers of SDXL's size conditioning


class LatentEstimates(LatentSampling):
    """The part of LatentDiffusion that knows the networks without their weights."""

    spec: ClassVar[PipelineSpec]
    layer: ClassVar[Layer]  # of the text encoders

    @classmethod
    def meta_model(cls, config: TrainConfig) -> nn.Module | None:
        """See Family."""
        options = read_options(cls.Options, config.family_options)
        assert isinstance(options, DiffusionOptions)
        networks = meta_networks(config.base_model, options.layout, cls.spec)
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
        """See Family."""
        assert isinstance(model, DiffusionModel)
        options = read_options(cls.Options, config.family_options)
        assert isinstance(options, DiffusionOptions)
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
        """See Family."""
        options = read_options(cls.Options, config.family_options)
        assert isinstance(options, DiffusionOptions)
        base = find_base_model(config.base_model, cls.spec.class_names, cls.spec.components)
        folder = base.cached_folder() if isinstance(base, HubModel) else base
        if folder is not None and not folder.is_dir():
            return None  # of a single file nothing is known before it is read
        return meta_encoder(folder, str(config.base_model), tiling=options.vae_tiling)

    @classmethod
    def frozen_networks(cls, config: TrainConfig) -> Sequence[FrozenNetwork]:
        """See Family."""
        options = read_options(cls.Options, config.family_options)
        assert isinstance(options, DiffusionOptions)
        base = find_base_model(config.base_model, cls.spec.class_names, cls.spec.components)
        if not isinstance(base, HubModel) and not base.is_dir():
            return ()  # of a single file nothing is known before it is read
        trained = trained_submodules(config, cls.submodules)
        given = {part.part: HALF_DTYPES.get(part.weights, torch.float32) for part in config.parts}
        names = ("vae", *(name for name in cls.spec.encoders if name not in trained))
        dtypes = {name: given.get(name, torch.float32) for name in names}
        return frozen_networks(config, base, dtypes, offload=options.offload_frozen, discards_encoders=False)
