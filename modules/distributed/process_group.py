"""Forming the process group, with two phases of time-outs, and leaving it in every case."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (  # torch.distributed exports them without saying so
    PrefixStore,
    Store,
    TCPStore,
)

from modules.distributed.sign_in import (
    TELL_AFTER_S,
    GroupError,
    Member,
    Say,
    by_host,
    did_not_come,
    members,
    sign_in,
)
from modules.machine import hostname
from modules.run.group_place import Place, place_from_environment
from modules.run.launch_environment import add_network_cards, network_cards

log = logging.getLogger("tandem")

# All processes are there when they begin to connect, so this is no waiting for machines that start late.
CONNECT_WITHIN_S = 300.0
PROBE_S = 3.0
LAST_CALLBACKS_S = 0.02
STORE_OF_LAUNCHER = "TANDEM_STORE_PORT"


@dataclass(frozen=True)
class Group:
    """This process's membership: who it is, its device, the shared store, and a CPU group for tiny messages."""

    place: Place
    backend: str
    device: torch.device
    store: Store
    control: dist.ProcessGroup  # always gloo, so that agreement never waits for the GPU
    members: tuple[Member, ...]  # who is where, by rank

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

    Without `rank` and `world_size` everything is read from what torchrun or srun has set.
    Raises GroupError, with the address, where the group does not form within `timeout_s`, and ConfigError where the
    numbers cannot be.
    """
    environ: Mapping[str, str] = os.environ
    if rank is not None and world_size is not None:
        given = {"RANK": rank, "WORLD_SIZE": world_size} | ({} if local_rank is None else {"LOCAL_RANK": local_rank})
        environ = {"MASTER_ADDR": master_addr, **environ, **{name: str(number) for name, number in given.items()}}
    place = place_from_environment(environ, master_port)
    if place is None:
        raise GroupError(
            "setup_distributed: neither RANK and WORLD_SIZE nor srun's variables are set.",
            "Start the program with torchrun or srun, or let launch_distributed start the processes.",
        )
    return join_group(place, resolve_backend(backend)[0], timeout_s)


def open_store(place: Place, timeout_s: float, say: Say = log.warning) -> Store:
    """The key-value store that all processes share, at `place.master_addr:master_port`; open it once a process.

    Returns when all processes have come; `say` tells now and then who is missing. Raises GroupError with their names
    after `timeout_s` seconds.
    """
    os.environ.update(place.environment())
    deadline = time.monotonic() + timeout_s
    hosts_store = place.rank == 0 and not _launcher_holds_store(place)
    if not hosts_store:
        _wait_until_open(place, timeout_s, say)
    store = _connected(place, hosts_store, deadline, timeout_s, say)
    return sign_in(store, place, _left(deadline), say)


def join_group(
    place: Place, backend: str, timeout_s: float, store: Store | None = None, say: Say = log.warning
) -> Group:
    """Join the group of `place.world_size` processes, which meet in `store` (one of `open_store`).

    Ends with a first tiny collective, which proves that all ranks reach each other before any long work starts.
    Raises GroupError where the group does not form within `timeout_s` seconds.
    """
    store = open_store(place, timeout_s, say) if store is None else store
    everyone = members(store, place.world_size)
    if len({member.machine_id for member in everyone}) > 1:
        add_network_cards(os.environ, place.master_addr)
    device = device_of(place)
    limit = timedelta(seconds=min(timeout_s, CONNECT_WITHIN_S))
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
        group = Group(place, backend, device, PrefixStore("tandem", store), control, everyone)
        _first_meeting(group)
    except (RuntimeError, ValueError) as error:
        cleanup_distributed()
        raise _not_connected(place, everyone, backend, error) from error
    group.expect_steps_within(timeout_s)
    return group


@contextmanager
def process_group(
    place: Place, backend: str, timeout_s: float, store: Store | None = None, say: Say = log.warning
) -> Iterator[Group]:
    """The group for the length of a `with` block; left in every case, also after an error."""
    group = join_group(place, backend, timeout_s, store, say)
    try:
        yield group
    finally:
        cleanup_distributed()


def cleanup_distributed() -> None:
    """Leave the process group; does nothing where there is none."""
    if dist.is_initialized():
        # gloo's own threads need the interpreter to drop the last Python callbacks of compressed exchanges; destroyed
        # before they got it, group and thread would wait for each other for ever
        time.sleep(LAST_CALLBACKS_S)
        dist.destroy_process_group()


def _launcher_holds_store(place: Place) -> bool:
    """Whether torchrun or `spawn` does: a store that outlives every rank."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or os.environ.get(STORE_OF_LAUNCHER) == str(
        place.master_port
    )


