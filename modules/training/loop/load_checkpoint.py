"""A run goes on from a backup: its state into the live objects, and what its user should know of the difference."""

from __future__ import annotations

from dataclasses import replace

from modules.checkpoint import StoredState
from modules.data.loading.progress import Progress
from modules.monitoring import Report
from modules.training.loop import run_info
from modules.training.loop.legacy_runs import legacy_differences
from modules.training.state.checkpoint_state import restore_state
from modules.training.state.components import Components
from modules.training.state.early_stopping import EarlyStopping


def load_checkpoint(
    state: StoredState, components: Components, early_stopping: EarlyStopping, start: Progress, report: Report
) -> Progress:
    """Restore weights, optimizer, EMA and early stopping; returns the backup's position, in the data as it is now."""
    restore_state(state, components)
    progress = replace(start, samples_seen=state.position.samples_seen)
    if not early_stopping.restore(state.position, components.config, state.config):
        report.warning(
            "early_stopping_metric or its mode have changed since the backup: the best validation is sought anew."
        )
    if differences := legacy_differences(components.config, state.config, components.family):
        report.warning(differences)
    run_info.report_resume(state, components, progress, report)
    return progress
