"""Set up the process group, with one timeout for start-up and one for training, and always tear it down."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from modules.distributed.formatting import error_summary
from modules.distributed.run_store import RunStore
from modules.distributed.startup.member import Member, ranks_by_host
from modules.distributed.startup.rendezvous import GroupError, members
from modules.distributed.startup.store import open_store
from modules.machine import addresses_of, hostname, set_hostname
from modules.run.folder.error_rules import PEER_ACCESS_ADVICE
from modules.run.launch.environment import network_interfaces, set_network_interfaces
from modules.run.launch.plan import ONE_NETWORK
from modules.run.launch.rank_env import RankEnv, read_rank_env, use_own_slice
from modules.torch_compat import set_group_timeout

# All processes have joined the store before they connect, so no machine that starts late is waited for here.
CONNECT_TIMEOUT_S = 300.0
CALLBACK_GRACE_S = 0.02
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Meeting:
    """All processes have joined the store, and are not connected to each other yet."""

    rank_env: RankEnv
    joined: RunStore  # what `open_store` returned
    members: tuple[Member, ...]  # all processes, by rank

    @property
    def rank(self) -> int:
        """This process's global rank."""
        return self.rank_env.rank

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self.rank_env.world_size

    @property
    def store(self) -> RunStore:
        """The store of the group."""
        return self.joined.within("tandem")


@dataclass(frozen=True)
class Group:
    """This process's view of the group: its rank, its device, the shared store, and a gloo group for small messages."""

    rank_env: RankEnv
    backend: str
    device: torch.device
    store: RunStore
    control: dist.ProcessGroup  # always gloo, so that control messages never wait for the GPU
    members: tuple[Member, ...]  # all processes, by rank
    inner: list[dist.ProcessGroup] = field(default_factory=list)  # made of some of its ranks since, with its timeout

    @property
    def rank(self) -> int:
        """This process's global rank."""
        return self.rank_env.rank

    @property
    def world_size(self) -> int:
        """The number of processes in the group."""
        return self.rank_env.world_size

    def set_timeout(self, seconds: float) -> None:
        """From now on, collectives that take longer than `seconds` fail."""
        limit = timedelta(seconds=seconds)
        for group in (dist.group.WORLD, self.control, *self.inner):
            set_group_timeout(group, limit)


def resolve_backend(backend: str) -> tuple[str, str]:
    """The backend that works here, and the reason if it is not the requested one."""
    if backend == "nccl" and not torch.cuda.is_available():
        return "gloo", "distributed_backend is nccl, but there is no CUDA device here: using gloo."
    if backend == "nccl" and not dist.is_nccl_available():
        return "gloo", "distributed_backend is nccl, but this build of torch has no NCCL: using gloo."
    return backend, ""


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
    """Join the process group and select this rank's device; call it once in every process.

    Without `rank` and `world_size`, everything is read from the environment that torchrun or srun has set.
    Raises GroupError, with the address, if the group does not form within `timeout_s`, and ConfigError if the ranks
    are invalid.
    """
    environ: Mapping[str, str] = os.environ
    if rank is not None and world_size is not None:
        given = {"RANK": rank, "WORLD_SIZE": world_size} | ({} if local_rank is None else {"LOCAL_RANK": local_rank})
        environ = {"MASTER_ADDR": master_addr, **environ, **{name: str(number) for name, number in given.items()}}
    rank_env = read_rank_env(environ, master_port)
    if rank_env is None:
        raise GroupError(
            "setup_distributed: neither RANK and WORLD_SIZE nor srun's variables are set.",
            "Start the program with torchrun or srun, or let launch_distributed start the processes.",
        )
    use_own_slice(os.environ, rank_env)
    return join_group(rank_env, resolve_backend(backend)[0], timeout_s)


def join_group(rank_env: RankEnv, backend: str, timeout_s: float, store: RunStore | None = None) -> Group:
    """Join the group of `rank_env.world_size` processes, which meet in `store` (see `open_store`).

    Raises GroupError if the group does not form within `timeout_s` seconds.
    """
    try:
        return connect(meet(rank_env, timeout_s, store), backend, timeout_s)
    except GroupError:
        _leave(after_failure=True)
        raise


def meet(rank_env: RankEnv, timeout_s: float, store: RunStore | None = None) -> Meeting:
    """Wait in the store until all processes have joined. Raises GroupError after `timeout_s` seconds."""
    store = open_store(rank_env, timeout_s) if store is None else store
    everyone = members(store, rank_env.world_size)
    set_hostname(everyone[rank_env.rank].host)
    return Meeting(rank_env, store, everyone)


