"""Validation loss on fixed noise and timesteps."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import TypeAlias

import torch
from safetensors.torch import load, save
from torch import Tensor

from modules.data.batch import Batch
from modules.data.loading.order import StepSamples
from modules.distributed import HostCopy
from modules.families._family import Metrics
from modules.training.actions.action import (
    Action,
    ActionContext,
    buffers_of_rank0,
    inference_model,
    leave_if_sharded,
)
from modules.training.state.early_stopping import LOSS, value_of_rank0
from modules.training.step.memory_guard import is_out_of_memory, release_memory

Counts: TypeAlias = "dict[str, Tensor]"  # of `Family.evaluate`


def _compute(context: ActionContext) -> Generator[None, None, None]:
    """Rank 0's metric is the one that counts, so early stopping makes the same decision on each rank."""
    values = evaluate(context, "validation", context.components.data.validation)
    if values is not None:
        value = value_of_rank0(context.ranks, values, context.components.config.early_stopping_metric)
        context.early_stopping.update(value, context.position.step)
    yield from ()


def evaluate(context: ActionContext, name: str, steps: list[StepSamples]) -> dict[str, float] | None:
    """The mean `loss` over the samples of `steps` on all ranks, weighted as in training; also reported as `name`, with
    its standard deviation over the samples.

    On rank 0, with the family's metrics. None, and a warning, if a single sample does not fit into a rank's memory.
    """
    counts: Counts = {}
    with inference_model(context.components), buffers_of_rank0(context):
        own_sums = _local_sums(context, steps, counts)
    own_samples = own_sums[-1]
    loss, squares, samples = map(context.ranks.all_reduce, own_sums)
    if math.isnan(samples):
        failed = context.ranks.gather(f"{name} out of memory", "failed" if math.isnan(own_samples) else "")
        ranks = ", ".join(str(rank) for rank, text in enumerate(failed) if text)
        context.report.warning(
            f"Step {context.position.step}: out of memory with a single sample in the {name} on rank {ranks}, so it "
            "is left out and training continues. Try precision bf16 or a lower resolution."
        )
        return None
    if samples == 0:
        context.report.warning(f"Step {context.position.step}: no image of the {name} can be read, so it is left out.")
        return None
    mean = loss / samples
    deviation = math.sqrt(max(0.0, squares / samples - mean**2))
    return {**_report(context, name, mean, deviation, counts), LOSS: mean}


def _report(context: ActionContext, name: str, loss: float, deviation: float, counts: Counts) -> Mapping[str, float]:
    """Add the counts of all ranks on rank 0, and report what they say, which is returned; its images are saved as
    step-NNNNNN-SET-TITLE.png among the samples."""
    has_counts = context.ranks.all_reduce(float(len(counts))) > 0  # a rank without samples has none itself
    own = save({key: count.cpu().contiguous() for key, count in counts.items()})
    total: Counts = {}
    for data in context.ranks.gather_bytes(f"{name} counts", own) if has_counts else []:
        _add(total, load(data))
    metrics = context.components.family.summarize(total) if total else Metrics({})
    context.report.validation(
        name, loss, deviation, context.position.step, metrics.values, metrics.by_class, metrics.confusion
    )
    step, folder = context.position.step, context.components.folder.samples_dir
    for title, draw in metrics.images.items():
        file = folder / f"step-{step:06d}-{name}-{title.replace(' ', '-')}.png"
        context.report.drawing(file, draw, f"{title} ({name})", step)
    return metrics.values


def _add(total: Counts, more: Mapping[str, Tensor]) -> None:
    for name, count in more.items():
        total[name] = total[name] + count if name in total else count


@torch.no_grad()
def _local_sums(context: ActionContext, steps: list[StepSamples], counts: Counts) -> tuple[float, float, float]:
    """This rank's sums of weighted losses and of their squares, and number of samples, which is NaN if not even one
    fits into memory; what the family counts is added to `counts`.

    They stay on the device until the end, so that it never waits for the host. A sample keeps its noise and timestep
    from one validation to the next, so the losses can be compared.
    """
    components = context.components
    sums = torch.zeros(2, dtype=torch.float64, device=components.device)
    count = torch.zeros((), dtype=torch.float64, device=components.device)
    samples = components.config.validation_batch_size or components.config.batch_size
    family = components.family
    training = family.model.training
    family.model.eval()
    for batch in components.data.loader.validation(steps):
        components.data.unreadable.add(batch.problems)
        batch = batch.to(components.device, components.precision.weights)
        part = None
        while samples and part is None:
            part = _loss_sums(context, batch, samples, counts)
            samples = samples // 2 if part is None else samples
        sums += 0.0 if part is None else part
        count += (batch.weights > 0).sum() if samples else math.nan  # padding has the weight 0
    family.model.train(training)
    losses, squares, number = HostCopy(*sums, count).read()
    return losses, squares, number


def _loss_sums(context: ActionContext, batch: Batch, samples: int, counts: Counts) -> Tensor | None:
    """The sums fp64 [2] of the batch's weighted losses and of their squares, `samples` at a time; None if memory ran
    out."""
    components = context.components
    try:
        total, counted = torch.zeros(2, dtype=torch.float64, device=components.device), dict[str, Tensor]()
        for piece in batch.split(samples):
            with components.precision.autocast():
                evaluation = components.family.evaluate(piece)
            losses = evaluation.losses * piece.weights
            total += torch.stack([losses.sum(), losses.square().sum()])
            _add(counted, evaluation.counts)
        _add(counts, counted)
        return total
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        leave_if_sharded(context, error, "the validation")
    release_memory()  # outside the handler: the error keeps the tensors of the failed attempt alive
    return None


VALIDATE = Action(
    "validate",
    every="validate_every",
    can_be_requested=False,
    compute=_compute,
    write=None,
    phase="validation",
    is_needed=lambda context: bool(context.components.data.validation),
)
