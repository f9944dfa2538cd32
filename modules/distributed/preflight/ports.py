"""Ports between machines, both ways: the master's, and those that gloo and NCCL choose at random."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable
from itertools import permutations

from modules.distributed.preflight.conductor import Answer, Conductor, Context
from modules.distributed.preflight.words import hosts_of, lost_cells
from modules.machine.routes import route_of_group
from modules.run.checkup import Cell

_PORTS = 2
_WORD = b"tandem"


def listen(context: Context) -> Answer:
    """The task of a host's first rank: wait for callers on random ports for as long as a check may last."""
    servers = [socket.create_server(("", 0)) for _ in range(_PORTS)]
    threading.Thread(target=_serve, args=(servers, context.patience_s * 2), name="ports", daemon=True).start()
    route = route_of_group(context.master[0])
    address = context.master[0] if context.own.rank == 0 or route is None else route.address
    return {"address": address, "ports": [server.getsockname()[1] for server in servers]}


def call(context: Context, address: str, ports: list[int], *, greeted: bool) -> Answer:
    """The task of another host's first rank: what came of a connection to each port; "" where all is well."""
    return {str(port): _call(address, port, greeted, context.patience_s / 6) for port in ports}


def check(conductor: Conductor) -> Iterable[Cell]:
    """One cell for each way between two hosts that is closed, or one for all that are open."""
    firsts = conductor.firsts
    if len(firsts) < 2:
        return [Cell("ports", hosts_of(firsts), "grey", "one machine: nothing to try")]
    listening = conductor.ask([member.rank for member in firsts], "listen")
    cells = lost_cells("ports", conductor)
    address, port = conductor.context.master
    for member in firsts[1:]:
        said = conductor.ask([member.rank], "call", address=address, ports=[port], greeted=False)
        cells += _judge(said.get(member.rank, {}), f"{member.host} to {firsts[0].host}", address, "the master port")
    for one, other in permutations(firsts, 2):
        there = listening.get(other.rank, {})
        if "error" in there or not there or one.rank in conductor.lost:
            continue
        address_there, ports = there["address"], there["ports"]
        said = conductor.ask([one.rank], "call", address=address_there, ports=ports, greeted=True)
        where = f"{one.host} to {other.host}"
        cells += [
            *lost_cells("ports", conductor),
            *_judge(said.get(one.rank, {}), where, str(address_there), "port"),
        ]
    if cells:
        return cells
    return [Cell("ports", hosts_of(firsts), "green", f"the master port {port} and random ones are open, both ways")]


def _judge(said: Answer, where: str, address: str, what: str) -> list[Cell]:
    closed = {port: str(cause) for port, cause in said.items() if cause}
    if not closed:
        return []
    port, cause = next(iter(closed.items()))
    return [Cell("ports", where, "red", f"{what} {address}:{port}: {cause}", ADVICE)]


def _serve(servers: list[socket.socket], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for server in servers:
            server.settimeout(0.05)
            try:
                caller, _ = server.accept()
                with caller:
                    caller.sendall(_WORD)
            except OSError:
                continue
    for server in servers:
        server.close()


def _call(address: str, port: int, greeted: bool, seconds: float) -> str:
    try:
        with socket.create_connection((address, port), timeout=seconds) as line:
            line.settimeout(seconds)
            if greeted and line.recv(len(_WORD)) != _WORD:
                return "another program answered"
    except TimeoutError:
        return f"no answer within {seconds:.0f} s"
    except OSError as error:
        return error.strerror or str(error)
    return ""


ADVICE = (
    "A firewall or a missing route. Open all TCP ports between the training machines, check that both addresses are of "
    "the same network, and that master_addr is the address that the others can reach."
)
