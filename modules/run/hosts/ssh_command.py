"""The ssh command for another machine, and one sentence for each way in which it fails."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from modules.files import printable
from modules.run.hosts.host import DEFAULT_PYTHON, Host
from modules.run.join.members import JoinError

CONNECT_TIMEOUT_S: Final = 10
# Nothing is asked, nothing is forwarded, and nobody but a machine whose key is known is connected to. A lost machine
# is noticed after a minute, as a short outage does a run no harm.
_OPTIONS: Final = (
    "BatchMode=yes",
    f"ConnectTimeout={CONNECT_TIMEOUT_S}",
    "StrictHostKeyChecking=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "ControlMaster=no",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=4",
)
SSH_FAILED: Final = 255
# Exit codes of our own, which neither Python nor train.py has.
_NO_FOLDER, _NO_TANDEM, _OLD_TANDEM, _NO_PYTHON = 81, 82, 83, 84
_LAST_LINES: Final = 4


class HostError(JoinError):
    """A machine cannot be reached over ssh, or Tandem cannot be started there."""


class Unreachable(HostError):
    """No connection came about; another try may bring one, as a key or a name that is not accepted does not."""


class UnknownKey(HostError):
    """The machine's host key is not known here."""


class ChangedKey(HostError):
    """The machine's host key is not the one that is known here."""


class KeyRefused(HostError):
    """The machine accepts none of this user's keys."""


def ssh_argv(host: Host, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> list[str]:
    """The local command that runs Tandem's Python on `host`, in Tandem's folder there, with these arguments.

    `variables` are set there; whoever is on that machine can read them.
    """
    return ssh_argv_of(host, _remote_command(host, arguments, variables or {}))


def ssh_code_argv(host: Host, code: str, argument: str) -> list[str]:
    """The local command that runs a Python text on `host`, by the machine's Python, or before Tandem has one there by
    any: it needs no package, and no folder of Tandem's."""
    default = f"{host.folder}/{DEFAULT_PYTHON}"
    found = [host.python if _is_found_anywhere(host.python) else f"{host.folder}/{host.python}"] if host.python else []
    pythons = " ".join(_shell_path(each) for each in found or [default, "python3", "python"])
    script = (
        f"for each in {pythons}; do "
        f'command -v "$each" >/dev/null 2>&1 && exec "$each" -I -c {shlex.quote(code)} {shlex.quote(argument)}; '
        f"done; exit {_NO_PYTHON}"
    )
    return ssh_argv_of(host, f"exec sh -c {shlex.quote(script)}")


def _is_found_anywhere(python: str) -> bool:
    return "/" not in python or python.startswith(("/", "~/"))


def ssh_argv_of(host: Host, command: str, first: Mapping[str, str] | None = None) -> list[str]:
    """The local command that runs a shell's command on `host`; options of ssh that come `first` go before Tandem's."""
    given = [f"{name}={value}" for name, value in (first or {}).items()]
    options = [word for option in (*given, *_OPTIONS) for word in ("-o", option)]
    port = _port(host)
    key = ["-o", "IdentitiesOnly=yes", "-i", os.path.expanduser(host.key)] if host.key else []
    return ["ssh", "-T", *options, *port, *key, "--", host.target, command]


def _port(host: Host) -> list[str]:
    return [] if host.port is None else ["-p", str(host.port)]


def target_address(host: Host) -> str:
    """The name or address that ssh connects to, as ~/.ssh/config says; empty where that is a proxy, or unknown."""
    settings = ssh_settings(host)
    if any(settings.get(proxy, "none") != "none" for proxy in ("proxyjump", "proxycommand")):
        return ""
    return settings.get("hostname", "")


def ssh_settings(host: Host) -> dict[str, str]:
    """ssh's own settings for this machine, with names in lower case; empty if they are unknown."""
    command = ["ssh", "-G", *_port(host), "--", host.target]
    try:
        done = subprocess.run(
            command, capture_output=True, env=ssh_environment(), encoding="utf-8", timeout=CONNECT_TIMEOUT_S, check=True
        )
    except (OSError, ValueError, subprocess.SubprocessError):  # the connection itself says why
        return {}
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


def copy_key_command(host: Host) -> str:
    """What a person types once to have a machine accept a key."""
    key = ["-i", host.key] if host.key else []
    return shlex.join(["ssh-copy-id", *key, *_port(host), host.target])


def forget_key_command(host: Host) -> str:
    """What a person types to have the known key of a machine forgotten, once it has another."""
    settings = ssh_settings(host)
    address, port = settings.get("hostname", host.target.rpartition("@")[2]), settings.get("port", str(host.port or 22))
    return shlex.join(["ssh-keygen", "-R", address if port == "22" else f"[{address}]:{port}"])


def _remote_command(host: Host, arguments: Sequence[str], variables: Mapping[str, str]) -> str:
    """One line for whatever shell the user has there; /bin/sh does the rest."""
    python = _shell_path(host.python or DEFAULT_PYTHON)
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in variables.items())
    script = (
        f"cd -- {_shell_path(host.folder)} 2>/dev/null || exit {_NO_FOLDER}; "
        f"[ -f scripts/train.py ] || exit {_NO_TANDEM}; "
        f"[ -f scripts/hosts.py ] || exit {_OLD_TANDEM}; "
        f"command -v {python} >/dev/null 2>&1 || exit {_NO_PYTHON}; "
        f"{exports}exec {python} {shlex.join(arguments)}"
    )
    return f"exec sh -c {shlex.quote(script)}"


