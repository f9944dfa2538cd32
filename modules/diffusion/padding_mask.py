"""Attention to sequences of unequal lengths without a mask, which keeps flash attention out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final, Self

import torch
from torch import Tensor

from modules.torch_compat import DisableTorchFunctionSubclass

# What models make a mask for attention of: the result has the same lengths.
_KEEP_LENGTHS: Final = (Tensor.__getitem__, Tensor.view, Tensor.bool, torch.cat)


class PaddingMask(Tensor):
    """bool [B, T] or [B, 1, 1, T]: which keys are no padding, with lengths that the host knows.

    Of the first `padded` keys sample b has `lengths[b]`, then padding; all keys behind them are seen.
    scaled_dot_product_attention takes it as its mask (as those of torch.nn.attention.bias): it is computed for each run
    of samples of one length, without padded keys and so by any kernel. Flash attention takes 12 ms for 4 samples of
    24 heads of 4608 tokens and 4 x 3.8 ms one by one; the kernel that takes a mask 25 ms (docs/gpu_results.md).
    """

    lengths: tuple[int, ...]
    padded: int

    @classmethod
    def of(cls, lengths: Sequence[int], padded: int, device: torch.device) -> Self:
        """[B, `padded`]."""
        places = torch.arange(padded, device=device)
        # one by one, because a GPU would wait for a copy of all lengths
        return cls.marked(torch.stack([places < length for length in lengths]), lengths, padded)

    @classmethod
    def marked(cls, mask: Tensor, lengths: Sequence[int], padded: int) -> Self:
        """A mask of these lengths."""
        found = mask.as_subclass(cls)
        found.lengths, found.padded = tuple(lengths), padded
        return found

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        if func.__name__ == "scaled_dot_product_attention":
            return _attention(func, args, given)
        if func is Tensor.mul:
            return args[0]  # some models mask queries, too: what padding sees is seen by none
        with DisableTorchFunctionSubclass():
            result = func(*args, **given)
        if func not in _KEEP_LENGTHS:
            return result
        (first,) = [each for each in (args[0] if func is torch.cat else args) if isinstance(each, cls)]
        return cls.marked(result, first.lengths, first.padded)


@torch.compiler.disable(reason="compiled code would be one for all lengths")  # type: ignore[untyped-decorator]
def _attention(attention: Callable[..., Tensor], args: Sequence[Any], given: dict[str, Any]) -> Tensor:
    """[B, H, S, D], for each run of samples of one length."""
    given |= dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False))
    query, key, value, mask = (given.pop(name) for name in ("query", "key", "value", "attn_mask"))
    if len(query) != len(mask.lengths):
        return attention(query, key, value, mask.as_subclass(Tensor), **given)
    results = []
    for length, run in groupby(range(len(query)), lambda sample: mask.lengths[sample]):
        first, *_ = samples = tuple(run)
        rows = slice(first, first + len(samples))
        seen = (_seen(each[rows], length, mask.padded) for each in (key, value))
        results.append(attention(query[rows], *seen, **given).transpose(1, 2))
    return torch.cat(results).transpose(1, 2)  # in the order of memory that kernels write and models read


def _seen(x: Tensor, length: int, padded: int) -> Tensor:
    """[B, H, S, D] without padding."""
    if length == padded:
        return x
    return x[..., :length, :] if padded == x.shape[-2] else torch.cat([x[..., :length, :], x[..., padded:, :]], dim=-2)
