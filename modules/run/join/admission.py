"""What a machine must pass before it is a member: it gets the config, and answers with digests of its files."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final

from modules.config import TrainConfig, dump
from modules.files import printable
from modules.machine import system_hostname
from modules.run.join.channel import Message
from modules.run.join.checks import check_dataset, process_count
from modules.run.join.fingerprint import Listing, all_listings, family_identity
from modules.run.join.keys import derive_key
from modules.run.join.members import Members, RemoteMachine
from modules.run.join.session import Session

# Someone who has pasted the line must not read that nobody has come, however many images are compared there.
_SLOW_S: Final = 8.0
LONGEST_REASON: Final = 500  # characters that are shown


class MachineLeft(Exception):
    """A machine has left before it was ready: its reason."""


class RunClosed(Exception):
    """Machine 0 has ended before the machine was ready."""


class Admission:
    """Sends each machine the config, and compares its files with this machine's, which are listed meanwhile."""

    def __init__(
        self,
        config: TrainConfig,
        welcome: Mapping[str, object],
        token: str,
        members: Members,
        report: Callable[[str], None],
        is_closed: Callable[[], bool],
    ) -> None:
        """`welcome` is sent with the config; `report` gets what the machines do that are not ready yet."""
        self._config = config
        self._welcome = welcome
        self._token = token
        self._members = members
        self._report = report
        self._is_closed = is_closed
        self._listings: Future[list[Listing]] = Future()
        if welcome["preflight"]:  # compares the files itself
            self._listings.set_result([])
            return
        # not a pool thread: Python would wait for it before exiting after a stop
        threading.Thread(target=self._list_data, name="listings", daemon=True).start()

    def check_local_data(self) -> None:
        """Raise what listing the data of this machine raised, if it has."""
        if self._listings.done():
            self._listings.result()

    def admit(self, session: Session, machine: RemoteMachine, number: int, notes: Sequence[str]) -> int:
        """The number of processes of a machine that passes.

        Raises JoinRejected, MachineLeft, RunClosed or ChannelClosed.
        """
        nonce = secrets.token_hex(16)
        session.send(
            "welcome",
            host=system_hostname(),
            number=number,
            machines=self._config.num_nodes,
            config=dump(self._config),
            nonce=nonce,
            family=family_identity(self._config),
            notes=list(notes),
            **self._welcome,
        )
        ready = self._wait_until_ready(session, machine, number)
        while not self._listings.done():
            session.receive(0.2)
        key = derive_key(self._token, "fingerprints", nonce)
        check_dataset(self._config, self._listings.result(), session, ready, key, machine.host)
        return process_count(ready["processes"])

    def _wait_until_ready(self, session: Session, machine: RemoteMachine, number: int) -> Message:
        """Its answer; meanwhile report that it has connected, and what it waits for."""
        slow_at, has_asked = time.monotonic() + _SLOW_S, False  # one sentence of each is enough
        while True:
            if self._is_closed():
                raise RunClosed
            message = session.receive(0.2)
            kind = "" if message is None else message["type"]
            if message is not None and kind == "ready":
                return message
            if message is not None and kind == "leave":
                raise MachineLeft(printable(message.get("reason"), LONGEST_REASON))
            if kind in ("asking", "answered"):
                self._members.mark_asking(number, is_asking=kind == "asking")
            if kind == "asking" and not has_asked:
                slow_at, has_asked = math.inf, True
                self._report(asking(machine))
            elif time.monotonic() > slow_at:
                slow_at = math.inf
                self._report(f"{machine} has connected and is still checking its files; it has not confirmed yet.")

    def _list_data(self) -> None:
        try:
            self._listings.set_result(all_listings(self._config))
        except Exception as error:  # noqa: BLE001  # `check_local_data` raises it
            self._listings.set_exception(error)


def asking(machine: RemoteMachine) -> str:
    """The sentence about a machine that waits for an answer of its user."""
    return f"{machine} has connected and asks its user for permission: answer the question on its terminal."
