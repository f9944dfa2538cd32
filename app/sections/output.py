"""Where results are written."""

from __future__ import annotations

from app.form.cards import Card
from app.sections.form_section import FormSection


class Section(FormSection):
    """Run folder, backups, logging and model files."""

    name = "output"
    declared_in = ("Output",)
    cards = (
        Card("Runs", ("runs_dir", "run_name"), 0),
        Card("Backups", ("backup_every", "backups_kept", "backups_kept_every", "backups_kept_days"), 1),
        Card("Models of earlier steps", ("save_every", "saves_kept"), 1),
        Card("Logging", ("log_every", "tensorboard", "histograms_every", "wandb", "wandb_project", "profile_steps"), 0),
        Card("Model files", ("save_dtype", "save_single_file", "lora_layouts", "rescue_dir"), 0),
        Card(
            "Metadata",
            ("model_title", "model_author", "model_license", "trigger_phrase", "metadata_dataset"),
            1,
        ),
    )
