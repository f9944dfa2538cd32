"""Joins a run as another machine: gets the config from machine 0, proves it has the same files, starts with it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Final

from modules.config import ConfigError, DataError, TandemError, TrainConfig, override, validate
from modules.config.trusted_code import allow_family
from modules.machine import hostname
from modules.run.folder.failures import Failure, read_failures
from modules.run.folder.run_folder import RunFolder
from modules.run.join.channel import ChannelClosed, Message
from modules.run.join.fingerprint import all_listings, code_listing, digest, family_identity, package_listing
from modules.run.join.join_line import JoinLine, connect
from modules.run.join.local_settings import ALLOW_DIFFERENCES, check_local_settings, shared_settings
from modules.run.join.members import JoinError
from modules.run.join.session import Session, StopRequested, raise_on_stop_signals
from modules.run.launch.plan import LaunchPlan
from modules.run.supervise.supervisor import Supervisor

Echo = Callable[[str], None]

_POLL_EVERY_S: Final = 0.3
# Machine 0 knows the cause of a failed run only after its own part has ended.
_OUTCOME_TIMEOUT_S: Final = 30.0
_ERROR_OF_KIND: Final[dict[str, type[TandemError]]] = {"config": ConfigError, "data": DataError}


def join_run(join_line: JoinLine, echo: Echo) -> int:
    """Join the run, train to its end, and return its exit code. Raises TandemError if this machine cannot join."""
    check_local_settings(join_line.settings)
    notified = ""
    try:
        with raise_on_stop_signals():
            echo(f"Joining the run at {join_line} ...")
            session = Session(connect(join_line, echo))
            notified = "; machine 0 has been notified"
            client = JoinClient(join_line, session, echo)
            plan = client.wait_for_start()
    except StopRequested as stop:
        echo(f"Stopped{notified}.")
        return stop.exit_code
    try:
        return client.train(plan)
    except TandemError as error:
        client.leave(error)
        raise


class JoinClient:
    """This machine's membership in a run, from the handshake to the end."""

    def __init__(self, join_line: JoinLine, session: Session, echo: Echo) -> None:
        self._join_line = join_line
        self._echo = echo
        self._session = session
        self._host = "machine 0"
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
                if message["missing"]:
                    self._echo(f"Waiting for {message['missing']} ...")
        except BaseException as error:
            self.leave(error)
            raise

    def train(self, plan: LaunchPlan) -> int:
        """Start this machine's processes and supervise them to the end."""
        counts = " + ".join(map(str, plan.process_counts))
        self._ranks = plan.ranks()
        self._echo(f"All machines have joined: {counts} processes; on this machine {_describe_ranks(plan.ranks())}.")
        for sentence in plan.variables.describe():
            self._echo(sentence)
        if self._join_line.allow_differences:
            os.environ[ALLOW_DIFFERENCES] = "1"  # inherited by the processes
        self._echo(f"Training; progress is shown on {self._host}.")
        supervisor = Supervisor.from_plan(plan, self._folder)
        with self._forwarding_failures():
            code = supervisor.run()
        failure = None if supervisor.outcome is None else supervisor.outcome.failure
        with suppress(ChannelClosed):
            self._finish(failure)
        self._session.close()
        return code

    def leave(self, error: BaseException) -> None:
        """Disconnect, with the reason."""
        reason = "it was stopped" if isinstance(error, StopRequested) else str(error)
        with suppress(ChannelClosed):
            self._session.send("leave", reason=reason)
        self._session.close()

    @contextmanager
    def _forwarding_failures(self) -> Iterator[None]:
        """Inside the block every failure on this machine is sent at once to machine 0, which may not see this disk."""
        is_over = threading.Event()
        sent: set[tuple[int, float]] = set()

        def forward() -> None:
            while not is_over.wait(_POLL_EVERY_S):
                for failure in read_failures(self._folder):
                    if failure.rank in ranks and (failure.rank, failure.time) not in sent:
                        sent.add((failure.rank, failure.time))
                        with suppress(ChannelClosed):
                            self._send_failure(failure)

        ranks = self._ranks
        thread = threading.Thread(target=forward, name="failures", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _send_failure(self, failure: Failure) -> None:
        content = {**asdict(failure), "age_s": time.time() - failure.time}
        self._session.send("failure", **content)

    def _finish(self, failure: Failure | None) -> None:
        """Report how this machine's part ended, and print the overall outcome that machine 0 sends back."""
        if failure is None:
            self._echo(f"The run has ended; its results and logs are on {self._host}.")
        else:
            self._send_failure(failure)
            self._session.send("finished")
            self._report_outcome(failure.message)
        self._session.send("leave", is_done=True, reason="")

    def _handshake(self) -> None:
        join_line, own = self._join_line, self._join_line.config
        self._session.send(
            "hello",
            host=hostname(),
            code=code_listing(),
            packages=package_listing(),
            config=None if own is None else shared_settings(own),
            number=None if own is None else own.node_rank,
            allow_differences=join_line.allow_differences,
        )
        welcome = self._expect("welcome")
        self._host = f"{welcome['host']} (machine 0)"
        self._resume = str(welcome["resume"])
        self._config = self._merge_config(welcome)
        self._echo(
            f"{self._host} has accepted the token; this is machine {self._config.node_rank} of {welcome['machines']}, "
            f"for the run {welcome['run_name']!r}."
        )
        self._check_family(welcome)
        for note in welcome["notes"]:
            self._echo(f"Note: {note}.")
        processes = LaunchPlan.from_config(self._config, config_path="config.json").processes_here
        self._folder = RunFolder.for_machine(self._config, str(welcome["run_name"]))
        self._echo(f"Run folder: {self._folder.path}")
        self._compare_data(processes)

    def _merge_config(self, welcome: Message) -> TrainConfig:
        """Machine 0's config with this machine's local settings."""
        own = self._join_line.config
        data = welcome["config"] if own is None else own.model_dump(mode="json")
        number = [f"node_rank={welcome['number']}", f"master_addr={self._join_line.host}"]
        where = f"The config of {self._host}" if own is None else "The config"
        return validate(override(data, [*self._join_line.settings, *number]), where)

    def _check_family(self, welcome: Message) -> None:
        """Raise ConfigError if the family's code differs: code named by machine 0 runs here only if it is the same."""
        if welcome["family"] != family_identity(self._config):
            raise ConfigError(
                f"family: {self._config.family!r} is not the same here as on {self._host}",
                "Copy the family's file from there; if it is in another place here, use --set family=FILE",
            )
        allow_family(self._config.family, trust=self._join_line.trust_code, ask=None)

    def _compare_data(self, processes: int) -> None:
        self._echo("Comparing the images with machine 0's ...")
        self._listings = all_listings(self._config)
        digests = [digest(listing) for listing in self._listings]
        self._session.send("ready", processes=processes, digests=digests)

    def _plan(self, start: Message) -> LaunchPlan:
        """The plan shared by all machines, with the process counts and port from machine 0."""
        shared = {"processes_per_node": tuple(start["counts"]), "world_size": None, "initial_port": start["port"]}
        return LaunchPlan.from_config(
            self._config.model_copy(update=shared),
            config_path=self._folder.config_file,
            run_folder=self._folder.path,
            extra_args=["--resume", self._resume] if self._resume else [],
        )

    def _expect(self, *kinds: str) -> Message:
        """The next message of these kinds. Raises TandemError if machine 0 rejects this machine or disconnects."""
        while True:
            try:
                message = self._session.expect(*kinds, "rejected", "request_listings", "closed")
                if message["type"] == "request_listings":
                    self._session.send("listings", listings=[self._listings[number] for number in message["which"]])
                    continue
            except ChannelClosed as end:
                reason = f": {end}" if str(end) else ""
                raise JoinError(
                    f"the connection to {self._host} at {self._join_line} was lost{reason}",
                    "Check its output, and run this line again when it waits for machines",
                ) from end
            if message["type"] == "rejected":
                error = _ERROR_OF_KIND.get(str(message["kind"]), JoinError)
                raise error(f"machine 0 rejected this machine: {message['message']}", str(message["advice"]))
            if message["type"] == "closed":
                raise JoinError(f"{self._host} has ended: {message['outcome']}")
            return message

    def _report_outcome(self, known: str) -> None:
        """Print the outcome from machine 0, unless it only repeats what is `known` here."""
        message = None
        deadline = time.monotonic() + _OUTCOME_TIMEOUT_S
        while message is None and time.monotonic() < deadline:
            message = self._session.receive(1.0)
        if message is not None and message["type"] == "closed" and known not in message["outcome"]:
            self._echo(f"{self._host} reports: {message['outcome']}")


def _describe_ranks(ranks: range) -> str:
    return f"rank {ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start} to {ranks.stop - 1}"
