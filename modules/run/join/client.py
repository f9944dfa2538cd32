"""Joins a run as another machine: gets the config from machine 0, proves it has the same files, starts with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from modules import __version__
from modules.config import ConfigError, DataError, TandemError
from modules.config.trusted_code import CodeNotTrusted
from modules.files import printable
from modules.machine import hostname
from modules.run.exit_codes import INTERRUPTED, PAUSED, TERMINATED
from modules.run.folder.failures import Failure
from modules.run.folder.resume import LATEST
from modules.run.join.allowed_paths import FOR_MACHINE_0, Ask, PathMissing, PathNotAllowed
from modules.run.join.channel import ChannelClosed, Message
from modules.run.join.fingerprint import (
    Listing,
    all_listings,
    code_listing,
    digest,
    keyed_listing,
    keyed_names,
    package_listing,
)
from modules.run.join.join_line import JoinLine, connect
from modules.run.join.keys import derive_key
from modules.run.join.local_settings import ALLOW_DIFFERENCES, check_local_settings, shared_settings
from modules.run.join.members import JoinError
from modules.run.join.messages import Start, Welcome, record
from modules.run.join.received_config import check_family, check_named_paths, merge_config
from modules.run.join.same_run import own_folder
from modules.run.join.session import Session, StopRequested, raise_on_stop_signals
from modules.run.join.while_training import send_failure, while_training
from modules.run.launch.plan import LaunchPlan
from modules.run.supervise.supervisor import Supervisor, any_failure

Echo = Callable[[str], None]

# Machine 0 knows the cause of a failed run only after its own part has ended.
_OUTCOME_TIMEOUT_S: Final = 30.0
# For machine 0, whose own --trust_code would not help.
_CODE_NOT_ALLOWED: Final = (
    "nobody has allowed the family's Python file to run on that machine; once it has been read there, join again with "
    "--trust_code"
)
_ERROR_OF_KIND: Final[dict[str, type[TandemError]]] = {"config": ConfigError, "data": DataError}


def join_run(join_line: JoinLine, echo: Echo, ask: Ask | None = None, ask_about_code: Ask | None = None) -> int:
    """Join the run, train to its end, and return its exit code. Raises TandemError if this machine cannot join.

    `ask` puts a question to the person at this machine: whether a path that machine 0 names may be used;
    `ask_about_code`, whether a family that is a Python file may run.
    """
    check_local_settings(join_line.settings)
    notified = ""
    try:
        with raise_on_stop_signals():
            echo(f"Joining the run at {join_line} ...")
            session = Session(connect(join_line, echo))
            notified = "; machine 0 has been notified"
            client = JoinClient(join_line, session, echo, ask, ask_about_code)
            plan: LaunchPlan | None = client.wait_for_start()
    except StopRequested as stop:
        echo(f"Stopped{notified}.")
        return stop.exit_code
    code = 0
    try:
        while plan is not None:
            code = client.train(plan)
            with raise_on_stop_signals():
                plan = client.wait_for_restart(code)
    except StopRequested as stop:
        client.leave(stop)
        echo(f"Stopped{notified}.")
        return stop.exit_code
    except TandemError as error:
        client.leave(error)
        raise
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
        self._host = "machine 0"
        self._listings: list[Listing] = []
        try:
            self._handshake()
        except BaseException as error:
            self.leave(error)
            raise

    def wait_for_start(self) -> LaunchPlan:
        """Wait until all machines have joined. Raises JoinError if machine 0 gives up or disconnects."""
        try:
            while True:
                message = self._expect("status", "start")
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
        self._echo(f"All machines have joined: {counts} processes; on this machine {_describe_ranks(plan.ranks())}.")
        for sentence in plan.variables.describe():
            self._echo(sentence)
        if self._join_line.allow_differences:
            os.environ[ALLOW_DIFFERENCES] = "1"  # inherited by the processes
        self._echo(f"Training; progress is shown on {self._host}.")
        self._supervisor = Supervisor.from_plan(
            plan,
            self._folder,
            store_secret=derive_key(self._join_line.token, "store", self._start.nonce),
            may_restart=any_failure if self._start.restarts_left > 0 else None,
        )
        supervisor = self._supervisor
        with while_training(self._session, self._folder, self._ranks, lambda: supervisor.stopped_by):
            code = supervisor.run()
        if self._supervisor.restart_was_stopped:
            raise StopRequested(code)  # machine 0 would wait for this machine
        return code

    def wait_for_restart(self, code: int) -> LaunchPlan | None:
        """Report how this machine's part ended; the plan of the next start, or None at the end of the run."""
        plan = None
        with suppress(ChannelClosed):
            plan = self._finish(code)
        if plan is not None:
            return plan
        if self._supervisor.can_restart:
            self._supervisor.report()
        self._session.close()
        return None

    def leave(self, error: BaseException) -> None:
        """Disconnect, with the reason."""
        reason = f"it was stopped by {error.by}" if isinstance(error, StopRequested) else str(error)
        if isinstance(error, (PathNotAllowed, PathMissing)):
            reason = FOR_MACHINE_0
        if isinstance(error, CodeNotTrusted):
            reason = _CODE_NOT_ALLOWED
        with suppress(ChannelClosed):
            self._session.send("leave", reason=reason)
        self._session.close()

    def _finish(self, code: int) -> LaunchPlan | None:
        """Report how this machine's part ended; the plan of the next start, unless the run is over."""
        outcome = self._supervisor.outcome
        failure = None if outcome is None else outcome.failure
        if failure is not None and failure.rank in self._ranks:
            send_failure(self._session, failure)
        if self._supervisor.was_forced:  # the others would wait for its ranks
            self._session.send("leave", reason=f"it was stopped at once by {self._supervisor.stopped_by}")
            return None
        is_possible = self._start.restarts_left > 0 and code not in {INTERRUPTED, TERMINATED, PAUSED}
        if failure is not None or is_possible:
            self._session.send("finished")
            plan = self._wait_for_outcome(None if is_possible else _OUTCOME_TIMEOUT_S, failure)
            if plan is not None:
                return plan
        if failure is None:
            self._echo(f"The run has ended; its results and logs are on {self._host}.")
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
                self._echo(f"{self._host} starts all machines again{f', because: {known}' if known else '.'}")
                return self._plan(message)
            if message["type"] == "closed":
                outcome = printable(message.get("outcome", ""), 4000, lines=True)
                if failure is not None and known not in outcome:
                    self._echo(f"{self._host} reports: {outcome}")
                return None
        return None

    def _handshake(self) -> None:
        join_line, own = self._join_line, self._join_line.config
        self._session.send(
            "hello",
            host=hostname(),
            tandem=__version__,
            code=code_listing(),
            packages=package_listing(),
            config=None if own is None else shared_settings(own),
            number=None if own is None else own.node_rank,
            allow_differences=join_line.allow_differences,
        )
        welcome = record(Welcome, self._expect("welcome"))
        self._host = f"{printable(welcome.host, 100)} (machine 0)"
        self._key = derive_key(join_line.token, "fingerprints", welcome.nonce)
        self._config = merge_config(join_line, welcome, self._host)
        self._echo(
            f"{self._host} has accepted the token; this is machine {self._config.node_rank} of {welcome.machines}, "
            f"for the run {printable(welcome.run_name, 200)!r}."
        )
        check_named_paths(self._config, join_line, "", self._ask)
        check_family(self._config, join_line, welcome, self._host, self._ask_about_code)
        for note in welcome.notes:
            self._echo(f"Note: {printable(note)}.")
        processes = LaunchPlan.from_config(self._config, config_path="config.json").processes_here
        self._folder = own_folder(self._config, welcome.run_name, join_line.token, welcome.folder_proofs)
        self._echo(f"Run folder: {self._folder.path}")
        self._compare_data(processes)

    def _compare_data(self, processes: int) -> None:
        self._echo("Comparing the images with machine 0's ...")
        self._listings = all_listings(self._config)
        digests = [digest(listing, self._key) for listing in self._listings]
        self._session.send("ready", processes=processes, digests=digests)

    def _plan(self, message: Message) -> LaunchPlan:
        """The plan shared by all machines, with the process counts and port from machine 0."""
        start = self._start = record(Start, message)
        if len(start.counts) != self._config.num_nodes:
            raise JoinError(
                f"{self._host} has sent the numbers of processes of {len(start.counts)} machines, but num_nodes is "
                f"{self._config.num_nodes}"
            )
        if start.resume and start.resume != LATEST:
            check_named_paths(self._config, self._join_line, start.resume, self._ask)
        shared = {"processes_per_node": tuple(start.counts), "world_size": None, "initial_port": start.port}
        return LaunchPlan.from_config(
            self._config.model_copy(update=shared),
            config_path=self._folder.config_file,
            run_folder=self._folder.path,
            extra_args=["--resume", start.resume] if start.resume else [],
        )

    def _expect(self, *kinds: str) -> Message:
        """The next message of these kinds. Raises TandemError if machine 0 rejects this machine or disconnects."""
        while True:
            try:
                message = self._session.expect(*kinds, "rejected", "request_listings", "closed")
                if message["type"] == "request_listings":
                    self._session.send("listings", listings=self._keyed_listings(message.get("which")))
                    continue
            except ChannelClosed as end:
                reason = f": {end}" if str(end) else ""
                raise JoinError(
                    f"the connection to {self._host} at {self._join_line} was lost{reason}",
                    "Check its output, and run this line again when it waits for machines",
                ) from end
            if message["type"] == "rejected":
                self._report_files(message.get("only_there"))
                error = _ERROR_OF_KIND.get(str(message.get("kind")), JoinError)
                reason, advice = printable(message.get("message"), 4000), printable(message.get("advice"), 4000)
                raise error(f"machine 0 rejected this machine: {reason}", advice)
            if message["type"] == "closed":
                raise JoinError(f"{self._host} has ended: {printable(message.get('outcome'), 4000, lines=True)}")
            return message

    def _keyed_listings(self, which: object) -> list[Listing]:
        """The listings that machine 0 asks for, as HMACs."""
        numbers = which if isinstance(which, list) else []
        known = [each for each in numbers if type(each) is int and 0 <= each < len(self._listings)]
        return [keyed_listing(self._listings[number], self._key) for number in dict.fromkeys(known)]

    def _report_files(self, hidden: object) -> None:
        """Name the files that only this machine has, of which machine 0 knows only HMACs."""
        wanted = set(map(str, hidden)) if isinstance(hidden, list) else set()
        names = {code: name for listing in self._listings for name, code in keyed_names(listing, self._key).items()}
        if found := [printable(names[code], 200) for code in sorted(wanted & names.keys())]:
            self._echo(f"Only on this machine: {', '.join(found)}")


def _describe_ranks(ranks: range) -> str:
    return f"rank {ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start} to {ranks.stop - 1}"
