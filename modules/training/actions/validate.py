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
    """The mean loss over the samples of `steps` on all ranks, weighted as in training; also reported as `name`."""
    context.report.phase(name)
    with inference_model(context.components):
        loss_sum = _local_sum(context.components, steps)
    loss = context.ranks.all_reduce(loss_sum) / sum(len(step) for step in steps)
    context.report.validation(name, loss, context.position.step)
    return loss


@torch.no_grad()
def _local_sum(components: Components, steps: list[StepSamples]) -> float:
    """This rank's sum of losses, each times its weight, which is 0 for padding.

    A sample keeps its noise and timestep from one validation to the next, so the losses can be compared.
    """
    loss_sum = 0.0
    family, precision = components.family, components.precision
    training = family.model.training
    family.model.eval()
    for batch in components.data.loader.validation(steps):
        batch = batch.to(components.device, precision.weights)
        with precision.autocast():
            losses = family.loss(batch)
        loss_sum += float((losses * batch.weights).sum())
    family.model.train(training)
    return loss_sum


VALIDATE = Action(
    "validate",
    every="validate_every",
    can_be_requested=False,
    compute=_compute,
    write=None,
)
