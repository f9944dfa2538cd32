"""Routing: the local address and network interface through which another machine is reached."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Final

import psutil

from modules.machine.host import local_addresses

# A reserved address (RFC 5737), so the route to it is the default route.
_ANYWHERE: Final = "192.0.2.1"
_ANY_PORT: Final = 9


@dataclass(frozen=True)
class Route:
    """A network interface of this machine, and this machine's address on it."""

    interface: str
    address: str

    @property
    def is_loopback(self) -> bool:
        """Whether the route never leaves this machine."""
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def is_link_local(self) -> bool:
        """Whether the address means nothing without the name of an interface."""
        return ipaddress.ip_address(self.address).is_link_local


def route_to(host: str) -> Route | None:
    """The system's route to `host` (a name or an address); None if there is none. Sends no packets."""
    try:
        found = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    for family, kind, protocol, _, target in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # for UDP this only looks up the route
                address = str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            continue
        interface = _interface_of(address)
        if interface is not None:
            return Route(interface, address)
    return None


def route_to_master(master_addr: str) -> Route | None:
    """The route by which the machines of a run reach each other: that to `master_addr`; None if there is none.

    On the master itself, its name may resolve to loopback (Debian's /etc/hosts); the default route is then the better
    guess.
    """
    route = route_to(master_addr)
    if route is not None and route.is_loopback:
        route = route_to(_ANYWHERE)
    return route


def addresses_of(host: str) -> set[str]:
    """The addresses that a name stands for here, or an address itself; empty if it is unknown."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return set()


def is_own_address(host: str) -> bool:
    """Whether this machine has the address `host`, or one of those that the name stands for."""
    route = route_to(host)
    return route is not None and route.address in addresses_of(host)


def preferred_addresses() -> list[str]:
    """The local addresses, the one most likely to be reachable from other machines first."""
    default = route_to(_ANYWHERE)
    first = [] if default is None or default.is_loopback else [default.address]
    return list(dict.fromkeys([*first, *local_addresses()]))


def network_cards() -> list[str]:
    """The interfaces that are up and lead to other machines: those from which NCCL chooses by itself."""
    states = psutil.net_if_stats()
    return [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if name in states
        and states[name].isup
        and not name.startswith("docker")
        and any(
            not ipaddress.ip_address(each.address.partition("%")[0]).is_loopback
            for each in addresses
            if each.family in {socket.AF_INET, socket.AF_INET6}
        )
    ]


def is_loopback_name(host: str) -> bool:
    """Whether `host` is a loopback name or address, so that it means a different machine on each machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _interface_of(address: str) -> str | None:
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return name
    # 127.0.0.2 and the like belong to the loopback interface without being listed.
    is_loopback = ipaddress.ip_address(address).is_loopback
    return _interface_of("127.0.0.1") if is_loopback and address != "127.0.0.1" else None
