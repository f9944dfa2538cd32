"""Validation loss on fixed noise and timesteps."""

from __future__ import annotations

from collections.abc import Generator

import torch

from modules.data.loading.order import StepSamples
from modules.training.actions.action import Action, ActionContext, inference_model
from modules.training.setup import Components


def _compute(context: ActionContext) -> Generator[None, None, None]:
    """All ranks get the same loss, so early stopping makes the same decision on each of them."""
    if context.components.data.validation:
        context.early_stopping.update(evaluate(context, "validation", context.components.data.validation))
    yield from ()


def evaluate(context: ActionContext, name: str, steps: list[StepSamples]) -> float:
    """The weighted mean loss over the samples of `steps`, reduced over all ranks, which is also reported as `name`."""
    context.report.phase(name)
    with inference_model(context.components):
        loss_sum, weight_sum = _local_sums(context.components, steps)
    loss = context.ranks.all_reduce(loss_sum) / context.ranks.all_reduce(weight_sum)
    context.report.validation(name, loss, context.position.step)
    return loss


@torch.no_grad()
def _local_sums(components: Components, steps: list[StepSamples]) -> tuple[float, float]:
    """This rank's weighted sum of losses and sum of weights.

    A sample keeps its noise and timestep from one validation to the next, so the losses can be compared.
    """
    loss_sum, weight_sum = 0.0, 0.0
    family, precision = components.family, components.precision
    training = family.model.training
    family.model.eval()
    for batch in components.data.loader.validation(steps):
        batch = batch.to(components.device, precision.weights)
        with precision.autocast():
            losses = family.loss(batch)
        loss_sum += float((losses * batch.weights).sum())
        weight_sum += float(batch.weights.sum())
    family.model.train(training)
    return loss_sum, weight_sum


VALIDATE = Action(
    "validate",
    every="validate_every",
    can_be_requested=False,
    compute=_compute,
    write=None,
)
