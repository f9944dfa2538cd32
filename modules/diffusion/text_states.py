"""What a frozen text encoder makes of captions, each as long as it is; how those that depend on an image are cached."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from modules.data.batch import LENGTH, stack_samples
from modules.diffusion.padding_mask import PaddingMask

# The tensors of a caption: NAME.states of varying length [T, ...], all others of equal shapes.
STATES = ".states"
CAPTION = "caption"  # a caption that is encoded on the device: its UTF-8 bytes, uint8 [N]
PICTURE = "picture."  # picture.0 and so on: what the text encoder will see beside the caption, uint8 [3, H, W]
CAPTION_IDS = "captions"  # of captions that are cached with their image, int64 [N]
_ENDS = ".ends"  # int64 [captions]: where each caption's states end in the concatenation


def pack_captions(captions: Sequence[str], encoded: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What is cached for an image with N captions: `captions` int64 [N]; NAME.states concatenated [sum T, ...] with
    NAME.states.ends int64 [N]; other tensors stacked [N, ...]."""
    packed = {CAPTION_IDS: torch.tensor([caption_id(caption) for caption in captions], dtype=torch.int64)}
    own = [encoded[caption] for caption in captions]
    for name in own[0]:
        tensors = [each[name] for each in own]
        if name.endswith(STATES):
            packed[name + _ENDS] = torch.tensor([len(tensor) for tensor in tensors]).cumsum(0)
            packed[name] = torch.cat(tensors)
        else:
            packed[name] = torch.stack(tensors)
    return packed


def unpack_caption(cached: Mapping[str, Tensor], names: Sequence[str], caption: str) -> dict[str, Tensor] | None:
    """The tensors `names` of `caption` from the output of `pack_captions`; None if it is not in it."""
    places = (cached[CAPTION_IDS] == caption_id(caption)).nonzero()
    if not len(places):
        return None
    place, found = int(places[0]), {}
    for name in names:
        if name.endswith(STATES):
            ends = cached[name + _ENDS].tolist()
            found[name] = cached[name][ends[place - 1] if place else 0 : ends[place]]
        else:
            found[name] = cached[name][place]
    return found


def caption_id(caption: str) -> int:
    """The first 64 bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(caption.encode()).digest()[:8], "little", signed=True)


def caption_bytes(caption: str) -> Tensor:
    """uint8 [N], at least one byte."""
    return torch.frombuffer(bytearray(caption.encode() or b" "), dtype=torch.uint8)


def caption_of(given: Tensor) -> str:
    """The caption of `caption_bytes`."""
    text = bytes(given.tolist()).decode()
    return "" if text == " " else text


@dataclass(frozen=True)
class TextBatch:
    """The tensors of the captions of a batch, as `stack_samples` stacks them."""

    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, texts: Sequence[Mapping[str, Tensor]], device: torch.device, dtype: torch.dtype) -> TextBatch:
        """Of the tensors of single captions, moved to `device`; those of floating point as `dtype`."""
        names = [name for name in texts[0] if name.endswith(STATES)]
        stacked = stack_samples([dict(each) for each in texts], names)
        return cls(
            {
                name: tensor
                if name.endswith(LENGTH)
                else tensor.to(device, dtype if tensor.is_floating_point() else None)
                for name, tensor in stacked.items()
            }
        )

    def __getitem__(self, name: str) -> Tensor:
        """[B, ...]; states are padded with zeros to the longest of the batch."""
        return self.tensors[name]

    def each(self, name: str) -> list[Tensor]:
        """The states of each caption, [T, ...]."""
        return [tensor[:length] for tensor, length in zip(self.tensors[name], self.lengths(name), strict=True)]

    def lengths(self, name: str) -> list[int]:
        """How many states each caption has, without padding."""
        return cast("list[int]", self.tensors[name + LENGTH].tolist())

    def mask(self, name: str) -> PaddingMask | None:
        """bool [B, T]: which states are no padding; None if all are."""
        states, lengths = self.tensors[name], self.lengths(name)
        return None if min(lengths) == states.shape[1] else PaddingMask.of(lengths, states.shape[1], states.device)


@dataclass(frozen=True)
class FullTexts(TextBatch):
    """Captions of equal length, without padding; no value is read from a tensor, since fake ones have none."""

    def lengths(self, name: str) -> list[int]:
        """That of the tensor, for each caption."""
        samples, length = self.tensors[name].shape[:2]
        return [length] * samples
