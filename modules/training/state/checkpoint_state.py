"""Between a trainer's live objects and a backup's plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from torch import Tensor

from modules.checkpoint import (
    OptimizerState,
    Position,
    Shard,
    ShardRows,
    StoredState,
    StoredTensor,
    TrainingState,
    pack_optimizer,
    unpack_optimizer,
)
from modules.config import ResumeError, TrainConfig, effective_batch
from modules.data.loading.data_record import read_record
from modules.data.loading.progress import Progress
from modules.diffusion.finite import is_finite
from modules.distributed import Weights
from modules.training.state.components import Components
from modules.training.state.early_stopping import EarlyStopping
from modules.training.state.plan import InitialModel, Plan, plan_run


def _resumed_plan(config: TrainConfig, world_size: int, position: Position) -> Plan:
    """The plan a run started with, which holds on any number of ranks.

    Raises ResumeError if the config now asks for another effective batch.
    """
    if config.global_batch_size not in (None, position.global_batch_size):
        raise ResumeError(
            f"global_batch_size is {config.global_batch_size}, but the backup was made with an effective batch of "
            f"{position.global_batch_size}; leave it out or set it to {position.global_batch_size}, or start a new run."
        )
    factor = position.learning_rate / position.original_learning_rate
    asked = effective_batch(config, world_size)
    kept = (
        f"The effective batch stays {position.global_batch_size}, with which this run started; batch_size x "
        f"gradient_accumulation_steps x ranks is now {asked}."
    )
    explanation = "" if asked == position.global_batch_size else kept
    return Plan(position.global_batch_size, config.learning_rate, config.learning_rate * factor, explanation)


def plan_for(config: TrainConfig, world_size: int, resume: TrainingState | StoredState | None) -> Plan:
    """The plan of a new run, or of the run that `resume` continues."""
    if resume is None:
        return plan_run(config, world_size)
    base_model = resume.config.get("base_model")
    initial_model = InitialModel(None if base_model is None else str(base_model), resume.position.base)
    position, former = resume.position, None
    if isinstance(resume, StoredState) and resume.data is not None:
        former = read_record(resume.data, position.samples_seen, position.step, position.epoch)
    plan = _resumed_plan(config, world_size, position)
    return replace(plan, initial_model=initial_model, former=former, by_image=resume.data is not None)


def current_position(
    progress: Progress, components: Components, world_size: int, early_stopping: EarlyStopping
) -> Position:
    """The position to write into a backup."""
    plan = components.plan
    return Position(
        samples_seen=progress.samples_seen,
        step=progress.step,
        epoch=progress.epoch,
        epoch_size=progress.epoch_size,
        global_batch_size=progress.global_batch_size,
        world_size=world_size,
        original_learning_rate=plan.original_learning_rate,
        learning_rate=plan.learning_rate,
        best_validation=early_stopping.best,
        best_step=early_stopping.best_step,
        validations_without_improvement=early_stopping.wait_count,
        epochs=progress.epochs,
        total_steps=components.total_steps,
        pace=components.pace,
        machines=components.weights.machines,
        base=dict(plan.initial_model.digests),
    )


def capture_state(components: Components, position: Position) -> TrainingState:
    """The state as it is now, as full tensors; most are not copied, so write it before training continues."""
    weights, ema = components.weights, components.ema
    packed = pack_optimizer(components.guarded_step.optimizer, components.guarded_step.names)
    return TrainingState(
        position=position,
        weights=full_weights(weights),
        ema=None if ema is None else _whole(weights, ema.average),
        optimizer=replace(packed, tensors={k: weights.full_tensor(_of(k), t) for k, t in packed.tensors.items()}),
        scaler=dict(components.precision.scaler.state_dict()),
        outer=None if weights.outer is None else weights.outer.state(),
        data=components.data.record(position.samples_seen),
    )


def capture_part(components: Components, position: Position) -> TrainingState:
    """What this rank holds of the state as it is now, not copied; the first part has what every rank has as a whole."""
    weights, ema = components.weights, components.ema
    index = weights.shard_index
    packed = pack_optimizer(components.guarded_step.optimizer, components.guarded_step.names)
    own = {name: tensor.detach() for name, tensor in weights.local.items()}
    rows: dict[str, dict[str, ShardRows]] = {}

    def part(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        of = _of if kind == "optimizer" else str
        found = {name: weights.rows(of(name), tensor) for name, tensor in tensors.items()}
        rows[kind] = {name: ShardRows(*each) for name, each in found.items() if each is not None and len(tensors[name])}
        return {name: t for name, t in tensors.items() if name in rows[kind] or (index == 0 and found[name] is None)}

    return TrainingState(
        position=position,
        weights=part("weights", {**own, **_buffers(weights)}),
        ema=None if ema is None else part("ema", ema.average),
        optimizer=replace(packed, tensors=part("optimizer", packed.tensors)),
        scaler=dict(components.precision.scaler.state_dict()),
        data=components.data.record(position.samples_seen) if index == 0 else None,
        part=Shard(index, len(weights.shard_ranks), rows),
    )


def restore_state(state: TrainingState | StoredState, components: Components) -> None:
    """Load `state` into live objects, one tensor after the other; of a sharded model only the rows of this rank.

    Raises ResumeError if it belongs to another model or optimizer, or if its weights are not finite.
    """
    weights, ema, scaler = components.weights, components.ema, components.precision.scaler
    missing = weights.local.keys() - state.weights.keys()
    unknown = state.weights.keys() - weights.model.state_dict().keys()
    if missing or unknown:
        raise ResumeError(
            f"resume: the backup holds another model ({len(missing)} weights are missing, {len(unknown)} unknown, "
            f"such as {sorted(missing | unknown)[0]!r}); use the config that the run started with."
        )
    try:
        weights.load_full(state.weights)
        names = components.guarded_step.names
        settings = {"lr", *components.config.optimizer.keywords()}
        saved = state.optimizer
        own = OptimizerState(saved.class_name, _Own(weights, saved.tensors, _of), saved.values, saved.groups)
        unpack_optimizer(components.guarded_step.optimizer, own, names, settings)
        components.guarded_step.is_restored = True
        if ema is not None:
            ema.load(_Own(weights, state.weights if state.ema is None else state.ema))
        if weights.outer is not None:
            weights.outer.restart(_Own(weights, state.outer or {}))
    except (RuntimeError, KeyError, ValueError) as error:
        raise ResumeError(
            f"resume: the backup does not fit this config ({str(error).splitlines()[-1].strip()}); "
            "use the optimizer, the family options and, for a LoRA, the rank that the run started with."
        ) from error
    for kind, tensors in (("weights", weights.local), ("averaged weights (EMA)", {} if ema is None else ema.average)):
        if damaged := next((name for name, tensor in tensors.items() if not is_finite(tensor)), None):
            raise ResumeError(
                f"resume: the {kind} of the backup are not finite (NaN or infinity) in {damaged!r}.",
                "Go on from an earlier backup.",
            )
    if scaler.is_enabled() and state.scaler:
        scaler.load_state_dict(dict(state.scaler))


def full_weights(weights: Weights) -> dict[str, Tensor]:
    """The trained weights and the buffers as full tensors, most not copied."""
    return {**_whole(weights, weights.local), **_buffers(weights)}


def _buffers(weights: Weights) -> dict[str, Tensor]:
    names = {name for name, _ in weights.model.named_buffers()}
    return {name: buffer for name, buffer in weights.model.state_dict().items() if name in names}


def _whole(weights: Weights, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weights.full_tensor(name, tensor.detach()) for name, tensor in tensors.items()}


def _of(key: str) -> str:
    """The weight to which a tensor of the optimizer's state belongs."""
    return key.rsplit("/", 1)[0]


class _Own(Mapping[str, Tensor]):
    """This rank's part of full tensors, each of which is read when it is asked for."""

    def __init__(
        self,
        weights: Weights,
        full: Mapping[str, Tensor] | Mapping[str, StoredTensor],
        of: Callable[[str], str] = str,
    ) -> None:
        """`of` names the weight whose shape a tensor has."""
        self._weights, self._full, self._of = weights, full, of

    def __getitem__(self, name: str) -> Tensor:
        return self._weights.shard(self._of(name), self._full[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._full)

    def __len__(self) -> int:
        return len(self._full)
