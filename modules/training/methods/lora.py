"""LoRA (Hu et al. 2021, arXiv:2106.09685) and DoRA (Liu et al. 2024, arXiv:2402.09353) in a family's model, by peft."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor, nn

from modules.checkpoint.formats import AdapterWeights, LoraSize, LoraWeights, fits, merged_weight
from modules.config import TARGET_PRESETS, ConfigError, TrainConfig, target_patterns
from modules.diffusion.dtypes import HALF_DTYPES
from modules.distributed import is_sharded
from modules.families._family import Family
from modules.training.methods.lora_from import LayerSize, load_lora_from, read_lora_from
from modules.training.submodules import freeze_others, freeze_untrained, submodule_of, trained_names

T = TypeVar("T", int, float)

ADAPTER: Final = "default"  # peft's name for an adapter that needs none
WHOLE_MODEL: Final = "model"  # in files, the submodule of layers that belong to no named one
EXAMPLES: Final = 6  # layer names in an error message

# The last words of the names that diffusers and transformers give to these layers.
_ATTENTION: Final = (
    r"to_q|to_k|to_v|to_out\.0|add_[qkv]_proj|to_add_out|to_qkv|query|key|value|proj_attn|[qkvo]_proj|out_proj|qkv"
)
_MLP: Final = r"ff(_context)?\.net\.\d+(\.proj)?|fc1|fc2|mlp\.\w+|gate_proj|up_proj|down_proj|wi(_\d)?|wo"
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
    """Freeze `family.model`, which is on the CPU, and add the LoRA matrices, some to each trained submodule.

    Initial values are those of the file `lora_from`, or depend on the seed and the weight's name alone, so all ranks
    get the same. Raises ConfigError if no layer matches, or the file does not fit.
    """
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds to import

    freeze_others(family, config)
    start = {} if config.lora_from is None else read_lora_from(family, config, adapter_names(family))
    sizes = {name: LayerSize(one.rank, one.alpha) for name, one in start.items()} or _sizes(family, config)
    (usual, _), *_ = Counter(sizes.values()).most_common(1)
    dora = any(one.magnitude is not None for one in start.values()) if start else config.lora_weight_decompose
    settings = LoraConfig(
        r=usual.rank,
        lora_alpha=usual.alpha,  # type: ignore[arg-type]  # peft divides it by the rank, whole or not
        rank_pattern=_patterns_of({name: size.rank for name, size in sizes.items() if size.rank != usual.rank}),
        alpha_pattern=_patterns_of({name: size.alpha for name, size in sizes.items() if size.alpha != usual.alpha}),
        lora_dropout=config.lora_dropout,
        use_dora=dora,
        target_modules="|".join(map(re.escape, sizes)),
    )
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(settings, family.model, ADAPTER)
    _convert_adapters(family.model)
    for name, weight in family.model.named_parameters():
        if f".lora_A.{ADAPTER}." in name:
            _initialize(weight, f"{config.seed}/{name}")
    load_lora_from(family.model, start, ADAPTER)


def _sizes(family: Family, config: TrainConfig) -> dict[str, LayerSize]:
    """Rank and alpha of each layer that the config chooses."""
    usual = LayerSize(config.lora_rank, config.lora_alpha)
    wide = LayerSize(config.lora_conv_rank or usual.rank, config.lora_conv_alpha or usual.alpha)
    layers = lora_targets(family.model, family.submodules, config)
    return {name: wide if _is_wide(family.model.get_submodule(name)) else usual for name in layers}


def _patterns_of(values: Mapping[str, T]) -> dict[str, T]:
    """peft's pattern -> value: one pattern for each value, since peft tries all of them for each layer."""
    names: dict[T, list[str]] = {}
    for name, value in values.items():
        names.setdefault(value, []).append(re.escape(name))
    return {f"^(?:{'|'.join(same)})": value for value, same in names.items()}


@torch.no_grad()
def _convert_adapters(model: nn.Module) -> None:
    """Adapters in fp32: peft gives them the dtype of their layer, which may still be that of a file in fp16 or bf16."""
    from peft.tuners.lora import LoraLayer

    for layer in model.modules():
        if not isinstance(layer, LoraLayer):
            continue
        base = cast("nn.Linear | nn.Conv2d", layer.get_base_layer())
        if base.weight.dtype not in HALF_DTYPES.values():
            continue
        for name, weight in layer.named_parameters():
            if name.startswith("lora_"):
                weight.data = weight.data.float()
        for name, magnitude in layer.lora_magnitude_vector.items():  # DoRA's start as norms of the layer's weights
            half, base.weight.data = base.weight.data, base.weight.data.float()
            a, b = (getattr(layer, matrix)[name].weight for matrix in ("lora_A", "lora_B"))
            cast(Any, magnitude).update_layer(base_layer=base, lora_A=a, lora_B=b, scaling=layer.scaling[name])
            base.weight.data = half


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
        lora_targets(model, family.submodules, config)


