"""This computer's side of the connection to the program in far_side.py. Every byte from there may be anything."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, TypeVar

from modules.config import ConfigError
from modules.files import FileFault, Record, decode_json, printable, read_bytes, validate_record
from modules.run.hosts.check import not_startable
from modules.run.hosts.host import Host
from modules.run.hosts.ssh_command import (
    SSH_FAILED,
    HostError,
    Unreachable,
    last_lines,
    ssh_code_argv,
    ssh_environment,
    ssh_fault,
)
from modules.run.remote.far_messages import MARK, PIECE, Broken, receive, send

CODE_FOLDER: Final = "/code"  # of Tandem's folder there: the machine's folder in the list of machines
_START: Final = "import sys; source = sys.stdin.buffer; exec(source.read(int(source.readline())))"
_LOADS: Final = """import sys, types
def load(name, text):
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, name, "exec"), module.__dict__)
    return module
"""
_PROGRAM: Final = (  # the other side's modules, each after what it needs; the last has its main
    *("far_messages", "far_files", "far_locks", "far_sent", "slurm_jobs", "far_runs", "far_followed", "far_side"),
    "far_part",
)
_ANSWERS_WITHIN_S: Final = 60.0  # a login, and a first Python from a slow disk
_MOST_BEFORE: Final = 64 << 10  # bytes that a login shell may print
_MOST_ERRORS: Final = 16 << 10
_LONGEST_LINE: Final = 2000  # characters of what a program there prints
_ENDS_WITHIN_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 30.0
_GIVES_UP_AFTER_S: Final = 3600.0  # without anything that came through

Echo = Callable[[str], None]
T = TypeVar("T")
R = TypeVar("R", bound=Record)


class LinkLost(HostError):
    """The connection has ended before its work was done; the same may be tried again."""


class Busy(HostError):
    """The machine is cleaned, or another push goes there; once that is over, the same may be tried again."""


class _Line(Record):
    """That a line of a program follows, or its exit code."""

    line: bool = False
    code: int = 0


class Link:
    """Messages to another machine and its answers; `name` is what messages call it."""

    def __init__(self, name: str, answers: IO[bytes], requests: IO[bytes]) -> None:
        self.name, self._answers, self._requests = name, answers, requests
        self.messages = 0  # that have come through

    def ask(self, kind: type[R], do: str, **request: object) -> R:
        """Send a request and return its answer. Raises HostError and LinkLost."""
        self.tell(do, b"", **request)
        return self.read(kind)[0]

    def tell(self, do: str, data: bytes = b"", **request: object) -> None:
        """Send a request. Raises LinkLost, or HostError with what the other machine has said before it ended."""
        try:
            send(self._requests, {"do": do, **request}, data)
        except OSError:
            self.read(Record)
            raise self._lost() from None

    def read(self, kind: type[R]) -> tuple[R, bytes]:
        """The next answer and its bytes. Raises LinkLost, and HostError if it is an error or no such answer."""
        try:
            received = receive(self._answers)
            if received is None:
                raise self._lost()
            answer = decode_json(received[0])
            if isinstance(answer, dict) and "error" in answer:
                kind_of_error = Busy if answer.get("passes") is True else HostError
                raise kind_of_error(f"{self.name} says: {printable(answer['error'], 1000)}")
            found = validate_record(kind, answer)
        except Broken as fault:
            if "ended" in str(fault):
                raise self._lost() from None
            raise self._nonsense(str(fault)) from None
        except OSError:
            raise self._lost() from None
        except FileFault as fault:
            raise self._nonsense(f"its answer {fault}") from None
        self.messages += 1
        return found, received[1]

    def read_lines(self, echo: Echo) -> int:
        """What a program there prints, line by line, to `echo`, and its exit code. Raises as `read`."""
        while True:
            answer, line = self.read(_Line)
            if not answer.line:
                return answer.code
            echo(printable(line.decode(errors="replace").rstrip(), _LONGEST_LINE))

    def _lost(self) -> LinkLost:
        return LinkLost(f"the connection to {self.name} was lost")

    def _nonsense(self, fault: str) -> HostError:
        return HostError(f"{self.name} answers in a way that Tandem does not understand: {fault}")


def is_for_runs(host: Host) -> bool:
    """Whether Tandem sets up this machine of the list by itself; others were set up by hand."""
    return host.folder.removesuffix(CODE_FOLDER) not in (host.folder, "", "~")


def home_of(host: Host) -> str:
    """Tandem's folder on a machine that was added for remote runs. Raises ConfigError for another."""
    if not is_for_runs(host):
        raise ConfigError(
            f"{host} is in the list with the folder {host.folder}, which somebody has set up there by hand",
            f"Add it under another name: python scripts/remote.py add NAME {host.target}",
        )
    return host.folder.removesuffix(CODE_FOLDER)


