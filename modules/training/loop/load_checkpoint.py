"""A run goes on from a backup: its state into the live objects, and what its user should know of the difference."""

from __future__ import annotations

from collections.abc import Mapping

from modules.checkpoint import StoredState
from modules.config import TrainConfig
from modules.config.schedules import changed_pace
from modules.data.loading.progress import Progress
from modules.families._family import Family
from modules.monitoring import Report
from modules.training.loop import run_info
from modules.training.state.checkpoint_state import restore_state
from modules.training.state.components import Components
from modules.training.state.early_stopping import EarlyStopping

# A backup has all settings of the program that wrote it; that of 0.1.0 did not know this one.
ADDED_AFTER_0_1_0 = "normalize_masked_area_loss"
SDXL = "stable_diffusion_xl"


def load_checkpoint(
    state: StoredState, components: Components, early_stopping: EarlyStopping, report: Report
) -> Progress:
    """Restore weights, optimizer, EMA and early stopping; returns the backup's position, in the data as it is now."""
    restore_state(state, components)
    position = state.position
    progress = components.data.order.progress(position.samples_seen)
    if all(state.config.get(name) == getattr(components.config, name) for name in run_info.LENGTHS):
        before = position.total_steps or components.total_steps
        components.pace = changed_pace(position.pace, progress.step, before, components.total_steps)
    if not early_stopping.restore(position, components.config, state.config):
        report.warning(
            "early_stopping_metric or its mode have changed since the backup: the best validation is sought anew."
        )
    if differences := legacy_differences(components.config, state.config, components.family):
        report.warning(differences)
    run_info.report_resume(state, components, progress, report)
    return progress


def legacy_differences(config: TrainConfig, saved: Mapping[str, object], family: Family) -> str:
    """A warning if the backup with the config `saved` is of 0.1.0 and training goes on otherwise; else empty."""
    changes = [] if ADDED_AFTER_0_1_0 in saved else _changes(config, family)
    if not changes:
        return ""
    return (
        f"This run was started with Tandem 0.1.0 and goes on otherwise than it would have there: {'; '.join(changes)}. "
        "See CHANGELOG.md."
    )


def _changes(config: TrainConfig, family: Family) -> list[str]:
    concepts = [concept for concept in config.concepts if concept.enabled]
    found = []
    if weights := sorted({concept.loss_weight for concept in concepts} - {1.0}):
        given = ", ".join(f"{weight:g}" for weight in weights)
        found.append(f"loss_weight ({given}) multiplies the gradient, also where all samples of a step have the same")
    is_guessed = config.family_options.get("prediction_type", "auto") == "auto"
    from_file = config.base_model is not None and config.base_model.lower().endswith(".safetensors")
    if is_guessed and from_file and family.modelspec().get("prediction_type") == "v":
        found.append(
            "the base model is recognised as one that predicts v (velocity), where 0.1.0 trained single files as "
            "epsilon; set family_options.prediction_type to epsilon to keep that"
        )
    if config.optimizer.name == "prodigy" and any(part.learning_rate is not None for part in config.parts):
        found.append("prodigy trains each part with its own learning_rate")
    if config.method == "lora" and config.lora_dropout > 0:
        found.append("lora_dropout draws its masks for each sample")
    if config.family == SDXL and any(concept.horizontal_flip for concept in concepts):
        found.append("the crop of a mirrored image is counted from the mirrored image's left edge")
    if config.family == SDXL and config.method == "embedding":
        found.append("the pooled embedding is taken at the end token instead of at the new one")
    return found
