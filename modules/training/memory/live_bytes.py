"""Counts the memory of tensors while operations make and drop them, real tensors or fake ones."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, UntypedStorage

from modules.torch_compat import TorchDispatchMode, tree_leaves


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
