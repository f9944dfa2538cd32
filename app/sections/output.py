"""Where results go."""

from __future__ import annotations

from app.form.build import Card
from app.sections.form_section import FormSection


class Section(FormSection):
    """Run folder, backups, log."""

    name = "output"
    declared_in = ("Output",)
    cards = (
        Card("Runs", ("runs_dir", "run_name"), 0),
        Card("Backups", ("backup_every", "backups_kept"), 1),
        Card("Log", ("log_every", "tensorboard"), 0),
    )
