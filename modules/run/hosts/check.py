"""Tests a machine over ssh: whether it can be reached, has the same software, and which GPUs it has."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from modules.files import FileFault, printable
from modules.run.hosts.description import Description, describe_this_machine, find_description
from modules.run.hosts.hardware import keep_hardware
from modules.run.hosts.host import Host
from modules.run.hosts.ssh_command import SSH_FAILED, HostError, last_lines, ssh_argv, ssh_environment, ssh_fault
from modules.run.join.fingerprint import compare_packages

_TIMEOUT_S: Final = 60.0  # a first import of Python's packages from a slow disk
_REST_WITHIN_S: Final = 2.0  # of what it has printed, once ssh has ended
_MOST_OUTPUT: Final = 64 << 10  # bytes
_SCRIPT: Final = "scripts/hosts.py"
_LOOK_THERE: Final = "Log in there with ssh, and run .venv/bin/python scripts/hosts.py describe in Tandem's folder"


@dataclass(frozen=True)
class HostCheck:
    """The result: `fault` is why it cannot take part in a run, or ""; `summary` and `notes` say what it has."""

    host: Host
    summary: str = ""
    fault: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.fault or self.summary, *self.notes])


def check_host(host: Host) -> HostCheck:
    """Test a machine, which takes some seconds; starts nothing that stays."""
    try:
        there = ask_host(host)
    except HostError as error:
        return HostCheck(host, fault=str(error))
    return compare(host, there, describe_this_machine())


def compare(host: Host, there: Description, here: Description) -> HostCheck:
    """Whether two machines can train together, by what they say of themselves."""
    packages = compare_packages(here.packages, there.packages, host.name)
    different = [text.replace("machine 0", "this machine") for text in packages.errors]
    if there.tandem != here.tandem:
        version = f"Tandem is {printable(there.tandem, 100)} on {host.name} and {here.tandem} on this machine"
        different.insert(0, version)
    elif there.code != here.code:
        different.insert(0, f"Tandem's code on {host.name} differs from this machine's, both of version {here.tandem}")
    summary = summary_of(there)
    if different and not host.allow_differences:
        advice = "Install the same on both: git pull, then ./scripts/setup.sh."
        return HostCheck(host, summary, f"{'; '.join(different)}. {advice}")
    if fault := _without_gpu(host, there, here):
        return HostCheck(host, summary, fault)
    notes = [f"{'; '.join(different)}, which its entry allows."] if different else []
    notes += ["It has no GPU and trains on its CPU, as this machine does."] if not there.gpus else []
    return HostCheck(host, summary, notes=tuple(notes))


def _without_gpu(host: Host, there: Description, here: Description) -> str:
    if there.obstacle:
        return f"{host.name} cannot use its GPUs: {printable(there.obstacle).rstrip('.')}."
    if here.gpus and not there.gpus:
        return f"{host.name} has no GPU that Tandem can use, and this machine has: check nvidia-smi there."
    return ""


def summary_of(there: Description) -> str:
    """Versions and devices, for people."""
    torch = printable(there.packages.get("torch", "none"), 100)
    return f"Tandem {printable(there.tandem, 100)}, torch {torch}, {there.named}."


def ask_host(host: Host) -> Description:
    """What a machine says of itself; its devices are kept for estimates. Raises HostError."""
    code, output = run_there(host, [_SCRIPT, "describe"])
    if (fault := ssh_fault(host, code, output)) is not None:
        raise fault
    try:
        found = find_description(output)
    except FileFault as error:
        raise HostError(f"{host} answers in a way that Tandem does not understand: its answer {error}") from None
    if found is None:
        said = last_lines(output) or "nothing"
        if code == SSH_FAILED:
            raise HostError(f"ssh to {host} has failed; it printed: {said}", _LOOK_THERE)
        raise HostError(
            f"Tandem on {host} could not describe its machine (exit code {code}); it printed: {said}", _LOOK_THERE
        )
    keep_hardware(host, found)
    return found


def run_there(host: Host, arguments: Sequence[str]) -> tuple[int, str]:
    """The exit code and the output of a short program of Tandem's there. Raises HostError."""
    try:
        process = subprocess.Popen(
            ssh_argv(host, arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=ssh_environment(),
        )
    except OSError as error:
        raise not_startable(error) from error
    output = bytearray()
    reader = threading.Thread(target=_read, args=(process, output), name="output", daemon=True)
    reader.start()
    try:
        code = process.wait(_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise HostError(
            f"{host} has not answered within {_TIMEOUT_S:.0f} s", "Try again, or look at that machine"
        ) from None
    reader.join(_REST_WITHIN_S)  # no longer: a ProxyCommand that outlives ssh keeps the pipe open
    text = output.decode(errors="replace")
    if len(output) == _MOST_OUTPUT:
        raise HostError(
            f"{host} prints more than {_MOST_OUTPUT >> 10} KiB before Tandem answers, the last of it: "
            f"{last_lines(text, 1)}",
            "Look at what its shell runs at a login, such as ~/.bashrc",
        )
    return code, text


def _read(process: subprocess.Popen[bytes], output: bytearray) -> None:
    """Add what a process prints to `output`; once it is too much, end the process."""
    assert process.stdout is not None
    with process.stdout as pipe:
        while len(output) < _MOST_OUTPUT and (data := os.read(pipe.fileno(), _MOST_OUTPUT - len(output))):
            output.extend(data)
    if len(output) == _MOST_OUTPUT:
        process.kill()


def not_startable(error: OSError) -> HostError:
    """The error if ssh itself cannot be started."""
    if isinstance(error, FileNotFoundError):
        return HostError("ssh is not installed on this machine", "Install it (Debian: apt-get install openssh-client)")
    return HostError(f"ssh cannot be started: {error.strerror or error}")
