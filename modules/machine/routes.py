"""Which way packets leave: the local address and the network card that lead to another machine."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Final

import psutil

from modules.machine.host import local_addresses

# An address of no machine (RFC 5737): the way to it is the way to everywhere, the default route.
_ANYWHERE: Final = "192.0.2.1"
_ANY_PORT: Final = 9


@dataclass(frozen=True)
class Route:
    """A network card of this machine, and this machine's address there."""

    interface: str
    address: str

    @property
    def is_loopback(self) -> bool:
        """Whether it never leaves this machine."""
        return ipaddress.ip_address(self.address).is_loopback


def route_to(host: str) -> Route | None:
    """The way that the system takes to `host` (a name or an address); None where it knows none. Sends nothing."""
    try:
        found = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    for family, kind, protocol, _, target in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # of a datagram socket: only the route is looked up
                address = str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            continue
        interface = _interface_of(address)
        if interface is not None:
            return Route(interface, address)
    return None


def route_of_group(master_addr: str) -> Route | None:
    """The way by which processes of several machines reach each other: that to `master_addr`.

    On the master itself a name may stand for the loopback (Debian's /etc/hosts says so); then the default route is
    the better guess. None where nothing is known.
    """
    route = route_to(master_addr)
    if route is not None and route.is_loopback:
        route = route_to(_ANYWHERE)
    return route


def own_addresses() -> list[str]:
    """The addresses under which other machines may reach this one, the most likely one first."""
    everywhere = route_to(_ANYWHERE)
    first = [] if everywhere is None or everywhere.is_loopback else [everywhere.address]
    return list(dict.fromkeys([*first, *local_addresses()]))


def is_loopback_name(host: str) -> bool:
    """Whether `host` names the machine that asks, whichever that is."""
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
    # 127.0.0.2 and its like belong to the loopback without being listed.
    is_loopback = ipaddress.ip_address(address).is_loopback
    return _interface_of("127.0.0.1") if is_loopback and address != "127.0.0.1" else None
