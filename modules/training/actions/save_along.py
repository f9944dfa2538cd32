"""Saving the model of a step along the way, as it is saved at the end, and removing older ones."""

from __future__ import annotations

import errno

from modules.checkpoint import remove_model
from modules.files import is_link
from modules.run.folder.saved_models import outdated_models
from modules.training.actions.action import Action, ActionContext
from modules.training.actions.save import ModelExport, export_model, write_model


def _write(context: ActionContext, model: ModelExport) -> None:
    config, folder, step = context.components.config, context.components.folder, context.position.step
    if is_link(folder.saves_dir):
        raise OSError(errno.ELOOP, "is a link to another folder", str(folder.saves_dir))
    written = write_model(model, config, folder.saved_dir(step), folder.saved_file(step))
    context.report.saved_model(written[0], step)
    context.report.note(f"Step {step}: the model of this step is saved in {' and '.join(map(str, written))}.")
    for old in outdated_models(folder, config.saves_kept, step):
        try:
            remove_model(old.folder)
            old.file.unlink(missing_ok=True)
        except OSError as error:
            context.report.warning(f"The model of step {old.step} could not be removed: {error}. Training continues.")


def _is_needed(context: ActionContext) -> bool:
    """The model of the last step is the finished one, unless the best weights take its place."""
    return context.position.step < context.components.total_steps or context.components.config.restore_best


SAVE_ALONG = Action(
    "model",
    every="save_every",
    can_be_requested=False,
    compute=export_model,
    write=_write,
    phase="saving",
    is_optional=True,
    is_needed=_is_needed,
)
