"""Finds out before the first step how many samples fit into memory, without changing anything that is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from modules.config import AUTO, TrainConfig
from modules.data.batch import Batch, MicroBatch
from modules.data.loading.shares import share_counts
from modules.distributed import RankGroup
from modules.monitoring import Report
from modules.training.data.dataset import Dataset
from modules.training.optim.optimizers import OwnOptimizer, build_optimizer
from modules.training.state.components import Components
from modules.training.step.dropout import PerSampleDropout
from modules.training.step.memory_guard import MemoryGuard, OutOfMemory, is_out_of_memory, release_memory

GIB = 2**30


def wants_probe(config: TrainConfig, device: torch.device) -> bool:
    """Whether the config asks for the probe on this device: "auto" means on all but a CPU."""
    return config.probe_memory == "on" or (config.probe_memory == "auto" and device.type != "cpu")


def limit_to_memory(
    components: Components,
    model: nn.Module,
    dropout: PerSampleDropout,
    ranks: RankGroup,
    memory: MemoryGuard,
    report: Report,
) -> None:
    """Let `memory` take as many samples of the largest images at once as fit on every rank, or with unequal shares on
    this one; called by all ranks.

    `model` is the network without a wrapper that synchronises. Raises OutOfMemory on all ranks if not even one sample
    fits on one of them.
    """
    most = _most_samples(components, ranks.rank, ranks.world_size)
    largest, size = _largest_micro_batch(components, most)
    of_size = f" of {size}" if size else ""
    batch = components.data.loader.load(largest)
    fitting = _fitting_samples(components, model, dropout, batch, adds_up=_adds_up(components, most))
    by_rank = [tuple(map(int, text.split())) for text in ranks.gather("memory probe", f"{fitting} {len(batch)}")]
    smallest = min(fits for fits, _ in by_rank)
    rank = next(number for number, (fits, _) in enumerate(by_rank) if fits == smallest)
    if smallest == 0:
        raise OutOfMemory(
            f"Out of memory on rank {rank} with a single sample{of_size}, before the first step.",
            "Try gradient_checkpointing, a lower resolution, precision bf16, an optimizer with less state, or a "
            "smaller model.",
        )
    peak = ""
    if components.device.type == "cuda":
        total = torch.cuda.get_device_properties(components.device).total_memory
        peak = f" (peak {torch.cuda.max_memory_allocated(components.device) / GIB:.1f} of {total / GIB:.1f} GiB)"
    if all(fits == wanted for fits, wanted in by_rank):
        report.note(f"Memory probe: {fitting} {f'x {size}' if size else 'samples'} fit at once{peak}.")
        return
    if not memory.together:
        if fitting < len(batch):
            memory.limit(fitting)
        fewer = [
            f"{fits} instead of {wanted} samples on rank {n}"
            for n, (fits, wanted) in enumerate(by_rank)
            if fits < wanted
        ]
        report.warning(
            f"Memory probe: micro-batches hold at most {', '.join(fewer)}, because no more{of_size} fit into the "
            "memory there. The effective batch and the ranks' shares of it stay."
        )
        return
    memory.limit(smallest)
    where = f" of rank {rank}" if ranks.world_size > 1 else ""
    report.warning(
        f"Memory probe: micro-batches hold at most {smallest} instead of {len(batch)} samples, because no "
        f"more{of_size} fit into the memory{where}{peak}. The effective batch stays "
        f"{components.plan.global_batch_size}; set batch_size to {smallest} to start like this."
    )


def _most_samples(components: Components, rank: int, world_size: int) -> int:
    """The most samples of a step that this rank may get; with shares that follow its speed all of them."""
    samples, table = components.plan.global_batch_size, components.data.shares.first
    if components.config.balance == AUTO:
        return samples
    return share_counts(samples, world_size, table)[rank] if table else -(-samples // world_size)


def buckets_of(data: Dataset, rows: NDArray[np.int64]) -> NDArray[np.int32]:
    """int32 [rows]: the bucket of each row; 0 for samples that are no images."""
    return np.zeros(len(rows), dtype=np.int32) if data.index is None else data.index.bucket[rows]


def pixels_of_buckets(data: Dataset) -> NDArray[np.int64]:
    """int64 [buckets]: pixels of an image or clip; 1 for other samples, which all count as equally large."""
    if data.index is None:
        return np.ones(1, dtype=np.int64)
    return np.array([bucket.pixels for bucket in data.index.buckets], dtype=np.int64)


def _largest_micro_batch(components: Components, most: int) -> tuple[MicroBatch, str]:
    """The micro-batch with the most pixels of a rank that gets up to `most` samples of a step, and their size; empty if
    unknown."""
    data, config = components.data, components.config
    rows = data.order.epoch(0)
    pixels, buckets = pixels_of_buckets(data), buckets_of(data, rows)
    counts = np.minimum(np.bincount(buckets, minlength=len(pixels)), min(config.batch_size, max(1, most)))
    chosen = int(np.argmax(counts * pixels))
    taken = rows[buckets == chosen][: counts[chosen]]
    size = "" if data.index is None else f"{data.index.buckets[chosen]} pixels"
    return micro_batch_of(taken.tolist()), size


def micro_batch_of(rows: Sequence[int]) -> MicroBatch:
    """A micro-batch that is no part of a step."""
    count = len(rows)
    return MicroBatch(tuple(rows), tuple(range(count)), (1.0,) * count, is_last_of_step=False, step_samples=count)


def _fitting_samples(
    components: Components, model: nn.Module, dropout: PerSampleDropout, batch: Batch, *, adds_up: bool
) -> int:
    """The largest of the batch's size, half of it, a quarter and so on that fits; 0 if not even one sample does."""
    device, dtype = components.device, components.precision.weights
    samples = len(batch)
    with unchanged(components, model):
        while samples:
            part = next(batch.split(samples))
            if fits(components, dropout, partial(part.to, device, dtype), adds_up=adds_up):
                return samples
            components.weights.clear_gradients()
            release_memory()
            samples //= 2
    return 0