def connect(meeting: Meeting, backend: str, timeout_s: float) -> Group:
    """Connect to the processes of the meeting.

    Ends with a first tiny collective, which proves that all ranks reach each other before any long work starts.
    Raises GroupError if they do not within `timeout_s` seconds; what there is of the group is then left by the caller.
    """
    rank_env, everyone = meeting.rank_env, meeting.members
    is_one_machine = len({member.machine_id for member in everyone}) == 1
    set_network_interfaces(os.environ, LOOPBACK if is_one_machine else rank_env.master_addr)
    device = device_of(rank_env)
    limit = timedelta(seconds=min(timeout_s, CONNECT_TIMEOUT_S))
    try:
        dist.init_process_group(
            backend,
            store=meeting.joined.for_torch("group"),
            rank=rank_env.rank,
            world_size=rank_env.world_size,
            timeout=limit,
            device_id=device if backend == "nccl" else None,
        )
        control = dist.new_group(backend="gloo", timeout=limit)
        group = Group(rank_env, backend, device, meeting.store, control, everyone)
        _first_all_reduce(group)
    except (RuntimeError, ValueError) as error:
        raise _connection_error(rank_env, everyone, backend, error) from error
    group.set_timeout(timeout_s)
    return group


@contextmanager
def process_group(
    rank_env: RankEnv,
    backend: str,
    timeout_s: float,
    store: RunStore | None = None,
    *,
    expected: tuple[type[BaseException], ...] = (),
) -> Iterator[Group]:
    """The group for the duration of a `with` block; left after errors, too, as `cleanup_distributed` does it.

    Exceptions of the kinds `expected` end the block on all ranks alike and are no failures.
    """
    with leaving_group(expected):
        yield join_group(rank_env, backend, timeout_s, store)


@contextmanager
def leaving_group(expected: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """Leaves the group, if there is one, at the end of a `with` block; see `process_group`."""
    try:
        yield
    except expected:
        _leave(after_failure=False)
        raise
    except BaseException:
        _leave(after_failure=True)
        raise
    _leave(after_failure=False)


def cleanup_distributed() -> None:
    """Leave the process group; does nothing if there is none.

    While an exception is being handled, an NCCL group is not destroyed, which could wait for other ranks for ever: the
    process then ends without it, with exit code 1 unless it ends itself before, and the others notice at once.
    """
    _leave(after_failure=sys.exc_info()[0] is not None)


def _leave(*, after_failure: bool) -> None:
    if not dist.is_initialized():
        return
    if after_failure and dist.get_backend() != "gloo":
        atexit.register(exit_at_once, 1)  # before torch, too, would wait for the group
        return
    # gloo's threads need the GIL to release the last Python callbacks of compressed all-reduces; if the group is
    # destroyed before they get it, both wait for each other for ever
    time.sleep(CALLBACK_GRACE_S)
    dist.destroy_process_group()


def exit_if_group_is_left(code: int) -> None:
    """End this process if a failure left its group standing; call it when everything is reported and written."""
    if dist.is_initialized():
        exit_at_once(code)


def exit_at_once(code: int) -> None:
    """End this process without any of Python's and torch's clean-up."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def device_of(rank_env: RankEnv) -> torch.device:
    """This rank's device, which becomes the current one of the calling thread."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # several gloo ranks may share a GPU (which lets one GPU test the distributed code)
    device = torch.device("cuda", rank_env.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _first_all_reduce(group: Group) -> None:
    """Count the ranks, over the control group and over the backend that carries the gradients."""
    for ones, group_ in ((torch.ones(1), group.control), (torch.ones(1, device=group.device), dist.group.WORLD)):
        dist.all_reduce(ones, group=group_)
        if ones.item() != group.world_size:
            raise RuntimeError(f"the first all-reduce counted {ones.item():.0f} of {group.world_size} processes")


def _connection_error(rank_env: RankEnv, everyone: tuple[Member, ...], backend: str, error: Exception) -> GroupError:
    message = (
        f"all {len(everyone)} processes joined ({ranks_by_host(everyone)}), but could not form a group over "
        f"{backend}: {error_summary(error)}"
    )
    first, master = everyone[0], rank_env.master_addr
    is_elsewhere = first.machine_id != everyone[rank_env.rank].machine_id
    machine_count = len({member.machine_id for member in everyone})
    if is_elsewhere and first.address and first.address not in addresses_of(master):
        found = (
            f"{first.host} uses the network of its address {first.address}, but from {hostname()} it is reached at "
            f"{master}"
        )
        if machine_count > 2:  # the others may reach it elsewhere
            return GroupError(message, f"{found}, and {ONE_NETWORK}.")
        return GroupError(
            message, f"{found}: start it with --set master_addr={master} (torchrun: --master_addr={master})."
        )
    machines = {member.host: member.other_interfaces for member in everyone if member.other_interfaces}
    if machine_count == 1 and backend == "nccl":
        return GroupError(message, f"{PEER_ACCESS_ADVICE}; NCCL_DEBUG=INFO prints what NCCL does.")
    if machine_count > 1 and machines:
        named = "; ".join(f"on {host}, {text}" for host, text in machines.items())
        return GroupError(message, f"An interface is set that may not lead to the others: {named}. Unset it there.")
    set_names = {name: os.environ.get(name) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    settings = ", ".join(f"{name} is {value or 'not set'}" for name, value in set_names.items())
    interface = network_interfaces(master).get("GLOO_SOCKET_IFNAME")
    route = f", and {interface} leads to {master}" if interface else ""
    return GroupError(
        message,
        f"Check that each machine uses the network interface that leads to the others (on {hostname()}, {settings}"
        f"{route}) and that no firewall blocks the ports between them.",
    )
