"""CPU, memory and disk of a process with its children, and the network of this machine, between two readings."""

from __future__ import annotations

import ipaddress
import time
from contextlib import suppress
from pathlib import Path

import psutil

_MB = 1e6


class ProcessLoad:
    """One process and its children, such as a rank and its loader workers."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: dict[int, tuple[float, int, int]] = {}  # CPU seconds, bytes read, bytes written by process
        self._read_at = 0.0

    def read(self) -> dict[str, float]:
        """CPU in percent of one core, RAM in MiB, disk in MB/s since the last call; {} if the process is gone.

        RAM counts the shared memory of children once. The rates are missing from the first reading.
        """
        now, ram, found = time.monotonic(), 0.0, {}
        for pid in (self._pid, *_children(self._pid)):
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                times, memory = process.cpu_times(), process.memory_info()
                ram += memory.rss - (getattr(memory, "shared", 0) if pid != self._pid else 0)
                found[pid] = (times.user + times.system, *_disk_bytes(process))
        seconds, before = now - self._read_at, self._before
        self._before, self._read_at = found, now
        if self._pid not in found:
            return {}
        values = {"process_ram_mib": ram / 2**20}
        if self._pid in before:
            sums = [sum(max(0, found[pid][n] - before[pid][n]) for pid in found if pid in before) for n in range(3)]
            rates = [each / seconds for each in sums]
            values |= {"process_cpu_percent": 100 * rates[0]}
            values |= {"disk_read_mb_s": rates[1] / _MB, "disk_write_mb_s": rates[2] / _MB}
        return {name: round(value, 3) for name, value in values.items()}


class NetworkLoad:
    """All network cards of this machine together, without the loopback interface."""

    def __init__(self) -> None:
        self._loopback = _loopback_interfaces()
        self._before: tuple[int, int] | None = None
        self._read_at = 0.0

    def read(self) -> dict[str, float]:
        """Sent and received in MB/s since the last call; {} at the first."""
        cards = [each for name, each in psutil.net_io_counters(pernic=True).items() if name not in self._loopback]
        counts = sum(each.bytes_sent for each in cards), sum(each.bytes_recv for each in cards)
        now, before = time.monotonic(), self._before
        seconds, self._before, self._read_at = now - self._read_at, counts, now
        if before is None:
            return {}
        names = ("network_sent_mb_s", "network_received_mb_s")
        return {
            name: round(max(0, new - old) / seconds / _MB, 3)
            for name, new, old in zip(names, counts, before, strict=True)
        }


def _loopback_interfaces() -> frozenset[str]:
    """Their names; an interface says so by its flags, on Windows, which has none, by its addresses."""
    states = psutil.net_if_stats()
    found = set()
    for name, addresses in psutil.net_if_addrs().items():
        flags = states[name].flags if name in states else ""
        if "loopback" in flags.split(",") or (not flags and any(_is_loopback(each.address) for each in addresses)):
            found.add(name)
    return frozenset(found)


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):  # a MAC address
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return False


def _children(pid: int) -> list[int]:
    """Those that the main thread has started; psutil would look at every process of the machine."""
    with suppress(OSError, ValueError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _disk_bytes(process: psutil.Process) -> tuple[int, int]:
    """Bytes read from and written to disks; 0 where the system does not say, as on macOS."""
    with suppress(psutil.Error, AttributeError, NotImplementedError):
        counters = process.io_counters()
        return counters.read_bytes, counters.write_bytes
    return 0, 0
