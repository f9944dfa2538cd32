"""A LoRA independent of its file's layout, and how files name submodules and modules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import torch
from torch import Tensor

from modules.checkpoint.formats.lora_origin import of_family
from modules.config import ConfigError

Layout = Literal["diffusers", "kohya"]
AdapterPrefixes = Mapping[str, tuple[str, str]]  # submodule -> its prefix in diffusers' layout and in kohya's
Rows = tuple[slice, ...]  # those of a fused layer that are one layer of diffusers; none for all of them


class AdapterWeights(Protocol):
    """What any adapter adds to the weight of one module."""

    @property
    def submodule(self) -> str:
        """The part of the model that the module is in."""

    @property
    def module(self) -> str:
        """The module's dotted name within the submodule."""

    @property
    def magnitude(self) -> Tensor | None:
        """DoRA: the norm of each row [out] of the changed weight."""

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Rows and columns of `delta`, which can be checked before it is computed."""

    @property
    def rank(self) -> int:
        """Of its matrices; of OFT the size of a block."""

    @property
    def alpha(self) -> float:
        """The effect is multiplied by alpha / rank."""

    def delta(self, weight: Tensor | None = None) -> Tensor:
        """The change of the weight, scaled by alpha, as an fp64 matrix [out, in * kh * kw].

        Only for OFT it depends on `weight` [out, in] or [out, in, kh, kw].
        """


@dataclass(frozen=True)
class LoraWeights:
    """The adapter of one module: it adds `up @ down * alpha / rank` to the module's weight.

    `down` is [rank, in] or [rank, in, kh, kw], `up` is [out, rank] or [out, rank, 1, 1]; `magnitude` [out] is the norm
    of each row of the sum for DoRA (Liu et al. 2024, arXiv:2402.09353).
    """

    submodule: str
    module: str  # dotted name within the submodule
    down: Tensor
    up: Tensor
    alpha: float
    magnitude: Tensor | None

    @property
    def rank(self) -> int:
        """The rows of `down`."""
        return self.down.shape[0]

    @property
    def matrix_shape(self) -> tuple[int, int]:
        return self.up.shape[0], math.prod(self.down.shape[1:])

    def delta(self, weight: Tensor | None = None) -> Tensor:
        return (self.up.flatten(1).double() @ self.down.flatten(1).double()) * (self.alpha / self.rank)


_MAX_ALPHA: Final = 1_000_000  # as for the setting lora_alpha

# Older versions of transformers, and so the files of all tools, nest CLIP's layers one level deeper.
CLIP_PREFIX: Final = "text_model."


def is_text_encoder(submodule: str) -> bool:
    """Whether the submodule is a text encoder."""
    return submodule.startswith("text_encoder")


def module_in_file(adapter: AdapterWeights) -> str:
    """The module's name in files."""
    module = adapter.module
    inside_clip = is_text_encoder(adapter.submodule) and module.startswith(
        ("encoder.", "embeddings.", "final_layer_norm")
    )
    return CLIP_PREFIX + module if inside_clip else module


def module_in_memory(submodule: str, module: str) -> str:
    """The loaded module's name: CLIPTextModel no longer has the prefix, CLIPTextModelWithProjection still does."""
    return module.removeprefix(CLIP_PREFIX) if submodule == "text_encoder" else module


def submodule_of_key(file: Path, stem: str, prefixes: AdapterPrefixes, *, kohya: bool) -> str:
    """The submodule whose prefix `stem` starts with. Raises ConfigError if there is none."""
    for submodule, (diffusers_prefix, kohya_prefix) in prefixes.items():
        if stem.startswith(f"{kohya_prefix}_" if kohya else f"{diffusers_prefix}."):
            return submodule
    expected = ", ".join(filter(None, (pair[kohya] for pair in prefixes.values())))
    if not expected:
        raise ConfigError(
            f"{str(file)!r}: {stem!r} is no layer of the transformer, which a LoRA of this model has to be for"
            f"{of_family(file)}.",
            "Use a LoRA of the transformer alone, trained for this architecture.",
        )
    raise ConfigError(
        f"{str(file)!r} is a LoRA of another model{of_family(file)}: {stem!r} starts with none of {expected}.",
        "Use a LoRA that was trained for this architecture.",
    )


def take_rows(tensor: Tensor, rows: Rows) -> Tensor:
    """These rows of `tensor`, in this order."""
    return torch.cat([tensor[each] for each in rows]) if rows else tensor


def check_alpha(file: Path, name: str, alpha: object) -> float:
    """`alpha` as a number. Raises ConfigError unless it is above 0 and at most a million."""
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= _MAX_ALPHA:
        raise ConfigError(
            f"{str(file)!r} is damaged: {name} is {str(alpha)[:40]}, not a number above 0 and at most a million."
        )
    return float(alpha)


def require_tensor(file: Path, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """The tensor of this name. Raises ConfigError if it is missing."""
    try:
        return tensors[name]
    except KeyError:
        raise ConfigError(f"{str(file)!r} is incomplete: it has no {name!r}.", "Copy or download it again.") from None
