"""A run from start to end, and how it ends: the last metrics, test, samples, model and backup."""

from __future__ import annotations

from modules.training.actions import BACKUP, SAMPLE, SAVE, evaluate, restore_best
from modules.training.loop import run_info
from modules.training.loop.generic_trainer import GenericTrainer
from modules.training.state.requests import Outcome


def train_to_the_end(trainer: GenericTrainer) -> Outcome:
    """Set up, train and finish. Raises TandemError if that is impossible."""
    trainer.setup()
    try:
        with trainer.components.backups.completing(alone=trainer.ranks.world_size == 1):
            outcome = trainer.train()
            finish(trainer, outcome)
    finally:
        trainer.components.data.loader.close()
    return outcome


def finish(trainer: GenericTrainer, outcome: Outcome) -> None:
    """Read the last metrics. A complete run is tested, sampled and saved; whatever was trained leaves a backup."""
    trainer.sync.settle({})
    if outcome.is_complete:
        if trainer.config.restore_best:
            _restore_best(trainer)
        if test := trainer.components.data.test:
            trainer.report.phase("test")
            evaluate(trainer.action_context(), "test", test)
        if trainer.config.sample_every:
            trainer.run_action(SAMPLE)
        trainer.run_action(SAVE)
    if trainer.best_position is None:
        _complete_backups(trainer)
        trainer.run_action(BACKUP)
    trainer.components.data.unreadable.exchange()
    trainer.requests.clear_stop()
    trainer.report.note(run_info.final_message(outcome, trainer.progress.step, trainer.folder))
    trainer.report.finished(outcome.reason, outcome.exit_code)


def _restore_best(trainer: GenericTrainer) -> None:
    """After a backup of the last weights, bring back those of the best validation, for all that follows."""
    _complete_backups(trainer)
    trainer.run_action(BACKUP)
    trainer.components, trainer.best_position = restore_best(
        trainer.components, trainer.early_stopping, trainer.ranks, trainer.report
    )
    if trainer.best_position is not None:
        trainer.actions.forget()


def _complete_backups(trainer: GenericTrainer) -> None:
    """Wait for the backups under way; if that of the last step has failed, all ranks may try it again."""
    failed_step = ""

    def wait() -> None:
        nonlocal failed_step
        trainer.report.phase("saving")
        failed_step = str(trainer.components.backups.complete() or "")

    trainer.ranks.run_on_rank0("backup", wait)
    if trainer.ranks.gather("failed backup", failed_step)[0] == str(trainer.progress.step):
        trainer.actions.forget(BACKUP)
