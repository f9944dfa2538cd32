"""Machine 0's join server: checks the other machines of a run, sends them the config and the start signal."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, Literal

from modules.config import TrainConfig, dump
from modules.files import printable
from modules.machine import distinct_names, system_hostname
from modules.run.folder.commands import STOP_TERMINATED
from modules.run.folder.failures import Failure
from modules.run.format_duration import in_words
from modules.run.join.channel import ChannelClosed, Message
from modules.run.join.checks import JoinRejected, check_dataset, check_software, failure_of, process_count
from modules.run.join.fingerprint import Listing, all_listings, family_identity
from modules.run.join.keys import derive_key
from modules.run.join.listener import Listener
from modules.run.join.members import JoinError, Members, RemoteMachine
from modules.run.join.session import ChannelSilent, Session
from modules.run.supervise.outcome import CODE_OF_STOP

Preflight = Literal["", "with config", "without config"]
Report = Callable[[str, list[int]], None]

_SLOT_TIMEOUT_S: Final = 20.0
_CLOSE_TIMEOUT_S: Final = 3.0
MACHINE_LOST: Final = "machine_lost"  # the kind of a failure
_CHECK_LINK: Final = "Check that it is running and connected; then continue with --resume latest."
_RESUME: Final = "Continue with --resume latest."
_CHECK_PROGRAM: Final = (
    "See what Tandem has written there, and whether it was killed (dmesg, if memory ran out); then continue with "
    "--resume latest."
)
# Someone who has pasted the line must not read that nobody has come, however many images are compared there.
_SLOW_S: Final = 8.0
_NEXT_BACKUP: Final = "the next backup of the run, which then goes on with this machine as well"
LONGEST_REASON: Final = 500  # characters that are shown


class JoinServer:
    """Accepts machines from construction until `close`: for the start, and those that rejoin before a restart."""

    def __init__(
        self,
        config: TrainConfig,
        run_name: str,
        report: Report,
        *,
        token: str,
        folder_proofs: Sequence[str] = (),
        resume: str = "",
        preflight: Preflight = "",
        names: Sequence[str] = (),
        record: Callable[[Failure], None] = lambda failure: None,
        report_stop: Callable[[str, str], None] = lambda message, reason: None,
        take_in: Callable[[bool], None] = lambda is_any_ready: None,
    ) -> None:
        """Start listening; `resume` is this run's --resume, if any, `record` receives failures of other machines.

        `preflight` says whether machine 0 has a config; it compares code and files itself, so every machine may join.
        `names` are those of machines that this one starts.
        `report_stop` receives the sentence about one that was stopped while all train, with which all stop, and the
        reason of the stop command. `take_in` is told, when that changes, whether a machine is ready that does not take
        part in the start under way; without on_machine_loss=continue there is none.
        `report` receives each message and the numbers of the missing machines; `folder_proofs` are those of
        `prove_run`. Raises JoinError if no port is free.
        """
        self.token = token
        self._config = config
        self._report_message = report
        self._resume = resume  # what the next start resumes
        self.silent: set[int] = set()  # machines that are no longer heard, though nothing has closed the connection
        self._record = record
        self._report_stop = report_stop
        self._take_in = take_in
        self._taking_in = threading.Lock()
        self.losses: list[Failure] = []  # of the machines that were lost since the start
        self._members = Members(config.num_nodes, names)
        self._start_message: Message | None = None
        self.names: list[str] = []  # of all machines, as messages tell them apart, from the start on
        self._outcome: str | None = None  # set by `close`
        self._is_preflight = bool(preflight)
        welcome = {"run_name": run_name, "folder_proofs": list(folder_proofs), "preflight": preflight}
        self._admission = Admission(config, welcome, token, self._members, self._report, self._is_closed)
        self._listener = Listener(config.initial_port + 1, token, self._serve, self._report)
        self.port = self._listener.port

    def wait(
        self,
        within_s: float,
        interrupt: Callable[[], None] = lambda: None,
        *,
        if_late: str = "Run the line above on the missing machines sooner, or raise startup_timeout_s",
    ) -> dict[int, int]:
        """Wait until all machines are ready; returns their process counts. Raises JoinError naming the missing ones.

        `interrupt` is called ten times a second and may raise; `if_late` is the advice if machines are missing.
        """

        def check() -> None:
            interrupt()
            self._admission.check_local_data()

        if not self._members.wait_until_complete(self._config.num_nodes, within_s, check):
            raise JoinError(
                f"not every machine joined within {in_words(within_s)} ({self._members.summary()})",
                if_late,
            )
        return self._members.counts()

    def summary(self) -> str:
        """Which machines have joined and which are missing."""
        return self._members.summary()

    def missing_numbers(self) -> list[int]:
        """The numbers of the machines that are not ready."""
        return self._members.missing_numbers()

    def joined_at(self) -> dict[str, str]:
        """The address of this machine at which each of the others has joined."""
        return {str(machine): machine.joined_at for machine in self._members.machines().values()}

    def wait_for_ends(self, within_s: float, interrupt: Callable[[], None]) -> dict[int, int]:
        """Wait, at most `within_s`, until each machine's part has ended, or the machine has left.

        Returns the process counts of those that could start again. `interrupt` as in `wait`.
        """
        self._members.wait_until_complete(1, within_s, interrupt)
        return {each: count for each, count in self._members.counts().items() if not self._members.is_running(each)}

    def start(
        self, counts: Sequence[int], port: int, address: str = "", *, resume: str | None = None, restarts_left: int = 0
    ) -> str:
        """Make the machines start their processes: `counts` per machine, 0 for one that is to wait for the next start,
        with the rendezvous at this one's `address`.

        `resume` is what this start resumes, if not what the run was started with; while `restarts_left`, machines may
        rejoin for the next start. Returns the secret that only the processes of this start know.
        """
        absent = RemoteMachine("", "")
        machines = {0: RemoteMachine(system_hostname(), address), **self._members.machines()}
        everyone = [machines.get(number, absent) for number in range(len(counts))]
        self.names = distinct_names([(each.host, each.address) for each in everyone])
        nonce = secrets.token_hex(16)
        self._resume = self._resume if resume is None else resume
        self.losses = []
        left = self._members.mark_started([number for number, count in enumerate(counts) if count and number])
        self._start_message = {
            "attempt": self._attempt + 1,
            "counts": list(counts),
            "port": port,
            "nonce": nonce,
            "resume": self._resume,
            "restarts_left": restarts_left,
            "names": self.names,
        }
        for number in sorted(left):
            self._lose(everyone[number], number, "has left as all were to start", _CHECK_LINK)
        return derive_key(self.token, "store", nonce)

    @property
    def _attempt(self) -> int:
        """The number of the last start, from 1; 0 before it."""
        return 0 if self._start_message is None else int(self._start_message["attempt"])

    def wait_for_reports(self, within_s: float, is_enough: Callable[[], bool]) -> None:
        """Wait until every machine has reported its end or disconnected, or until `is_enough`."""
        deadline = time.monotonic() + within_s
        while self._members.is_report_missing() and not is_enough() and time.monotonic() < deadline:
            time.sleep(0.1)

    def close(self, outcome: str = "") -> None:
        """Stop accepting machines, and send the outcome to those that are connected."""
        self._outcome = outcome if self._outcome is None else self._outcome
        self._listener.close()
        self._members.wait_until_empty(_CLOSE_TIMEOUT_S)

    def _serve(self, session: Session, address: str) -> None:
        hello = session.expect("hello")
        machine = RemoteMachine(
            "".join(filter(str.isprintable, str(hello.get("host"))))[:64], address, session.own_address
        )
        number = 0
        try:
            notes = [] if self._is_preflight else check_software(self._config, hello, machine.host)
            number = self._claim_slot(machine, hello.get("number"))
            note = self._admit(session, machine, number, notes)
        except JoinRejected as refusal:
            note = f"{machine} was rejected: {refusal}."
            with suppress(ChannelClosed):
                session.send(
                    "rejected",
                    message=str(refusal),
                    advice=refusal.advice,
                    kind=refusal.kind,
                    only_there=refusal.only_there,
                )
        except ChannelClosed as end:
            note = f"{machine} disconnected ({end})."
            is_silent = isinstance(end, ChannelSilent)
            self.silent |= {number} if is_silent else set()
            what = f"can no longer be reached: {end}" if is_silent else f"has ended its part of the run there: {end}"
            self._record_loss(machine, number, what, _CHECK_LINK if is_silent else _CHECK_PROGRAM)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            note = f"{machine} was rejected: it violates the protocol ({printable(repr(error), 200)})."
            self._record_loss(machine, number, "violates the protocol", _CHECK_PROGRAM)
        finally:
            if number:
                self._members.release(number)
                if self._takes_no_part(number):
                    self._tell_who_waits()
        if note and self._outcome is None:
            self._report(f"{note.rstrip('.')}.{self._next_steps()}")

    def _next_steps(self) -> str:
        if self._start_message is None:
            return f" Still missing: {self._members.missing()}."
        return " It can rejoin with the same line." if self._start_message["restarts_left"] else ""

    def _ranks(self, number: int) -> range:
        """The ranks of a machine; none before the start."""
        if self._start_message is None:
            return range(0)
        counts = self._start_message["counts"]
        first = sum(counts[:number])
        return range(first, first + counts[number])

    def _record_loss(self, machine: RemoteMachine, number: int, what: str, advice: str) -> None:
        if not self._members.is_running(number) or self._takes_no_part(number) or self._outcome is not None:
            return
        self._lose(machine, number, what, advice)

    def _lose(self, machine: RemoteMachine, number: int, what: str, advice: str) -> None:
        text = f"{machine} {what.rstrip('.')}."
        loss = Failure(self._ranks(number).start, self.names[number], MACHINE_LOST, text, advice)
        self.losses.append(loss)
        self._record(loss)

    def first_loss(self) -> Failure | None:
        """The first machine that was lost since the start, if any was."""
        return next(iter(self.losses), None)

    def _claim_slot(self, machine: RemoteMachine, wanted: object) -> int:
        machines = self._config.num_nodes
        if wanted is not None and type(wanted) is not int:  # bool is a subclass of int
            raise TypeError("number")
        if wanted is not None and not 0 < wanted < machines:
            raise JoinRejected(f"its number is {wanted}, but this run has machines 0 to {machines - 1}")
        if self._start_message is not None and not self._start_message["restarts_left"]:
            raise JoinRejected(
                "the run has already started with all of its machines",
                "Only with on_machine_loss=wait or continue can a machine rejoin a run",
            )
        number = self._members.claim(machine, wanted, _SLOT_TIMEOUT_S)
        if number is None:
            everyone = f"all {machines} machines have"
            others = everyone if wanted is None else f"machine {wanted}, {self._members.holder(wanted)}, has"
            raise JoinRejected(f"{others} already connected", "Raise num_nodes on machine 0 if more are needed")
        self.silent.discard(number)
        return number

    def _admit(self, session: Session, machine: RemoteMachine, number: int, notes: Sequence[str]) -> str:
        """Serve a machine to the end of the run; returns a note to print. Raises JoinRejected or ChannelClosed."""
        try:
            processes = self._admission.admit(session, machine, number, notes)
        except MachineLeft as reason:
            return f"{machine} has left: {reason}"
        except RunClosed:
            session.send("closed", outcome=self._outcome)
            return ""
        if self._config.on_machine_loss != "continue" or self._config.fsdp_replicate != "none":
            self._check_rejoin(number, processes)
        for note in notes:
            self._report(f"Note: {note}.", ready=number)
        plural = "process" if processes == 1 else "processes"
        missing = self._members.missing(without=number) if self._start_message is None else ""
        self._report(
            f"{machine} has joined as machine {number} with {processes} {plural}."
            f"{f' Still missing: {missing}.' if missing else ''}",
            ready=number,
        )
        attempt = self._attempt
        self._members.mark_ready(number, processes)
        if attempt and self._waits(number):
            self._offer(session, machine)
        return self._follow(session, machine, number, attempt)

    def _follow(self, session: Session, machine: RemoteMachine, number: int, attempt: int) -> str:
        """Send news to the machine until it leaves or the run is over, from the start after number `attempt` on.

        Returns a note to print.
        """
        sent_missing, said = "", set[str]()
        while self._outcome is None:
            if self._start_message is not None and self._attempt > attempt:
                attempt, said = self._attempt, set()
                if not self._takes_no_part(number):
                    session.send("start", **self._start_message)
                elif self._waits(number):  # it became ready too late
                    self._offer(session, machine)
            elif self._start_message is None and (missing := self._members.missing()) != sent_missing:
                sent_missing = missing
                session.send("status", missing=missing)
            message = session.receive(0.2)
            if message is None or message["type"] in said:
                continue
            if message["type"] in ("stopping", "asking"):  # one sentence of each is enough
                said.add(message["type"])
            if message["type"] == "failure":
                if not self._takes_no_part(number):  # else it is one of its part of an earlier start
                    self._record(failure_of(message, self._ranks(number), self.names[number]))
            elif message["type"] == "finished":
                self._members.mark_reported(number)
                if self._waits(number):  # as its part of an earlier start has ended late
                    self._offer(session, machine)
            elif message["type"] == "stopping":
                by, reason = printable(message["by"], LONGEST_REASON), str(message.get("reason"))
                self._report_stop(
                    f"{machine} was stopped by {by} there, so the whole run stops after a backup. "
                    "To continue, resume it here, and let that machine join again.",
                    reason if reason in CODE_OF_STOP else STOP_TERMINATED,
                )
            elif message["type"] == "asking":
                self._report(asking(machine))
            elif message["type"] == "leave":
                if message.get("is_done"):
                    return ""
                reason = printable(message["reason"], LONGEST_REASON)
                advice = _RESUME if message.get("was_stopped") is True else _CHECK_PROGRAM
                self._record_loss(machine, number, f"has left: {reason}", advice)
                return f"{machine} has left: {reason}"
        session.send("closed", outcome=self._outcome)
        return ""

    def _takes_no_part(self, number: int) -> bool:
        """Whether the start under way is one without this machine."""
        return self._start_message is not None and not self._start_message["counts"][number]

    def _waits(self, number: int) -> bool:
        """Whether this machine, which is ready, takes no part, and its part of an earlier start has ended."""
        return self._takes_no_part(number) and not self._members.is_running(number)

    def _offer(self, session: Session, machine: RemoteMachine) -> None:
        """A machine is ready while others train."""
        self._report(f"{machine} takes part from the next backup on.")
        session.send("status", missing=_NEXT_BACKUP)
        self._tell_who_waits()

    def _tell_who_waits(self) -> None:
        with self._taking_in:  # else one that has left could withdraw what one that became ready meanwhile has asked
            self._take_in(any(map(self._waits, self._members.counts())))

    def _check_rejoin(self, number: int, processes: int) -> None:
        counts = [] if self._start_message is None else self._start_message["counts"]
        before = processes if not counts else counts[number] or counts[0]  # of fsdp_replicate, all have as many
        if before != processes:
            raise JoinRejected(
                f"machine {number} had {before} processes when the run started, and now has {processes}",
                "Set device_ids or processes_per_node so that it has as many as before",
            )

    def _is_closed(self) -> bool:
        return self._outcome is not None

    def _report(self, text: str, *, ready: int = 0) -> None:
        self._report_message(text, self._members.missing_numbers(without=ready))


class MachineLeft(Exception):
    """A machine has left before it was ready: its reason."""


class RunClosed(Exception):
    """Machine 0 has ended before the machine was ready."""


class Admission:
    """Sends each machine the config, and compares its files with this machine's, which are listed meanwhile."""

    def __init__(
        self,
        config: TrainConfig,
        welcome: Mapping[str, object],
        token: str,
        members: Members,
        report: Callable[[str], None],
        is_closed: Callable[[], bool],
    ) -> None:
        """`welcome` is sent with the config; `report` gets what the machines do that are not ready yet."""
        self._config = config
        self._welcome = welcome
        self._token = token
        self._members = members
        self._report = report
        self._is_closed = is_closed
        self._listings: Future[list[Listing]] = Future()
        if welcome["preflight"]:  # compares the files itself
            self._listings.set_result([])
            return
        # not a pool thread: Python would wait for it before exiting after a stop
        threading.Thread(target=self._list_data, name="listings", daemon=True).start()

    def check_local_data(self) -> None:
        """Raise what listing the data of this machine raised, if it has."""
        if self._listings.done():
            self._listings.result()

    def admit(self, session: Session, machine: RemoteMachine, number: int, notes: Sequence[str]) -> int:
        """The number of processes of a machine that passes.

        Raises JoinRejected, MachineLeft, RunClosed or ChannelClosed.
        """
        nonce = secrets.token_hex(16)
        session.send(
            "welcome",
            host=system_hostname(),
            number=number,
            machines=self._config.num_nodes,
            config=dump(self._config),
            nonce=nonce,
            family=family_identity(self._config),
            notes=list(notes),
            **self._welcome,
        )
        ready = self._wait_until_ready(session, machine, number)
        while not self._listings.done():
            session.receive(0.2)
        key = derive_key(self._token, "fingerprints", nonce)
        check_dataset(self._config, self._listings.result(), session, ready, key, machine.host)
        return process_count(ready["processes"])

    def _wait_until_ready(self, session: Session, machine: RemoteMachine, number: int) -> Message:
        """Its answer; meanwhile report that it has connected, and what it waits for."""
        slow_at, has_asked = time.monotonic() + _SLOW_S, False  # one sentence of each is enough
        while True:
            if self._is_closed():
                raise RunClosed
            message = session.receive(0.2)
            kind = "" if message is None else message["type"]
            if message is not None and kind == "ready":
                return message
            if message is not None and kind == "leave":
                raise MachineLeft(printable(message.get("reason"), LONGEST_REASON))
            if kind in ("asking", "answered"):
                self._members.mark_asking(number, is_asking=kind == "asking")
            if kind == "asking" and not has_asked:
                slow_at, has_asked = math.inf, True
                self._report(asking(machine))
            elif time.monotonic() > slow_at:
                slow_at = math.inf
                self._report(f"{machine} has connected and is still checking its files; it has not confirmed yet.")

    def _list_data(self) -> None:
        try:
            self._listings.set_result(all_listings(self._config))
        except Exception as error:  # noqa: BLE001  # `check_local_data` raises it
            self._listings.set_exception(error)


def asking(machine: RemoteMachine) -> str:
    """The sentence about a machine that waits for an answer of its user."""
    return f"{machine} has connected and asks its user for permission: answer the question on its terminal."
