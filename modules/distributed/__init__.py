"""Process groups, agreement between ranks, waiting without time-outs. Knows nothing of diffusion."""

from torch._C._distributed_c10d import Store

from modules.distributed.agreement import Agreement, OwnAgreement
from modules.distributed.compression import Compression, compress_gradients
from modules.distributed.delivery import deliver_folder
from modules.distributed.device_readings import Readings, readings
from modules.distributed.launch import launch_distributed, spawn
from modules.distributed.meeting import Meeting
from modules.distributed.neighbours import Neighbours, find_neighbours
from modules.distributed.own_program import is_main_process, main_process_first, mean_over_ranks
from modules.distributed.process_group import (
    Group,
    cleanup_distributed,
    open_store,
    process_group,
    resolve_backend,
    setup_distributed,
)
from modules.distributed.rank_facts import device_name
from modules.distributed.roster import Roster, own_roster, take_roster
from modules.distributed.roster_report import roster_lines, roster_warnings
from modules.distributed.sharding import ShardedWeights, SharedGradScaler, shard
from modules.distributed.sign_in import GroupError, Member
from modules.distributed.unused import check_unused, told_by_name
from modules.distributed.watchdog import PeerLost, Watchdog
from modules.distributed.weights import Weights
from modules.distributed.wrapping import wrap_data_parallel
from modules.machine import find_free_port
from modules.run.group_place import Place, place_from_environment

__all__ = [
    "Agreement",
    "Compression",
    "Group",
    "GroupError",
    "Meeting",
    "Member",
    "Neighbours",
    "OwnAgreement",
    "PeerLost",
    "Place",
    "Readings",
    "Roster",
    "ShardedWeights",
    "SharedGradScaler",
    "Store",
    "Watchdog",
    "Weights",
    "check_unused",
    "cleanup_distributed",
    "compress_gradients",
    "deliver_folder",
    "device_name",
    "find_free_port",
    "find_neighbours",
    "is_main_process",
    "launch_distributed",
    "main_process_first",
    "mean_over_ranks",
    "open_store",
    "own_roster",
    "place_from_environment",
    "process_group",
    "readings",
    "resolve_backend",
    "roster_lines",
    "roster_warnings",
    "setup_distributed",
    "shard",
    "spawn",
    "take_roster",
    "told_by_name",
    "wrap_data_parallel",
]