def device_of(place: Place) -> torch.device:
    """The device of this rank, which becomes the current one."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # several gloo ranks may share a GPU (that is how one GPU tests the distributed code)
    device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _first_meeting(group: Group) -> None:
    """All ranks count themselves, over the control group and over the backend that carries the gradients."""
    for here, over in ((torch.ones(1), group.control), (torch.ones(1, device=group.device), dist.group.WORLD)):
        dist.all_reduce(here, group=over)
        if here.item() != group.place.world_size:
            raise RuntimeError(f"the first all-reduce counted {here.item():.0f} of {group.place.world_size} processes")


def _connected(place: Place, hosts_store: bool, deadline: float, timeout_s: float, say: Say) -> Store:
    """The store itself. torch waits for ever where another program takes the connection and never says a word."""
    opened: list[Store] = []
    errors: list[Exception] = []

    def connect() -> None:
        try:
            opened.append(
                TCPStore(
                    place.master_addr,
                    place.master_port,
                    is_master=hosts_store,
                    timeout=timedelta(seconds=timeout_s),
                    wait_for_workers=False,
                    multi_tenant=True,
                    use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
                )
            )
        except (RuntimeError, ValueError) as error:  # DistError and its kinds derive from RuntimeError
            errors.append(error)

    connecting = threading.Thread(target=connect, name="connect", daemon=True)
    connecting.start()
    connecting.join(min(TELL_AFTER_S, _left(deadline)))
    if connecting.is_alive() and (left_s := _left(deadline)) > 0:
        where = f"{place.master_addr}:{place.master_port}"
        say(f"Waiting for rank 0: what listens at {where} does not answer as its store would ({left_s:.0f} s more).")
        connecting.join(left_s)
    if connecting.is_alive():
        raise _no_store(place, TimeoutError("something listens there that is not the store of rank 0"))
    if errors:
        raise _no_store(place, errors[0]) from errors[0]
    return opened[0]


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _wait_until_open(place: Place, timeout_s: float, say: Say) -> None:
    """Until rank 0's machine listens. torch would wait as well, but silently, and give up with a stack of C++."""
    deadline, tell_at = time.monotonic() + timeout_s, time.monotonic() + 5.0
    where = f"{place.master_addr}:{place.master_port}"
    while True:
        try:
            socket.create_connection((place.master_addr, place.master_port), PROBE_S).close()
        except OSError as error:
            cause = _why_unreachable(error)
        else:
            return
        now = time.monotonic()
        if now >= deadline:
            missing = f"rank 0 at {where} did not come ({cause}); here: rank {place.rank} on {hostname()}"
            raise did_not_come(missing, timeout_s)
        if now >= tell_at:
            tell_at = now + 30.0
            say(f"Waiting for rank 0 at {where} ({deadline - now:.0f} s more at most): {cause}.")
        time.sleep(0.2)


def _why_unreachable(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "that name is unknown here"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there yet"
    if isinstance(error, TimeoutError):
        return "no answer: a firewall, or the wrong address"
    return error.strerror or str(error)


def _no_store(place: Place, error: Exception) -> GroupError:
    where = f"{place.master_addr}:{place.master_port}"
    if "EADDRINUSE" in str(error) or "in use" in str(error):
        return GroupError(
            f"port {place.master_port} is in use on {hostname()}, so the processes cannot meet there.",
            "Set initial_port (MASTER_PORT) to another number on every machine, or end the program that uses it.",
        )
    return GroupError(
        f"{place.world_size} processes could not meet at {where}: {_first_line(error)}",
        "Check that the address is that of rank 0's machine and that no other program listens on the port.",
    )


def _not_connected(place: Place, everyone: tuple[Member, ...], backend: str, error: Exception) -> GroupError:
    chosen = {name: os.environ.get(name) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    said = ", ".join(f"{name} is {value or 'not set'}" for name, value in chosen.items())
    card = network_cards(place.master_addr).get("GLOO_SOCKET_IFNAME")
    leads = f", and {card} leads to {place.master_addr}" if card else ""
    return GroupError(
        f"all {len(everyone)} processes came ({by_host(everyone)}), but could not form a group over {backend}: "
        f"{_first_line(error)}",
        f"Check that each machine uses the network interface by which it reaches the others (on {hostname()} {said}"
        f"{leads}) and that no firewall closes the ports between them.",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
