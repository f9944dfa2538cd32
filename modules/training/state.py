"""Between a trainer's live objects and a backup's plain tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from modules.checkpoint import (
    Position,
    TrainingState,
    pack_optimizer,
    unpack_optimizer,
)
from modules.config import ResumeError, TrainConfig
from modules.data.progress import Progress
from modules.distributed import Weights
from modules.training.ema import Ema
from modules.training.plan import Beginning, Plan, plan_run
from modules.training.validation import Patience


def resumed_plan(config: TrainConfig, position: Position) -> Plan:
    """The plan a run began with, which holds on any number of ranks.

    Raises ResumeError where the config now asks for another effective batch.
    """
    if config.global_batch_size not in (None, position.global_batch_size):
        raise ResumeError(
            f"global_batch_size is {config.global_batch_size}, but the backup was made with an effective batch of "
            f"{position.global_batch_size}; leave it out or set it to {position.global_batch_size}, or begin a new run."
        )
    factor = position.learning_rate / position.original_learning_rate
    return Plan(position.global_batch_size, config.learning_rate, config.learning_rate * factor, "")


def plan_for(config: TrainConfig, world_size: int, resume: TrainingState | None) -> Plan:
    """The plan of a new run, or of the run that `resume` continues."""
    if resume is None:
        return plan_run(config, world_size)
    base_model = resume.config.get("base_model")
    beginning = Beginning(None if base_model is None else str(base_model), resume.position.base)
    return replace(resumed_plan(config, resume.position), beginning=beginning)


def position_of(progress: Progress, plan: Plan, world_size: int, patience: Patience) -> Position:
    """The position to write into a backup."""
    return Position(
        samples_seen=progress.samples_seen,
        step=progress.step,
        epoch=progress.epoch,
        epoch_size=progress.epoch_size,
        global_batch_size=progress.global_batch_size,
        world_size=world_size,
        original_learning_rate=plan.original_learning_rate,
        learning_rate=plan.learning_rate,
        best_validation_loss=patience.best,
        validations_without_improvement=patience.without_improvement,
        base=dict(plan.beginning.marks),
    )


def capture(
    position: Position,
    weights: Weights,
    ema: Ema | None,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> TrainingState:
    """Everything as it is now, whole, and not copied where it need not be: write it before the training goes on."""
    packed = pack_optimizer(optimizer, {id(own): name for name, own in weights.own.items()})
    buffers = {name for name, _ in weights.model.named_buffers()}
    kept = {name: buffer for name, buffer in weights.model.state_dict().items() if name in buffers}
    return TrainingState(
        position=position,
        weights={**_whole(weights, weights.own), **kept},
        ema=None if ema is None else _whole(weights, ema.average),
        optimizer=replace(packed, tensors={key: weights.whole(_of(key), own) for key, own in packed.tensors.items()}),
        scaler=dict(scaler.state_dict()),
    )


def restore(
    state: TrainingState,
    weights: Weights,
    ema: Ema | None,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    config: TrainConfig,
) -> None:
    """Put `state` into live objects. Raises ResumeError where it belongs to another model or optimizer."""
    missing = weights.own.keys() - state.weights.keys()
    unknown = state.weights.keys() - weights.model.state_dict().keys()
    if missing or unknown:
        raise ResumeError(
            f"resume: the backup holds another model ({len(missing)} weights are missing, {len(unknown)} unknown, "
            f"such as {sorted(missing | unknown)[0]!r}); use the config that the run began with."
        )
    try:
        weights.load(state.weights)
        kept = {key: weights.part(_of(key), whole) for key, whole in state.optimizer.tensors.items()}
        names = {id(own): name for name, own in weights.own.items()}
        settings = {"lr", *config.optimizer.arguments()}
        unpack_optimizer(optimizer, replace(state.optimizer, tensors=kept), names, settings)
    except (RuntimeError, KeyError, ValueError) as error:
        raise ResumeError(
            f"resume: the backup does not fit this config ({str(error).splitlines()[-1].strip()}); "
            "use the optimizer, the family options and, for a LoRA, the rank that the run began with."
        ) from error
    if ema is not None:
        average = state.weights if state.ema is None else state.ema
        ema.load({name: weights.part(name, average[name]) for name in ema.average})
    if scaler.is_enabled() and state.scaler:
        scaler.load_state_dict(dict(state.scaler))


def _whole(weights: Weights, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weights.whole(name, tensor.detach()) for name, tensor in tensors.items()}


def _of(key: str) -> str:
    """The weight to which a tensor of the optimizer's state belongs."""
    return key.rsplit("/", 1)[0]
