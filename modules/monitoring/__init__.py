"""What a run reports while it trains: progress, scalars, pictures."""

from modules.monitoring.advice import Advice, RankFigures
from modules.monitoring.pictures import grid, read_settings, save_picture
from modules.monitoring.report import Report, RunReport, SilentReport, StepRecord
from modules.monitoring.throughput import Throughput

__all__ = [
    "Advice",
    "RankFigures",
    "Report",
    "RunReport",
    "SilentReport",
    "StepRecord",
    "Throughput",
    "grid",
    "read_settings",
    "save_picture",
]
