"""The key that a machine shows, before it is known here: read once, and kept once somebody has compared it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from modules.files import open_for_writing, printable, read_text
from modules.run.hosts.host import Host
from modules.run.hosts.ssh_command import (
    CONNECT_TIMEOUT_S,
    HostError,
    Unreachable,
    last_lines,
    ssh_argv_of,
    ssh_environment,
    ssh_fault,
    ssh_settings,
)


@dataclass(frozen=True)
class HostKey:
    """As known_hosts has it, and its fingerprint, "ED25519 SHA256:..."."""

    line: str
    fingerprint: str


def shown_key(host: Host) -> HostKey:
    """The key that the machine shows now; nothing is kept. Raises HostError."""
    with tempfile.TemporaryDirectory(prefix="tandem-key-") as folder:
        known = Path(folder, "known_hosts")
        options = {
            "StrictHostKeyChecking": "accept-new",
            "UserKnownHostsFile": str(known),
            "GlobalKnownHostsFile": "none",
            "HashKnownHosts": "no",
            "UpdateHostKeys": "no",
            "PreferredAuthentications": "none",  # the key is all that is wanted
        }
        done = _run(ssh_argv_of(host, "exit", options))
        if not known.is_file():
            raise ssh_fault(host, done.returncode, done.stderr) or Unreachable(
                f"no connection to {host} came about; ssh printed: {last_lines(done.stderr) or 'nothing'}"
            )
        line = read_text(known).strip()
        said = _run(["ssh-keygen", "-l", "-f", str(known)]).stdout.split()
    if len(said) < 3 or "\n" in line:
        raise HostError(f"{host} shows a host key that ssh-keygen does not understand")
    return HostKey(line, printable(f"{said[-1].strip('()')} {said[1]}", 200))


def keep_key(host: Host, key: HostKey) -> None:
    """Add the key to the file in which ssh looks for this machine's. Raises OSError."""
    named = ssh_settings(host).get("userknownhostsfile", "").split(" ")[0]
    file = Path(os.path.expanduser(named if named not in ("", "none") else "~/.ssh/known_hosts"))
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = open_for_writing(Path(os.path.realpath(file)), append=True)  # which may be a link to where somebody keeps it
    with os.fdopen(kept, "r+b") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - 1))
        opened.write((b"" if opened.read(1) in (b"", b"\n") else b"\n") + key.line.encode() + b"\n")


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=ssh_environment(),
            encoding="utf-8",
            errors="replace",
            timeout=3 * CONNECT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{argv[0]} cannot be used: {error}") from None