def _shell_path(path: str) -> str:
    """A path in quotes; a leading ~ is that user's home there."""
    if path == "~":
        return '"$HOME"'
    if path.startswith("~/"):
        return f'"$HOME"/{shlex.quote(path[2:])}' if path[2:] else '"$HOME"'
    return shlex.quote(path)


def ssh_environment() -> dict[str, str]:
    """The variables for ssh: it asks for no password in a window of its own."""
    return {name: value for name, value in os.environ.items() if name not in ("SSH_ASKPASS", "SSH_ASKPASS_REQUIRE")}


def ssh_fault(host: Host, exit_code: int, output: str) -> HostError | None:
    """What went wrong before Tandem's program ran there; None if it has run, or if ssh has not said why it failed."""
    folder, python = printable(host.folder), printable(host.python or DEFAULT_PYTHON)
    own = {
        _NO_FOLDER: HostError(
            f"{host} has no folder {folder}, or you cannot enter it", "Clone Tandem there, or correct the folder"
        ),
        _NO_TANDEM: HostError(f"the folder {folder} on {host} is not Tandem's", "Correct the folder of this machine"),
        _OLD_TANDEM: HostError(
            f"Tandem on {host}, in {folder}, is too old to be started over ssh", "Update it there: git pull"
        ),
        _NO_PYTHON: HostError(
            f"{host} has no Python {python} in {folder}", "Run ./scripts/setup.sh there, or set the machine's Python"
        ),
    }
    if exit_code != SSH_FAILED:
        return own.get(exit_code)
    return _connection_fault(host, output)


def _connection_fault(host: Host, output: str) -> HostError | None:
    port = "" if host.port is None else f"-p {host.port} "
    at_port = "; for another port than ssh's own, set the machine's port" if not port else f" on port {host.port}"
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in output:
        return ChangedKey(
            f"{host} shows another host key than the one that is known here, so somebody else may be answering",
            f"If the machine was set up anew, remove the old key, {forget_key_command(host)}, and connect once: "
            f"ssh {port}{host.target}",
        )
    if "Host key verification failed" in output or "host key is known for" in output:
        return UnknownKey(
            f"{host} shows a host key that is unknown here", f"Connect once and compare it: ssh {port}{host.target}"
        )
    if refused := re.search(
        r"Permission denied( \(\S*\))?|Too many auth\w+ failures|No supported authentication", output
    ):
        passwords = " and asks for a password, which Tandem never types" if "password" in refused[0] else ""
        return KeyRefused(
            f"{host} does not accept your key{passwords}",
            f"Copy it there: {copy_key_command(host)} (ssh-keygen makes one), or give its public part (.pub) to "
            "whoever rents the machine out; a key with a passphrase must be in ssh-agent (ssh-add)",
        )
    if "Temporary failure in name resolution" in output:
        return Unreachable(f"{host} is not reachable: no name server answers", "Check this computer's network")
    if "Could not resolve hostname" in output:
        return HostError(
            f"{host} is not reachable: no machine and no entry of ~/.ssh/config has this name",
            "Correct it, or give the address in numbers",
        )
    if re.search(r"connect to host|timed out|Connection (closed|reset|refused)|Network is unreachable", output):
        return Unreachable(
            f"{host} is not reachable: {last_lines(output, 1).rstrip('.')}",
            f"Check that it is on, its address, and that sshd runs there{at_port}",
        )
    return None


def last_lines(output: str, count: int = _LAST_LINES) -> str:
    """The last lines that are not empty, made printable."""
    return printable("\n".join([line.rstrip() for line in output.splitlines() if line.strip()][-count:]), lines=True)
