"""LoRA and the other adapters in a family's model: which layers get one, of which size, and what files call them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import torch
from torch import Tensor, nn

from modules.checkpoint.formats import AdapterWeights, LoraSize, fits, merged_weight
from modules.config import TARGET_PRESETS, UNET_PRESETS, ConfigError, TrainConfig, target_patterns
from modules.config.sections.adapters import parse_alpha_pattern, parse_rank_pattern
from modules.diffusion.dtypes import HALF_DTYPES
from modules.diffusion.quantized import QuantizedLinear, dequantize_
from modules.distributed import is_sharded
from modules.facts import all_facts
from modules.families._family import Family
from modules.training.methods.adapter_layers import (
    ADAPTABLE,
    LayerSize,
    adapted_layers,
    add_layers,
    base_shape,
    layer_sizes,
    layer_weights,
    load_layer,
)
from modules.training.methods.lora_from import read_lora_from
from modules.training.methods.submodules import freeze_others, freeze_untrained, submodule_of, trained_names

T = TypeVar("T", int, float)

WHOLE_MODEL: Final = "model"  # in files, the submodule of layers that belong to no named one
EXAMPLES: Final = 6  # layer names in an error message

# The last words of the names that diffusers and transformers give to these layers. In single blocks to_qkv_mlp_proj and
# to_out, or proj_out, serve attention and feed-forward layers at once.
_ATTENTION: Final = (
    r"to_q|to_k|to_v|to_out(\.0)?|add_[qkv]_proj|to_add_out|to_qkv(_mlp_proj)?|query|key|value|proj_attn|[qkvo]_proj|"
    r"(?<!guidance_layer\.)out_proj|qkv"
)
_MLP: Final = (
    r"ff(_context)?\.net\.\d+(\.proj)?|fc1|fc2|(?<!embedder\.)mlp\.\w+|gate_proj|up_proj|down_proj|wi(_\d)?|wo|"
    + "|".join(facts.feed_forward for facts in all_facts().values() if facts.feed_forward)
)
# Layers in a numbered module, but those of embedders of time and guidance.
_BLOCKS: Final = r"(?<!guidance_layer\.layers)\.\d+\."
# All that kohya-ss/sd-scripts adapts (networks/lora.py) in Transformer2DModel, CLIPAttention and CLIPMLP; with conv_dim
# also in ResnetBlock2D, Downsample2D and Upsample2D.
_KOHYA: Final = r"(^|\.)(attentions\.\d+|self_attn|mlp)\."
_KOHYA_CONV: Final = r"(^|\.)(attentions\.\d+|self_attn|mlp|(resnets|downsamplers|upsamplers)\.\d+)\."
# Nerogar/OneTrainer (modules/modelSetup/BaseStableDiffusionSetup.py) filters the UNet's layers only.
_ONETRAINER: Final = r"attentions|^text_encoder"
_LINEAR: Final = (nn.Linear,)
_ALL: Final = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PRESETS: Final[Mapping[str, tuple[str, tuple[type[nn.Module], ...]]]] = dict(
    zip(
        TARGET_PRESETS,
        (
            (rf"(^|\.)({_ATTENTION})$", _LINEAR),
            (rf"(^|\.)({_ATTENTION}|{_MLP})$", _LINEAR),
            (_BLOCKS, _LINEAR),
            ("", _LINEAR),
            ("", _ALL),
            (_KOHYA, _ALL),
            (_KOHYA_CONV, _ALL),
            (_ONETRAINER, _ALL),
        ),
        strict=True,
    )
)


def add_lora(family: Family, config: TrainConfig) -> None:
    """Freeze `family.model`, which is on the CPU, and add the adapters, some to each trained submodule.

    Initial values are those of the file `lora_from`, or as `add_layers` has them. Raises ConfigError if no layer
    matches, or the file does not fit.
    """
    freeze_others(family, config)
    start = {} if config.lora_from is None else read_lora_from(family, config, adapter_names(family))
    sizes = {name: LayerSize(one.rank, one.alpha) for name, one in start.items()}
    dora = any(one.magnitude is not None for one in start.values()) if start else config.lora_weight_decompose
    add_layers(family.model, config, sizes or target_sizes(family.model, family, config), dora=dora)
    for name, one in start.items():
        load_layer(family.model.get_submodule(name), one)


def target_sizes(model: nn.Module, family: Family | type[Family], config: TrainConfig) -> dict[str, LayerSize]:
    """Rank and alpha of each layer that the config chooses. Raises ConfigError as `lora_targets`, also for patterns."""
    found: dict[str, LayerSize] = {}
    layers = lora_targets(model, family, config)
    ranks = _by_layer("lora_rank_pattern", parse_rank_pattern(config.lora_rank_pattern), layers)
    alphas = _by_layer("lora_alpha_pattern", parse_alpha_pattern(config.lora_alpha_pattern), layers)
    for name in layers:
        is_wide = _is_wide(model.get_submodule(name))
        rank = ranks.get(name) or (is_wide and config.lora_conv_rank) or config.lora_rank
        alpha = alphas.get(name) or (is_wide and config.lora_conv_alpha) or config.lora_alpha
        # rsLoRA (Kalajdzievski 2023, arXiv:2312.03732): alpha / sqrt(rank), which is that of this alpha
        found[name] = LayerSize(rank, alpha * math.sqrt(rank) if config.lora_rank_stabilized else alpha)
    return found


def _by_layer(field: str, patterns: Sequence[tuple[str, T]], layers: Sequence[str]) -> dict[str, T]:
    """What the first pattern that matches it gives to each layer. Raises ConfigError for a pattern that gives none."""
    chosen = {name: next((n for n, (p, _) in enumerate(patterns) if re.search(p, name)), None) for name in layers}
    unused = next((pattern for n, (pattern, _) in enumerate(patterns) if n not in chosen.values()), None)
    if unused is not None:
        few = ", ".join(layers[:: max(1, len(layers) // EXAMPLES)][:EXAMPLES])
        raise ConfigError(
            f"{field}: {unused!r} matches none of the {len(layers)} adapted layers that no pattern before it matches; "
            f"some of them are {few}.",
            "Correct the pattern, a regular expression that is searched for in these names, or leave it out.",
        )
    return {name: patterns[n][1] for name, n in chosen.items() if n is not None}


def make_contiguous(model: nn.Module) -> None:
    """Make an adapter's tensors contiguous.

    peft views those of convolutions as matrices and leaves magnitudes [1, out, 1, 1] transposed, which slows DDP down.
    """
    for name, weight in model.named_parameters():
        if ".lora_" in name and not is_sharded(weight):
            weight.data = weight.detach().clone(memory_format=torch.contiguous_format)


def check_lora_targets(family: type[Family], config: TrainConfig) -> None:
    """Raises ConfigError as `lora_targets` would, without weights; does nothing if the layers are not known yet."""
    if config.method != "lora" or config.lora_from is not None:
        return
    model = family.meta_model(config)
    if model is not None:
        freeze_untrained(model, family.submodules, config)
        target_sizes(model, family, config)


def lora_targets(model: nn.Module, family: Family | type[Family], config: TrainConfig) -> list[str]:
    """The names of the layers of `model`, the family's, that `lora_targets` matches.

    Raises ConfigError if a trained submodule, or a pattern, has none, or for a UNet's preset without one.
    """
    submodules = family.submodules
    if config.lora_targets in UNET_PRESETS and submodules and "unet" not in submodules:
        raise ConfigError(
            f"lora_targets is {config.lora_targets!r}, which names layers of Stable Diffusion's UNet; the family "
            f"{config.family!r} has none.",
            "Use attention_mlp or blocks.",
        )
    able = {name: layer for name, layer in model.named_modules() if _can_be_adapted(layer, config.lora_algorithm)}
    patterns, kinds = _patterns(config.lora_targets, family.facts.feed_forward)
    chosen: list[str] = []
    for pattern in patterns:
        found = [name for name, layer in able.items() if isinstance(layer, kinds) and re.search(pattern, name)]
        if not found:
            raise _no_target(config, pattern, list(able))
        chosen += found
    for part in trained_names(config, submodules):
        own = [name for name in able if submodule_of(name, submodules) == part]
        if not set(own) & set(chosen):
            raise _no_target(config, "", own, f" of {part}" if part else "")
    return [name for name in able if name in set(chosen)]


def lora_weights(family: Family, state: Mapping[str, Tensor]) -> list[AdapterWeights]:
    """The adapter of each layer, with the tensors of `state`, which holds the trained weights by the model's names."""
    return [
        layer_weights(layer, name, state, *_split_name(name, family)) for name, layer in adapted_layers(family.model)
    ]


