"""Drawing the sample prompts on all ranks at once, which hold the same weights; rank 0 gets all the pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from PIL import Image
from torch import nn

from modules.distributed import Group

Gather = Callable[[str, str], list[str]]  # (name, this rank's text) -> the texts of all ranks


@contextmanager
def buffers_of_first_rank(model: nn.Module) -> Iterator[None]:
    """The averages of BatchNorm differ from rank to rank: inside the block all have rank 0's, after it their own."""
    own = [buffer.clone() for buffer in model.buffers()]
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    try:
        yield
    finally:
        for buffer, kept in zip(model.buffers(), own, strict=True):
            buffer.copy_(kept)


def collect(pictures: Sequence[Image.Image], gather: Gather, group: Group) -> list[Image.Image]:
    """On rank 0 the pictures of all ranks, one of each in turn; elsewhere none. Every rank calls it with its own.

    Rank 0 has the most pictures, and at least one.
    """
    own = [picture.tobytes() for picture in pictures]
    told = [(picture.mode, picture.size, len(data)) for picture, data in zip(pictures, own, strict=True)]
    everyone = [json.loads(text) for text in gather("pictures", json.dumps(told))]
    longest = max(sum(length for _, _, length in each) for each in everyone)
    sent = torch.frombuffer(bytearray(b"".join(own).ljust(longest, b"\0")), dtype=torch.uint8)
    received = [torch.empty_like(sent) for _ in everyone] if group.place.rank == 0 else None
    dist.gather(sent, received, dst=0, group=group.control)
    shares = [_unpacked(data.numpy().tobytes(), each) for data, each in zip(received or [], everyone, strict=False)]
    return [share[turn] for turn in range(len(everyone[0])) for share in shares if turn < len(share)]


def _unpacked(data: bytes, told: Sequence[tuple[str, tuple[int, int], int]]) -> list[Image.Image]:
    pictures, start = [], 0
    for mode, (width, height), length in told:
        pictures.append(Image.frombytes(mode, (width, height), data[start : start + length]))
        start += length
    return pictures
