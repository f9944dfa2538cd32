"""Machine 0's door: other machines of the run join here, are checked, get the config, and are told when to start."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from modules.config import TrainConfig, dump
from modules.machine import hostname
from modules.run.failures import Failure
from modules.run.join.checks import Refused, check_pictures, check_programs, process_count
from modules.run.join.fingerprint import Listing, all_listings, family_code
from modules.run.join.line import LineClosed, Message, WrongToken, greet_guest
from modules.run.join.roll_call import JoinError, RollCall, Visitor
from modules.run.join.strangers import Strangers
from modules.run.join.talk import Talk
from modules.run.resume import LATEST

Say = Callable[[str], None]

_GREETING_S: Final = 5.0  # strangers get this long to prove themselves
_PORTS_TRIED: Final = 100
_SEAT_PATIENCE_S: Final = 20.0
_GOODBYE_S: Final = 3.0
_MOST_TOLD: Final = 50


class JoinHost:
    """Lets machines in from construction to `close`, first for the start, then those of an elastic run that return."""

    def __init__(
        self,
        config: TrainConfig,
        run_name: str,
        say: Say,
        *,
        token: str | None = None,
        resume: str = "",
        record: Callable[[Failure], None] = lambda failure: None,
    ) -> None:
        """Open the door; `resume` is this run's --resume, if any, and `record` takes failures on other machines.

        Raises JoinError where no port is free.
        """
        self.token = token or secrets.token_hex(12)
        self._config = config
        self._run_name = run_name
        self._say = say
        self._resume = resume
        self._record = record
        self._roll = RollCall(config.num_nodes)
        self._start: Message | None = None
        self._over: list[str] = []  # the verdict, once there is one
        self._told: set[str] = set()
        self._strangers = Strangers()
        self._server = _open_server(config.initial_port + 1)
        self.port: int = self._server.getsockname()[1]
        self._listings: Future[list[Listing]] = Future()
        # not a thread of a pool: Python would wait for its end before it lets a stopped run end
        threading.Thread(target=self._list_pictures, name="pictures", daemon=True).start()
        threading.Thread(target=self._answer_the_door, name="join", daemon=True).start()

    def wait(self, within_s: float) -> dict[int, int]:
        """Wait until all machines are ready; the processes of each. Raises JoinError naming who is missing."""

        def look() -> None:
            if self._listings.done():
                self._listings.result()  # raises where this machine's own pictures are not there

        if not self._roll.wait_until_complete(self._config.num_nodes, within_s, look):
            raise JoinError(
                f"not every machine came within {within_s:.0f} s ({self._roll.summary()})",
                "Start the line above on the missing machines sooner, or raise startup_timeout_s",
            )
        return self._roll.counts()

    def summary(self) -> str:
        """Who has joined and who is missing."""
        return self._roll.summary()

    def begin(self, counts: Sequence[int], port: int) -> None:
        """Tell every machine to start its processes: so many on each, which meet at `port` of this machine."""
        self._start = {"counts": list(counts), "port": port}

    def hear_all(self, within_s: float, is_enough: Callable[[], bool]) -> None:
        """Wait until every machine has said how its part ended, or has gone, or until `is_enough`."""
        deadline = time.monotonic() + within_s
        while self._roll.is_anybody_silent() and not is_enough() and time.monotonic() < deadline:
            time.sleep(0.1)

    def close(self, verdict: str = "") -> None:
        """Let nobody in any more, and tell those who are here how it ended."""
        self._over.append(verdict)
        with suppress(OSError):  # wakes the thread that waits there, where closing does not
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._roll.wait_until_empty(_GOODBYE_S)

    def _list_pictures(self) -> None:
        try:
            self._listings.set_result(all_listings(self._config))
        except Exception as error:  # noqa: BLE001  # `wait` raises it
            self._listings.set_exception(error)

    def _answer_the_door(self) -> None:
        while True:
            try:
                connection, address = self._server.accept()
            except OSError:
                if self._over:
                    return
                time.sleep(0.1)  # such as too many open files: wait until some strangers have gone
                continue
            name = str(address[0]).removeprefix("::ffff:")
            self._strangers.add(connection, name)
            threading.Thread(target=self._meet, args=(connection, name), name="guest", daemon=True).start()

    def _meet(self, connection: socket.socket, address: str) -> None:
        """Everything with one connection, from the greeting to its end."""
        try:
            line = greet_guest(connection, self.token, _GREETING_S)
        except WrongToken:
            self._tell_once(f"Somebody at {address} was not let in: the token was wrong.")
            connection.close()
            return
        except (LineClosed, TimeoutError, OSError):
            connection.close()
            return
        finally:
            self._strangers.remove(connection)
        talk = Talk(line)
        try:
            self._serve(talk, address)
        except LineClosed:
            return  # gone before it had a seat
        finally:
            talk.close()

    def _serve(self, talk: Talk, address: str) -> None:
        arrival = talk.expect("arrive")
        visitor = Visitor("".join(filter(str.isprintable, str(arrival.get("host"))))[:64], address)
        number = 0
        try:
            notes = check_programs(self._config, arrival, visitor.host)
            number = self._find_seat(visitor, arrival.get("number"))
            farewell = self._sit(talk, visitor, number, notes)
        except Refused as refusal:
            farewell = f"{visitor} was not let in: {refusal}."
            with suppress(LineClosed):
                talk.send("refused", message=str(refusal), advice=refusal.advice, kind=refusal.kind)
        except LineClosed as end:
            farewell = f"{visitor}, machine {number}, has gone ({end})."
            self._record_loss(visitor, number, f"can no longer be reached: {end}")
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            farewell = f"{visitor} was not let in: it said what Tandem does not understand ({error!r})."
        finally:
            if number:
                self._roll.leave(number)
        if farewell and not self._over:
            self._say(f"{farewell.rstrip('.')}.{self._what_now()}")

    def _what_now(self) -> str:
        if self._start is None:
            return f" Still missing: {self._roll.missing()}."
        is_elastic = self._config.rendezvous == "elastic"
        return " It may come back with the same line." if is_elastic else ""

    def _record_loss(self, visitor: Visitor, number: int, what: str) -> None:
        if self._start is None or not number or self._over:
            return
        self._record(
            Failure(
                sum(self._start["counts"][:number]),
                visitor.host,
                "machine_lost",
                f"Machine {number}, {visitor}, {what.rstrip('.')}.",
                "Look whether it is still running and connected; then continue with --resume latest.",
            )
        )

    def _find_seat(self, visitor: Visitor, wanted: object) -> int:
        machines = self._config.num_nodes
        if wanted is not None and type(wanted) is not int:  # true is no number
            raise TypeError("its number")
        if wanted is not None and not 0 < wanted < machines:
            raise Refused(f"its number is {wanted}, but this run has the machines 0 to {machines - 1}")
        if self._start is not None and self._config.rendezvous == "static":
            raise Refused(
                "the run has already started with all of its machines",
                "Only a run with rendezvous=elastic takes a machine back",
            )
        number = self._roll.take(visitor, wanted, _SEAT_PATIENCE_S)
        if number is None:
            everyone = f"all {machines} machines are here"
            others = everyone if wanted is None else f"machine {wanted} is {self._roll.holder(wanted)}"
            raise Refused(f"{others} already", "Raise num_nodes on machine 0 if there are to be more")
        return number

    def _sit(self, talk: Talk, visitor: Visitor, number: int, notes: Sequence[str]) -> str:
        """From the welcome to the end of the run; what to say then. Raises Refused, or LineClosed when it has gone."""
        talk.send(
            "welcome",
            host=hostname(),
            number=number,
            machines=self._config.num_nodes,
            config=dump(self._config),
            run_name=self._run_name,
            resume=LATEST if self._start is not None else self._resume,
            family=family_code(self._config),
            notes=list(notes),
        )
        ready = talk.expect("ready", "leave")
        if ready["type"] == "leave":
            return f"{visitor} has left: {str(ready.get('reason'))[:500]}"
        while not self._listings.done():
            talk.listen(0.2)
        check_pictures(self._config, self._listings.result(), talk, ready["digests"], visitor.host)
        processes = process_count(ready["processes"])
        self._check_return(number, processes)
        for note in notes:
            self._say(f"Note: {note}.")
        plural = "process" if processes == 1 else "processes"
        missing = self._roll.missing(without=number) if self._start is None else ""
        self._say(
            f"{visitor} has joined as machine {number} with {processes} {plural}."
            f"{f' Still missing: {missing}.' if missing else ''}"
        )
        self._roll.ready(number, processes)
        return self._accompany(talk, visitor, number)

    def _accompany(self, talk: Talk, visitor: Visitor, number: int) -> str:
        """Tell the machine what happens until it has left or all is over; what to say then."""
        told_start, told_roll = False, ""
        while not self._over:
            if self._start is not None and not told_start:
                told_start = True
                talk.send("start", **self._start)
            elif self._start is None and (missing := self._roll.missing()) != told_roll:
                told_roll = missing
                talk.send("news", missing=missing)
            message = talk.listen(0.2)
            if message is None:
                continue
            if message["type"] == "failure":
                self._record(_failure(message))
            elif message["type"] == "ended":
                self._roll.spoke(number)
            elif message["type"] == "leave":
                if message.get("is_done"):
                    return ""
                self._record_loss(visitor, number, f"has left: {message['reason']}")
                return f"{visitor}, machine {number}, has left: {message['reason']}"
        talk.send("over", verdict=self._over[0])
        return ""

    def _check_return(self, number: int, processes: int) -> None:
        before = processes if self._start is None else self._start["counts"][number]
        if before != processes:
            raise Refused(
                f"machine {number} had {before} processes when the run began, and now {processes}",
                "Set device_ids or processes_per_node so that it brings as many as before",
            )

    def _tell_once(self, text: str) -> None:
        if text not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(text)
            self._say(text)


def _failure(message: Message) -> Failure:
    """A failure on another machine, whose clock may be wrong: only how long ago it was is believed."""
    texts = {name: str(message[name]) for name in ("host", "kind", "message", "advice", "traceback")}
    return Failure(rank=int(message["rank"]), time=time.time() - float(message["age_s"]), **texts)


def _open_server(first: int) -> socket.socket:
    for port in range(first, min(first + _PORTS_TRIED, 65_536)):
        with suppress(OSError):
            return _listen(port)
    raise JoinError(
        f"no port from {first} to {first + _PORTS_TRIED - 1} is free, so no machine could join",
        "Set initial_port to another number",
    )


def _listen(port: int) -> socket.socket:
    """A server on every address of this machine, IPv6 included where there is one."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    return socket.create_server(("", port), backlog=128)
