"""The machines that a run or a preflight starts over ssh: each joins it there, as a person would let it by hand."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from modules.config import ConfigError, DataError, TandemError, TrainConfig
from modules.files import MASK, open_for_writing, printable, read_tail
from modules.machine import hostname_variable, is_loopback_name, route_to
from modules.run.exit_codes import BAD_CONFIG, EXIT_CODES, FINISHED, NO_DATA
from modules.run.folder.run_folder import RunFolder
from modules.run.hosts.check import not_startable
from modules.run.hosts.host import NAME, Host
from modules.run.hosts.measuring import passed_on
from modules.run.hosts.ssh_command import (
    SSH_FAILED,
    HostError,
    last_lines,
    ssh_argv,
    ssh_environment,
    ssh_fault,
    target_address,
)
from modules.run.hosts.stop_from_stdin import STOP_LINE
from modules.run.join.allowed_paths import paths_of_machine_0
from modules.run.join.join_line import JoinLine, parse_address
from modules.run.join.session import StopRequested, raise_on_stop_signals
from modules.run.supervise.stop_requests import SAME_REQUEST_S

TRAIN: Final = "scripts/train.py"
REJECTED: Final = (BAD_CONFIG, NO_DATA)  # the exit codes of a machine that would be rejected again
# What both print: first, after which ssh has done its work; once machine 0 has let them join; and before why not.
_JOINS: Final = re.compile(r"Joining the (run|preflight) at")
_NUMBERED: Final = re.compile(r"this is machine (\d{1,7}) of ")
_REFUSED: Final = re.compile(r"(?:Training|Preflight) did not start: ")
_FILES_ELSEWHERE: Final = (
    "If its files are elsewhere, add that to its settings in the list of machines, such as concepts.0.path=/data/cats"
)
_TAIL_BYTES: Final = 8 << 10
_NOTICE_AFTER_S: Final = 3.0
_STOPS_WITHIN_S: Final = 20.0  # once asked to
_ENDS_WITHIN_S: Final = 5.0  # once asked to do so at once
_BETWEEN_REQUESTS_S: Final = SAME_REQUEST_S + 0.7  # on a slow network they may arrive closer together

Echo = Callable[[str], None]
MOST_BYTES: Final = 8 << 20
_CUT: Final = b"(what was printed before is not kept)\n"
_LONGEST_LINE: Final = 64 << 10  # bytes
_REST_WITHIN_S: Final = 2.0


def join_arguments(
    config: TrainConfig, host: Host, address: str, resume: str = "", *, program: Sequence[str] = (TRAIN,)
) -> list[str]:
    """What follows Python there: `program` is the script and arguments of its own.

    The token is not in it, which every user there could read: it comes by stdin. The person who starts the run may read
    the same account's files over ssh anyway, so the paths of the config that exist here are allowed there without a
    question, and so is the family's code, which must be the same as here.
    """
    own = {assignment.partition("=")[0].strip() for assignment in host.settings}
    named = [*(value for _, value in paths_of_machine_0(config, own)), resume]
    allowed = [value for value in dict.fromkeys(named) if value and _exists(value)]
    trust = ["--trust_code"] if config.family.endswith(".py") and "family" not in own else []
    trust += ["--allow_differences"] if host.allow_differences and program[0] == TRAIN else []
    return [
        *(*program, "--join", address, "--token_file", "-", "--stop_from_stdin"),
        *trust,
        *(f"--allow={value}" for value in allowed),
        *(f"--set={assignment}" for assignment in host.settings),
    ]


def _exists(value: str) -> bool:
    return "\0" not in value and os.path.lexists(os.path.expanduser(value))


def hosts_of_former_run(folder: RunFolder) -> list[str]:
    """The names of the machines that a run has started, by their logs in its folder; none if it cannot be read."""
    try:
        return sorted(name for log in folder.log_dir.glob(_log_name("*")) if NAME.fullmatch(name := log.stem[5:]))
    except OSError:
        return []


def host_log(folder: RunFolder, name: str) -> Path:
    """What a machine that the run has started over ssh prints."""
    return folder.log_dir / _log_name(name)


def _log_name(name: str) -> str:
    return f"host-{name}.txt"


class RemoteMachine:
    """One of them: its ssh, whose output is in the file `log`, which a preflight removes at its end."""

    def __init__(self, host: Host, argv: Sequence[str], log: Path, *, keeps_log: bool = True) -> None:
        self.host, self._argv, self._log, self._keeps_log = host, list(argv), log, keeps_log
        self._process: subprocess.Popen[bytes] | None = None
        self._output: OutputFile | None = None
        self.was_left = False  # without waiting for its end

    def start(self, token: str) -> None:
        """Start it. Raises HostError, and OSError if its log cannot be written."""
        output = OutputFile(self._log, token)
        try:
            # a session of its own: Ctrl-C in this terminal is for the run, which stops all its machines together
            process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=ssh_environment(),
                start_new_session=os.name != "nt",
            )
        except OSError as error:
            output.close()
            raise not_startable(error) from error
        assert process.stdout is not None
        output.copy(process.stdout)
        self.was_left = False
        self._process, self._output = process, output
        self._write(f"{token}\n".encode())

    @property
    def has_ended(self) -> bool:
        """Whether ssh has ended, or was never started."""
        return self._process is None or self._process.poll() is not None

    @property
    def exit_code(self) -> int:
        """The exit code of the program there, or of ssh."""
        return 0 if self._process is None else int(self._process.returncode)

    def why_ended(self) -> TandemError:
        """One sentence about a machine that has ended early, with its last lines."""
        if self._output is not None:
            self._output.close()
        output = self.output()
        fault = ssh_fault(self.host, self.exit_code, output)
        if fault is not None and _JOINS.search(output) is None:
            return fault
        kinds: dict[int, type[TandemError]] = {BAD_CONFIG: ConfigError, NO_DATA: DataError}
        *before, reason = _REFUSED.split(output)
        said = "it says" if before else "its last lines"
        advice = [_FILES_ELSEWHERE] * (self.exit_code == NO_DATA)
        advice += [f"All it printed is in {self._log}"] * self._keeps_log
        return kinds.get(self.exit_code, HostError)(
            f"{self.host} ended early ({self._how()}); {said}: {last_lines(reason) or 'nothing'}", ". ".join(advice)
        )

    def _how(self) -> str:
        """What its exit code means: that of ssh says nothing more."""
        is_cut = self.exit_code == SSH_FAILED or self.exit_code < 0
        return "killed, or cut off" if is_cut else f"exit code {self.exit_code}"

    @property
    def number(self) -> int | None:
        """Its number among the machines of the run, as it says; None before it has joined."""
        found = _NUMBERED.findall(self.output())
        return int(found[-1]) if found else None

    def output(self) -> str:
        """The end of what it has printed."""
        tail = read_tail(self._log, _TAIL_BYTES)
        return printable(tail.decode(errors="replace"), _TAIL_BYTES, lines=True)

    def stop(self) -> None:
        """Ask it to stop, as Ctrl-C there would; a second time, at once."""
        self._write(STOP_LINE)

    def disconnect(self) -> None:
        """End ssh."""
        self.was_left = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Close its standard input and, once it has ended, its output."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        if self._output is not None:
            self._output.close()

    def _write(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, which is reported elsewhere
            self._process.stdin.write(data)
            self._process.stdin.flush()


class RemoteMachines:
    """All machines that a run or a preflight has started; none without hosts."""

    def __init__(self, hosts: Sequence[Host], log_dir: Path, echo: Echo, *, program: Sequence[str] = (TRAIN,)) -> None:
        """`program` joins there: a script and arguments of its own."""
        self._hosts, self._log_dir, self._echo, self._program = hosts, log_dir, echo, program
        self._machines: list[RemoteMachine] = []
        self._restarted: set[RemoteMachine] = set()  # whose loss was said
        self._token = ""

    @property
    def names(self) -> list[str]:
        """How messages name them: as the list of machines does."""
        return [host.name for host in self._hosts]

    def start(self, config: TrainConfig, address: str, token: str, resume: str = "") -> None:
        """Start all of them, to join at `address`, or with no master_addr of the user's, where ssh reaches them from.

        Raises HostError, and OSError for a log that cannot be written.
        """
        self._token = token
        is_chosen = not is_loopback_name(config.master_addr)
        self._log_dir.mkdir(parents=True, exist_ok=True)
        for host in self._hosts:
            at = address if is_chosen else _address_seen_from(host, address)
            arguments = join_arguments(config, host, at, resume, program=self._program)
            argv = ssh_argv(host, arguments, {**passed_on(os.environ), **hostname_variable(host.name)})
            log = self._log_dir / _log_name(host.name)
            machine = RemoteMachine(host, argv, log, keeps_log=self._program[0] == TRAIN)
            self._machines.append(machine)
            machine.start(token)

    def check(self, codes: Collection[int] | None = None) -> None:
        """Raise TandemError if one has ended before the run, or with one of the exit `codes`."""
        for machine in self._machines:
            if machine.has_ended and (codes is None or machine.exit_code in codes):
                raise machine.why_ended()

    def start_ended(self, lost: Collection[int]) -> None:
        """Start those again that have ended, which takes a moment, or have one of the numbers `lost`.

        Not those whose settings or files were rejected, as they would be again.
        """
        for machine in self._machines:
            if lost and machine.number in lost:
                machine.disconnect()
            if not machine.has_ended or machine.exit_code in (FINISHED, *REJECTED):
                continue
            if machine not in self._restarted:
                self._restarted.add(machine)
                self._echo(f"{machine.why_ended()} It is started again over ssh, until it answers.")
            machine.close()
            with suppress(TandemError, OSError):  # the next time says the same
                machine.start(self._token)

    def report_unexpected_ends(self) -> None:
        """Print the last lines of those that have not ended by themselves; the others have reported to machine 0."""
        for machine in self._machines:
            if machine.exit_code not in EXIT_CODES and not machine.was_left:
                self._echo(str(machine.why_ended()))

    def finish(self, patience_s: float, *, at_once: bool = False, lost: Collection[int] = ()) -> None:
        """Wait until all have ended; after `patience_s` they are asked to stop, and in the end left alone.

        Those with the numbers `lost` are not waited for: no request would reach them, and they notice it themselves.
        `at_once`, or Ctrl-C, asks them to end at once; at the next Ctrl-C, they are left alone.
        """
        for machine in self._running():
            if lost and machine.number in lost:
                machine.disconnect()
                self._echo(f"Note: {machine.host} can no longer be reached; its part ends by itself there.")
        try:
            with raise_on_stop_signals():
                if not at_once:
                    self._end_in_steps((patience_s, _STOPS_WITHIN_S, _ENDS_WITHIN_S))
        except StopRequested:
            at_once = True
        if at_once:
            with suppress(StopRequested), raise_on_stop_signals():
                self._stop_all()  # with the next, at once
                self._end_in_steps((_BETWEEN_REQUESTS_S, _ENDS_WITHIN_S))
        for machine in self._running():
            machine.disconnect()
            self._echo(f"Note: {machine.host} has not answered the request to stop; look there for {self._program[0]}.")
        for machine in self._machines:
            machine.close()

    def _end_in_steps(self, patience_s: Sequence[float]) -> None:
        """Wait, and ask them to stop before each wait but the first."""
        for asked, within_s in enumerate(patience_s):
            if asked:
                self._stop_all()
            if self._wait(within_s):
                return

    def _stop_all(self) -> None:
        for machine in self._running():
            machine.stop()

    def _running(self) -> list[RemoteMachine]:
        return [machine for machine in self._machines if not machine.has_ended]

    def _wait(self, within_s: float) -> bool:
        started, has_said = time.monotonic(), False
        while running := self._running():
            waited = time.monotonic() - started
            if waited > within_s:
                return False
            if waited > _NOTICE_AFTER_S and not has_said:
                has_said = True
                self._echo(f"Waiting for {', '.join(str(machine.host) for machine in running)} to end.")
            time.sleep(0.1)
        return True


def _address_seen_from(host: Host, address: str) -> str:
    """HOST:PORT with this machine's address in the network of `host`: that of the default route may be a VPN's."""
    route = route_to(target) if (target := target_address(host)) else None
    if route is None or route.is_loopback or route.is_link_local:
        return address
    return str(JoinLine(route.address, parse_address(address)[1], ""))


class OutputFile:
    """Copies a pipe to a file until the pipe's end; a file that has become too large begins anew.

    What another machine prints cannot fill this one's disk, and a full disk does not hold up the other machine. No
    terminal on which somebody shows the file obeys it.
    """

    def __init__(self, path: Path, token: str, most_bytes: int = MOST_BYTES) -> None:
        """Empties the file. Raises OSError. `token` is masked: a shell there may repeat what it is given."""
        self._file = os.fdopen(open_for_writing(path), "wb", buffering=0)
        self._most_bytes, self._token = most_bytes, token
        self._thread: threading.Thread | None = None

    def copy(self, pipe: IO[bytes]) -> None:
        """Copy from now on, in a thread."""
        self._thread = threading.Thread(target=self._copy, args=(pipe,), name="output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the rest, once the program has ended."""
        if self._thread is None:
            self._file.close()
        else:
            self._thread.join(_REST_WITHIN_S)

    def _copy(self, pipe: IO[bytes]) -> None:
        with self._file, pipe:
            size = 0
            while line := pipe.readline(_LONGEST_LINE):
                text = line.decode(errors="replace").replace(self._token, MASK)
                data = printable(text, 2 * _LONGEST_LINE, lines=True).encode()
                with suppress(OSError):  # a full disk
                    if size + len(data) > self._most_bytes:
                        self._file.seek(0)
                        self._file.truncate()
                        size = self._file.write(_CUT)
                    size += self._file.write(data)
