"""Tandem as a library: what `tandem` re-exports to programs. docs/library.md explains it."""

from modules.config import ConfigError, DataError, Interval, ResumeError, TandemError, TrainConfig, TrainingError
from modules.distributed import (
    Group,
    GroupError,
    RankEnv,
    cleanup_distributed,
    is_main_process,
    launch_distributed,
    main_process_first,
    mean_over_ranks,
    read_rank_env,
    reduce_mean,
    setup_distributed,
)
from modules.library.fit_result import FitResult
from modules.library.samplers import DistributedBatchSampler, DistributedSampler
from modules.library.save import save_on_rank0
from modules.library.speed import (
    Benchmark,
    MemoryUse,
    benchmark,
    memory_efficiency,
    scaling_efficiency,
    throughput,
)
from modules.library.trainer import Trainer
from modules.library.training_info import TrainingInfo, training_info
from modules.library.unwrap import unwrapped
from modules.machine import GpuInfo, GpuMonitor, MetricSummary, device_summary, find_free_port, gpu_info
from modules.run import ProcessPlacement, choose_placement

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
    "MemoryUse",
    "MetricSummary",
    "ProcessPlacement",
    "RankEnv",
    "ResumeError",
    "TandemError",
    "TrainConfig",
    "Trainer",
    "TrainingError",
    "TrainingInfo",
    "benchmark",
    "choose_placement",
    "cleanup_distributed",
    "device_summary",
    "find_free_port",
    "gpu_info",
    "is_main_process",
    "launch_distributed",
    "main_process_first",
    "mean_over_ranks",
    "memory_efficiency",
    "read_rank_env",
    "reduce_mean",
    "save_on_rank0",
    "scaling_efficiency",
    "setup_distributed",
    "throughput",
    "training_info",
    "unwrapped",
]
