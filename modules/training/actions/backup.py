"""Backing up everything that a resume needs."""

from __future__ import annotations

from collections.abc import Generator

from modules.checkpoint import TrainingState
from modules.config.sections.optimizers import Custom
from modules.training.actions.action import Action, ActionContext
from modules.training.state.checkpoint_state import capture_part, capture_state


def _compute(context: ActionContext) -> Generator[TrainingState, None, None]:
    parts = context.components
    if isinstance(parts.config.optimizer, Custom) and (lost := parts.guarded_step.not_in_backups()):
        context.report.warning(
            f"The optimizer keeps {', '.join(lost)} outside of its state and groups, and no backup holds that: a "
            "resumed run does not go on exactly if its steps depend on it. self.state[parameter] and param_groups are "
            "saved."
        )
    if parts.weights.are_sharded:
        yield capture_part(parts, context.position)
    else:
        yield capture_state(parts, context.position)


def _write(context: ActionContext, state: TrainingState) -> None:
    """While training continues, returns once the state is copied."""
    parts = context.components
    write = parts.backups.submit if context.training_continues else parts.backups.write
    write(state, parts.config.model_dump_json(indent=2))


BACKUP = Action(
    "backup",
    every="backup_every",
    can_be_requested=True,
    compute=_compute,
    write=_write,
    phase="saving",
    written_by_all=lambda parts: parts.weights.are_sharded,
)
