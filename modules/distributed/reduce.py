"""Means over all ranks, exact for ranks with different numbers of samples."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import TypeAlias, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

# Numbers and tensors, or dictionaries of them, as deeply nested as you like.
Values: TypeAlias = "float | Tensor | Mapping[str, Values]"
ValuesT = TypeVar("ValuesT", bound=Values)


def reduce_mean(values: ValuesT, weight: float = 1.0) -> ValuesT:
    """The weighted mean of all ranks' `values`: a number, a tensor, or nested dictionaries of them, of the same form.

    `weight` is the number of samples that this rank's values are means of, so that the result is the mean over all
    samples, however they are spread: sum(weight * value) / sum(weight), computed in float64. A rank with weight 0 does
    not count, even if its values are NaN. Tensors keep their device, floating point ones their dtype; other tensors and
    integers become floating point. Without a process group, the values of this process.

    A collective: all ranks must call it equally often. Raises ValueError, on all ranks, if the forms differ, and if no
    rank has a weight above 0.
    """
    leaves = list(_leaves(values, ""))
    if not weight >= 0:
        raise ValueError(f"reduce_mean: the weight is {weight}; give the number of samples, 0 or more")
    flat = torch.cat([torch.tensor([weight], dtype=torch.float64), *(_flat(leaf) * weight for _, leaf in leaves)])
    if weight == 0:
        flat = torch.zeros_like(flat)
    if dist.is_initialized():
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else flat.device
        _check_same_form(leaves, device)
        flat = flat.to(device)
        dist.all_reduce(flat)
        flat = flat.cpu()
    if flat[0] == 0:
        raise ValueError("reduce_mean: no rank gave a weight above 0")
    means = flat[1:] / flat[0]
    return cast(ValuesT, _rebuild(values, iter(means.split([_size(leaf) for _, leaf in leaves]))))


def mean_over_ranks(value: float, weight: float = 1.0) -> float:
    """`reduce_mean` of one number."""
    return reduce_mean(float(value), weight)


def _leaves(values: Values, path: str) -> Iterator[tuple[str, float | Tensor]]:
    """The numbers and tensors by their path, in an order that does not depend on that of the keys."""
    if isinstance(values, Mapping):
        for key in sorted(values):
            yield from _leaves(values[key], f"{path}/{key}")
    elif isinstance(values, Tensor | int | float):
        yield path, values
    else:
        where = f" at {path[1:]!r}" if path else ""
        raise TypeError(f"reduce_mean: {type(values).__name__}{where}; give numbers, tensors, or dictionaries of them")


def _size(leaf: float | Tensor) -> int:
    return leaf.numel() if isinstance(leaf, Tensor) else 1


def _flat(leaf: float | Tensor) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf.detach().to("cpu", torch.float64).reshape(-1)
    return torch.tensor([leaf], dtype=torch.float64)


def _rebuild(values: Values, means: Iterator[Tensor]) -> Values:
    if isinstance(values, Mapping):
        rebuilt = {key: _rebuild(values[key], means) for key in sorted(values)}
        return {key: rebuilt[key] for key in values}
    mean = next(means)
    if not isinstance(values, Tensor):
        return float(mean)
    dtype = values.dtype if values.is_floating_point() else torch.get_default_dtype()
    return mean.reshape(values.shape).to(values.device, dtype)


def _check_same_form(leaves: list[tuple[str, float | Tensor]], device: torch.device) -> None:
    """Raise ValueError on every rank if any has other keys or shapes, with which the sums would be nonsense."""
    form = [(path, tuple(leaf.shape) if isinstance(leaf, Tensor) else ()) for path, leaf in leaves]
    own = torch.tensor([zlib.crc32(repr(form).encode()), len(form)], device=device)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    others = [rank for rank, form_of_rank in enumerate(every) if not torch.equal(form_of_rank, every[0])]
    if others:
        raise ValueError(
            f"reduce_mean: rank {others[0]} gave other keys or shapes than rank 0 (this rank gave "
            f"{', '.join(f'{path[1:]}{list(shape)}' for path, shape in form[:10]) or 'nothing'})"
        )
