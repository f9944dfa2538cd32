"""`training_adapter`: a frozen LoRA that the model has while it trains, and not while it generates or is validated.

Training on images takes away what a model was distilled for. An adapter that holds what such training changes in
general leaves nothing of that to be learned: the assistant LoRA of github.com/ostris/ai-toolkit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.checkpoint.formats import AdapterWeights, LoraWeights, adapter_algorithm, read_adapter
from modules.config import ConfigError, TrainConfig
from modules.diffusion.quantized import QuantizedLinear
from modules.families._family import Family

_MERGE: Final = "Merge it into the base model instead: scripts/convert.py BASE OUT --merge FILE."


class TrainingAdapter(nn.Module):
    """What the LoRA adds to the output [..., out] of one linear layer, computed from its input [..., in].

    `down` is [rank, in], `up` [out, rank] times alpha / rank. It acts in training mode alone, as dropout does.
    """

    def __init__(self, one: LoraWeights) -> None:
        super().__init__()
        self.down = nn.Parameter(one.down.float(), requires_grad=False)
        self.up = nn.Parameter(one.up.float() * (one.alpha / one.rank), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Its part of the output."""
        return F.linear(F.linear(inputs, self.down), self.up)


def check_training_adapter(config: TrainConfig) -> None:
    """Raises ConfigError if the run cannot use `training_adapter`; reads only the file's header."""
    file = config.training_adapter
    if file is None:
        return
    if config.method != "lora" or config.lora_weight_decompose:
        what = "lora_weight_decompose is true" if config.method == "lora" else f"method is {config.method!r}"
        raise ConfigError(
            f"training_adapter is {file!r}, but {what}; only a LoRA, LoHa, LoKr or OFT is trained with one.", _MERGE
        )
    if not Path(file).exists():
        raise ConfigError(
            f"training_adapter: there is no file {file!r}.",
            "Give a LoRA in .safetensors. `hf download OWNER/MODEL NAME.safetensors` downloads one from the hub and "
            "prints its path.",
        )
    try:
        found = adapter_algorithm(Path(file))
    except ConfigError as error:
        raise ConfigError(f"training_adapter: {error.message}", error.advice) from error
    if found != "lora":
        raise ConfigError(f"training_adapter: {file!r} is no plain LoRA.", _MERGE)


def add_training_adapter(family: Family, file: Path, prefixes: Mapping[str, tuple[str, str]]) -> None:
    """Let the layers of `family.model` add what the LoRA in `file` says. Raises ConfigError if it is for other ones."""
    layers = dict(family.model.named_modules())
    for name, one in read_training_adapter(family, file, prefixes).items():
        layer: Any = layers.get(name)
        layer = getattr(layer, "base_layer", layer)  # of one that is trained
        is_linear = isinstance(layer, nn.Linear | QuantizedLinear)
        if not is_linear or one.matrix_shape != (layer.out_features, layer.in_features):
            raise ConfigError(
                f"training_adapter: {str(file)!r} is for a linear layer {name!r} of the shape "
                f"{list(one.matrix_shape)}, which the base model does not have.",
                "Give the adapter that was made for this base model.",
            )
        layer.training_adapter = TrainingAdapter(one)
        layer.register_forward_hook(_add_update)


def read_training_adapter(
    family: Family, file: Path, prefixes: Mapping[str, tuple[str, str]]
) -> dict[str, LoraWeights]:
    """The adapters in `file` by the names of their layers in `family.model`. Raises ConfigError if they are no LoRA."""
    try:
        weights = read_adapter(file, prefixes)
    except ConfigError as error:
        raise ConfigError(f"training_adapter: {error.message}", error.advice) from error
    return {_name(one, family): _plain(one, file) for one in weights}


def adapter_digest(weights: Iterable[tuple[str, LoraWeights]]) -> str:
    """A hash of all numbers, which no backup holds."""
    digest = hashlib.blake2b(digest_size=12)
    for name, one in sorted(weights, key=lambda each: each[0]):
        digest.update(f"{name} {one.alpha!r} {list(one.down.shape)} ".encode())
        for tensor in (one.down, one.up):
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _name(one: AdapterWeights, family: Family) -> str:
    return one.module if one.submodule not in family.adapter_prefixes else f"{one.submodule}.{one.module}"


def _plain(one: AdapterWeights, file: Path) -> LoraWeights:
    if not isinstance(one, LoraWeights) or one.magnitude is not None or one.down.dim() != 2:
        raise ConfigError(f"training_adapter: {str(file)!r} is no plain LoRA of linear layers alone.", _MERGE)
    return one


def _add_update(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """A forward hook."""
    adapter = layer.training_adapter
    return output + adapter(inputs[0]) if adapter.training else output
