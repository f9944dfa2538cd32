"""A real sshd for the tests, with throwaway keys and a home of its own, and an `ssh` that uses only those keys."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from modules.torch_compat import set_parent_death_signal
from tests.leftovers import MARK
from tests.ports import free_port

_SSHD = "/usr/sbin/sshd"
_SEPARATION = Path("/run/sshd")  # the package's service makes it when it is started


def skip_reason() -> str:
    """Why there can be no sshd here; empty if there can."""
    if sys.platform == "win32":
        return "sshd is started on Linux and macOS only"
    missing = [tool for tool in (_SSHD, "ssh", "ssh-keygen") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    return "" if os.geteuid() == 0 else "sshd with privilege separation needs root"


@dataclass(frozen=True)
class SshServer:
    """A running server; with `path` first in PATH, `ssh` uses the key and the known hosts of this test alone."""

    address: str
    port: int
    place: Path

    @property
    def path(self) -> str:
        """PATH with the ssh of this test."""
        return f"{self.place / 'bin'}{os.pathsep}{os.environ['PATH']}"

    @property
    def home(self) -> Path:
        """The home of those who log in."""
        return self.place / "home"

    @property
    def known_hosts(self) -> Path:
        """The host keys that ssh accepts."""
        return self.place / "known_hosts"

    @property
    def key(self) -> Path:
        """The key that the server accepts."""
        return self.place / "key"


@contextmanager
def ssh_server(
    place: Path, address: str = "127.0.0.1", *, prefix: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> Iterator[SshServer]:
    """A server at `address`, started by `prefix` (such as in a network namespace); sessions have `variables`."""
    server = SshServer(address, free_port(), place)
    for folder in (place / "bin", server.home):
        folder.mkdir(parents=True)
    _SEPARATION.mkdir(mode=0o755, exist_ok=True)
    for name in ("key", "host_key"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / name))
    host_key = (place / "host_key.pub").read_text().split()[:2]
    server.known_hosts.write_text(f"[{address}]:{server.port} {' '.join(host_key)}\n")
    ssh = place / "bin" / "ssh"
    options = {"IdentityFile": server.key, "UserKnownHostsFile": server.known_hosts, "IdentitiesOnly": "yes"}
    settings = "".join(f'{name} "{value}"\n' for name, value in {**options, "GlobalKnownHostsFile": "none"}.items())
    (place / "ssh_config").write_text(settings)
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {shlex.quote(str(place / "ssh_config"))} "$@"\n')
    ssh.chmod(0o755)
    given = {"HOME": server.home, MARK: os.environ[MARK], **(variables or {})}
    set_there = " ".join(f'{name}="{value}"' for name, value in given.items())
    (place / "sshd_config").write_text(
        f"Port {server.port}\nListenAddress {address}\nHostKey {place / 'host_key'}\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {place / 'key.pub'}\nStrictModes no\nPermitRootLogin prohibit-password\n"
        f"PasswordAuthentication no\nSetEnv {set_there}\n"
    )
    log = (place / "sshd.log").open("wb")
    process = subprocess.Popen(
        [*prefix, _SSHD, "-D", "-e", "-f", str(place / "sshd_config")],
        stderr=log,
        stdout=log,
        preexec_fn=partial(set_parent_death_signal, signal.SIGTERM),  # its title replaces the mark of tests.leftovers
    )
    try:
        _wait_until_it_listens(server, process)
        yield server
    finally:
        process.terminate()
        process.wait()
        log.close()


def _wait_until_it_listens(server: SshServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 100
    while "Server listening" not in (text := (server.place / "sshd.log").read_text()):
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.02)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)