def _adds_up(components: Components, most: int) -> bool:
    """Whether a rank that gets up to `most` samples of a step may compute more than one micro-batch, with the gradients
    of the first in memory."""
    data = components.data
    buckets = np.unique(buckets_of(data, data.order.epoch(0)))
    return len(buckets) > 1 or most > components.config.batch_size


def fits(components: Components, dropout: PerSampleDropout, make_batch: Callable[[], Batch], *, adds_up: bool) -> bool:
    """Whether forward and backward of a batch fit, next to what the optimizer will take; inside `unchanged`.

    `make_batch` brings it to the device. `adds_up`: next to the gradients of another micro-batch of the step, too.
    """
    try:
        own = components.family.own_optimizer(components.config)
        reserved = optimizer_state_like(components.guarded_step.optimizer, components.config, own)
        if adds_up:
            for weight in components.weights.model.parameters():
                if weight.requires_grad and weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
        batch = make_batch()
        with dropout.of(batch.seeds, 0):
            with components.precision.autocast():
                losses = components.family.loss(batch)
            with nullcontext() if components.fused_backward is None else components.fused_backward.discarding():
                (losses.sum() * 0).backward()
        del reserved
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


@contextmanager
def unchanged(components: Components, model: nn.Module) -> Iterator[None]:
    """Inside the block the family holds `model`. After it gradients, buffers and random numbers are as before."""
    family = components.family
    wrapped, family.model = family.model, model
    buffers = [(buffer, buffer.clone()) for buffer in components.weights.model.buffers()]
    devices = [components.device] if components.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        family.model = wrapped
        components.weights.clear_gradients()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        release_memory()


def optimizer_state_like(
    optimizer: torch.optim.Optimizer, config: TrainConfig, own: OwnOptimizer | None = None
) -> list[Tensor]:
    """As much memory as the first step of `optimizer` will take for its state; none if it has its state already.

    What a weight needs is seen from a step of another optimizer on a tensor like it, once for each shape.
    """
    if optimizer.state:
        return []
    needed: dict[object, list[tuple[torch.Size, torch.dtype, torch.device]]] = {}
    reserved = []
    for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
        key = (weight.shape, weight.dtype, weight.stride())
        if key not in needed:
            twin = nn.Parameter(torch.ones_like(weight))
            twin.grad = torch.ones_like(weight)
            other = build_optimizer([twin], config, own)
            other.step()
            state = [value for value in other.state[twin].values() if isinstance(value, Tensor)]
            needed[key] = [(value.shape, value.dtype, value.device) for value in state]
        reserved += [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in needed[key]]
    return reserved
