"""Forming the process group, with two phases of time-outs, and leaving it in every case."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store  # torch.distributed exports them without saying so

from modules.config import TrainingError
from modules.run.group_place import Place


class GroupError(TrainingError):
    """The processes could not form a group; before the first step Tandem may go on with one device instead."""

    kind = "process_group"


@dataclass(frozen=True)
class Group:
    """This process's membership: who it is, its device, the shared store, and a CPU group for tiny messages."""

    place: Place
    backend: str
    device: torch.device
    store: Store
    control: dist.ProcessGroup  # always gloo, so that agreement never waits for the GPU

    def expect_steps_within(self, seconds: float) -> None:
        """From now on a collective that takes longer than `seconds` fails: the second phase of the time-outs."""
        limit = timedelta(seconds=seconds)
        dist.distributed_c10d._set_pg_timeout(limit, dist.group.WORLD)
        dist.distributed_c10d._set_pg_timeout(limit, self.control)


def resolve_backend(wanted: str) -> tuple[str, str]:
    """The backend that works here, and the reason where it is not the one asked for."""
    if wanted == "nccl" and not torch.cuda.is_available():
        return "gloo", "distributed_backend is nccl, but there is no CUDA device here: using gloo."
    if wanted == "nccl" and not dist.is_nccl_available():
        return "gloo", "distributed_backend is nccl, but this build of torch has no NCCL: using gloo."
    return wanted, ""


def setup_distributed(
    rank: int | None = None,
    world_size: int | None = None,
    backend: str = "nccl",
    *,
    local_rank: int | None = None,
    master_addr: str = "127.0.0.1",
    master_port: int = 12355,
    timeout_s: float = 1800,
) -> Group:
    """Join the process group and choose this rank's device; call it once in every process.

    What is not given is read from RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
    Raises GroupError, with the address, where the group does not form within `timeout_s`.
    """
    place = Place(
        rank=int(os.environ["RANK"]) if rank is None else rank,
        local_rank=int(os.environ.get("LOCAL_RANK", rank or 0)) if local_rank is None else local_rank,
        world_size=int(os.environ["WORLD_SIZE"]) if world_size is None else world_size,
        master_addr=os.environ.get("MASTER_ADDR", master_addr),
        master_port=int(os.environ.get("MASTER_PORT", master_port)),
    )
    return join_group(place, resolve_backend(backend)[0], timeout_s)


def open_store(place: Place, timeout_s: float) -> Store:
    """The key-value store that all processes share, at `place.master_addr:master_port`; open it once a process.

    Raises GroupError where rank 0 cannot be reached within `timeout_s` seconds.
    """
    os.environ.update(place.environment())
    try:
        store: Store = next(dist.rendezvous("env://", timeout=timedelta(seconds=timeout_s)))[0]
    except (RuntimeError, ValueError) as error:  # DistError and its kinds derive from RuntimeError
        raise _not_formed(place, error) from error
    return store


def join_group(place: Place, backend: str, timeout_s: float, store: Store | None = None) -> Group:
    """Join the group of `place.world_size` processes, which meet in `store`.

    Raises GroupError where it does not form within `timeout_s` seconds.
    """
    store = open_store(place, timeout_s) if store is None else store
    device = _device_of(place)
    limit = timedelta(seconds=timeout_s)
    try:
        dist.init_process_group(
            backend,
            store=PrefixStore("group", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=limit,
            device_id=device if backend == "nccl" else None,
        )
        control = dist.new_group(backend="gloo", timeout=limit)
        _first_meeting(control, place.world_size)
    except (RuntimeError, ValueError) as error:
        cleanup_distributed()
        raise _not_formed(place, error) from error
    return Group(place, backend, device, PrefixStore("tandem", store), control)


@contextmanager
def process_group(place: Place, backend: str, timeout_s: float, store: Store | None = None) -> Iterator[Group]:
    """The group for the length of a `with` block; left in every case, also after an error."""
    group = join_group(place, backend, timeout_s, store)
    try:
        yield group
    finally:
        cleanup_distributed()


def cleanup_distributed() -> None:
    """Leave the process group; does nothing where there is none."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _device_of(place: Place) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # several gloo ranks may share a GPU (that is how one GPU tests the distributed code)
    device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _first_meeting(control: dist.ProcessGroup, world_size: int) -> None:
    """A first tiny collective: proves that all ranks reach each other before any long work starts."""
    here = torch.ones(1)
    dist.all_reduce(here, group=control)
    if here.item() != world_size:
        raise RuntimeError(f"the first all-reduce counted {here.item():.0f} of {world_size} processes")


def _not_formed(place: Place, error: Exception) -> GroupError:
    cause = (str(error).strip() or type(error).__name__).splitlines()[0]
    return GroupError(
        f"{place.world_size} processes could not form a group at {place.master_addr}:{place.master_port}: {cause}",
        "Check that the port is free and reachable, that every process was started, and that the network "
        "interface is right (GLOO_SOCKET_IFNAME / NCCL_SOCKET_IFNAME).",
    )