@contextmanager
def connect(host: Host) -> Iterator[Link]:
    """A connection for the block. Raises ConfigError, HostError if there can be none, LinkLost if it ends within."""
    source = _source()
    argv = ssh_code_argv(host, _START, home_of(host))
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ssh_environment(),
            start_new_session=os.name != "nt",  # Ctrl-C is for this program
        )
    except OSError as error:
        raise not_startable(error) from error
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    errors = bytearray()
    reader = threading.Thread(target=_keep_end, args=(process.stderr, errors), name="errors", daemon=True)
    reader.start()
    try:
        _begin(host, process, source, reader, errors)
        try:
            yield Link(str(host), process.stdout, process.stdin)
        except LinkLost:
            with suppress(subprocess.TimeoutExpired):
                if process.wait(_ENDS_WITHIN_S) != SSH_FAILED and process.returncode >= 0:
                    reader.join(_ENDS_WITHIN_S)
                    raise _program_failed(host, process.returncode, errors.decode(errors="replace")) from None
            raise
    finally:
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_WITHIN_S)
        _kill(process)
        process.wait()
        process.stdout.close()


def _source() -> bytes:
    """The program for the other machine."""
    texts = {each: read_bytes(Path(__file__).with_name(f"{each}.py")).decode() for each in _PROGRAM}
    loads = [f"module = load('modules.run.remote.{each}', {text!r})" for each, text in texts.items()]
    return "\n".join([_LOADS, *loads, "module.main(sys.argv[1])"]).encode()


def _begin(
    host: Host, process: subprocess.Popen[bytes], source: bytes, reader: threading.Thread, errors: bytearray
) -> None:
    """Send the program and wait until it answers. Raises HostError."""
    assert process.stdin is not None
    assert process.stdout is not None
    timer = threading.Timer(_ANSWERS_WITHIN_S, _kill, [process])
    timer.daemon = True
    timer.start()
    before = bytearray()
    try:
        with suppress(OSError):  # why it has ended is said below
            process.stdin.write(b"%d\n" % len(source) + source)
            process.stdin.flush()
        while not before.endswith(MARK) and len(before) < _MOST_BEFORE and (byte := process.stdout.read(1)):
            before += byte
    finally:
        timer.cancel()
    if before.endswith(MARK):
        return
    if len(before) == _MOST_BEFORE:
        _kill(process)
        raise HostError(
            f"{host} prints more than {_MOST_BEFORE >> 10} KiB before Tandem answers",
            "Look at what its shell runs at a login, such as ~/.bashrc",
        )
    code = process.wait()
    reader.join(_ENDS_WITHIN_S)
    output = (before + b"\n" + errors).decode(errors="replace")
    if (fault := ssh_fault(host, code, output)) is not None:
        raise fault
    if code == SSH_FAILED or code < 0:  # ssh says nothing that is known, or it took too long
        raise Unreachable(f"no connection to {host} came about; ssh printed: {last_lines(output) or 'nothing'}")
    raise _program_failed(host, code, output)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With what it has started: a ProxyCommand that outlives ssh would keep the pipes open."""
    with suppress(ProcessLookupError):
        if os.name == "nt":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


def _program_failed(host: Host, code: int, output: str) -> HostError:
    said = last_lines(output) or "nothing"
    return HostError(f"Tandem's program on {host} has ended (exit code {code}); it printed: {said}")


def _keep_end(pipe: IO[bytes], kept: bytearray) -> None:
    with suppress(OSError), pipe:
        while data := os.read(pipe.fileno(), PIECE):
            kept += data
            del kept[:-_MOST_ERRORS]


def with_reconnects(host: Host, echo: Echo, work: Callable[[Link], T], *, is_patient: bool = False) -> T:
    """The result of `work`, which is begun again with a new connection whenever one is lost.

    Raises HostError if the first connection fails, nothing has come through for an hour, or at once if a later one
    fails for a reason that does not pass, such as another host key. One that `is_patient` waits for the first
    connection as well, and for a machine that is busy, for ever.
    """
    lost_at: float | None = None
    pause_s = 1.0
    while True:
        link: Link | None = None
        try:
            with connect(host) as link:
                return work(link)
        except HostError as error:
            passes = isinstance(error, Unreachable | Busy) and (is_patient or lost_at is not None)
            if not isinstance(error, LinkLost) and not passes:
                raise
            now = time.monotonic()
            if link is not None and link.messages and not isinstance(error, Busy):
                lost_at, pause_s = now, 1.0
                echo(f"The connection to {host} was lost; connecting again. Nothing there needs it.")
            elif lost_at is None:
                lost_at = now
                echo(str(error))
            if now - lost_at > _GIVES_UP_AFTER_S and not is_patient:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
