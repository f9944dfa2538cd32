"""Starts a run on several machines, as machine 0: lets the others join, starts with all, restarts if one fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from modules.config import TandemError, TrainConfig
from modules.machine import PortReservations, set_hostname
from modules.run.console import show_secret
from modules.run.exit_codes import FAILED, FINISHED, INTERRUPTED
from modules.run.folder.backup_list import complete_backups
from modules.run.folder.commands import (
    REGROUP,
    clear_commands,
    is_stopped_by_user,
    request_command,
    stop_reason,
    withdraw_command,
)
from modules.run.folder.events import EventLog
from modules.run.folder.failures import clear_failures, read_failures, record_failure, root_cause
from modules.run.folder.run_folder import RunFolder, not_writable_error
from modules.run.format_duration import in_words
from modules.run.hosts.host import Host
from modules.run.hosts.remote_machines import REJECTED, RemoteMachines, hosts_of_former_run
from modules.run.join.join_line import write_join_line
from modules.run.join.join_token import generate_token
from modules.run.join.same_run import prove_run
from modules.run.join.server import MACHINE_LOST, JoinServer
from modules.run.join.session import StopRequested, raise_on_stop_signals
from modules.run.launch.plan import LaunchPlan, taking_part, where_joined
from modules.run.launch.restarts import SECONDS_BEFORE, resume_since
from modules.run.supervise.outcome import CODE_OF_STOP, REASON_OF_CODE, outcome_message
from modules.run.supervise.supervisor import Supervisor, any_failure

# Other machines take a while to notice a killed process; a failed run must end within 30 s overall.
_COLLECT_REMOTE_S: Final = 10.0
# How long machines that this one has started may take to end by themselves, before they are asked to stop. A machine
# that trains may have to be noticed as lost first; one that is still starting does not know yet that nobody waits.
_AFTER_TRAINING_S: Final = 40.0
_AFTER_WAITING_S: Final = 1.0
_END_WITHIN_S: Final = 120.0  # the parts of the machines, after a failure that all hear of
_TRY_AGAIN_EVERY_S: Final = 30.0  # to start a lost machine over ssh
_MOST_FRUITLESS: Final = 3  # losses without a new backup, beside one of each machine
_KINDS_OF_LOSS: Final = frozenset({MACHINE_LOST, "lost"})  # the second: no rank there is heard any more
_RESUME: Final = "--resume"

Echo = Callable[[str], None]


class MachinesStart:
    """The start of one run on several machines."""

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        echo: Echo,
        events: EventLog,
        extra_args: Sequence[str],
        ports: PortReservations,
        hosts: Sequence[Host] = (),
        joining: Sequence[str] = (),
    ) -> None:
        """`hosts` are started over ssh once this machine listens, and another computer has those of the names `joining`
        join; all others join by hand. `ports` are the run's."""
        self._config = config
        self._folder = folder
        self._echo = echo
        self._events = events
        self._extra_args = list(extra_args)
        self._ports = ports
        self._started_at = time.time()
        self._supervisor: Supervisor | None = None
        self._hosts, self._joining = hosts, joining
        self._remote = RemoteMachines(hosts, folder.log_dir, echo)
        self._has_started = False
        self._printed: tuple[str, ...] = ()  # the notes of the plan
        self._restarts = 0  # after failures of processes
        self._newest: list[str] = []  # the newest backup at the last loss, if there was one
        self._fruitless = 0  # losses since without a new one

    def run(self, plan: LaunchPlan, token: str | None) -> int:
        """Run to the end; returns the exit code. Raises TandemError if a machine does not join."""
        token = token or generate_token()
        try:
            clear_commands(self._folder)
        except OSError as error:
            raise not_writable_error(self._folder.path, error) from error
        try:
            server = JoinServer(
                self._config,
                self._folder.name,
                self._report,
                token=token,
                folder_proofs=prove_run(self._folder, token),
                resume=self._resume,
                names=[*self._remote.names, *self._joining],
                record=lambda failure: record_failure(self._folder, failure, keep_existing=True),
                report_stop=self._stop_with_others,
                take_in=self._take_in,
            )
        except TandemError as error:
            self._record_end(error.kind, error.exit_code, error)
            raise
        try:
            return self._run(server, plan)
        finally:
            was_forced = self._supervisor is not None and self._supervisor.was_forced
            patience_s = _AFTER_TRAINING_S if self._has_started else _AFTER_WAITING_S
            self._remote.finish(patience_s, at_once=was_forced, lost=server.silent)
            if self._has_started:
                self._remote.report_unexpected_ends()

    def _run(self, server: JoinServer, plan: LaunchPlan) -> int:
        """Wait for all machines, then train."""
        try:
            with raise_on_stop_signals():
                joined = self._wait_for_machines(server, plan)
        except StopRequested as stop:
            return self._stopped(server, stop)
        except TandemError as error:
            server.close(error.message)
            self._record_end(error.kind, error.exit_code, error)
            raise
        counts = " + ".join(map(str, joined.process_counts))
        self._report(f"All {joined.num_nodes} machines have joined: {counts} processes.", [])
        self._has_started = True  # later messages, of machines that rejoin, must not follow the `finished` event
        print_plan(joined, self._echo, skip=self._printed)
        try:
            code = self._train(server, joined)
            self._say_how_to_continue(code)
            return code
        except StopRequested as stop:
            return self._stopped(server, stop)
        finally:
            server.close(self._how_it_ended())

    def _wait_for_machines(self, server: JoinServer, plan: LaunchPlan) -> LaunchPlan:
        """Show how the other machines join, and wait for all of them; the plan with their processes."""
        config = self._config
        self._show_join_line(plan, server)
        waiting = f"Waiting up to {in_words(config.startup_timeout_s)} ({server.summary()})."
        self._echo(f"{waiting} Ctrl-C ends the wait.")
        self._events.write("joining", message=waiting, missing=server.missing_numbers(), by_hand=self._by_hand)
        self._start_hosts(plan, server)
        counts = server.wait(config.startup_timeout_s, self._check_while_waiting, if_late=self._advice_if_late())
        self._config, note = where_joined(config, plan.master_addr, server.joined_at())
        if note:
            self._report(f"Note: {note}.", [])
        return self._plan(taking_part(self._config, [plan.processes_here, *(counts[each] for each in sorted(counts))]))

    def _advice_if_late(self) -> str:
        by_hand = "Run the line above on the machines that join by hand sooner"
        by_ssh = f"See in {self._folder.log_dir} what each machine prints (host-NAME.txt)"
        advice = "; ".join([by_hand] * (self._by_hand > 0) + [by_ssh] * bool(self._hosts))
        return f"{advice}, or raise startup_timeout_s"

    def _start_hosts(self, plan: LaunchPlan, server: JoinServer) -> None:
        for host in self._hosts:
            self._report(f"Starting {host} over ssh.", server.missing_numbers())
        try:
            self._remote.start(self._config, plan.join_address(server.port), server.token, self._resume)
        except OSError as error:
            raise not_writable_error(self._folder.path, error) from error

    def _train(self, server: JoinServer, plan: LaunchPlan) -> int:
        """Train; after a failure or the loss of a machine, start again as max_restarts and on_machine_loss say."""
        may_start_again = self._config.on_machine_loss != "end"
        counts = [count or 1 for count in plan.process_counts]
        started = time.monotonic()
        while True:
            secret = server.start(
                counts, plan.port, plan.master_addr, resume=self._resume, restarts_left=int(may_start_again)
            )
            set_hostname(server.names[0])
            self._supervisor = Supervisor.from_plan(
                plan,
                self._folder,
                lambda: server.wait_for_reports(_COLLECT_REMOTE_S, self._is_cause_known),
                environment={SECONDS_BEFORE: f"{time.monotonic() - started:.0f}"},
                store_secret=secret,
                may_restart=any_failure if may_start_again else None,
                cannot_start=server.first_loss,
                clears_commands=False,
            )
            with self._starting_lost_machines(server):
                code = self._supervisor.run()
            if not self._supervisor.can_restart:
                return code
            if (following := self._next_counts(server, counts)) is None:
                self._supervisor.report()
                return code
            clear_failures(self._folder, [each.rank for each in read_failures(self._folder)])
            self._set_resume(resume_since(self._started_at, self._resume, self._folder) or "")
            counts = following
            plan = self._plan(taking_part(self._config, counts))

    def _next_counts(self, server: JoinServer, counts: list[int]) -> list[int] | None:
        """The processes of each machine in the next start, once all of them can start; None if there is none."""
        assert self._supervisor is not None
        assert self._supervisor.outcome is not None
        failure = self._supervisor.outcome.failure
        is_lost = bool(server.losses) or (failure is not None and failure.kind in _KINDS_OF_LOSS)
        cause = ""
        if is_lost:
            lost = server.losses or [*filter(None, [failure])]
            cause = " ".join(f"Lost at {_clock_time(each.time)}: {each.message}" for each in lost)
            if not self._is_progressing():
                self._warn(f"{cause} Machines were lost {self._fruitless} times without a new backup: no restart.")
                return None
        elif failure is not None:
            self._restarts += 1
            if self._restarts > self._config.max_restarts:
                return None
            self._supervisor.report_restart(self._restarts, self._config.max_restarts)
        if self._config.on_machine_loss == "continue":
            return self._counts_of_those_left(server, counts, cause)
        if is_lost:
            self._warn(f"{cause} The run goes on from its newest backup once all machines are there again.")
        return counts if self._is_everybody_back(server) else None

    def _counts_of_those_left(self, server: JoinServer, counts: list[int], cause: str) -> list[int] | None:
        """As `_next_counts`, with those that are there; `cause` says what was lost, and is empty otherwise."""
        with raise_on_stop_signals():
            server.wait_for_ends(_END_WITHIN_S, self._check_stop)
            self._take_in(False)  # from here on, who is ready takes part, or asks for it again
            ready = server.wait_for_ends(0.0, self._check_stop)
        following = [counts[0], *(ready.get(number, 0) for number in range(1, len(counts)))]
        resume = resume_since(self._started_at, self._resume, self._folder)
        ranks = sum(following)
        if not resume and self._config.global_batch_size is None and ranks != sum(counts):
            self._warn(
                f"{cause} No backup says yet how many images a step trains, and {ranks} of {sum(counts)} ranks would "
                "make other steps. Start the run again; with global_batch_size set, the others would have gone on."
            )
            return None
        place = "the newest backup" if resume else "its first step, because there is no backup yet,"
        message = (
            f"The run goes on from {place} on {len([*filter(None, following)])} of {len(following)} machines with "
            f"{ranks} {'rank' if ranks == 1 else 'ranks'}{f' instead of {sum(counts)}' * (ranks != sum(counts))} "
            f"({server.summary()})."
        )
        if cause and 0 in following:
            message += " A machine that joins again with its line takes part from the next backup on."
        self._warn(f"{cause} {message}".strip())
        return following

    def _is_progressing(self) -> bool:
        """Whether the run may start again after a loss: not if too many came without a new backup between them."""
        newest = [path.name for path in complete_backups(self._folder.backup_dir)][-1:]
        self._fruitless = self._fruitless + 1 if newest == self._newest else 1
        self._newest = newest
        return self._fruitless < _MOST_FRUITLESS + self._config.num_nodes

    @contextmanager
    def _starting_lost_machines(self, server: JoinServer) -> Iterator[None]:
        """Inside the block, with on_machine_loss=continue, machines that were started over ssh are started again."""
        if self._config.on_machine_loss != "continue" or not self._hosts:
            yield
            return
        is_over = threading.Event()

        def attend() -> None:
            while not is_over.wait(_TRY_AGAIN_EVERY_S):
                self._remote.start_ended(server.silent)

        thread = threading.Thread(target=attend, name="lost machines", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _is_everybody_back(self, server: JoinServer) -> bool:
        """Wait until every machine is ready to start again; whether it is, in time.

        One that was started over ssh is started again until it answers, unless its settings or files are rejected.
        """
        try_at = 0.0

        def check() -> None:
            nonlocal try_at
            if time.monotonic() >= try_at:
                self._remote.start_ended(server.silent)
                try_at = time.monotonic() + _TRY_AGAIN_EVERY_S
            self._remote.check(REJECTED)
            self._check_stop()

        self._echo(f"Waiting up to {in_words(self._config.startup_timeout_s)} for all machines ({server.summary()}).")
        try:
            with raise_on_stop_signals():
                server.wait(self._config.startup_timeout_s, check)
        except TandemError as error:
            self._echo(f"No restart: {error}")
            return False
        return True

    def _take_in(self, is_any_ready: bool) -> None:
        """If a machine is ready that does not take part, the run ends at its next backup, to go on with it."""
        with suppress(OSError):  # of a full disk
            (request_command if is_any_ready else withdraw_command)(self._folder, REGROUP)

    def _warn(self, message: str, **more: object) -> None:
        self._echo(f"Warning: {message}")
        self._events.write("warning", message=message, **more)

    def _check_while_waiting(self) -> None:
        self._remote.check()
        self._check_stop()

    def _check_stop(self) -> None:
        """A request to stop may be a file, which nobody else reads before the start and between two."""
        if (reason := stop_reason(self._folder)) is not None:
            raise StopRequested(CODE_OF_STOP.get(reason, INTERRUPTED))

    def _stopped(self, server: JoinServer, stop: StopRequested) -> int:
        self._echo(f"Stopped while waiting for machines ({server.summary()}).")
        server.close("it was stopped while waiting for machines")
        # the window sends a signal as well, to a run that may not read its request
        is_by_user = is_stopped_by_user(self._folder)
        code = INTERRUPTED if is_by_user else stop.exit_code
        self._record_end("stopped" if is_by_user else REASON_OF_CODE[code], code)
        return code

    def _say_how_to_continue(self, code: int) -> None:
        """After an end before the last step: the machines over ssh have to be named again."""
        if self._hosts and code != FINISHED and complete_backups(self._folder.backup_dir):
            names = ",".join(host.name for host in self._hosts)
            again = f"--resume latest --run_name {self._folder.name} --hosts {names}"
            self._echo(f"To continue with the same machines: {again}")

    def _how_it_ended(self) -> str:
        """What the other machines are told at the end; empty without a failure."""
        if self._supervisor is None or self._supervisor.outcome is None:
            return ""
        if self._supervisor.restart_was_stopped:
            return "it was stopped instead of starting again"
        return outcome_message(self._supervisor.outcome, self._folder)

    def _report(self, message: str, missing: list[int]) -> None:
        self._echo(message)
        if not self._has_started:
            self._events.write("joining", message=message, missing=missing)

    def _stop_with_others(self, message: str, reason: str) -> None:
        """Another machine was stopped: stop here, too, and say so, in the window as the cause of the end."""
        if (self._supervisor is not None and self._supervisor.is_stopped) or is_stopped_by_user(self._folder):
            return  # this one was, too
        self._warn(message, is_cause_of_end=True)
        with suppress(OSError):  # of a full disk; the ranks of that machine pass it on, unless they are still starting
            request_command(self._folder, "stop", reason)

    def _show_join_line(self, plan: LaunchPlan, server: JoinServer) -> None:
        config, echo = self._config, self._echo
        if server.port != config.initial_port + 1:
            echo(f"Note: machines join at port {server.port} instead of {config.initial_port + 1}, which is in use.")
        self._printed = plan.reasons
        for reason in plan.reasons:
            echo(f"Note: {reason}.")
        join_line = plan.join_line(server.port, server.token)
        write_join_line(self._folder, join_line)
        file = self._folder.join_line_file
        if not self._by_hand:
            others = f"{' and '.join(self._joining)} will join" if self._joining else "it starts the others over ssh"
            echo(f"This is machine 0 of {plan.num_nodes}; {others}.")
            return
        others = "the other machine" if self._by_hand == 1 else f"each of the {self._by_hand} other machines"
        echo(
            f"This is machine 0 of {plan.num_nodes}. Run the line in {file} on {others}, in Tandem's folder. Only you "
            "can read it, because it contains the token."
        )
        show_secret(f"\n  {join_line}\n")  # a log is no place for it
        if not self._hosts and (former := hosts_of_former_run(self._folder)):
            names = " and ".join(former)
            echo(f"Note: this run has started {names} over ssh before; --hosts {','.join(former)} does so again.")

    def _plan(self, config: TrainConfig) -> LaunchPlan:
        return plan_of(config, self._folder, self._extra_args, self._ports)

    @property
    def _by_hand(self) -> int:
        """How many machines join with the line, and are not started by this one."""
        return self._config.num_nodes - 1 - len(self._hosts) - len(self._joining)

    @property
    def _resume(self) -> str:
        arguments = self._extra_args
        return arguments[arguments.index(_RESUME) + 1] if _RESUME in arguments else ""

    def _set_resume(self, resume: str) -> None:
        if _RESUME in self._extra_args:
            at = self._extra_args.index(_RESUME)
            del self._extra_args[at : at + 2]
        self._extra_args += [_RESUME, resume] if resume else []

    def _is_cause_known(self) -> bool:
        """Whether a primary failure has been recorded."""
        cause = root_cause(self._folder)
        return cause is not None and not cause.is_secondary

    def _record_end(self, kind: str, exit_code: int, error: TandemError | None = None) -> None:
        """Write the final events of a run that never started, for the window, and to free its name for another run."""
        if error is not None:
            self._events.write("error", rank=0, host="", kind=kind, message=error.message, advice=error.advice)
        self._events.write("finished", reason="failed" if exit_code == FAILED else kind, exit_code=exit_code)


def _clock_time(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def plan_of(
    config: TrainConfig,
    folder: RunFolder,
    extra_args: Sequence[str],
    ports: PortReservations,
    *,
    require_multi_gpu: bool = False,
) -> LaunchPlan:
    """The plan of a run in its folder, with a port that is reserved in `ports`.

    Raises ConfigError if this machine cannot run it.
    """
    return LaunchPlan.from_config(
        config,
        config_path=folder.config_file,
        run_folder=folder.path,
        extra_args=extra_args,
        require_multi_gpu=require_multi_gpu,
        is_free=ports.take,
    )


def print_plan(plan: LaunchPlan, echo: Echo, *, skip: Sequence[str] = ()) -> None:
    """Print what differs from the config, and the variables."""
    for reason in plan.reasons:
        if reason not in skip:
            echo(f"Note: {reason}.")
    for sentence in plan.variables.describe():
        echo(sentence)
