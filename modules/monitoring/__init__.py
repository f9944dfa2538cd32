"""What a run reports while it trains: progress, scalars, images, stragglers."""

from modules.monitoring.images import make_grid, save_image, save_sample
from modules.monitoring.performance_monitor import PerformanceMonitor
from modules.monitoring.report import RunReport
from modules.monitoring.report_protocol import Report, SilentReport, StepRecord
from modules.monitoring.step_times import RankStepTimes
from modules.monitoring.tensorboard import Histogram

__all__ = [
    "Histogram",
    "PerformanceMonitor",
    "RankStepTimes",
    "Report",
    "RunReport",
    "SilentReport",
    "StepRecord",
    "make_grid",
    "save_image",
    "save_sample",
]
