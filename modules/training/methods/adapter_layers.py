"""The layers that peft puts around those of a model, for each `lora_algorithm`: their settings, first values and files.

LoRA (Hu et al. 2021, arXiv:2106.09685) and DoRA (Liu et al. 2024, arXiv:2402.09353); LoHa (Hyeon-Woo et al. 2021,
arXiv:2108.06098); LoKr (Yeh et al. 2023, arXiv:2309.14859); OFT (Qiu et al. 2023, arXiv:2306.07280).
"""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor, nn

from modules.checkpoint.formats import (
    AdapterWeights,
    Factor,
    LohaWeights,
    LokrWeights,
    LoraWeights,
    OftWeights,
    adapter_tensors,
)
from modules.config import ConfigError, TrainConfig
from modules.diffusion.dtypes import HALF_DTYPES
from modules.diffusion.quantized import QuantizedLinear, outlines

T = TypeVar("T", int, float)

ADAPTER: Final = "default"  # peft's name for an adapter that needs none
NAMES: Final = {"lora": "LoRA", "loha": "LoHa", "lokr": "LoKr", "oft": "OFT"}
# peft has no LoHa and LoKr of 3D convolutions, computes LoKr of 1D ones in another order than LyCORIS, and its OFT of
# convolutions with overlapping windows is not the base model at first.
ADAPTABLE: Final[Mapping[str, tuple[type[nn.Module], ...]]] = {
    "lora": (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    "loha": (nn.Linear, nn.Conv2d),
    "lokr": (nn.Linear, nn.Conv2d),
    "oft": (nn.Linear,),
}
_kaiming: Final = partial(nn.init.kaiming_uniform_, a=math.sqrt(5))
# How peft's parameters start; all others are zero, so that the model is the base model at first. LoRA as in nn.Linear,
# the others as in LyCORIS (lycoris/modules/loha.py and lokr.py).
_FIRST_VALUES: Final[Mapping[str, Callable[..., Tensor]]] = {
    "lora_A": _kaiming,
    "hada_w1_a": partial(nn.init.normal_, std=0.1),
    "hada_w1_b": nn.init.normal_,
    "hada_w2_b": nn.init.normal_,
    "lokr_w1": _kaiming,
    "lokr_w2_a": _kaiming,
}
_ZERO: Final = frozenset({"hada_w2_a", "lokr_w2", "lokr_w2_b", "oft_R"})


@dataclass(frozen=True)
class LayerSize:
    """Rank and alpha of the adapter of one layer; of OFT the size of a block, twice."""

    rank: int
    alpha: float


def add_layers(model: nn.Module, config: TrainConfig, sizes: Mapping[str, LayerSize], *, dora: bool) -> None:
    """Put adapters of these sizes around the layers of `model`, which is then the base model still.

    First values depend on the seed and the weight's name alone, so all ranks get the same. Raises ConfigError if
    `oft_block_size` does not fit.
    """
    from peft import inject_adapter_in_model  # takes seconds to import

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's of the block size of OFT, which is checked below
        with nullcontext() if dora else outlines(model):  # DoRA begins with the norms of the weights
            inject_adapter_in_model(_peft_config(config, sizes, dora=dora), model, ADAPTER)
    _convert_to_fp32(model)
    for name, layer in adapted_layers(model):
        if config.lora_algorithm == "lokr" and ADAPTER in layer.lokr_w1 and ADAPTER in layer.lokr_w2:
            layer.scaling[ADAPTER] = 1.0  # without a rank alpha does not count, as in LyCORIS
        if config.lora_algorithm in ("loha", "lokr"):
            layer.__class__ = _without_draws(cast(Any, type(layer)))
            layer.train(layer.training)
        if config.lora_algorithm == "oft" and layer.oft_block_size[ADAPTER] < 2:
            raise ConfigError(
                f"oft_block_size is {config.oft_block_size}, but no number near it divides the {layer.in_features} "
                f"inputs of {name!r}.",
                f"Set it to a divisor of {layer.in_features}, or leave the layer out of lora_targets.",
            )
        for own, weight in layer.named_parameters():
            kind = own.partition(".")[0]
            if kind in _FIRST_VALUES or kind in _ZERO:
                _set_first_values(weight, kind, f"{config.seed}/{name}.{own}")


@cache
def _without_draws(kind: type[nn.Module]) -> type[nn.Module]:
    """peft's LoHa or LoKr layer, itself always in eval mode: in training mode it draws a random number for its
    `module_dropout` also where that is 0, and what is drawn for no sample depends on the batch size."""

    class WithoutDraws(kind):  # type: ignore[misc,valid-type]
        def train(self, mode: bool = True) -> WithoutDraws:
            super().train(mode)
            self.training = False
            return self

    WithoutDraws.__name__ = kind.__name__
    return WithoutDraws


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The name and the peft layer of each adapted layer; `Any`, because each algorithm's has attributes of its own."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, layer in model.named_modules():
        if isinstance(layer, BaseTunerLayer):
            yield name, layer


def base_shape(layer: Any) -> torch.Size:
    """Of the frozen weight that an adapter changes."""
    base = layer.get_base_layer()
    is_quantized = isinstance(base, QuantizedLinear)  # whose weight would be computed
    return torch.Size((base.out_features, base.in_features)) if is_quantized else base.weight.shape


def adapter_sizes(model: nn.Module) -> dict[str, LayerSize]:
    """Those of all adapted layers, by name."""
    return {name: _size(layer) for name, layer in adapted_layers(model)}


def layer_sizes(model: nn.Module) -> list[LayerSize]:
    """Those of all adapted layers, the most frequent first."""
    sizes = Counter(adapter_sizes(model).values())
    return [size for size, count in sizes.most_common() for _ in range(count)]


def layer_weights(layer: Any, name: str, state: Mapping[str, Tensor], submodule: str, module: str) -> AdapterWeights:
    """The adapter of the layer `name`, with the tensors of `state`, which holds weights by the model's names."""

    def of(kind: str, suffix: str = "") -> Tensor | None:
        return state.get(f"{name}.{kind}.{ADAPTER}{suffix}")

    size = _size(layer)
    if hasattr(layer, "lora_A"):
        magnitude = of("lora_magnitude_vector", ".weight")
        down, up = (state[f"{name}.{kind}.{ADAPTER}.weight"] for kind in ("lora_A", "lora_B"))
        flat = None if magnitude is None else magnitude.flatten()
        return LoraWeights(submodule=submodule, module=module, down=down, up=up, alpha=size.alpha, magnitude=flat)
    if hasattr(layer, "oft_R"):
        return OftWeights(submodule=submodule, module=module, rotation=state[f"{name}.oft_R.{ADAPTER}.weight"])
    kind = "hada" if hasattr(layer, "hada_w1_a") else "lokr"

    def factor(number: int) -> Factor:
        whole, first = of(f"{kind}_w{number}"), of(f"{kind}_w{number}_a")
        if whole is not None:
            return Factor(whole)
        assert first is not None, "each factor is whole or a product"
        return Factor(first, of(f"{kind}_w{number}_b"), of(f"{kind}_t{number}"))

    adapter = LohaWeights if kind == "hada" else LokrWeights
    scale = float(layer.scaling[ADAPTER])
    return adapter(submodule=submodule, module=module, factors=(factor(1), factor(2)), scale=scale, magnitude=None)


@torch.no_grad()
def load_layer(layer: Any, one: AdapterWeights) -> None:
    """Give the adapter of a layer the values of `one`, also its factors of other shapes."""
    if isinstance(one, LoraWeights):
        pairs = [(layer.lora_A[ADAPTER].weight, one.down), (layer.lora_B[ADAPTER].weight, one.up)]
        if one.magnitude is not None:
            pairs.append((layer.lora_magnitude_vector[ADAPTER].weight, one.magnitude))
        for weight, values in pairs:
            weight.copy_(values.reshape(weight.shape))
    elif isinstance(one, OftWeights):
        rotation = layer.oft_R[ADAPTER]
        blocks = layer.in_features // one.rank // len(one.rotation)  # more than one if the file has one for all
        rotation.weight = nn.Parameter(one.rotation.to(rotation.weight).repeat(blocks, 1))
        _set_block_size(layer, one.rank)
    else:
        like = next(weight for own, weight in layer.named_parameters() if not own.startswith("base_layer."))
        for kind in layer.adapter_layer_names:
            if ADAPTER in getattr(layer, kind):
                del getattr(layer, kind)[ADAPTER]
        for kind, values in adapter_tensors(one).items():
            getattr(layer, kind)[ADAPTER] = nn.Parameter(values.to(like, copy=True))
        layer.r[ADAPTER], layer.alpha[ADAPTER] = one.rank, one.alpha
        layer.scaling[ADAPTER] = one.alpha / one.rank


def _set_block_size(layer: Any, side: int) -> None:
    """Of an OFT layer whose rotation has just got blocks of another size."""
    rotation = layer.oft_R[ADAPTER]
    device = rotation.rows.device
    rotation.rows, rotation.cols = torch.triu_indices(side, side, 1, device=device)
    rotation.r, rotation.n_elements = rotation.weight.shape
    rotation.block_size = layer.oft_block_size[ADAPTER] = side
    layer.r[ADAPTER] = rotation.r


def _peft_config(config: TrainConfig, sizes: Mapping[str, LayerSize], *, dora: bool) -> Any:
    from peft import LoHaConfig, LoKrConfig, LoraConfig, OFTConfig

    targets = "|".join(map(re.escape, sizes))
    if config.lora_algorithm == "oft":
        return OFTConfig(oft_block_size=config.oft_block_size, target_modules=targets)
    (usual, _), *_ = Counter(sizes.values()).most_common(1)
    shared: dict[str, Any] = {
        "r": usual.rank,
        "rank_pattern": _patterns_of({name: size.rank for name, size in sizes.items() if size.rank != usual.rank}),
        "alpha_pattern": _patterns_of({name: size.alpha for name, size in sizes.items() if size.alpha != usual.alpha}),
        "target_modules": targets,
    }
    if config.lora_algorithm == "loha":
        return LoHaConfig(alpha=cast(int, usual.alpha), **shared)
    if config.lora_algorithm == "lokr":
        return LoKrConfig(alpha=cast(int, usual.alpha), decompose_factor=config.lokr_factor or -1, **shared)
    # peft divides alpha by the rank, whole or not
    return LoraConfig(lora_alpha=cast(int, usual.alpha), lora_dropout=config.lora_dropout, use_dora=dora, **shared)


def _patterns_of(values: Mapping[str, T]) -> dict[str, T]:
    """peft's pattern -> value: one pattern for each value, since peft tries all of them for each layer."""
    names: dict[T, list[str]] = {}
    for name, value in values.items():
        names.setdefault(value, []).append(re.escape(name))
    return {f"^(?:{'|'.join(same)})": value for value, same in names.items()}


def _size(layer: Any) -> LayerSize:
    if hasattr(layer, "oft_R"):
        side = layer.oft_block_size[ADAPTER]
        return LayerSize(side, float(side))
    alpha = layer.lora_alpha if hasattr(layer, "lora_A") else layer.alpha
    return LayerSize(layer.r[ADAPTER], float(alpha[ADAPTER]))


@torch.no_grad()
def _convert_to_fp32(model: nn.Module) -> None:
    """Adapters in fp32: peft gives them the dtype of their layer, which may still be that of a file in fp16 or bf16."""
    for _, layer in adapted_layers(model):
        if isinstance(layer.get_base_layer(), QuantizedLinear):  # gives fp32
            continue
        base: Tensor = layer.get_base_layer().weight
        if base.dtype not in HALF_DTYPES.values():
            continue
        for name, weight in layer.named_parameters():
            if not name.startswith("base_layer."):
                weight.data = weight.data.float()
        for name, magnitude in getattr(layer, "lora_magnitude_vector", {}).items():  # DoRA's start as norms of weights
            half, base.data = base.data, base.data.float()
            a, b = (getattr(layer, matrix)[name].weight for matrix in ("lora_A", "lora_B"))
            magnitude.update_layer(base_layer=layer.get_base_layer(), lora_A=a, lora_B=b, scaling=layer.scaling[name])
            base.data = half


@torch.no_grad()
def _set_first_values(weight: Tensor, kind: str, seed: str) -> None:
    if kind in _ZERO:
        weight.zero_()
        return
    digest = hashlib.blake2b(seed.encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    values = torch.empty(weight.shape)
    _FIRST_VALUES[kind](values, generator=generator)
    weight.copy_(values)
