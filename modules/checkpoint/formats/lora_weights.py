"""What a LoRA is made of, whichever layout its file has, and how files name parts and modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from torch import Tensor

from modules.config import ConfigError

Layout = Literal["diffusers", "kohya"]
AdapterNames = Mapping[str, tuple[str, str]]  # part -> its prefix in the diffusers layout and in kohya's


@dataclass(frozen=True)
class LoraWeights:
    """The adapter of one module: it adds `up @ down * alpha / rank` to the module's weight.

    `down` is [rank, in] or [rank, in, kh, kw], `up` is [out, rank] or [out, rank, 1, 1]; `magnitude` [out] is DoRA's
    length of each row of the sum (Liu et al. 2024, arXiv:2402.09353).
    """

    part: str
    module: str  # dotted, within the part
    down: Tensor
    up: Tensor
    alpha: float
    magnitude: Tensor | None

    @property
    def rank(self) -> int:
        """Rows of `down`."""
        return self.down.shape[0]


# In older libraries, and so in the files of every tool, CLIP's layers lie one name deeper than transformers has them.
CLIP: Final = "text_model."


def is_text(part: str) -> bool:
    """Whether the part is a text encoder."""
    return part.startswith("text_encoder")


def outer_name(adapter: LoraWeights) -> str:
    """The module's name as files have it."""
    module = adapter.module
    inside_clip = is_text(adapter.part) and module.startswith(("encoder.", "embeddings.", "final_layer_norm"))
    return CLIP + module if inside_clip else module


def inner_name(part: str, module: str) -> str:
    """The name in files as memory has it: CLIPTextModel has lost its outer name, CLIPTextModelWithProjection not."""
    return module.removeprefix(CLIP) if part == "text_encoder" else module


def part_of_key(file: Path, stem: str, names: AdapterNames, *, kohya: bool) -> str:
    """The part whose prefix `stem` begins with. Raises ConfigError where there is none."""
    for part, (diffusers_prefix, kohya_prefix) in names.items():
        if stem.startswith(f"{kohya_prefix}_" if kohya else f"{diffusers_prefix}."):
            return part
    prefixes = ", ".join(pair[kohya] for pair in names.values())
    raise ConfigError(
        f"{str(file)!r} is a LoRA of another model: its {stem!r} begins with none of {prefixes}.",
        "Use a LoRA that was trained for this architecture.",
    )


def tensor_beside(file: Path, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """The tensor of this name. Raises ConfigError where it is missing."""
    try:
        return tensors[name]
    except KeyError:
        raise ConfigError(f"{str(file)!r} is incomplete: it has no {name!r}.", "Copy or download it again.") from None
