"""What a run reports while it trains: progress, scalars, images, stragglers."""

from modules.monitoring.images import make_grid, save_image
from modules.monitoring.report import Report, RunReport, SilentReport, StepRecord
from modules.monitoring.straggler_monitor import RankStepTimes, StragglerMonitor

__all__ = [
    "RankStepTimes",
    "Report",
    "RunReport",
    "SilentReport",
    "StepRecord",
    "StragglerMonitor",
    "make_grid",
    "save_image",
]
