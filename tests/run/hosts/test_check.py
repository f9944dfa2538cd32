"""The test of a machine over a real ssh: each way in which it fails is one sentence."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from modules.files import printable
from modules.run.hosts.check import check_host, compare, run_there
from modules.run.hosts.description import (
    Description,
    HostGpu,
    describe_this_machine,
    description_line,
    find_description,
)
from modules.run.hosts.host import Host
from modules.run.hosts.ssh_command import HostError, ssh_argv
from tests.hosts import ROOT
from tests.ports import free_port
from tests.ssh_server import SshServer, skip_reason, ssh_server

pytestmark = pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "possible")

PYTHON = str(ROOT / ".venv" / "bin" / "python")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("ssh") / "server") as running:
        yield running


@pytest.fixture(autouse=True)
def own_ssh(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", server.path)


@pytest.fixture
def host(server: SshServer) -> Host:
    """Tandem in this folder, over the server."""
    return Host.make("beta", f"root@{server.address}", str(ROOT), port=server.port, python=PYTHON)


def changed(host: Host, **fields: object) -> Host:
    return host.model_copy(update=fields)


def stand_in(place: Path, line: str, code: int = 0) -> Host:
    """A machine whose Python prints a line, whatever it is asked."""
    (place / "scripts").mkdir()
    for name in ("train.py", "hosts.py"):
        (place / "scripts" / name).touch()
    python = place / "python"
    python.write_text(f"#!/bin/sh\necho Welcome to beta\necho {shlex.quote(line)}\nexit {code}\n")
    python.chmod(0o755)
    return Host.make("beta", "root@127.0.0.1", str(place), python=str(python))


def test_a_machine_with_the_same_software_is_ready(host: Host, server: SshServer) -> None:
    (server.home / "its $(touch x) 'folder'").symlink_to(ROOT)  # a shell would run it
    check = check_host(changed(host, folder="~/its $(touch x) 'folder'", python=""))
    assert check.fault == ""
    assert "torch" in check.summary
    assert "GiB" in check.summary or "It has no GPU and trains on its CPU" in check.notes[0]
    assert not (server.home / "x").exists()


@pytest.mark.slow
def test_what_cannot_be_reached_is_one_sentence(host: Host, server: SshServer, tmp_path: Path) -> None:
    port = free_port()
    said = check_host(changed(host, port=port)).fault
    assert said.startswith(f"beta (root@127.0.0.1) is not reachable: ssh: connect to host 127.0.0.1 port {port}")
    nobody = check_host(changed(host, target="a.invalid")).fault
    assert "no machine and no entry of ~/.ssh/config has this name" in nobody
    assert "beta (root@127.0.0.1) has no folder ~/nowhere" in check_host(changed(host, folder="~/nowhere")).fault
    assert "is not Tandem's" in check_host(changed(host, folder="/tmp")).fault
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").touch()
    assert "is too old to be started over ssh" in check_host(changed(host, folder=str(tmp_path))).fault
    assert "has no Python no-such-python" in check_host(changed(host, python="no-such-python")).fault


def test_keys_that_are_not_accepted(host: Host, server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    known = server.known_hosts.read_text()
    try:
        server.known_hosts.write_text("")
        said = check_host(host).fault
        assert "beta (root@127.0.0.1) shows a host key that is unknown here." in said
        assert f"ssh -p {server.port} root@127.0.0.1" in said
        other = (server.place / "key.pub").read_text().split()[1]
        server.known_hosts.write_text(f"[127.0.0.1]:{server.port} ssh-ed25519 {other}\n")
        said = check_host(host).fault
        assert "shows another host key than the one that is known here" in said
        assert f"ssh-keygen -R '[127.0.0.1]:{server.port}', and connect once" in said
    finally:
        server.known_hosts.write_text(known)
    accepted = (server.place / "key.pub").read_text()
    try:
        (server.place / "key.pub").write_text("")
        said = check_host(host).fault
    finally:
        (server.place / "key.pub").write_text(accepted)
    assert "beta (root@127.0.0.1) does not accept your key." in said
    assert f"ssh-copy-id -p {server.port} root@127.0.0.1" in said
    monkeypatch.setenv("PATH", "/nowhere")
    assert check_host(host).fault.startswith("ssh is not installed on this machine.")


@pytest.mark.slow
def test_answers_of_another_version_or_of_nobody(server: SshServer, tmp_path: Path) -> None:
    here = describe_this_machine()
    old = here.model_copy(update={"tandem": "0.0.1", "packages": {**here.packages, "torch": "2.12.0"}})
    for number, (line, expected) in enumerate(
        {
            description_line(old): f"Tandem is 0.0.1 on beta and {here.tandem} on this machine",
            'TANDEM-HOST {"host": "x\\u001b[31m"}': "in a way that Tandem does not understand: its answer is wrong in",
            "TANDEM-HOST " + "[" * 5000: "in a way that Tandem does not understand",
            "nothing of ours": "could not describe its machine (exit code 3); it printed: Welcome to beta",
        }.items()
    ):
        place = tmp_path / str(number)
        place.mkdir()
        said = check_host(changed(stand_in(place, line, code=3), port=server.port)).fault
        assert expected in said
        assert said == printable(said, lines=True), "no terminal obeys it"
    machine = stand_in(tmp_path, "")
    assert "torch is 2.12.0 on beta and" in compare(machine, old, here).fault
    allowed = compare(changed(machine, allow_differences=True), old, here)
    assert (allowed.fault, "torch is 2.12.0 on beta and" in str(allowed)) == ("", True)


@pytest.mark.slow
def test_gpus_are_compared() -> None:
    beta = Host.make("beta", "beta", "~/tandem")
    one: Description = describe_this_machine().model_copy(update={"gpus": [], "obstacle": ""})
    gpu = HostGpu(name="NVIDIA H100", memory_mib=81_920)
    two = one.model_copy(update={"gpus": [gpu, gpu]})
    assert compare(beta, two, two).summary.endswith("2 x H100 (80 GiB).")
    assert compare(beta, one, two).fault.startswith("beta has no GPU that Tandem can use")
    assert compare(beta, one, one).fault == ""
    broken = two.model_copy(update={"obstacle": "the driver is too old"})
    assert compare(beta, broken, two).fault == "beta cannot use its GPUs: the driver is too old."
    same_version = one.model_copy(update={"code": "0" * 64})
    assert "code on beta differs from that on this machine" in compare(beta, same_version, one).fault


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (b"", "is not reachable: Connection closed by 127.0.0.1"),
        (b"\x1b[2J\x1b]0;title\x07\xff\r\n" * 2000, "No SSH version received in first 1024 lines"),
        (b"A" * (1 << 20), "banner line too long"),
        (b"SSH-2.0-OpenSSH_9.9\r\n\xff\xff\xff\xff" + b"x" * 100, "Bad packet length 4294967295"),
    ],
)
def test_a_hostile_server_is_one_sentence(host: Host, first: bytes, expected: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):  # ssh has heard enough
                connection.recv(1024)  # its version
                connection.sendall(first)
                if first:
                    connection.recv(1024)

        pool.submit(answer)
        said = check_host(changed(host, port=listener.getsockname()[1])).fault
    assert expected in said
    assert said == printable(said, lines=True), "no terminal obeys it"


@pytest.mark.slow
def test_an_endless_answer_is_cut(server: SshServer, tmp_path: Path) -> None:
    talker = stand_in(tmp_path, "")
    (tmp_path / "python").write_text("#!/bin/sh\nexec yes\n")
    with pytest.raises(HostError, match=r"prints more than 64 KiB before Tandem answers.*~/\.bashrc"):
        run_there(changed(talker, port=server.port), [])


@pytest.mark.slow
def test_what_outlives_ssh_is_not_waited_for(server: SshServer, host: Host, tmp_path: Path) -> None:
    """Such as the child of a ProxyCommand, which keeps the output of ssh open."""
    proxy = tmp_path / "proxy"
    proxy.write_text(f"#!/bin/sh\n(sleep 9; : > {tmp_path}/ended) >&2 &\necho no network >&2\nexit 1\n")
    proxy.chmod(0o755)
    own = tmp_path / "ssh"
    own.write_text(f'#!/bin/sh\nexec {server.place}/bin/ssh -o ProxyCommand={proxy} "$@"\n')
    own.chmod(0o755)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", f"{tmp_path}{os.pathsep}{server.path}")
        code, said = run_there(host, [])
    assert (code, "no network" in said) == (255, True)
    assert not (tmp_path / "ended").exists()


def test_a_title_before_the_answer() -> None:
    """As a login shell may set one, which ends no line."""
    here = describe_this_machine()
    assert find_description(f"Welcome\n\x1b]0;beta\x07{description_line(here)}\n") == here


def test_nothing_of_a_host_is_an_option_or_asked_for(host: Host) -> None:
    argv = ssh_argv(host, ["x"])
    assert argv[argv.index("--") + 1] == host.target
    shown = subprocess.run([argv[0], "-G", *argv[1:-1]], capture_output=True, text=True, check=True).stdout
    for line in ("batchmode yes", "forwardagent no", "stricthostkeychecking true", "forwardx11 no", "requesttty false"):
        assert line in shown.splitlines()
