"""Process groups, agreement between ranks, waiting without time-outs. Knows nothing of diffusion."""

from torch._C._distributed_c10d import Store

from modules.distributed.agreement import Agreement, OwnAgreement
from modules.distributed.delivery import deliver_folder
from modules.distributed.launch import launch_distributed, spawn
from modules.distributed.meeting import Meeting, PeerLost
from modules.distributed.neighbours import Neighbours, find_neighbours
from modules.distributed.process_group import (
    Group,
    GroupError,
    cleanup_distributed,
    open_store,
    process_group,
    resolve_backend,
    setup_distributed,
)
from modules.distributed.wrapping import wrap_data_parallel
from modules.machine import find_free_port
from modules.run.group_place import Place, place_from_environment

__all__ = [
    "Agreement",
    "Group",
    "GroupError",
    "Meeting",
    "Neighbours",
    "OwnAgreement",
    "PeerLost",
    "Place",
    "Store",
    "cleanup_distributed",
    "deliver_folder",
    "find_free_port",
    "find_neighbours",
    "launch_distributed",
    "open_store",
    "place_from_environment",
    "process_group",
    "resolve_backend",
    "setup_distributed",
    "spawn",
    "wrap_data_parallel",
]
