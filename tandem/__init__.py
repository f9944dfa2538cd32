"""Tandem as a library: everything that a program of your own imports. docs/library.md explains it."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from tandem._own_packages import ExplainMissing, import_own

import_own("modules")
sys.meta_path.append(ExplainMissing())

from modules import __version__ as __version__  # noqa: E402  # only now it is Tandem's

if TYPE_CHECKING:
    from modules.config import (
        ConfigError,
        DataError,
        Interval,
        ResumeError,
        Section,
        TandemError,
        TrainConfig,
        TrainingError,
        load_config,
        resolve_config,
        save_config,
        setting,
    )
    from modules.library import (
        Benchmark,
        DistributedBatchSampler,
        DistributedSampler,
        FitResult,
        Group,
        GroupError,
        MemoryUse,
        RankEnv,
        Trainer,
        TrainingInfo,
        benchmark,
        cleanup_distributed,
        is_main_process,
        launch_distributed,
        main_process_first,
        mean_over_ranks,
        memory_efficiency,
        read_rank_env,
        reduce_mean,
        save_on_rank0,
        scaling_efficiency,
        setup_distributed,
        throughput,
        training_info,
        unwrapped,
    )
    from modules.machine import GpuInfo, GpuMonitor, MetricSummary, device_summary, find_free_port, gpu_info
    from modules.run import LaunchPlan, ProcessPlacement, RunFolder, choose_placement

__all__ = [
    "Benchmark",
    "ConfigError",
    "DataError",
    "DistributedBatchSampler",
    "DistributedSampler",
    "FitResult",
    "GpuInfo",
    "GpuMonitor",
    "Group",
    "GroupError",
    "Interval",
    "LaunchPlan",
    "MemoryUse",
    "MetricSummary",
    "ProcessPlacement",
    "RankEnv",
    "ResumeError",
    "RunFolder",
    "Section",
    "TandemError",
    "TrainConfig",
    "Trainer",
    "TrainingError",
    "TrainingInfo",
    "__version__",
    "benchmark",
    "choose_placement",
    "cleanup_distributed",
    "device_summary",
    "find_free_port",
    "gpu_info",
    "is_main_process",
    "launch_distributed",
    "load_config",
    "main_process_first",
    "mean_over_ranks",
    "memory_efficiency",
    "read_rank_env",
    "reduce_mean",
    "resolve_config",
    "save_config",
    "save_on_rank0",
    "scaling_efficiency",
    "setting",
    "setup_distributed",
    "throughput",
    "training_info",
    "unwrapped",
]

_HOMES = ("modules.config", "modules.machine", "modules.run", "modules.library")  # only the last one imports torch


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # mypy would take any name for one of these

    def __getattr__(name: str) -> object:
        """A name at its first use: what needs no torch imports none."""
        if name in __all__:
            for home in map(import_module, _HOMES):
                if name in home.__all__:
                    return globals().setdefault(name, getattr(home, name))
        raise AttributeError(f"module 'tandem' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
