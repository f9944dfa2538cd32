"""A preflight whose machines count their own processes: the others join machine 0 with one line, as they join a run."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from modules.config import ConfigError, TandemError, TrainConfig
from modules.files import printable
from modules.machine import set_hostname
from modules.run.console import is_terminal, show_secret
from modules.run.format_duration import in_words
from modules.run.hosts.remote_machines import RemoteMachines
from modules.run.join.allowed_paths import Ask
from modules.run.join.join_line import JoinLine, connect
from modules.run.join.join_token import JOIN_TOKEN, check_token, generate_token, with_token
from modules.run.join.keys import derive_key
from modules.run.join.local_settings import check_local_settings
from modules.run.join.machine_zero import MachineZero
from modules.run.join.members import JoinError
from modules.run.join.messages import Start, record
from modules.run.join.received_config import receive_config
from modules.run.join.server import JoinServer
from modules.run.join.session import Session, raise_on_stop_signals
from modules.run.launch.plan import LaunchPlan, elsewhere, where_joined
from modules.run.preflight_report.report import Cell, OtherMachine, PreflightReport

_WAIT_LONGER: Final = "Run the line above on the missing machines sooner, or wait longer with --wait SECONDS"
# How long machines that this one has started may take to end by themselves, before they are asked to.
_ENDS_WITHIN_S: Final = 15.0  # with their table
_LEAVES_WITHIN_S: Final = 1.0  # before it

Echo = Callable[[str], None]


class JoinProgress:
    """What the terminal shows, and the file that a window follows, while the other machines join."""

    def __init__(self, script: Path, arguments: Sequence[str], echo: Echo, result: Path) -> None:
        """`arguments` of `script` are passed on to the other machines; the file `result` never gets the token."""
        self._script = script
        self._arguments = arguments
        self._echo = echo
        self._result = result
        self._report = PreflightReport("Preflight")
        self._lock = threading.Lock()

    def show_line(self, plan: LaunchPlan, port: int, token: str, by_hand: int) -> None:
        """Show what to run on the machines that join by hand."""
        if not by_hand:
            self._echo(f"This is machine 0 of {plan.num_nodes}; it starts the others over ssh.")
            return
        command = shlex.join([*elsewhere(self._script), "--join", plan.join_address(port), *self._arguments])
        others = tuple(OtherMachine(number, command) for number in range(plan.num_nodes - by_hand, plan.num_nodes))
        where = "the other machine" if by_hand == 1 else f"each of the {by_hand} other machines"
        self._echo(f"This is machine 0 of {plan.num_nodes}. Run this line on {where}, in Tandem's folder:")
        if not show_secret(f"\n  {with_token(command, token)}\n"):  # a log is no place for it
            self._echo(f"  {JOIN_TOKEN}=... {command}")
        self._save(replace(self._report, waits_for=others, needs_token=True))

    def add(self, cells: Iterable[Cell]) -> None:
        """Findings before the first check; from now on the messages are about the machines that join."""
        self._save(replace(self._report.with_cells(cells), joining=()))

    def report(self, message: str) -> None:
        """A message about the machines that join."""
        self._echo(message)
        with self._lock:  # each machine has a thread
            self._save(replace(self._report, joining=(*self._report.joining, message)))

    def _save(self, report: PreflightReport) -> None:
        self._report = report
        report.save(self._result)


@dataclass(frozen=True)
class Group:
    """All machines of a preflight, with the numbers of their processes, and the secret of these processes."""

    plan: LaunchPlan
    secret: str
    has_config: bool


def as_group(config: TrainConfig) -> TrainConfig:
    """The config with all devices of each machine in one group, which is what a preflight checks."""
    mode = "auto" if config.training_mode in {"single", "data_parallel"} else config.training_mode
    return config.model_copy(update={"enable_multi_gpu": True, "training_mode": mode})


def counts_itself(config: TrainConfig, plan: LaunchPlan) -> bool:
    """Whether this is machine 0, and the others say when they join how many processes they have."""
    return plan.num_nodes > 1 and plan.world_size is None and config.node_rank == 0


@contextmanager
def joined_machines(
    config: TrainConfig,
    plan: LaunchPlan,
    token: str | None,
    wait_s: float,
    progress: JoinProgress,
    remote: RemoteMachines,
    by_hand: int,
    *,
    has_config: bool,
) -> Iterator[Group]:
    """Machine 0: wait for all others, of which `remote` are started here and `by_hand` join with the line, and stay
    connected until the end. Raises JoinError naming the missing ones."""
    if token is not None:
        check_token(token)
    elif by_hand and not is_terminal():
        raise ConfigError(
            "the other machines need a token to join, which only a terminal may show",
            f"Set {JOIN_TOKEN} here and there to the same 32 letters and digits or more, such as those of: openssl "
            "rand -hex 16",
        )
    token = token or generate_token()
    server = JoinServer(
        config,
        "",
        lambda message, missing: progress.report(message),
        token=token,
        preflight="with config" if has_config else "without config",
        names=remote.names,
    )
    outcome = "it was stopped"
    try:
        progress.show_line(plan, server.port, token, by_hand)
        progress.report(f"Waiting up to {in_words(wait_s)} ({server.summary()}).")
        remote.start(config, plan.join_address(server.port), token)
        counts = server.wait(wait_s, remote.check, if_late=_WAIT_LONGER)
        config, note = where_joined(config, plan.master_addr, server.joined_at())
        if note:
            progress.report(f"Note: {note}.")
        everyone = (plan.processes_here, *(counts[number] for number in sorted(counts)))
        known = {"processes_per_node": everyone, "world_size": None}
        plan = LaunchPlan.from_config(as_group(config.model_copy(update=known)), config_path="config.json")
        secret = server.start(everyone, plan.port, plan.master_addr)
        set_hostname(server.names[0])
        yield Group(plan, secret, has_config)
        outcome = ""
    except TandemError as error:
        outcome = error.message
        raise
    finally:
        server.close(outcome)
        remote.finish(_LEAVES_WITHIN_S if outcome else _ENDS_WITHIN_S)


def join_preflight(
    join_line: JoinLine, echo: Echo, ask: Ask | None = None, ask_about_code: Ask | None = None
) -> tuple[TrainConfig, Group]:
    """Another machine: join, and wait until all have; the config for this machine, and the group.

    Raises TandemError if this machine cannot join, StopRequested after a signal.
    """
    check_local_settings(join_line.settings)
    with raise_on_stop_signals():
        echo(f"Joining the preflight at {join_line} ...")
        session = Session(connect(join_line, echo))
        machine_zero = MachineZero(session, join_line, echo)
        try:
            welcome, config = receive_config(machine_zero, join_line, echo, ask, ask_about_code)
            if not welcome.preflight:
                raise JoinError(
                    f"{machine_zero.name} starts a run and no preflight at {join_line}",
                    "Copy the whole line that machine 0 shows: it starts scripts/train.py",
                )
            alone = LaunchPlan.from_config(as_group(config), config_path="config.json")
            machine_zero.send_ready(alone.processes_here, [])
            start = _start(machine_zero, echo)
            known = {"processes_per_node": tuple(start.counts), "world_size": None, "initial_port": start.port}
            plan = LaunchPlan.from_config(as_group(config.model_copy(update=known)), config_path="config.json")
        except BaseException as error:
            machine_zero.leave(error)
            raise
    start.take_name(config.node_rank)
    counts = " + ".join(map(str, start.counts))
    echo(f"All machines have joined: {counts} processes. Checking; the table is shown on each machine at the end.")
    session.send("leave", is_done=True, reason="")
    session.close()
    secret = derive_key(join_line.token, "store", start.nonce)
    return config, Group(plan, secret, welcome.preflight == "with config")


def _start(machine_zero: MachineZero, echo: Echo) -> Start:
    """Wait until all machines have joined."""
    while True:
        message = machine_zero.expect("status", "start")
        if message["type"] == "start":
            return record(Start, message)
        if message.get("missing"):
            echo(f"Waiting for {printable(message['missing'], 500)} ...")
