"""What far_side.py does besides, of runs on several machines: machine 0 listens, and the others take part.

It is sent with far_side.py, so it needs nothing but the standard library of Python 3.8. What a machine keeps of its
part in another one's run is in state/: NAME.part names machine 0, NAME.txt is what its part has printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import threading
from typing import Any

from modules.run.remote.far_files import end_of, read
from modules.run.remote.far_messages import MOST_DATA, Refused
from modules.run.remote.far_runs import RESUMES
from modules.run.remote.far_side import FarSide
from modules.run.remote.far_side import main as serve

_PORTS_TRIED = 100  # as machine 0 does
_REACHES_WITHIN_S = 8.0
PRINTED = 4 << 10  # bytes that say why a program has ended
_LAST_EVENTS = 64 << 10  # bytes in which the last event ends
# The secret is read before the loop and given to each start, and is in no argument and no variable of a process.
_JOINS = (
    'times=$1 ends=$2; shift 2; IFS= read -r secret; echo "start $(date +%s)" >>"$times"; '
    'while :; do printf "%s\\n" "$secret" | "$@"; code=$?; '
    'case " $ends " in *" all "*|*" $code "*) break;; esac; echo "It joins again."; sleep 10; done; '
    'echo "end $(date +%s)" >>"$times"; echo $code >"$0.new" && mv "$0.new" "$0"'
)


class FarMachine(FarSide):
    """Answers as FarSide does, and takes part in runs of several machines."""

    # Machine 0

    def do_listen(self, asked: dict[str, Any], _data: bytes) -> None:
        """Answer whoever connects with a `word` until this connection ends; at which ports, from each of `ports` on."""
        servers = [_free_server(first) for first in asked["ports"]]
        for server in servers:
            threading.Thread(target=_greet, args=(server, asked["word"].encode()), daemon=True).start()
        self._answer(ports=[server.getsockname()[1] for server in servers])

    def do_joining(self, asked: dict[str, Any], _data: bytes) -> None:
        """The address and secret with which others join a run, once it listens, and whether all have joined."""
        name = asked["run"]
        folder = self._runs.folder(name)
        line = _words(os.path.join(folder, "log", "join_line.txt"))
        is_active = self._runs.is_active(name)
        known = {"address": line[-1], "secret": line[0].partition("=")[2]} if len(line) > 1 else {}
        text = b"" if is_active else end_of(os.path.join(folder, "log", "console.txt"), PRINTED)
        has_begun = bool(known) and self._has_begun_with_all(name, folder)
        self._answer(text, is_active=is_active, code=self._runs.exit_code(name), has_begun=has_begun, **known)

    def _has_begun_with_all(self, name: str, folder: str) -> bool:
        """By the last event of this start: while machines are missing, there is none but of those that join."""
        try:
            event = json.loads(end_of(os.path.join(folder, "events.jsonl"), _LAST_EVENTS).splitlines()[-1])
        except (IndexError, ValueError):  # it is being written
            return False
        with open(self._state.path(name, "times")) as file:
            begun = max((int(line.split()[1]) for line in file if line.startswith("start ")), default=0)
        return event["t"] >= begun and (event["type"] != "joining" or not event["missing"])

    # The others

    def do_reach(self, asked: dict[str, Any], _data: bytes) -> None:
        """Why machine 0, which says a `word`, is not reached at an address and its ports; "" if it is."""
        for port in asked["ports"]:
            try:
                with socket.create_connection((asked["address"], port), timeout=_REACHES_WITHIN_S) as connection:
                    said = connection.recv(len(asked["word"]), socket.MSG_WAITALL)
            except OSError as error:
                self._answer(fault=f"port {port}: {error.strerror or 'no answer'}")
                return
            if said.decode("latin-1") != asked["word"]:
                self._answer(fault=f"port {port}: another program answers")
                return
        self._answer(fault="")

    def do_join(self, asked: dict[str, Any], _data: bytes) -> None:
        """Take part in a run of `machine`, in a session of its own. Asked again with the same id, it does already."""
        name = self._runs.name(asked["run"])
        self._locks.keep_all()
        is_known, lock = self._runs.is_known(name, asked["id"]), self._runs.lock(name)
        if lock is None:
            if not is_known:
                raise self._taken(asked, is_active=True)
        else:
            with lock:
                is_ours = is_known or (asked["id"].startswith(RESUMES) and bool(self._state.read(name, "part")))
                if not is_ours and self._runs.is_in_the_way(name):
                    raise self._taken(asked, is_active=False)
                self._launch_part(name, asked, lock.fileno())
        self._answer()

    def _launch_part(self, name: str, asked: dict[str, Any], lock: int) -> None:
        self._state.remove(name, "exit", "jobs")
        self._state.write(name, "id", asked["id"])
        self._state.write(name, "part", asked["machine"])
        argv = [self._python(asked["python"]), "scripts/train.py", "--join", asked["address"], "--token_file", "-"]
        with open(self._state.path(name, "txt"), "wb") as printed:
            process = self._begin(_JOINS, [asked["ends"], *argv], asked, printed, lock, subprocess.PIPE)
        assert process.stdin is not None
        with process.stdin as pipe, contextlib.suppress(BrokenPipeError):
            pipe.write(asked["secret"].encode() + b"\n")

    def do_part(self, asked: dict[str, Any], _data: bytes) -> None:
        """Whether this machine takes part in a run, the exit code of its part, and the end of what that has printed."""
        name = self._runs.name(asked["run"])
        text = end_of(self._state.path(name, "txt"), MOST_DATA if asked["whole"] else PRINTED)
        self._answer(text, is_active=self._runs.is_active(name), code=self._runs.exit_code(name))


def _free_server(first: int) -> socket.socket:
    for port in range(first, min(first + _PORTS_TRIED, 65_536)):
        with contextlib.suppress(OSError):
            if socket.has_dualstack_ipv6():
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
            return socket.create_server(("", port))
    raise Refused(f"no port from {first} to {first + _PORTS_TRIED - 1} is free; set initial_port to another number")


def _greet(server: socket.socket, word: bytes) -> None:
    while True:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(word)


def _words(path: str) -> list[str]:
    try:
        return shlex.split(read(path))
    except ValueError:
        return []


def main(folder: str) -> None:
    """As far_side.py's."""
    serve(folder, FarMachine)
