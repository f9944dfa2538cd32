"""Keeping the weights of the best validation, and bringing them back at the end."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor

from modules.checkpoint import BEST_FILES, BestValidation, BestWeights, Position, best_sha256, read_best
from modules.config import ResumeError
from modules.distributed import RankGroup
from modules.monitoring import Report
from modules.training.actions.action import Action, ActionContext, inference_model
from modules.training.backup.checkpoint_sync import local_copy
from modules.training.backup.find_backup import verifying_rank
from modules.training.state.checkpoint_state import full_weights
from modules.training.state.components import Components
from modules.training.state.early_stopping import EarlyStopping, keeps_best

_Best: TypeAlias = "tuple[BestValidation, Mapping[str, Tensor]]"


def _compute(context: ActionContext) -> Generator[Mapping[str, Tensor], None, None]:
    """The weights that the validation of this step has measured: the averaged ones, if EMA is on."""
    with inference_model(context.components):
        yield full_weights(context.components.weights)


def _is_best(context: ActionContext) -> bool:
    """Whether the validation of this step was the best so far, and its weights are kept."""
    return context.early_stopping.best_step == context.position.step and keeps_best(context.components.config)


def _write(context: ActionContext, weights: Mapping[str, Tensor]) -> None:
    parts, position = context.components, context.position
    assert position.best_validation is not None
    best = BestValidation(parts.config.early_stopping_metric, position.best_validation, position)
    folder = BestWeights(parts.folder.best_dir).write(weights, best, parts.backups.best_steps())
    context.report.note(f"Step {position.step}: the best {best.metric} so far; its weights are kept in {folder}.")


KEEP_BEST = Action(
    "best",
    every=None,
    can_be_requested=False,
    compute=_compute,
    write=_write,
    phase="saving",
    is_needed=_is_best,
    follows="validate",
)


def restore_best(
    components: Components, stopping: EarlyStopping, ranks: RankGroup, report: Report
) -> tuple[Components, Position | None]:
    """Load the weights of the best validation, on every rank; then `components` has no EMA, which they are.

    Also returns the position of that validation. If rank 0 does not have them, everything stays as it is, with a
    warning and None. Raises ResumeError if they are those of another model.
    """
    found = _read(components, stopping, ranks)
    if isinstance(found, str):
        report.warning(f"restore_best: {found} The last weights are tested and saved instead.")
        return components, None
    best, weights = found
    try:
        components.weights.load_full(weights)
    except (KeyError, ValueError) as error:
        raise ResumeError(
            f"restore_best: the weights in {components.folder.best_dir} are those of another model ({error}).",
            "Set restore_best to false to save the last weights.",
        ) from None
    report.note(
        f"restore_best: the weights of step {best.position.step}, whose {best.metric} of {best.value:.5g} is the best, "
        "are tested and saved. The last backup holds the last weights."
    )
    return replace(components, ema=None, schedule_free=None), best.position


def _read(components: Components, stopping: EarlyStopping, ranks: RankGroup) -> _Best | str:
    """The best weights that rank 0 has, on every rank; or why it has none."""
    step, folder, config, own = stopping.best_step, components.folder, components.config, None
    fault = (
        f"no validation with a finite {config.early_stopping_metric} has taken place "
        f"(validate_every is {config.validate_every})."
    )
    path = None if step is None else BestWeights(folder.best_dir).find(step)
    if step is not None:
        fault = f"the weights of step {step}, whose validation was the best, are not in {folder.best_dir}."
    verifier, digest = verifying_rank(folder, ranks), ""
    if path is not None:
        try:
            own = read_best(path) if ranks.rank == verifier else None
            digest = best_sha256(path)
        except ResumeError as error:
            fault = str(error)
    verified = ranks.gather("best weights verified", digest if ranks.rank == verifier else "")[verifier]
    digests = ranks.gather("best weights", digest if digest == verified else "")
    fault = ranks.gather("no best weights", fault)[0]
    if not digests[0]:
        return fault
    has_it = [digest == digests[0] for digest in digests]
    with local_copy(path, has_it, digests[0], BEST_FILES, "best weights", folder, ranks) as copy:
        if own is None or not has_it[ranks.rank]:
            own = read_best(copy, is_verified=has_it[ranks.rank])
    return own
