"""What the other machine says of itself, of its runs and of what it keeps, and how that is removed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from modules.config import ConfigError
from modules.files import Record, printable
from modules.run.format_progress import format_bytes
from modules.run.hosts.check import ask_host
from modules.run.hosts.description import Description, describe_this_machine
from modules.run.hosts.host import Host
from modules.run.hosts.ssh_command import HostError, Unreachable
from modules.run.queue.folder import RunQueue
from modules.run.remote.copy_folders import copies_of, known_folders
from modules.run.remote.job import Job
from modules.run.remote.kept_commands import waiting_command
from modules.run.remote.link import CODE_FOLDER, Echo, Link, connect, home_of, is_for_runs, with_reconnects
from modules.run.remote.sending import Hello

_SHOWN: Final = 5
_Text = Annotated[str, Field(max_length=300)]
_Size = Annotated[int, Field(ge=0, le=1 << 80)]  # bytes; some network disks say that they have 2**63


class RunThere(Record):
    """A run: its name, exit code and bytes, how long it has trained, its Slurm job, if it is active as one, and the
    machine of whose run this is only a part."""

    name: _Text
    is_active: bool
    code: int | None
    bytes: _Size
    job: Job | None = None
    seconds: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    part_of: _Text = ""

    def __str__(self) -> str:
        if self.part_of:
            part = f"part of the run {self.name} of {self.part_of}"
            return f"{part}, {'active' if self.is_active else 'ended'}, {format_bytes(self.bytes)}"
        ended = "ended" if self.code is None else f"ended with exit code {self.code}"
        active = "active" if self.job is None else str(self.job).rstrip(".")
        return f"{active if self.is_active else ended}, {format_bytes(self.bytes)}"


class RunsThere(Record):
    """All runs, and the bytes of what the folder holds `others` and of what is `free` there."""

    runs: Annotated[list[RunThere], Field(max_length=10_000)]
    others: Annotated[dict[_Text, _Size], Field(max_length=20)]
    free: _Size

    def __str__(self) -> str:
        others = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.others.items())
        return printable(f"Runs: {len(self.runs)}. Besides: {others}. Free there: {format_bytes(self.free)}.")


def time_and_cost(seconds: int, host: Host) -> str:
    """How long that was, and what it has cost if the price of the machine is known: "2.5 h, 4.73 at 1.89 an hour"."""
    hours = seconds / 3600
    return f"{hours:.1f} h" + (f", {hours * host.price:.2f} at {host.price:g} an hour" if host.price else "")


class Activity(Record):
    """What goes on there, of whichever computer: the active runs, also those that hang, with the indices of their GPUs
    (None: all); whether data is sent, Tandem is set up, or what is there is read."""

    runs: Annotated[list[_Text], Field(max_length=100)]
    devices: Annotated[list[list[Annotated[int, Field(ge=0)]] | None], Field(max_length=100)]
    sends: bool
    installs: bool
    reads: bool

    def transfer(self, machine: str) -> str:
        """That data is sent there or it is set up, as the end of a sentence; "" if neither."""
        if self.sends:
            return f"data is being sent to {machine}"
        return f"{machine} is being set up" if self.installs else ""


class _Left(Record):
    left: Annotated[list[_Text], Field(max_length=100)]
    is_there: bool = True  # Tandem's folder, before


DEFAULT_FOLDER: Final = "~/.tandem"


def host_for_runs(name: str, target: str, *, folder: str = "", key: str = "", **more: Any) -> Host:
    """A machine that Tandem sets up by itself, in a folder for it alone, from what a person has typed. `key` is a file
    here. Raises ConfigError naming the field."""
    place = (folder or DEFAULT_FOLDER).rstrip("/")
    if place in ("", "~"):
        raise ConfigError(f"host: folder is {folder!r}; use one for Tandem alone, such as {DEFAULT_FOLDER}")
    whole = os.path.abspath(os.path.expanduser(key)) if key else ""
    if key and not os.path.isfile(whole):
        raise ConfigError(f"host: key is {key!r}, and there is no such file; name the private key")
    return Host.make(name, target, f"{place}{CODE_FOLDER}", key=whole, **more)


def runs_there(host: Host, echo: Echo) -> RunsThere:
    """Raises ConfigError, HostError."""
    return with_reconnects(host, echo, lambda link: link.ask(RunsThere, "runs"))


def activity_there(host: Host, echo: Echo, *, also_reading: bool = True) -> str:
    """What goes on there, as the end of a sentence, "" if nothing. Raises ConfigError, HostError."""
    found = with_reconnects(host, echo, activity)
    if found.runs:
        return run_is_active(found.runs[0], host.name)
    if at_work := found.transfer(host.name):
        return at_work
    return f"what is on {host.name} is being read" if found.reads and also_reading else ""


def activity(link: Link) -> Activity:
    """What goes on at the other side. Raises HostError."""
    if not link.ask(Hello, "hello").is_ours:  # all was removed
        return Activity(runs=[], devices=[], sends=False, installs=False, reads=False)
    return link.ask(Activity, "activity")


def run_is_active(run: str, machine: str) -> str:
    """The end of a sentence."""
    return f"the run {printable(run, 100)} is active on {machine}"


def described(host: Host) -> tuple[Description, Description]:
    """What the machine and this computer say of themselves. Raises HostError if their code is not the same."""
    there, here = ask_host(host), describe_this_machine()
    if there.code != here.code:
        raise HostError(
            f"Tandem's code on {host} is not the same as here",
            f"Run setup again: python scripts/remote.py setup {host.name}",
        )
    return there, here


def why_not_set_up(host: Host) -> str:
    """Why Tandem must be set up there before a run; "" if it need not. Raises HostError if it does not answer."""
    with connect(host) as link:
        if not link.ask(Hello, "hello").is_ours:
            return f"Tandem is not on {host} yet."
    try:
        described(host)
    except Unreachable:
        raise
    except HostError as error:
        return f"{error.message}."
    return ""


def known_there(host: Host, echo: Echo, runs_dirs: Iterable[Path] = ()) -> str:
    """What nobody would look after any more if a machine were taken off the list: whole sentences, "" if nothing.
    `runs_dirs` are folders with copies beside those that are known."""
    parts = [_there(host, echo)] if is_for_runs(host) else []
    if waiting := copies_of(host.name, complete=False, runs_dirs=runs_dirs):
        named = ", ".join(printable(copy.path, 200) for copy in waiting[:_SHOWN])
        more = f" and {len(waiting) - _SHOWN} more" if len(waiting) > _SHOWN else ""
        parts.append(f"Not all results of {named}{more} are here, and no program could bring them then.")
    parts.append(queued_for(host.name, runs_dirs))
    if command := waiting_command(host.name):
        parts.append(f"{command[1]} It would not be run then.")
    return " ".join(filter(None, parts))


def queued_for(machine: str, runs_dirs: Iterable[Path] = ()) -> str:
    """Which entries of queues could not be run if a machine were removed, or all that is there: whole sentences, "" if
    none. `runs_dirs` as of `known_there`."""
    parts = list[str]()
    for folder in known_folders(runs_dirs):
        with suppress(ConfigError):  # of a queue that cannot be read nothing is run
            if titles := [entry.title for entry in RunQueue(folder).entries_for(machine)]:
                more = f" and {len(titles) - _SHOWN} more" if len(titles) > _SHOWN else ""
                which, verb = ("Entry", "is") if len(titles) == 1 else ("Entries", "are")
                named = f"{which} {', '.join(titles[:_SHOWN])}{more} of the queue of {printable(folder, 200)}"
                parts.append(f"{named} {verb} to run on {machine}, and would fail then.")
    return " ".join(parts)


def _there(host: Host, echo: Echo) -> str:
    try:
        with connect(host) as link:
            is_ours = link.ask(Hello, "hello").is_ours
        there = runs_there(host, echo) if is_ours else None
    except HostError as error:
        return f"What is on {host.name} is not known: {error.message}."
    if there is None:
        return ""
    named = ", ".join(f"{run.name} ({run})" for run in there.runs[:_SHOWN])
    more = f" and {len(there.runs) - _SHOWN} more" if len(there.runs) > _SHOWN else ""
    data = format_bytes(sum(there.others.values()))
    runs = f"the runs {named}{more}, " if there.runs else ""
    return printable(f"On {host.name} stay {runs}Tandem's programs and {data} of data and caches.", 2000)


def named_for_removal(run: str, *, everything: bool) -> str:
    """What `clean` removes, as part of a sentence."""
    if run:
        return f"the run {run} with its model and backups"
    if everything:
        return "everything of Tandem's, also all runs with their models and backups"
    return "the data, caches and hub models that runs have left"


def clean(host: Host, run: str, *, everything: bool, echo: Echo) -> str:
    """Remove that, and nothing that is not Tandem's; what was removed and what was left. Raises HostError."""
    answer = with_reconnects(host, echo, lambda link: link.ask(_Left, "clean", run=run, all=everything))
    if not answer.is_there:
        return f"Nothing of Tandem's is on {host} in {home_of(host)}."
    done = f"Removed on {host}: {named_for_removal(run, everything=everything)}."
    left = f"\nLeft there, because it is not Tandem's: {', '.join(answer.left)}" if answer.left else ""
    return printable(done + left, lines=True)
