"""A sentence on what the base model predicts, and what says so: for `--dry_run` and the start of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.diffusion import base_model_files
from modules.diffusion.components import check_base_model, read_schedule, required_hub_model
from modules.diffusion.hub.model import HubModel
from modules.diffusion.options import DiffusionOptions
from modules.diffusion.resolve_options import resolve_prediction_type, resolve_zero_terminal_snr
from modules.facts import FamilyFacts
from modules.files import FileFault, read_json


def schedule_note(base_model: str | None, options: DiffusionOptions, facts: FamilyFacts) -> str:
    """Empty if it cannot be said yet, because the model is to be downloaded. Reads no weights of a model.

    Raises ConfigError if the base model does not exist or is incomplete, or what it predicts is not supported.
    """
    base = base_model_files.find_base_model(base_model, facts.pipelines, facts.components)
    if isinstance(base, Path):
        check_base_model(base, options.layout, facts)
    scheduler, source = _scheduler(base, options.layout, facts)
    if not scheduler:
        return ""
    prediction = resolve_prediction_type(scheduler, options)
    zero_snr = resolve_zero_terminal_snr(scheduler, options)
    if options.prediction_type != "auto":
        source = "family_options.prediction_type"
    name = "v (velocity)" if prediction == "v_prediction" else "epsilon (the noise)"
    return f"The base model predicts {name}{', with zero terminal SNR' if zero_snr else ''}, according to {source}."


def _scheduler(base: Path | HubModel, layout: str, facts: FamilyFacts) -> tuple[Mapping[str, Any], str]:
    """The scheduler config that the model will be loaded with, and what it comes from; empty if not downloaded."""
    if isinstance(base, Path) and base.is_file():
        hub = None if layout else required_hub_model(str(base), layout, facts)
        configuration = Path(layout) if hub is None else hub.cached_folder()
        scheduler = {} if configuration is None else _read(configuration)
        declared = read_schedule(base, layout)
        if declared is not None:
            return declared.apply(scheduler), declared.source
        label = "family_options.layout" if hub is None else f"the configuration of {hub.label}"
        return scheduler, f"{label}, for the file itself does not say it"
    folder = base.cached_folder() if isinstance(base, HubModel) else base
    return ({} if folder is None else _read(folder)), "its scheduler_config.json"


def _read(folder: Path) -> dict[str, Any]:
    try:
        scheduler = read_json(folder / "scheduler" / "scheduler_config.json")
    except (OSError, FileFault):
        return {}  # loading the model will say what is wrong with it
    return scheduler if isinstance(scheduler, dict) else {}
