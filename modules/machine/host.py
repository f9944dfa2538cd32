"""Name, CPUs, memory, disk and addresses of this machine."""

import math
import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_RUN_HOSTNAME = "TANDEM_HOSTNAME"
_NAMESPACES = (Path("/proc/self/ns/pid"), Path("/proc/self/ns/net"))


@dataclass(frozen=True)
class Memory:
    """Main memory in MiB."""

    total: int
    available: int


def system_hostname() -> str:
    """The short name of this machine, never empty. Other machines of a run may have the same."""
    return socket.gethostname().split(".")[0] or "localhost"


def hostname() -> str:
    """How messages name this machine: as the list of machines of who has started it there, else by its short name, or
    what tells it from the others of a run, such as "localhost (10.0.0.2)"."""
    return os.environ.get(_RUN_HOSTNAME) or system_hostname()


def distinct_names(machines: Sequence[tuple[str, str]]) -> list[str]:
    """The names of machines given by name and address: "localhost (10.0.0.2)" if several are called localhost, or
    "localhost (machine 1)", by its place here, if addresses do not tell them apart."""
    names = []
    for number, (name, address) in enumerate(machines):
        addresses = [other for same, other in machines if same == name]
        are_distinct = len({*addresses} - {""}) == len(addresses)
        names.append(f"{name} ({address if are_distinct else f'machine {number}'})" if len(addresses) > 1 else name)
    return names


def set_hostname(name: str) -> None:
    """What `hostname` returns from now on, also in the processes that this one starts."""
    if name != hostname():
        os.environ[_RUN_HOSTNAME] = name


def hostname_variable(name: str) -> dict[str, str]:
    """The variable with which `hostname` returns `name`, for a program that is started on another machine."""
    return {_RUN_HOSTNAME: name}


def machine_id() -> str:
    """Identifies this machine, even among machines of the same name; containers with separate process and network
    namespaces count as different machines.

    Processes with equal ids see each other's process ids and reach each other through the loopback interface.
    """
    try:
        return " ".join([_BOOT.read_text().strip(), *(os.readlink(each) for each in _NAMESPACES)])
    except OSError:
        return f"{uuid.getnode():012x}"


def process_start(pid: int) -> float:
    """When a process was started, in seconds since boot on Linux, which do not move with the clock; elsewhere since
    1970. Raises psutil.Error."""
    if os.name == "nt":
        return psutil.Process(pid).create_time()
    try:  # field 22 of proc(5); what comes before may contain blanks
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return psutil.Process(pid).create_time()


def cpu_count() -> int:
    """CPUs that this process may use (at least 1), given its affinity and container quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _cgroup_quota() or allowed))


def memory_mib() -> Memory:
    """Main memory of this machine."""
    memory = psutil.virtual_memory()
    return Memory(total=memory.total >> 20, available=memory.available >> 20)


def usable_memory_mib() -> Memory:
    """Main memory that processes here may use: of the machine, or of the container if that has less."""
    memory = memory_mib()
    try:
        total, used = (int((_CGROUP / f"memory.{name}").read_text()) >> 20 for name in ("max", "current"))
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        droppable = next(int(line.split()[1]) for line in lines if line.startswith("inactive_file ")) >> 20
    except (OSError, ValueError, StopIteration):  # no such file, or "max": no limit
        return memory
    free = max(0, total - used + droppable)
    return Memory(total=min(memory.total, total), available=min(memory.available, free))


def free_disk_mib(path: Path) -> int:
    """Free space in MiB on the disk of `path`, which need not exist yet. Raises OSError if the disk is gone."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return int(psutil.disk_usage(str(existing)).free) >> 20


def local_addresses() -> list[str]:
    """The IPv4 addresses of this machine, without loopback."""
    found = (
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    )
    return [address for address in found if not address.startswith("127.")]


def _cgroup_quota() -> int | None:
    """The CPU quota of the container in CPUs, rounded up; None without a quota."""
    for quota_file, period_file in (
        (_CGROUP / "cpu.max", None),
        (_CGROUP / "cpu/cpu.cfs_quota_us", _CGROUP / "cpu/cpu.cfs_period_us"),
    ):
        try:
            fields = quota_file.read_text().split() + (period_file.read_text().split() if period_file else [])
            quota, period = int(fields[0]), int(fields[1])
        except (OSError, ValueError, IndexError):
            # No such file, or "max": no quota.
            continue
        if quota > 0 and period > 0:
            return math.ceil(quota / period)
    return None