def lora_size(family: Family) -> LoraSize:
    """What most layers of the LoRA have, for the headers of files."""
    usual = layer_sizes(family.model)[0]
    return LoraSize(
        usual.rank, usual.alpha, any(".lora_magnitude_vector." in n for n, _ in family.model.named_parameters())
    )


def max_useful_rank(family: Family) -> int:
    """The largest rank that the update of an adapted layer can have: min(out, in) for a matrix [out, in]."""
    shapes = (base_shape(layer) for _, layer in adapted_layers(family.model))
    return max(min(shape[0], shape[1:].numel()) for shape in shapes)


def adapter_names(family: Family | type[Family]) -> dict[str, tuple[str, str]]:
    """The key prefix of each submodule in diffusers' files and in kohya's."""
    return {**family.adapter_prefixes, WHOLE_MODEL: (WHOLE_MODEL, f"lora_{WHOLE_MODEL}")}


def layer_name(adapter: AdapterWeights) -> str:
    """The name in `family.model` of the layer that an adapter is for."""
    return adapter.module if adapter.submodule == WHOLE_MODEL else f"{adapter.submodule}.{adapter.module}"


@torch.no_grad()
def merge_lora(
    family: Family,
    weights: Iterable[AdapterWeights],
    source: str = "model",
    scale: float = 1.0,
    origin: str = "",
    dtype: torch.dtype = torch.float32,
) -> None:
    """Merge adapters into the weights of `family.model`, for inference. Raises ConfigError if they do not fit.

    `source` is what messages call the adapters' file, `origin` what they say of its model;
    for `scale` see `merged_weight`. Weights that are still in half precision or quantised, as in their files, become
    `dtype`: fp32 if more is merged into them.
    """
    layers = dict(family.model.named_modules())
    for one in weights:
        name = layer_name(one)
        layer = layers.get(name)
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, Tensor) or not fits(one, weight.shape):
            has = "no such layer" if weight is None else f"one of the shape {list(weight.shape)}"
            raise ConfigError(
                f"{source}: the LoRA is for a layer {name!r} of the shape {list(one.matrix_shape)}{origin}, but the "
                f"base model has {has}.",
                "Use the base model that it was trained on.",
            )
        is_quantized = isinstance(layer, QuantizedLinear)
        kept = dtype if is_quantized or weight.dtype in HALF_DTYPES.values() else weight.dtype
        merged = merged_weight(weight, one, scale).to(kept)
        if not bool(merged.isfinite().all()):
            raise ConfigError(
                f"{source}: with the LoRA, numbers of {name!r} are not finite in {str(kept).split('.')[1]}.",
                "Use a smaller --lora_scale, or a model in fp32.",
            )
        if isinstance(layer, QuantizedLinear):
            dequantize_(layer, merged)
        else:
            weight.data = merged


