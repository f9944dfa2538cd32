"""A LoRA independent of its file's layout, and how files name submodules and modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from torch import Tensor

from modules.config import ConfigError

Layout = Literal["diffusers", "kohya"]
AdapterPrefixes = Mapping[str, tuple[str, str]]  # submodule -> its prefix in diffusers' layout and in kohya's


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


# Older versions of transformers, and so the files of all tools, nest CLIP's layers one level deeper.
CLIP_PREFIX: Final = "text_model."


def is_text_encoder(submodule: str) -> bool:
    """Whether the submodule is a text encoder."""
    return submodule.startswith("text_encoder")


def module_in_file(adapter: LoraWeights) -> str:
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
    expected = ", ".join(pair[kohya] for pair in prefixes.values())
    raise ConfigError(
        f"{str(file)!r} is a LoRA of another model: {stem!r} starts with none of {expected}.",
        "Use a LoRA that was trained for this architecture.",
    )


def require_tensor(file: Path, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """The tensor of this name. Raises ConfigError if it is missing."""
    try:
        return tensors[name]
    except KeyError:
        raise ConfigError(f"{str(file)!r} is incomplete: it has no {name!r}.", "Copy or download it again.") from None
