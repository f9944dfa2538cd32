"""Whether a machine that says nothing can be reached at all: its system answers a knock, whatever its programs do.

A rank may be silent for a while because it computes in native code that lets no thread run. A machine whose cable is
out, or that has lost its power, does not even refuse a connection; so less patience is needed to be sure of its loss.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from modules.distributed.sign_in import Member
from modules.run.group_place import Place

KNOCK_WITHIN_S = 2.0
# How long no knock may be answered before the machine counts as out of reach: more than a cable's short blink.
CUT_OFF_AFTER_S = 6.0
# Older unanswered knocks were of another silence.
_OF_ONE_SILENCE_S = 8.0


class Door:
    """Where to knock at one machine. A knock takes seconds where nobody answers, so a thread of its own does it."""

    def __init__(self, address: str, port: int, *, answers: bool = False) -> None:
        """`answers`: it has been reached there already. Where it never was, a firewall may swallow every knock."""
        self._address, self._port = address, port
        self._answers = answers
        self._unanswered_since: float | None = None
        self._knocked_at = 0.0
        self._knocking = threading.Lock()

    def is_cut_off(self) -> bool:
        """Whether it answered once, and now has not for too long; knocks again for the next time one asks."""
        since = self._unanswered_since
        if self._knocking.acquire(blocking=False):
            threading.Thread(target=self._knock_once, name="knock", daemon=True).start()
        return self._answers and since is not None and time.monotonic() - since > CUT_OFF_AFTER_S

    def knock(self) -> None:
        """Connect, which opens nothing: a refusal is an answer, too."""
        began = time.monotonic()
        try:
            socket.create_connection((self._address, self._port), KNOCK_WITHIN_S).close()
        except ConnectionRefusedError:
            pass
        except OSError:
            if self._unanswered_since is None or began - self._knocked_at > _OF_ONE_SILENCE_S:
                self._unanswered_since = began
            self._knocked_at = began
            return
        self._answers, self._unanswered_since = True, None

    def _knock_once(self) -> None:
        try:
            self.knock()
        finally:
            self._knocking.release()


@dataclass(frozen=True)
class Reach:
    """The doors that this rank watches, by machine: rank 0 those of the others, the others that of the store."""

    doors: dict[str, Door]

    @classmethod
    def of(cls, everyone: Sequence[Member], place: Place) -> Self:
        """Rank 0 knocks at every door once, to know which of them answer."""
        own, first = everyone[place.rank], everyone[0]
        if own.machine_id != first.machine_id:
            return cls({first.machine_id: Door(place.master_addr, place.master_port, answers=True)})
        if place.rank != 0:
            return cls({})
        others = {member.machine_id: member.address for member in everyone if member.machine_id != own.machine_id}
        doors = {machine: Door(address, place.master_port) for machine, address in others.items() if address}
        if doors:
            threading.Thread(target=_knock_at_all, args=(list(doors.values()),), name="doors", daemon=True).start()
        return cls(doors)

    def is_cut_off(self, machine: str) -> bool:
        """Whether that machine cannot be reached any more; False where nobody here knows. Ask every few seconds."""
        door = self.doors.get(machine)
        return door is not None and door.is_cut_off()


def _knock_at_all(doors: Sequence[Door]) -> None:
    for door in doors:
        door.knock()
