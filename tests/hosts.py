"""Two hosts on one machine: network namespaces with a cable (a veth pair) between them, each with its own host name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
_TOOLS = ("ip", "unshare", "hostname")


def skip_reason() -> str:
    """Why this machine cannot simulate two hosts; empty if it can."""
    if sys.platform != "linux":
        return "network namespaces exist only on Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not installed"
    tried = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"no network namespaces here: {tried.stderr.strip()}"


@dataclass(frozen=True)
class Host:
    """One of the two: its name, its address, and the namespace in which its programs run."""

    name: str
    address: str
    namespace: str

    def command(self, argv: Sequence[str]) -> list[str]:
        """`argv` as a program of this host."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name, *argv]
        return ["ip", "netns", "exec", self.namespace, *named]

    def start(
        self, argv: Sequence[str], environment: Mapping[str, str], *, output: int | IO[str] = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Start a program on this host, in a new session, with stdout and stderr in `output`."""
        return subprocess.Popen(
            self.command(argv),
            env=dict(environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def processes(self) -> list[int]:
        """The ids of all processes that run on this host."""
        found = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False)
        return [int(word) for word in found.stdout.split()]

    def power_off(self) -> None:
        """Kill everything that runs on this host, as a power cut would."""
        for _ in range(3):  # a process may start another meanwhile
            for pid in self.processes():
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    continue

    def add_default_route(self, name: str, address: str) -> None:
        """Add a network as the default route, such as that of a VPN, in which no other host is."""
        _ip("-n", self.namespace, "link", "add", name, "type", "veth", "peer", "name", f"{name}-end")
        _ip("-n", self.namespace, "address", "add", f"{address}/24", "dev", name)
        for end in (name, f"{name}-end"):
            _ip("-n", self.namespace, "link", "set", end, "up")
        _ip("-n", self.namespace, "route", "add", "default", "dev", name)

    def unplug(self) -> None:
        """Unplug the network cable: packets are dropped silently."""
        _ip("-n", self.namespace, "link", "set", "cable", "down")

    def plug_in(self) -> None:
        """Plug the cable in again."""
        _ip("-n", self.namespace, "link", "set", "cable", "up")


@contextmanager
def two_hosts(
    *, rate: str | None = None, delay_ms: float = 0.0, number: int | None = None
) -> Iterator[tuple[Host, Host]]:
    """Hosts "alpha" and "beta" that reach each other at 10.77.N.1 and .2; `rate`, e.g. "100mbit", slows the cable, and
    packets take `delay_ms` each way.

    Processes that still run on them are killed at the end.
    """
    number = os.getpid() % 250 + 1 if number is None else number
    hosts = tuple(
        Host(name, f"10.77.{number}.{place}", f"tandem-{os.getpid()}-{name}")
        for place, name in enumerate(("alpha", "beta"), start=1)
    )
    alpha, beta = hosts
    try:
        for host in hosts:
            _ip("netns", "add", host.namespace)
            _ip("-n", host.namespace, "link", "set", "lo", "up")
        _ip("-n", alpha.namespace, "link", "add", "cable", "type", "veth", "peer", "cable", "netns", beta.namespace)
        for host in hosts:
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "cable")
            _ip("-n", host.namespace, "link", "set", "cable", "up")
            if rate is not None:
                shape = ["tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
                netns = ["ip", "netns", "exec", host.namespace]
                _run(*netns, "tc", "qdisc", "add", "dev", "cable", "root", "handle", "1:", *shape)
                if delay_ms:
                    late = ["netem", "delay", f"{delay_ms}ms", "limit", "10000"]
                    _run(*netns, "tc", "qdisc", "add", "dev", "cable", "parent", "1:", *late)
        yield alpha, beta
    finally:
        for host in hosts:
            host.power_off()
            subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True, check=False)


@contextmanager
def uplinks(*hosts: Host) -> Iterator[list[str]]:
    """A network of its own between this machine and each host, in which no other host is: their addresses there."""
    addresses = []
    try:
        for place, host in enumerate(hosts):
            number, name = host.address.split(".")[2], f"up{place}-{os.getpid()}"
            _ip("link", "add", name, "type", "veth", "peer", "uplink", "netns", host.namespace)
            addresses.append(f"10.78.{number}.{4 * place + 2}")
            _ip("address", "add", f"10.78.{number}.{4 * place + 1}/30", "dev", name)
            _ip("-n", host.namespace, "address", "add", f"{addresses[-1]}/30", "dev", "uplink")
            _ip("link", "set", name, "up")
            _ip("-n", host.namespace, "link", "set", "uplink", "up")
        yield addresses
    finally:
        for place in range(len(addresses)):
            subprocess.run(["ip", "link", "delete", f"up{place}-{os.getpid()}"], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
