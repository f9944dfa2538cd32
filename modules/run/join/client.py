"""Joins a run as another machine: gets the config from machine 0, proves it has the same files, starts with it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Final

from modules.config import ConfigError, TandemError
from modules.files import printable
from modules.run.exit_codes import FINISHED, INTERRUPTED, PAUSED, TERMINATED
from modules.run.folder.failures import Failure, read_failures
from modules.run.folder.resume import LATEST
from modules.run.folder.run_folder import RunFolder
from modules.run.join.allowed_paths import Ask
from modules.run.join.channel import ChannelClosed, Message
from modules.run.join.fingerprint import all_listings
from modules.run.join.join_line import JoinLine, connect
from modules.run.join.keys import derive_key
from modules.run.join.local_settings import ALLOW_DIFFERENCES, check_local_settings
from modules.run.join.machine_zero import MachineZero
from modules.run.join.members import JoinError
from modules.run.join.messages import Start, record
from modules.run.join.received_config import check_named_paths, receive_config
from modules.run.join.same_run import own_folder
from modules.run.join.session import Session, StopRequested, raise_on_stop_signals
from modules.run.launch.plan import LaunchPlan, taking_part
from modules.run.supervise.outcome import CONTINUE_JOINED
from modules.run.supervise.supervisor import Supervisor, any_failure

Echo = Callable[[str], None]

# Machine 0 knows the cause of a failed run only after its own part has ended.
_OUTCOME_TIMEOUT_S: Final = 30.0
_WITHOUT_MACHINE_ZERO: Final = (
    "The connection to {host} is lost. If it still trains, run its line here again, and this machine takes part from "
    "its next backup on. If it is lost, no other goes on by itself, because it has the backups: once it is back, run "
    "train.py --resume latest --run_name {name} there; or copy its run folder to another machine and run that there."
)
_STOPPED: Final = frozenset({INTERRUPTED, TERMINATED, PAUSED})
_POLL_EVERY_S: Final = 0.3


def join_run(join_line: JoinLine, echo: Echo, ask: Ask | None = None, ask_about_code: Ask | None = None) -> int:
    """Join the run, train to its end, and return its exit code. Raises TandemError if this machine cannot join.

    `ask` puts a question to the person at this machine: whether a path that machine 0 names may be used;
    `ask_about_code`, whether Python files that the config names may run.
    """
    check_local_settings(join_line.settings)
    notified, code = "", 0
    client: JoinClient | None = None
    try:
        with raise_on_stop_signals():  # the supervisor has its own meanwhile
            echo(f"Joining the run at {join_line} ...")
            session = Session(connect(join_line, echo))
            notified = "; machine 0 has been notified"
            client = JoinClient(join_line, session, echo, ask, ask_about_code)
            plan: LaunchPlan | None = client.wait_for_start()
            while plan is not None:
                try:
                    code = client.train(plan)
                    plan = client.wait_for_restart(code)
                except TandemError as error:
                    client.leave(error)
                    raise
    except StopRequested as stop:
        if client is not None:
            client.leave(stop)
        echo(f"Stopped{notified}.")
        return stop.exit_code
    return code


class JoinClient:
    """This machine's membership in a run, from the handshake to the end."""

    def __init__(
        self,
        join_line: JoinLine,
        session: Session,
        echo: Echo,
        ask: Ask | None = None,
        ask_about_code: Ask | None = None,
    ) -> None:
        self._join_line = join_line
        self._echo = echo
        self._ask, self._ask_about_code = ask, ask_about_code
        self._session = session
        self._machine_zero = MachineZero(session, join_line, echo)
        try:
            self._handshake()
        except BaseException as error:
            self.leave(error)
            raise

    def wait_for_start(self) -> LaunchPlan:
        """Wait until all machines have joined. Raises JoinError if machine 0 gives up or disconnects."""
        try:
            while True:
                message = self._machine_zero.expect("status", "start")
                if message["type"] == "start":
                    return self._plan(message)
                if message.get("missing"):
                    self._echo(f"Waiting for {printable(message['missing'], 500)} ...")
        except BaseException as error:
            self.leave(error)
            raise

    def train(self, plan: LaunchPlan) -> int:
        """Start this machine's processes and supervise them to the end.

        Raises StopRequested if they failed, could start again, and a signal was received instead.
        """
        counts = " + ".join(map(str, plan.process_counts))
        self._ranks = plan.ranks()
        machines = self._config.num_nodes
        is_complete = plan.num_nodes == machines
        who = "All machines have joined" if is_complete else f"{plan.num_nodes} of {machines} machines take part"
        self._echo(f"{who}: {counts} processes; on this machine {_describe_ranks(plan.ranks())}.")
        for sentence in plan.variables.describe():
            self._echo(sentence)
        if self._join_line.allow_differences:
            os.environ[ALLOW_DIFFERENCES] = "1"  # inherited by the processes
        self._echo(f"Starting; progress is shown on {self._host}.")
        self._supervisor = Supervisor.from_plan(
            plan,
            self._folder,
            store_secret=derive_key(self._join_line.token, "store", self._start.nonce),
            may_restart=any_failure if self._start.restarts_left > 0 else None,
            cannot_start=self._loss_of_machine_zero,
        )
        supervisor = self._supervisor
        with while_training(self._session, self._folder, self._ranks, lambda: supervisor.stop):
            code = supervisor.run()
        if self._supervisor.restart_was_stopped:
            raise StopRequested(code)  # machine 0 would wait for this machine
        return code

    def wait_for_restart(self, code: int) -> LaunchPlan | None:
        """Report how this machine's part ended; the plan of the next start, or None at the end of the run."""
        plan = None
        try:
            plan = self._finish(code)
        except ChannelClosed:
            if self._config.on_machine_loss == "continue" and code != FINISHED:
                self._echo(_WITHOUT_MACHINE_ZERO.format(host=self._host, name=self._folder.name))
        if plan is not None:
            return plan
        if self._supervisor.can_restart:
            self._supervisor.report()
        self._session.close()
        return None

    def leave(self, error: BaseException) -> None:
        """Disconnect, with the reason."""
        self._machine_zero.leave(error)

    def _finish(self, code: int) -> LaunchPlan | None:
        """Report how this machine's part ended; the plan of the next start, unless the run is over."""
        outcome = self._supervisor.outcome
        failure = None if outcome is None else outcome.failure
        if failure is not None and failure.rank in self._ranks:
            send_failure(self._session, failure)
        if self._supervisor.was_forced:  # the others would wait for its ranks
            reason = f"it was stopped at once by {self._supervisor.stopped_by}"
            self._session.send("leave", reason=reason, was_stopped=True)
            return None
        is_possible = self._start.restarts_left > 0 and code not in _STOPPED
        if failure is not None or is_possible:
            self._session.send("finished")
            plan = self._wait_for_outcome(None if is_possible else _OUTCOME_TIMEOUT_S, failure)
            if plan is not None:
                return plan
        if failure is None and code in _STOPPED:
            self._echo(
                f"The run was stopped; its backups and logs are on {self._host}. To continue, {CONTINUE_JOINED}."
            )
        elif failure is None:
            self._echo(f"The run has ended, complete or stopped: results, backups and logs are on {self._host}.")
        self._session.send("leave", is_done=True, reason="")
        return None

    def _wait_for_outcome(self, within_s: float | None, failure: Failure | None) -> LaunchPlan | None:
        """The plan of the next start; None once machine 0 has said how the run ended, or after `within_s`."""
        deadline = None if within_s is None else time.monotonic() + within_s
        known = "" if failure is None else failure.message
        while deadline is None or time.monotonic() < deadline:
            message = self._session.receive(1.0)
            if message is None:
                continue
            if message["type"] == "start":
                self._echo(f"{self._host} starts the machines again{f', because: {known}' if known else '.'}")
                return self._plan(message)
            if message["type"] == "closed":
                outcome = printable(message.get("outcome", ""), 4000, lines=True)
                if failure is not None and known not in outcome:
                    self._echo(f"{self._host} reports: {outcome}")
                return None
        return None

    def _loss_of_machine_zero(self) -> Failure | None:
        """The failure of a start for which the launcher here would wait for `startup_timeout_s`."""
        if not self._session.is_lost:
            return None
        name = printable(self._start.names[0]) if self._start.names else "machine 0"
        text = f"{name} has ended its part of the run, or can no longer be reached; no process had started here yet."
        return Failure(0, name, "machine_lost", text, f"See what {name} says.")

    @property
    def _host(self) -> str:
        return self._machine_zero.name

    def _handshake(self) -> None:
        join_line, machine_zero = self._join_line, self._machine_zero
        welcome, self._config = receive_config(machine_zero, join_line, self._echo, self._ask, self._ask_about_code)
        if welcome.preflight:
            raise ConfigError(
                f"{self._host} runs a preflight and no training at {join_line}",
                "Copy the whole line that machine 0 shows: it starts scripts/preflight.py",
            )
        processes = LaunchPlan.from_config(self._config, config_path="config.json").processes_here
        self._folder = own_folder(self._config, welcome.run_name, join_line.token, welcome.folder_proofs)
        self._echo(f"Run folder: {self._folder.path}")
        self._echo("Comparing the images with machine 0's ...")
        machine_zero.send_ready(processes, all_listings(self._config))

    def _plan(self, message: Message) -> LaunchPlan:
        """The plan shared by all machines, with the process counts and port from machine 0."""
        start = self._start = record(Start, message)
        number = self._config.node_rank
        if len(start.counts) != self._config.num_nodes or not (start.counts[0] and start.counts[number]):
            raise JoinError(
                f"{self._host} has sent {start.counts[:20]} as the processes of all machines, but num_nodes is "
                f"{self._config.num_nodes}, and this is machine {number}"
            )
        if start.resume and start.resume != LATEST:
            ask = self._machine_zero.announced(self._ask)
            check_named_paths(self._config, self._join_line, start.resume, ask)
        start.take_name(number)
        return LaunchPlan.from_config(
            taking_part(self._config, start.counts, number).model_copy(update={"initial_port": start.port}),
            config_path=self._folder.config_file,
            run_folder=self._folder.path,
            extra_args=["--resume", start.resume] if start.resume else [],
        )