def _patterns(targets: str, feed_forward: str) -> tuple[Sequence[str], tuple[type[nn.Module], ...]]:
    """Patterns for layer names, and the classes of layers that they may match; `feed_forward` is the family's own."""
    if targets in _PRESETS:
        pattern, kinds = _PRESETS[targets]
        own = rf"|(^|\.)({feed_forward})$" if feed_forward and targets == "attention_mlp" else ""
        return [pattern + own], kinds
    return target_patterns(targets), _ALL


def _can_be_adapted(layer: nn.Module, algorithm: str) -> bool:
    """A linear layer or an ungrouped convolution that is trainable, or would be if its file had not quantised it."""
    if not isinstance(layer, ADAPTABLE[algorithm]) or getattr(layer, "groups", 1) != 1:
        return False
    if isinstance(layer, QuantizedLinear):
        return all(weight.requires_grad for weight in layer.parameters())  # of its bias
    return isinstance(layer.weight, Tensor) and layer.weight.requires_grad


def _is_wide(layer: nn.Module) -> bool:
    """A convolution of more than one pixel, which may have a rank and an alpha of its own."""
    return isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and any(side > 1 for side in layer.kernel_size)


def _no_target(config: TrainConfig, pattern: str, able: Sequence[str], where: str = "") -> ConfigError:
    whose = f", whose pattern {pattern!r}" if pattern and config.lora_targets not in _PRESETS else ", which"
    if not able:
        return ConfigError(
            f"method is 'lora', but what is trained of {config.family!r} has no linear layer and no convolution.",
            "Use fine_tune, or train other parts.",
        )
    few = [able[i * len(able) // EXAMPLES] for i in range(EXAMPLES)] if len(able) > EXAMPLES else able
    return ConfigError(
        f"lora_targets is {config.lora_targets!r}{whose} matches none of the {len(able)} layers{where} that a LoRA can "
        f"be added to; some of them are {', '.join(few)}.",
        "Use all_linear or all, or a pattern that matches their names.",
    )


def _split_name(name: str, family: Family) -> tuple[str, str]:
    """The submodule of a layer and its name within that, as files have them."""
    part = submodule_of(name, family.adapter_prefixes)
    return (part, name.removeprefix(f"{part}.")) if part else (WHOLE_MODEL, name)
