"""What queue.json holds: the entries in their order. It has names and numbers only, so it cannot lead elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from modules.config import ConfigError
from modules.config.run_names import sanitize_run_name
from modules.files import FileFault, Record, printable
from modules.run.hosts.host import NAME
from modules.run.hosts.host_list import MOST_HOSTS

State = Literal["waiting", "running", "finished", "stopped", "failed", "removed"]
Wanted = Literal["run", "pause", "stop"]

MOST_ENTRIES: Final = 2000
MOST_ENDED: Final = 500  # of which the oldest are forgotten
_MOST_DEVICES: Final = 64
_REASON_CHARS: Final = 2000
_MOST_NAMED: Final = 20  # in a message

_Seconds = Annotated[float, Field(ge=0, lt=1e11)]
_Number = Annotated[int, Field(ge=1, lt=1 << 31)]
_Devices = Annotated[list[Annotated[int, Field(ge=0, le=1023)]], Field(min_length=1, max_length=_MOST_DEVICES)]


class Resources(NamedTuple):
    """What a run takes: GPU indices (None: all) of this machine or of the one named `place`, and the names of the
    machines that it starts over ssh, or that join it at `place`."""

    devices: Sequence[int] | None
    hosts: Sequence[str] = ()
    place: str = ""

    def overlaps(self, taken: Resources) -> bool:
        """Whether a run with these cannot be beside one that has taken those."""
        if not set(self.hosts).isdisjoint(taken.hosts) or self.place in taken.hosts or taken.place in self.hosts:
            return True
        if self.place != taken.place:
            return False
        return self.devices is None or taken.devices is None or not set(self.devices).isdisjoint(taken.devices)


class Entry(Record):
    """One config in the queue; times are seconds since 1970. `devices`, `hosts` and `place` are as in `Resources`.

    `gpus` is how many it needs here (None: all of `devices`, or of this machine), `given` the indices of those that its
    run has got if `devices` names none. `sends_token`: its run at the place gets the HF_TOKEN of whoever starts it.
    `reason` is how it ended, `waits` what is in its way, as the process that works off the queue has last found it.
    """

    number: _Number
    name: Annotated[str, Field(max_length=200)]  # of the run, whose folder is beside the queue's
    devices: _Devices | None
    gpus: Annotated[int, Field(ge=1, le=65_536)] | None = None
    given: _Devices | None = None
    hosts: Annotated[list[str], Field(max_length=MOST_HOSTS)] = Field(default_factory=list)
    place: str = ""
    sends_token: bool = False
    state: State = "waiting"
    added: _Seconds
    started: _Seconds | None = None  # last; None: its run folder is not its own yet
    ended: _Seconds | None = None
    exit_code: Annotated[int, Field(ge=-255, le=1 << 32)] | None = None
    reason: Annotated[str, Field(max_length=_REASON_CHARS)] = ""
    waits: Annotated[str, Field(max_length=_REASON_CHARS)] = ""

    @field_validator("name")
    @classmethod
    def _is_run_name(cls, name: str) -> str:
        if name != sanitize_run_name(name):
            raise ValueError("no valid name of a run")
        return name

    @field_validator("hosts")
    @classmethod
    def _are_names_of_hosts(cls, hosts: list[str]) -> list[str]:
        if not all(NAME.fullmatch(name) for name in hosts):
            raise ValueError("no valid name of a machine")
        return hosts

    @field_validator("place")
    @classmethod
    def _is_name_of_a_host(cls, place: str) -> str:
        if place and not NAME.fullmatch(place):
            raise ValueError("no valid name of a machine")
        return place

    @property
    def is_open(self) -> bool:
        """Whether it waits or runs."""
        return self.state in ("waiting", "running")

    @property
    def never_started(self) -> bool:
        """Whether it was removed while it waited, before it had a run: only `retry` still knows it."""
        return self.state == "removed" and self.started is None

    @property
    def title(self) -> str:
        """Number and name, for messages."""
        return f"{self.number} ({self.name})"

    @property
    def resources(self) -> Resources:
        """What its run takes, of one that waits for any GPUs all of them; one process takes the first of `devices`."""
        devices = self.given if self.devices is None else self.devices[: self.gpus]
        return Resources(devices, self.hosts, self.place)

    @property
    def devices_text(self) -> str:
        """What it takes, for people: "any 1" as long as it waits for one, then its index; "all", "0,1", "all + beta"
        with a machine that it starts, "beta: all" on one."""
        indices = self.resources.devices
        any_of = "all" if self.gpus is None else f"any {self.gpus}"
        devices = " + ".join([any_of if indices is None else ",".join(map(str, indices)), *self.hosts])
        return f"{self.place}: {devices}" if self.place else devices

    def changed(self, **fields: object) -> Entry:
        """A copy with other values."""
        for name in ("reason", "waits"):
            if isinstance(said := fields.get(name), str):
                fields[name] = printable(said, _REASON_CHARS, lines=True)[:_REASON_CHARS]  # escapes make it longer
        return self.model_copy(update=fields)

    def to_wait(self, reason: str = "") -> Entry:
        """A copy that waits for its start, or to be continued."""
        return self.changed(state="waiting", given=None, ended=None, exit_code=None, reason=reason, waits="")


class Queue(Record):
    """The whole queue. `wanted`: what the process that works it off is to do."""

    next_number: _Number = 1
    wanted: Wanted = "run"
    entries: Annotated[list[Entry], Field(max_length=MOST_ENTRIES, default_factory=list)]

    @field_validator("entries")
    @classmethod
    def _numbers_differ(cls, entries: list[Entry]) -> list[Entry]:
        if len({entry.number for entry in entries}) < len(entries):
            raise ValueError("two entries have the same number")
        return entries

    @model_validator(mode="after")
    def _next_number_is_free(self) -> Self:
        if any(entry.number >= self.next_number for entry in self.entries):
            raise ValueError("next_number is not above those of all entries")
        return self

    def entry(self, number: int) -> Entry:
        """The entry of this number. Raises ConfigError."""
        found = next((entry for entry in self.entries if entry.number == number), None)
        if found is None:
            raise self._no_entry(number)
        return found

    def named(self, word: str) -> Entry:
        """The entry of this number or run name; of several of a name the first that is listed. Raises ConfigError."""
        if word.isascii() and word.isdecimal() and any(entry.number == int(word[:20]) for entry in self.entries):
            return self.entry(int(word[:20]))
        found = next((entry for entry in (*self.in_order(), *reversed(self.entries)) if entry.name == word), None)
        if found is None:
            raise self._no_entry(printable(word, 200))
        return found

    def _no_entry(self, wanted: object) -> ConfigError:
        titles = [entry.title for entry in self.entries]
        more = f" and {len(titles) - _MOST_NAMED} more" if len(titles) > _MOST_NAMED else ""
        listed = ", ".join(titles[:_MOST_NAMED]) or "none: the queue is empty"
        return ConfigError(f"the queue has no entry {wanted}", f"Its entries are: {listed}{more}")

    @property
    def waiting(self) -> list[Entry]:
        """The entries that wait, in their order."""
        return [entry for entry in self.entries if entry.state == "waiting"]

    def in_order(self) -> list[Entry]:
        """What runs, what waits in its order, what has ended, the newest first; without what never started."""
        ended = [entry for entry in self.entries if not entry.is_open and not entry.never_started]
        ended.sort(key=lambda entry: entry.ended or 0.0, reverse=True)
        return [*(entry for entry in self.entries if entry.state == "running"), *self.waiting, *ended]

    def with_entry(self, changed: Entry) -> Queue:
        """A copy with another entry of the same number, or without change if it has gone."""
        return self.replaced([changed if entry.number == changed.number else entry for entry in self.entries])

    def with_waits(self, waits: Mapping[int, str]) -> Queue:
        """A copy in which the entries that still wait have these texts, by number, for what is in their way."""
        said = {entry.number: waits.get(entry.number, "") for entry in self.waiting}
        return self.replaced([each.changed(waits=said.get(each.number, each.waits)) for each in self.entries])

    def as_seen(self, *, has_runner: bool) -> Queue:
        """A copy for people: without a process that starts entries, they wait for nothing but that."""
        return self if has_runner and self.wanted == "run" else self.with_waits({})

    def replaced(self, entries: Sequence[Entry]) -> Queue:
        """A copy with these entries, of which the oldest that have ended are left out if they are many."""
        ended = [entry.number for entry in entries if not entry.is_open]
        forgotten = set(sorted(ended)[: max(0, len(ended) - MOST_ENDED)])
        return self.model_copy(update={"entries": [each for each in entries if each.number not in forgotten]})

    def moved(self, number: int, place: int) -> Queue:
        """A copy in which a waiting entry is at `place` (from 0) among those that wait. Raises ConfigError."""
        entry = self.entry(number)
        if entry.state != "waiting":
            raise ConfigError(f"entry {entry.title} is {entry.state}, so it has no place in the order")
        waiting = [each for each in self.waiting if each.number != number]
        waiting.insert(min(max(place, 0), len(waiting)), entry)
        others = [each for each in self.entries if each.state != "waiting"]
        return self.replaced([*others, *waiting])


def parse_devices(text: str, what: str = "--devices") -> list[int] | None:
    """GPU indices from "0,1", or None from "any"; `what` is how messages call them. Raises ConfigError."""
    if text.strip().lower() in ("any", "all"):  # "all" is of earlier versions
        return None
    words = [word.strip() for word in text.split(",")]
    if all(word.isascii() and word.isdecimal() and len(word) < 4 for word in words):
        numbers = [int(word) for word in words]
        if len(set(numbers)) == len(numbers) <= _MOST_DEVICES:
            return sorted(numbers)
    raise ConfigError(f"{what} is {printable(text)!r}; give the indices of GPUs, each once, such as 0,1, or any")


def fault_of(file: object, fault: FileFault) -> ConfigError:
    """The error for a queue file that cannot be read."""
    return ConfigError(
        f"{printable(file)} {fault}", "Nothing was changed. Move the file away to start with an empty queue"
    )


def now() -> float:
    """Seconds since 1970."""
    return round(time.time(), 3)
