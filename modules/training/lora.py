"""LoRA (Hu et al. 2021, arXiv:2106.09685) and DoRA (Liu et al. 2024, arXiv:2402.09353) in a family's model, by peft."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

import torch
from torch import Tensor, nn

from modules.checkpoint.formats import LoraWeights
from modules.config import TARGET_PRESETS, ConfigError, TrainConfig, target_patterns
from modules.families.family import Family
from modules.training.trained_parts import freeze_others, part_of, trained_parts

ADAPTER: Final = "default"  # peft's name for an adapter that needs none
WHOLE: Final = "model"  # in files, the part of modules that are in no part with a name of its own
SHOWN: Final = 6

# The last words of the names that diffusers and transformers give to these layers.
_ATTENTION: Final = (
    r"to_q|to_k|to_v|to_out\.0|add_[qkv]_proj|to_add_out|to_qkv|query|key|value|proj_attn|[qkvo]_proj|out_proj|qkv"
)
_MLP: Final = r"ff(_context)?\.net\.\d+(\.proj)?|fc1|fc2|mlp\.\w+|gate_proj|up_proj|down_proj|wi(_\d)?|wo"
_PRESETS: Final[Mapping[str, str]] = dict(
    zip(
        TARGET_PRESETS,
        (rf"(^|\.)({_ATTENTION})$", rf"(^|\.)({_ATTENTION}|{_MLP})$", "", ""),
        strict=True,
    )
)


def add_lora(family: Family, config: TrainConfig) -> None:
    """Freeze `family.model`, which is on the CPU, and add the trained matrices; each part of it gets some.

    Their first values depend on the seed and their name alone, so all ranks draw the same. Raises ConfigError where
    no layer is meant.
    """
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds to import

    freeze_others(family, config)
    targets = lora_targets(family, config)
    settings = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]  # peft divides it by the rank, whole or not
        lora_dropout=config.lora_dropout,
        use_dora=config.lora_weight_decompose,
        target_modules="|".join(map(re.escape, targets)),
    )
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(settings, family.model, ADAPTER)
    for name, weight in family.model.named_parameters():
        if f".lora_A.{ADAPTER}." in name:
            _draw(weight, f"{config.seed}/{name}")


def lay_plain(model: nn.Module) -> None:
    """Bring an adapter's tensors into the plain order of memory.

    peft looks at convolutions' as matrices, and makes their lengths [1, out, 1, 1] transposed, which slows DDP down.
    """
    for name, weight in model.named_parameters():
        if ".lora_" in name:
            weight.data = weight.detach().clone(memory_format=torch.contiguous_format)


def lora_targets(family: Family, config: TrainConfig) -> list[str]:
    """The names of the layers that `lora_targets` means. Raises ConfigError where a part has none, or a pattern."""
    able = {name: layer for name, layer in family.model.named_modules() if _can_be_adapted(layer)}
    patterns, kinds = _choice(config.lora_targets)
    chosen: list[str] = []
    for pattern in patterns:
        found = [name for name, layer in able.items() if isinstance(layer, kinds) and re.search(pattern, name)]
        if not found:
            raise _no_target(config, pattern, list(able))
        chosen += found
    for part in trained_parts(family, config):
        own = [name for name in able if part_of(name, family.parts) == part]
        if not set(own) & set(chosen):
            raise _no_target(config, "", own, f" of {part}" if part else "")
    return [name for name in able if name in set(chosen)]


def lora_weights(family: Family, state: Mapping[str, Tensor]) -> list[LoraWeights]:
    """The adapter of each layer, with the tensors of `state`, which has the model's names for what is trained."""
    from peft.tuners.lora import LoraLayer

    found = []
    for name, layer in family.model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        part, module = _place(name, family)
        magnitude = state.get(f"{name}.lora_magnitude_vector.{ADAPTER}.weight")
        found.append(
            LoraWeights(
                part=part,
                module=module,
                down=state[f"{name}.lora_A.{ADAPTER}.weight"],
                up=state[f"{name}.lora_B.{ADAPTER}.weight"],
                alpha=float(layer.lora_alpha[ADAPTER]),
                magnitude=None if magnitude is None else magnitude.flatten(),
            )
        )
    return found


