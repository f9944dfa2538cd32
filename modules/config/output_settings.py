"""Where results go."""

from __future__ import annotations

from typing import ClassVar

from modules.config.interval import Interval
from modules.config.section import Section, setting


class OutputSettings(Section):
    """Run folder, log and backups."""

    section_title: ClassVar[str] = "Output"

    runs_dir: str = setting(
        "runs",
        title="Folder for runs",
        help="Every run gets a folder of its own in here, with its model, samples, backups and log. A "
        "relative path is read from the folder you start Tandem in.",
        picks="folder",
        min_length=1,
    )
    run_name: str | None = setting(
        None,
        title="Name of the run",
        help="The name of the run's folder. Empty: the model family and the time of the start.",
        min_length=1,
    )
    log_every: Interval = setting(
        Interval(1, "steps"),
        title="Log every",
        help="How often loss and speed are written down. Every step costs next to nothing.",
        advanced=True,
    )
    backup_every: Interval = setting(
        Interval(30, "minutes"),
        title="Back up every",
        help="How often everything needed to continue is saved. After a crash at most this much is lost.",
    )
    backups_kept: int = setting(
        3,
        title="Backups kept",
        help="Older backups are deleted when a new one is complete. Each takes three to four times the "
        "size of what is trained.",
        unit="backups",
        ge=1,
        le=10_000,
    )
    tensorboard: bool = setting(
        True,
        title="Write for TensorBoard",
        help="Also writes the curves and samples for TensorBoard, a viewer in the browser.",
        advanced=True,
    )
