"""Where results go."""

from __future__ import annotations

from app import texts
from app.form.build import Card
from app.sections.form_section import FormSection


class Section(FormSection):
    """Run folder, backups, log, and the files of the finished model."""

    name = "output"
    declared_in = ("Output",)
    cards = (
        Card(texts.CARD_RUNS, ("runs_dir", "run_name"), 0),
        Card(texts.CARD_BACKUPS, ("backup_every", "backups_kept"), 1),
        Card(texts.CARD_LOG, ("log_every", "tensorboard"), 0),
        Card(texts.CARD_FILES, ("save_dtype", "save_single_file", "lora_layouts"), 0),
        Card(
            texts.CARD_HEADER,
            ("model_title", "model_author", "model_license", "trigger_phrase", "metadata_dataset"),
            1,
        ),
    )
