"""Which actions are due after a step, and running them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import partial

from modules.config import TrainConfig
from modules.data.loading.progress import Progress
from modules.training.actions.action import Action, ActionContext, left_out
from modules.training.backup.writer import not_written
from modules.training.step.triggers import is_due


def due_actions(
    actions: Iterable[Action],
    config: TrainConfig,
    requested: Mapping[str, float],
    previous: Progress,
    progress: Progress,
) -> list[Action]:
    """The actions to run after the step from `previous` to `progress`, in their order, the same on all ranks."""
    found: list[Action] = []
    for action in actions:
        follows = any(other.name == action.follows for other in found)
        if follows or requested.get(action.name) or is_due(action.interval(config), previous, progress):
            found.append(action)
    return found


class ActionRunner:
    """Runs actions, each at most once per step, unless what is asked for may be something else."""

    def __init__(self, *, computed_by_all: bool) -> None:
        """`computed_by_all`: all ranks take part in whatever the model computes, and in gathering its weights."""
        self._computed_by_all = computed_by_all
        self._last_run: dict[str, int] = {}  # action -> the step that it last ran at

    def forget(self, action: Action | None = None) -> None:
        """All actions may run again at the same step, because the weights are others than before, or only `action`."""
        self._last_run = {} if action is None else {n: step for n, step in self._last_run.items() if n != action.name}

    def run(self, action: Action, context: ActionContext, step: int) -> None:
        """Run an action after `step`. Raises OSError if a file cannot be written, unless training goes on."""
        is_done = self._last_run.get(action.name) == step and not action.has_content
        if is_done or not action.is_needed(context):
            return
        self._last_run[action.name] = step
        context.report.phase(action.phase)
        with closing(action.compute(context)) as computing:
            if action.write is None:
                list(computing)
                return
            by_all = self._computed_by_all or action.computed_by_all(context.components.config)
            results = list(computing) if by_all and context.ranks.world_size > 1 else computing
            write_all = partial(_write, action, context, results)
            if action.written_by_all(context.components):
                write_all()
            else:
                context.ranks.run_on_rank0(action.name, write_all)


def _write(action: Action, context: ActionContext, results: Iterable[object]) -> None:
    """On rank 0, or on all ranks: compute what is not computed yet, and write it."""
    assert action.write is not None
    tolerated = Exception if action.is_optional else OSError if context.training_continues else ()
    try:
        for result in results:
            action.write(context, result)
    except tolerated as error:
        if isinstance(error, OSError):
            context.report.warning(not_written(action.name, context.position.step, error))
        else:
            context.report.warning(left_out(context, error, f"the {action.name.replace('_', ' ')}"))
