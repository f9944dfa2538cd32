"""A machine that joins a run: gets the config from machine 0, shows that it has the same files, starts with it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Final

from modules.config import ConfigError, DataError, TandemError, TrainConfig, override, validate
from modules.machine import hostname
from modules.run.failures import Failure, read_failures
from modules.run.join.fingerprint import all_listings, code_listing, digest, family_code, package_listing
from modules.run.join.invitation import Invitation, knock
from modules.run.join.line import LineClosed, Message
from modules.run.join.roll_call import JoinError
from modules.run.join.rules import ALLOW_DIFFERENCES, check_own, shared_settings
from modules.run.join.talk import Stopped, Talk, stoppable
from modules.run.launch_plan import LaunchPlan
from modules.run.run_folder import RunFolder
from modules.run.supervise import Supervisor

Say = Callable[[str], None]

_LOOK_EVERY_S: Final = 0.3
# Machine 0 first ends its own part of a failed run, then it knows why.
_VERDICT_S: Final = 30.0
_KINDS: Final[dict[str, type[TandemError]]] = {"config": ConfigError, "data": DataError}


def join_run(invitation: Invitation, say: Say) -> int:
    """Join the run, train with it to its end, and return the exit code of the protocol.

    Raises TandemError where this machine cannot join.
    """
    check_own(invitation.settings)
    told = ""
    try:
        with stoppable():
            say(f"Joining the run at {invitation} ...")
            talk = Talk(knock(invitation, say))
            told = "; machine 0 has been told"
            joined = _Joined(invitation, talk, say)
            plan = joined.wait_for_start()
    except Stopped as stop:
        say(f"Stopped{told}.")
        return stop.exit_code
    try:
        return joined.train(plan)
    except TandemError as error:
        joined.leave(error)
        raise


class _Joined:
    """The stay in a run: from the greeting to the goodbye."""

    def __init__(self, invitation: Invitation, talk: Talk, say: Say) -> None:
        self._invitation = invitation
        self._say = say
        self._talk = talk
        self._host = "machine 0"
        try:
            self._enter()
        except BaseException as error:
            self.leave(error)
            raise

    def wait_for_start(self) -> LaunchPlan:
        """Wait until all machines are here. Raises JoinError where machine 0 gives up or has gone."""
        try:
            while True:
                message = self._expect("news", "start")
                if message["type"] == "start":
                    return self._plan(message)
                if message["missing"]:
                    self._say(f"Waiting for {message['missing']} ...")
        except BaseException as error:
            self.leave(error)
            raise

    def train(self, plan: LaunchPlan) -> int:
        """Start this machine's processes and watch over them to the end."""
        counts = " + ".join(map(str, plan.process_counts))
        self._ranks = plan.ranks()
        self._say(f"All machines are here: {counts} processes; on this machine {_named(plan.ranks())}.")
        for sentence in plan.variables.sentences():
            self._say(sentence)
        if self._invitation.allow_differences:
            os.environ[ALLOW_DIFFERENCES] = "1"  # the processes to start inherit it
        self._say(f"Training; progress is shown on {self._host}.")
        supervisor = Supervisor.of_plan(plan, self._folder)
        with self._failures_passed_on():
            code = supervisor.run()
        failure = None if supervisor.ending is None else supervisor.ending.failure
        with suppress(LineClosed):
            self._end(failure)
        self._talk.close()
        return code

    def leave(self, error: BaseException) -> None:
        """Go away, and say why."""
        reason = "it was stopped" if isinstance(error, Stopped) else str(error)
        with suppress(LineClosed):
            self._talk.send("leave", reason=reason)
        self._talk.close()

    @contextmanager
    def _failures_passed_on(self) -> Iterator[None]:
        """Inside the block machine 0, which may not see this disk, hears at once of every failure here."""
        is_over = threading.Event()
        told: set[tuple[int, float]] = set()

        def pass_on() -> None:
            while not is_over.wait(_LOOK_EVERY_S):
                for failure in read_failures(self._folder):
                    if failure.rank in ranks and (failure.rank, failure.time) not in told:
                        told.add((failure.rank, failure.time))
                        with suppress(LineClosed):
                            self._tell_failure(failure)

        ranks = self._ranks
        courier = threading.Thread(target=pass_on, name="courier", daemon=True)
        courier.start()
        try:
            yield
        finally:
            is_over.set()
            courier.join()

    def _tell_failure(self, failure: Failure) -> None:
        content = {**asdict(failure), "age_s": time.time() - failure.time}
        self._talk.send("failure", **content)

    def _end(self, failure: Failure | None) -> None:
        """Say how this machine's part ended, and hear what machine 0, which knows all parts, makes of it."""
        if failure is None:
            self._say(f"The run has ended; what it made and said is on {self._host}.")
        else:
            self._tell_failure(failure)
            self._talk.send("ended")
            self._tell_verdict(failure.message)
        self._talk.send("leave", is_done=True, reason="")

    def _enter(self) -> None:
        invitation, own = self._invitation, self._invitation.config
        self._talk.send(
            "arrive",
            host=hostname(),
            code=code_listing(),
            packages=package_listing(),
            config=None if own is None else shared_settings(own),
            number=None if own is None else own.node_rank,
            allow_differences=invitation.allow_differences,
        )
        welcome = self._expect("welcome")
        self._host = f"{welcome['host']} (machine 0)"
        self._resume = str(welcome["resume"])
        self._config = self._configured(welcome)
        self._say(
            f"{self._host} has accepted the token; this is machine {self._config.node_rank} of {welcome['machines']}, "
            f"for the run {welcome['run_name']!r}."
        )
        self._check_family(welcome)
        for note in welcome["notes"]:
            self._say(f"Note: {note}.")
        processes = self._first_plan().processes_here
        self._folder = RunFolder.of_machine(self._config, str(welcome["run_name"]))
        self._say(f"Run folder: {self._folder.path}")
        self._compare_pictures(processes)

    def _configured(self, welcome: Message) -> TrainConfig:
        """Machine 0's config with what is this machine's own affair."""
        own = self._invitation.config
        data = welcome["config"] if own is None else own.model_dump(mode="json")
        number = [f"node_rank={welcome['number']}", f"master_addr={self._invitation.host}"]
        where = f"The config of {self._host}" if own is None else "The config"
        return validate(override(data, [*self._invitation.settings, *number]), where)

    def _check_family(self, welcome: Message) -> None:
        """What machine 0 names is run here only if it is the same file. Raises ConfigError."""
        if welcome["family"] != family_code(self._config):
            raise ConfigError(
                f"family: {self._config.family!r} is not the same here as on {self._host}",
                "Copy the family's file from there; where it lies elsewhere, --set family=FILE",
            )

    def _first_plan(self) -> LaunchPlan:
        """What this machine would start; here it is found out how many GPUs it brings. Raises ConfigError."""
        return LaunchPlan.from_config(self._config, config_path="config.json")

    def _compare_pictures(self, processes: int) -> None:
        self._say("Comparing the pictures with machine 0's ...")
        own = all_listings(self._config)
        self._talk.send("ready", processes=processes, digests=[digest(listing) for listing in own])
        self._own = own

    def _plan(self, start: Message) -> LaunchPlan:
        """The plan that all machines share, with their numbers of processes and machine 0's port."""
        shared = {"processes_per_node": tuple(start["counts"]), "world_size": None, "initial_port": start["port"]}
        return LaunchPlan.from_config(
            self._config.model_copy(update=shared),
            config_path=self._folder.config_file,
            run_folder=self._folder.path,
            extra_args=["--resume", self._resume] if self._resume else [],
        )

    def _expect(self, *kinds: str) -> Message:
        """The next message of these kinds. Raises TandemError for a refusal, or where machine 0 has gone."""
        while True:
            try:
                message = self._talk.expect(*kinds, "refused", "list", "over")
                if message["type"] == "list":
                    self._talk.send("listings", listings=[self._own[number] for number in message["which"]])
                    continue
            except LineClosed as end:
                reason = f": {end}" if str(end) else ""
                raise JoinError(
                    f"the connection to {self._host} at {self._invitation} was lost{reason}",
                    "Look at what is said there, and start this line again when it waits for machines",
                ) from end
            if message["type"] == "refused":
                error = _KINDS.get(str(message["kind"]), JoinError)
                raise error(f"machine 0 did not let this machine in: {message['message']}", str(message["advice"]))
            if message["type"] == "over":
                raise JoinError(f"{self._host} has ended: {message['verdict']}")
            return message

    def _tell_verdict(self, own: str) -> None:
        message = None
        deadline = time.monotonic() + _VERDICT_S
        while message is None and time.monotonic() < deadline:
            message = self._talk.listen(1.0)
        if message is not None and message["type"] == "over" and own not in message["verdict"]:
            self._say(f"{self._host} says: {message['verdict']}")


def _named(ranks: range) -> str:
    return f"rank {ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start} to {ranks.stop - 1}"
