"""Counts the memory of tensors while operations make and drop them, real tensors or fake ones."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from modules.config import TrainConfig
from modules.families._family import Family
from modules.torch_compat import FakeTensorMode, TorchDispatchMode, tree_leaves


class LiveBytes(TorchDispatchMode):
    """Inside the block, `now` and `peak` are the bytes of storages that operations in it have made and that live.

    Each storage counts once, however many views it has, and until the last tensor and the autograd graph drop it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: weakref.WeakKeyDictionary[UntypedStorage, object] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        before = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        for tensor in before:  # made outside of the block
            self._known.setdefault(tensor.untyped_storage(), None)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: UntypedStorage) -> None:
        if storage in self._known:
            return
        self._known[storage] = None
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, size).atexit = False

    def _drop(self, size: int) -> None:
        self.now -= size


def encoding_activations(kind: type[Family], config: TrainConfig) -> dict[str, int]:
    """The name of its row in the memory table, and bytes; empty if it is not known or nothing is cached.

    Of one image or clip, because more are encoded at once only if they fit. Text encoders work before and after it, and
    take less. Raises ConfigError as set-up does.
    """
    side, frames = config.largest_resolution, () if config.clip_step is None else (config.frames,)
    with FakeTensorMode(allow_non_fake_inputs=True):
        encode = kind.meta_encoder(config) if config.cache_latents else None
        if encode is None:
            return {}
        pixels = torch.zeros(1, 3, *frames, side, side)
        with LiveBytes() as live:
            encode(pixels)
    in_fp64 = 2 if config.precision == "fp64" else 1
    of_clip = f", {frames[0]} frames" if frames else ""
    return {f"activations of the autoencoder for {side} x {side} pixels{of_clip}": live.peak * in_fp64}