def most_directions(family: Family) -> int:
    """The largest rank that a change of any adapted layer can have: a matrix [out, in] has min(out, in) directions."""
    from peft.tuners.lora import LoraLayer

    found = []
    for layer in family.model.modules():
        if isinstance(layer, LoraLayer):
            base = cast("nn.Linear | nn.Conv2d", layer.get_base_layer())
            out, inside = base.weight.shape[0], base.weight.shape[1:].numel()
            found.append(min(out, inside))
    return max(found)


def adapter_names(family: Family) -> dict[str, tuple[str, str]]:
    """What each part's keys begin with in diffusers' files and in kohya's."""
    return {**family.adapter_names, WHOLE: (WHOLE, f"lora_{WHOLE}")}


@torch.no_grad()
def merge_lora(family: Family, weights: Iterable[LoraWeights]) -> None:
    """Add adapters to the weights of `family.model`, for drawing. Raises ConfigError where they belong to another."""
    layers = dict(family.model.named_modules())
    for one in weights:
        name = one.module if one.part == WHOLE else f"{one.part}.{one.module}"
        weight = getattr(layers.get(name), "weight", None)
        if not isinstance(weight, Tensor) or weight.shape != _shape(one):
            has = "no such layer" if weight is None else f"one of the shape {list(weight.shape)}"
            raise ConfigError(
                f"model: the LoRA is for a layer {name!r} of the shape {list(_shape(one))}, but the base model has "
                f"{has}.",
                "Use the base model that it was trained on.",
            )
        change = (one.up.flatten(1).double() @ one.down.flatten(1).double()).view(weight.shape)
        merged = weight.double() + change * (one.alpha / one.rank)
        if one.magnitude is not None:
            lengths = merged.flatten(1).norm(dim=1)
            merged *= (one.magnitude.double() / lengths).view(-1, *[1] * (weight.dim() - 1))
        weight.copy_(merged)


def _choice(wanted: str) -> tuple[Sequence[str], tuple[type[nn.Module], ...]]:
    """Patterns for names, and the kinds of layers that they may find."""
    if wanted in _PRESETS:
        return [_PRESETS[wanted]], ((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d) if wanted == "all" else (nn.Linear,))
    return target_patterns(wanted), (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _can_be_adapted(layer: nn.Module) -> bool:
    """A linear layer or a plain convolution that may change."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return layer.groups == 1 and layer.weight.requires_grad
    return isinstance(layer, nn.Linear) and layer.weight.requires_grad


def _no_target(config: TrainConfig, pattern: str, able: Sequence[str], where: str = "") -> ConfigError:
    whose = f", whose pattern {pattern!r}" if pattern and config.lora_targets not in _PRESETS else ", which"
    if not able:
        return ConfigError(
            f"method is 'lora', but what is trained of {config.family!r} has no linear layer and no convolution.",
            "Use fine_tune, or train other parts.",
        )
    few = [able[place * len(able) // SHOWN] for place in range(SHOWN)] if len(able) > SHOWN else able
    return ConfigError(
        f"lora_targets is {config.lora_targets!r}{whose} fits none of the {len(able)} layers{where} that a LoRA can be "
        f"added to; some of them are {', '.join(few)}.",
        "Use all_linear or all, or a pattern that is found in their names.",
    )


def _place(name: str, family: Family) -> tuple[str, str]:
    """The part of a layer and its name within the part, as files have them."""
    part = part_of(name, family.adapter_names)
    return (part, name.removeprefix(f"{part}.")) if part else (WHOLE, name)


def _shape(one: LoraWeights) -> torch.Size:
    return torch.Size((one.up.shape[0], *one.down.shape[1:]))


@torch.no_grad()
def _draw(weight: nn.Parameter, word: str) -> None:
    """First values as those of a linear layer, of which LoRA's first matrix is one; the second begins with zeros."""
    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    values = torch.empty(weight.shape)
    nn.init.kaiming_uniform_(values, a=math.sqrt(5), generator=generator)
    weight.copy_(values)
