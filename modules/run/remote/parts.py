"""One run on several machines of the list, none of which is this computer: one is machine 0, and the others join it.

Each gets the files that it lacks; then machine 0 starts, and each of the others joins it in a session of its own there,
so that nothing needs this computer afterwards.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Annotated, Final

from pydantic import Field

from modules.config import ConfigError, TrainConfig, dump, override, validate
from modules.files import Record, open_for_writing, printable
from modules.machine import hostname_variable, is_loopback_name
from modules.run.exit_codes import BAD_CONFIG, FINISHED, INTERRUPTED, NO_DATA, PAUSED, TERMINATED
from modules.run.folder.run_folder import RunFolder
from modules.run.hosts.check import compare
from modules.run.hosts.description import Description
from modules.run.hosts.host import DEFAULT_PYTHON, Host
from modules.run.hosts.host_list import find_hosts, read_hosts
from modules.run.hosts.remote_machines import host_log
from modules.run.hosts.ssh_command import HostError, Unreachable, last_lines, target_address
from modules.run.join.join_line import JoinLine, parse_address
from modules.run.join.local_settings import is_local
from modules.run.remote.link import Echo, Link, LinkLost, connect, home_of, is_for_runs, with_reconnects
from modules.run.remote.run_copy import mark_stage
from modules.run.remote.sending import Hello, Push, only_there, own_settings, places_there

_LOOKS_EVERY_S: Final = 0.5
_OTHERS_EVERY_S: Final = 3.0
_JOINS_NO_MORE: Final = (FINISHED, BAD_CONFIG, NO_DATA, INTERRUPTED, PAUSED, TERMINATED)
_Text = Annotated[str, Field(max_length=500)]


class _Ports(Record):
    ports: Annotated[list[Annotated[int, Field(ge=1, le=65_535)]], Field(max_length=2)]


class _Fault(Record):
    fault: _Text


class _Joining(Record):
    is_active: bool
    code: int | None
    has_begun: bool
    address: _Text = ""
    secret: _Text = ""


class _Part(Record):
    is_active: bool
    code: int | None


def machines_with(host: Host, names: Sequence[str], add: str) -> list[Host]:
    """The machines of these names, which join `host`. Raises ConfigError for one that cannot, with how to `add` it."""
    others = find_hosts(names, add)
    for number, each in enumerate(others):
        home_of(each)
        same = next(
            (one for one in [host, *others[:number]] if (one.target, one.port) == (each.target, each.port)), None
        )
        if same is not None:
            raise ConfigError(f"{same.name} and {each.name} are the same machine ({each.target})", "Leave one out")
        if host.slurm or each.slurm:
            cluster = (host if host.slurm else each).name
            raise ConfigError(
                f"{cluster} is a Slurm cluster, which starts the processes of a run on its own nodes",
                f"Start the run on {cluster} with --nodes N, or leave it out of --with",
            )
    return others


def still_listed(names: Sequence[str]) -> list[Host]:
    """Those of the machines of a run that can be asked still: their end is shown, and none of them is needed for it."""
    return [host for host in read_hosts() if host.name in names and is_for_runs(host)]


def named(machines: Sequence[Host | str]) -> str:
    """For example "alpha, beta and gamma"."""
    *others, last = [each if isinstance(each, str) else each.name for each in machines]
    return f"{', '.join(others)} and {last}" if others else last


def for_machines(config: TrainConfig, host: Host, others: Sequence[Host]) -> TrainConfig:
    """The config for a run on these machines. Raises ConfigError if it is one for another number of them."""
    count = 1 + len(others)
    if config.num_nodes not in (1, count):
        if host.slurm:
            advice = f"Set num_nodes=1: the option --nodes N of {host.name} gives its jobs several nodes"
            raise ConfigError(f"num_nodes is {config.num_nodes}, but {host.name} is a Slurm cluster", advice)
        takes_part = f"{named([host, *others])} {'take' if others else 'takes'} part"
        raise ConfigError(
            f"num_nodes is {config.num_nodes}, but {takes_part} in a run that is started on another machine",
            f"Set num_nodes={count}, or name those that join it: --with NAME,NAME, or their switches under Multi-GPU",
        )
    if not others:
        return config
    more = [f"num_nodes={count}", "enable_multi_gpu=true", "node_rank=0"]
    return validate(override(dump(config), more), "The settings", more)


def resumed_with(config: TrainConfig, host: Host, others: Sequence[Host]) -> tuple[TrainConfig, dict[str, object]]:
    """The config of a run that goes on with these machines, and the flags of train.py that say so."""
    if config.num_nodes == 1 + len(others):
        return config, {}
    more = [f"num_nodes={1 + len(others)}", f"enable_multi_gpu={str(config.enable_multi_gpu or bool(others)).lower()}"]
    return validate(override(dump(config), more), "The settings", more), {"set": more}


def check_alike(host: Host, others: Sequence[Host], said: Mapping[str, Description]) -> None:
    """Raise HostError if one of the others cannot train with `host`, by what each has `said` of itself."""
    for each in others:
        if fault := compare(each, said[each.name], said[host.name], host.name).fault:
            raise HostError(fault)


def address_of(config: TrainConfig, host: Host) -> str:
    """At which the others reach machine 0: master_addr of the config, or what ssh connects to. Raises ConfigError."""
    if not is_loopback_name(config.master_addr):
        return config.master_addr
    if found := target_address(host):
        return found
    raise ConfigError(
        f"at which address the others reach {host.name} is not known: ssh reaches it through a proxy, or does not say",
        "Set master_addr to its address in the network of all",
    )


def check_reach(config: TrainConfig, host: Host, others: Sequence[Host]) -> None:
    """Raise HostError if one of the others does not reach `host` at the ports of a run."""
    address, word = address_of(config, host), secrets.token_hex(8)
    with connect(host) as link:
        first = config.initial_port
        ports = link.ask(_Ports, "listen", ports=[first, first + 1], word=word).ports
        for each in others:
            with connect(each) as other:
                fault = other.ask(_Fault, "reach", address=address, ports=ports, word=word).fault
            if fault:
                raise HostError(
                    f"{each.name} does not reach {host.name} at {address}, {printable(fault)}",
                    f"Set master_addr to an address of {host.name} in a network of both, and let their firewalls pass "
                    "what docs/multi_node.md names",
                )


def check_places(config: TrainConfig, hosts: Sequence[Host], homes: Mapping[str, str]) -> None:
    """Raise ConfigError if a file of the config must be at the same path on all machines, and is not. `homes` are
    Tandem's folders there by the machines' names."""
    first, *others = (places_there(config, each, homes[each.name]) for each in hosts)
    for each, places in zip(hosts[1:], others, strict=True):
        for name, path in places.items():
            if not is_local(name) and path != first.get(name):
                raise ConfigError(
                    f"{name} names a file, which would be {path} on {each.name} and {first.get(name)} on "
                    f"{hosts[0].name}, and must be at the same path",
                    "Add both machines with the same --folder, as a whole path such as /opt/tandem",
                )


def send_to_all(
    hosts: Sequence[Host],
    push_to: Callable[[Host, Echo, Callable[[float], object]], Push],
    echo: Echo,
    share: Callable[[float], object],
) -> list[Push]:
    """Send to all machines at the same time what `push_to` makes for each, and return that.

    `share` gets how much is there, 0 to 1. Raises what one of them raises, and ends the others then.
    """
    lock, done, is_over = threading.Lock(), {host.name: 0.0 for host in hosts}, threading.Event()
    ended = SimpleQueue[BaseException | None]()

    def say(host: Host, line: str) -> None:
        with lock:
            if is_over.is_set():
                raise _OthersFailed
            echo(f"{host.name}: {line}" if len(hosts) > 1 else line)

    def came(host: Host, part: float) -> None:
        with lock:
            if is_over.is_set():
                raise _OthersFailed
            done[host.name] = part
            share(sum(done.values()) / len(done))

    pushes = [push_to(host, partial(say, host), partial(came, host)) for host in hosts]

    def send(host: Host, push: Push) -> None:
        try:
            with_reconnects(host, partial(say, host), push.send)
        except BaseException as error:  # noqa: BLE001 - raised below
            ended.put(error)
        else:
            ended.put(None)

    try:
        for each in zip(hosts, pushes, strict=True):  # nobody waits for one that hangs, or whose machine is away
            threading.Thread(target=send, args=each, name=f"send to {each[0].name}", daemon=True).start()
        left = len(hosts)
        while left:
            with suppress(Empty):
                if (error := ended.get(timeout=_LOOKS_EVERY_S)) is not None:  # Windows sees no Ctrl-C in one without
                    raise error
                left -= 1
    except BaseException:
        with lock:
            is_over.set()
        raise
    return pushes


class _OthersFailed(Exception):
    """A transfer to another machine has failed, or somebody has ended all."""


@dataclass(frozen=True)
class Gathering:
    """The machines that are to join the run of a copy on `host`, in the start of this id; `trusts_code` and `token` (of
    the hub) are as for machine 0."""

    folder: RunFolder
    config: TrainConfig
    host: Host
    others: Sequence[Host]
    start_id: str
    trusts_code: bool
    token: str
    echo: Echo

    def gather(self) -> None:
        """Have the others join, and wait until the run has begun with all, or has ended after a stop that was asked for
        in the copy; those that take part already go on.

        Raises HostError that names the machine that has not joined.
        """
        if self.others:
            with_reconnects(self.host, self.echo, self._gather)

    def _gather(self, link: Link) -> None:
        while not (joining := self._look(link)).address and joining.is_active:
            time.sleep(_LOOKS_EVERY_S)
        if joining.has_begun or not joining.is_active:
            return
        port = parse_address(joining.address)[1]
        at = str(JoinLine(address_of(self.config, self.host), port, ""))
        verb = "joins" if len(self.others) == 1 else "join"
        self.echo(f"{named(self.others)} {verb} {self.host.name} at {at}.")
        for each in self.others:
            with_reconnects(each, self.echo, partial(self._join, host=each, at=at, secret=joining.secret))
        looked_at = time.monotonic()
        while not (joining := self._look(link)).has_begun:
            if not joining.is_active:
                return
            time.sleep(_LOOKS_EVERY_S)
            if time.monotonic() - looked_at > _OTHERS_EVERY_S:
                for each in self.others:
                    self._require_part(each)
                looked_at = time.monotonic()
        self.echo(f"All {1 + len(self.others)} machines have joined: {named([self.host, *self.others])}.")

    @property
    def run(self) -> str:
        """Its name."""
        return self.folder.name

    def _look(self, link: Link) -> _Joining:
        is_stopped = (self.folder.commands_dir / "stop").exists()
        if is_stopped:
            link.ask(Record, "command", run=self.run, command="stop", content="")
        link.tell("joining", run=self.run)
        joining, printed = link.read(_Joining)
        if not joining.is_active and not is_stopped:
            said = last_lines(printed.decode(errors="replace")) or "nothing"
            mark_stage(self.folder, "running")  # which it was; follow shows its end
            raise HostError(f"{self.run} has ended on {self.host} before all had joined; its last lines: {said}")
        return joining

    def _join(self, link: Link, host: Host, at: str, secret: str) -> None:
        home = link.ask(Hello, "hello").home
        link.ask(
            Record,
            "join",
            run=self.run,
            machine=self.host.name,
            id=part_id(self.start_id, host),
            address=at,
            secret=secret,
            arguments=join_arguments(self.config, host, home, trusts_code=self.trusts_code),
            ends="all" if self.config.on_machine_loss == "end" else " ".join(map(str, _JOINS_NO_MORE)),
            variables=hostname_variable(host.name),
            python=host.python or DEFAULT_PYTHON,
            token=self.token,
        )

    def _require_part(self, host: Host) -> None:
        with suppress(Unreachable, LinkLost), connect(host) as link:
            link.tell("part", run=self.run, whole=False)
            part, printed = link.read(_Part)
            if not part.is_active:
                raise HostError(
                    f"{host.name} has not joined {self.run} (exit code {part.code}); it says: "
                    f"{last_lines(printed.decode(errors='replace')) or 'nothing'}",
                    f"{self.run} waits on {self.host.name} for startup_timeout_s: mend it and start again in the same "
                    "way, or stop it there",
                )


def part_id(start_id: str, host: Host) -> str:
    """By which a machine knows its part in a start."""
    return f"{start_id}-{host.name}"


def join_arguments(config: TrainConfig, host: Host, home: str, *, trusts_code: bool) -> list[str]:
    """Options of the train.py that joins on `host`, whose folder of Tandem's is `home`.

    What was sent there is its own, and so is where it writes; a path of the config that is not on this computer, and
    one that no joining machine sets, was named by whoever starts the run, so it may be read.
    """
    places = places_there(config, host, home)
    own = {name: path for name, path in places.items() if is_local(name)}
    own |= {"runs_dir": f"{home}/runs", "cache_dir": f"{home}/cache"}
    allowed = [path for name, path in places.items() if not is_local(name)]
    allowed += [path for _, path in only_there(config, own_settings(host))]
    return [
        *["--trust_code"] * trusts_code,
        *["--allow_differences"] * host.allow_differences,
        *(f"--allow={path}" for path in dict.fromkeys(allowed)),
        *(f"--set={name}={_text_of(name, value)}" for name, value in own.items()),
        *(f"--set={assignment}" for assignment in host.settings),
    ]


def _text_of(name: str, value: str) -> str:
    """What --set takes for a text: of a family's options it reads YAML."""
    return json.dumps(value) if name.startswith("family_options.") else value


def bring_logs(folder: RunFolder, others: Sequence[Host]) -> None:
    """What the parts of a run have printed, into log/host-NAME.txt of its copy; nothing of a machine without answer."""
    for each in others:
        with suppress(HostError), connect(each) as link:
            link.tell("part", run=folder.name, whole=True)
            printed = link.read(_Part)[1].decode(errors="replace")
            with os.fdopen(open_for_writing(host_log(folder, each.name)), "w", encoding="utf-8") as file:
                file.write(printable(printed, len(printed), lines=True))


def together(host: Host, others: Sequence[Host]) -> Host:
    """`host` with the price of all machines, if it is known of each, and the shortest of their limits of hours."""
    everyone = [host, *others]
    price = sum(each.price for each in everyone) if all(each.price for each in everyone) else 0.0
    return host.model_copy(
        update={"price": price, "stop_after": min(filter(None, (each.stop_after for each in everyone)), default=0.0)}
    )
