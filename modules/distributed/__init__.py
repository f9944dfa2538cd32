"""Process groups, collectives, DDP and FSDP, and the health of ranks. Knows nothing about diffusion."""

from modules.distributed.bucket_views import has_bucket_views, move_gradients_into_buckets
from modules.distributed.buffers import BufferSync
from modules.distributed.compression import Compression, register_compression_hook
from modules.distributed.ddp import complete_gradient_sync, wrap_ddp
from modules.distributed.health.refusal import refusals_published
from modules.distributed.helpers import is_main_process, main_process_first
from modules.distributed.host_copy import HostCopy
from modules.distributed.local_updates import LocalUpdates, Machines
from modules.distributed.process_group import (
    Group,
    cleanup_distributed,
    exit_at_once,
    exit_if_group_is_left,
    resolve_backend,
    setup_distributed,
)
from modules.distributed.rank_group import DistributedRanks, RankGroup, distributed_ranks, single_process
from modules.distributed.reduce import mean_over_ranks, reduce_mean
from modules.distributed.run_store import RunStore, parse_value
from modules.distributed.shared_folders import SharedFolderGroups
from modules.distributed.shared_memory import fill_once_per_machine
from modules.distributed.startup.cluster_info import ClusterInfo
from modules.distributed.startup.cluster_report import cluster_lines, cluster_warnings
from modules.distributed.startup.launch import RankExited, launch_distributed, spawn
from modules.distributed.startup.rank_info import device_name, software_versions
from modules.distributed.startup.rendezvous import GroupError
from modules.distributed.startup.store import open_store
from modules.distributed.unused_parameters import check_unused_parameters, explain_ddp_errors
from modules.distributed.weights import Weights, is_sharded
from modules.run.launch.rank_env import RankEnv, read_rank_env

__all__ = [
    "BufferSync",
    "ClusterInfo",
    "Compression",
    "DistributedRanks",
    "Group",
    "GroupError",
    "HostCopy",
    "LocalUpdates",
    "Machines",
    "RankEnv",
    "RankExited",
    "RankGroup",
    "RunStore",
    "SharedFolderGroups",
    "Weights",
    "check_unused_parameters",
    "cleanup_distributed",
    "cluster_lines",
    "cluster_warnings",
    "complete_gradient_sync",
    "device_name",
    "distributed_ranks",
    "exit_at_once",
    "exit_if_group_is_left",
    "explain_ddp_errors",
    "fill_once_per_machine",
    "has_bucket_views",
    "is_main_process",
    "is_sharded",
    "launch_distributed",
    "main_process_first",
    "mean_over_ranks",
    "move_gradients_into_buckets",
    "open_store",
    "parse_value",
    "read_rank_env",
    "reduce_mean",
    "refusals_published",
    "register_compression_hook",
    "resolve_backend",
    "setup_distributed",
    "single_process",
    "software_versions",
    "spawn",
    "wrap_ddp",
]