def lora_targets(model: nn.Module, submodules: Sequence[str], config: TrainConfig) -> list[str]:
    """The names of the layers of `model` that `lora_targets` matches.

    Raises ConfigError if a trained one of its `submodules`, or a pattern, has none.
    """
    able = {name: layer for name, layer in model.named_modules() if _can_be_adapted(layer)}
    patterns, kinds = _patterns(config.lora_targets)
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


def lora_weights(family: Family, state: Mapping[str, Tensor]) -> list[LoraWeights]:
    """The adapter of each layer, with the tensors of `state`, which holds the trained weights by the model's names."""
    from peft.tuners.lora import LoraLayer

    found = []
    for name, layer in family.model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        submodule, module = _split_name(name, family)
        magnitude = state.get(f"{name}.lora_magnitude_vector.{ADAPTER}.weight")
        found.append(
            LoraWeights(
                submodule=submodule,
                module=module,
                down=state[f"{name}.lora_A.{ADAPTER}.weight"],
                up=state[f"{name}.lora_B.{ADAPTER}.weight"],
                alpha=float(layer.lora_alpha[ADAPTER]),
                magnitude=None if magnitude is None else magnitude.flatten(),
            )
        )
    return found


def layer_sizes(family: Family) -> list[LayerSize]:
    """Rank and alpha of the LoRA of each layer, the most frequent first."""
    from peft.tuners.lora import LoraLayer

    layers = [layer for layer in family.model.modules() if isinstance(layer, LoraLayer)]
    sizes = Counter(LayerSize(layer.r[ADAPTER], float(layer.lora_alpha[ADAPTER])) for layer in layers)
    return [size for size, count in sizes.most_common() for _ in range(count)]


def lora_size(family: Family) -> LoraSize:
    """What most layers of the LoRA have, for the headers of files."""
    usual = layer_sizes(family)[0]
    return LoraSize(
        usual.rank, usual.alpha, any(".lora_magnitude_vector." in n for n, _ in family.model.named_parameters())
    )


def max_useful_rank(family: Family) -> int:
    """The largest rank that the update of an adapted layer can have: min(out, in) for a matrix [out, in]."""
    from peft.tuners.lora import LoraLayer

    found = []
    for layer in family.model.modules():
        if isinstance(layer, LoraLayer):
            base = cast("nn.Linear | nn.Conv2d", layer.get_base_layer())
            out, inside = base.weight.shape[0], base.weight.shape[1:].numel()
            found.append(min(out, inside))
    return max(found)


def adapter_names(family: Family | type[Family]) -> dict[str, tuple[str, str]]:
    """The key prefix of each submodule in diffusers' files and in kohya's."""
    return {**family.adapter_prefixes, WHOLE_MODEL: (WHOLE_MODEL, f"lora_{WHOLE_MODEL}")}


@torch.no_grad()
def merge_lora(family: Family, weights: Iterable[AdapterWeights], source: str = "model", scale: float = 1.0) -> None:
    """Merge adapters into the weights of `family.model`, for inference. Raises ConfigError if they do not fit.

    `source` is what messages call the adapters' file; for `scale` see `merged_weight`.
    """
    layers = dict(family.model.named_modules())
    for one in weights:
        name = one.module if one.submodule == WHOLE_MODEL else f"{one.submodule}.{one.module}"
        weight = getattr(layers.get(name), "weight", None)
        if not isinstance(weight, Tensor) or not fits(one, weight.shape):
            has = "no such layer" if weight is None else f"one of the shape {list(weight.shape)}"
            raise ConfigError(
                f"{source}: the LoRA is for a layer {name!r} of the shape {list(one.matrix_shape)}, but the base model "
                f"has {has}.",
                "Use the base model that it was trained on.",
            )
        merged = merged_weight(weight, one, scale).to(weight.dtype)
        if not bool(merged.isfinite().all()):
            raise ConfigError(
                f"{source}: with the LoRA, numbers of {name!r} are not finite in {str(weight.dtype).split('.')[1]}.",
                "Use a smaller --lora_scale, or a model in fp32.",
            )
        weight.copy_(merged)


def _patterns(targets: str) -> tuple[Sequence[str], tuple[type[nn.Module], ...]]:
    """Patterns for layer names, and the classes of layers that they may match."""
    if targets in _PRESETS:
        pattern, kinds = _PRESETS[targets]
        return [pattern], kinds
    return target_patterns(targets), _ALL


def _can_be_adapted(layer: nn.Module) -> bool:
    """A linear layer or an ungrouped convolution that is trainable."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return layer.groups == 1 and layer.weight.requires_grad
    return isinstance(layer, nn.Linear) and layer.weight.requires_grad


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


@torch.no_grad()
def _initialize(weight: nn.Parameter, seed: str) -> None:
    """Kaiming-uniform values as in nn.Linear, for LoRA's A matrix; B is zero at first."""
    digest = hashlib.blake2b(seed.encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    values = torch.empty(weight.shape)
    nn.init.kaiming_uniform_(values, a=math.sqrt(5), generator=generator)
    weight.copy_(values)
