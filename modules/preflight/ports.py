"""Ports between machines in both directions: the master port, and random ones like those that gloo and NCCL use."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable
from itertools import permutations

from modules.machine.routes import route_to_master
from modules.preflight.cells import hosts_of
from modules.preflight.coordinator import Answer, Context, Coordinator
from modules.run.preflight_report.report import Cell

_PORTS = 2
_GREETING = b"tandem"


def listen(context: Context) -> Answer:
    """Task of a host's first rank: accept connections on random ports for as long as the check may take."""
    servers = [socket.create_server(("", 0)) for _ in range(_PORTS)]
    threading.Thread(target=_serve, args=(servers, context.timeout_s * 2), name="ports", daemon=True).start()
    route = route_to_master(context.master[0])
    address = context.master[0] if context.own.rank == 0 or route is None else route.address
    return {"address": address, "ports": [server.getsockname()[1] for server in servers]}


def connect(context: Context, address: str, ports: list[int], *, greeted: bool) -> Answer:
    """Task of another host's first rank: the error of a connection to each port, "" if it works."""
    return {str(port): _connect(address, port, greeted, context.timeout_s / 6) for port in ports}


def check(coordinator: Coordinator) -> Iterable[Cell]:
    """One cell for each blocked direction between two hosts, or one if all are open."""
    first_ranks = coordinator.first_ranks
    hosts = hosts_of(first_ranks)
    if len(first_ranks) < 2:
        return [Cell("ports", hosts, "grey", "one machine: nothing to test")]
    listening = coordinator.ask([member.rank for member in first_ranks], "listen")
    cells: list[Cell] = []
    address, port = coordinator.context.master
    for member in first_ranks[1:]:
        answers = coordinator.ask([member.rank], "connect", address=address, ports=[port], greeted=False)
        where = f"{member.host} to {first_ranks[0].host}"
        cells += _judge(answers.get(member.rank, {}), where, address, "the master port")
    for one, other in permutations(first_ranks, 2):
        there = listening.get(other.rank, {})
        if "error" in there or not there or one.rank in coordinator.lost:
            continue
        address_there, ports = there["address"], there["ports"]
        answers = coordinator.ask([one.rank], "connect", address=address_there, ports=ports, greeted=True)
        cells += _judge(answers.get(one.rank, {}), f"{one.host} to {other.host}", str(address_there), "port")
    if cells or any(member.rank in coordinator.lost for member in first_ranks):
        return cells
    return [Cell("ports", hosts, "green", f"the master port {port} and random ones are open in both directions")]


def _judge(answer: Answer, where: str, address: str, what: str) -> list[Cell]:
    closed = {port: str(cause) for port, cause in answer.items() if cause}
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
                client, _ = server.accept()
                with client:
                    client.sendall(_GREETING)
            except OSError:
                continue
    for server in servers:
        server.close()


def _connect(address: str, port: int, greeted: bool, seconds: float) -> str:
    try:
        with socket.create_connection((address, port), timeout=seconds) as connection:
            connection.settimeout(seconds)
            if greeted and connection.recv(len(_GREETING)) != _GREETING:
                return "another program answered"
    except TimeoutError:
        return f"no answer within {seconds:.0f} s"
    except OSError as error:
        return error.strerror or str(error)
    return ""


ADVICE = (
    "A firewall or a missing route. Open all TCP ports between the training machines, and check that both addresses "
    "belong to the same network and that the others can reach master_addr."
)