def _describe_ranks(ranks: range) -> str:
    return f"rank {ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start} to {ranks.stop - 1}"


@contextmanager
def while_training(
    session: Session, folder: RunFolder, ranks: range, stop: Callable[[], tuple[str, str]] = lambda: ("", "")
) -> Iterator[None]:
    """Inside the block every new failure of `ranks` is sent at once to machine 0, which may not see this disk.

    So is the `stop`, its reason and what has requested it, once the second is not empty: machine 0 stops all, because
    ranks that are starting here do not hear of it. What arrives meanwhile is kept for `session.receive`; nothing else
    may receive inside the block.
    """
    is_over = threading.Event()
    has_told = False
    sent = {(failure.rank, failure.time) for failure in read_failures(folder)}  # of an earlier start

    def attend() -> None:
        nonlocal has_told
        while not is_over.wait(_POLL_EVERY_S):
            session.drain()
            reason, stopped_by = stop()
            if stopped_by and not has_told:
                has_told = True
                with suppress(ChannelClosed):
                    session.send("stopping", by=stopped_by, reason=reason)
            for failure in read_failures(folder):
                if failure.rank in ranks and (failure.rank, failure.time) not in sent:
                    sent.add((failure.rank, failure.time))
                    with suppress(ChannelClosed):
                        send_failure(session, failure)

    thread = threading.Thread(target=attend, name="failures", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def send_failure(session: Session, failure: Failure) -> None:
    """Report a failure of this machine to machine 0. Raises ChannelClosed."""
    session.send("failure", **{**asdict(failure), "age_s": time.time() - failure.time})
