"""One run on two machines over real ssh, none of which is this computer: other homes, other networks, faults."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from modules.config import save_config
from modules.config.trusted_code import allow_family
from modules.run import RunFolder
from modules.run.remote.attendant import NotReady, begin
from modules.run.remote.run_copy import read_copy
from tests import hosts, ssh_server
from tests.conftest import draw_images
from tests.end_to_end.test_remote import REMOTE, remote
from tests.runs import ROOT, Run, group_settings, hashes, tiny_config

REASON = hosts.skip_reason() or ssh_server.skip_reason()
pytestmark = [
    pytest.mark.long,
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.skipif(bool(REASON), reason=REASON or "possible"),
]


@dataclass(frozen=True)
class Machine:
    """A host that ssh reaches from here in a network in which the other one is not."""

    host: hosts.Host
    server: ssh_server.SshServer
    sshd: frozenset[int]  # the processes that were there before

    @property
    def home(self) -> Path:
        """Tandem's folder."""
        return self.server.home / ".tandem"

    def processes(self) -> list[int]:
        """What runs there besides."""
        return sorted(set(self.host.processes()) - self.sshd)

    def kill(self) -> None:
        """End all of them at once."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def known_to_everybody(self) -> bytes:
        """The arguments and variables of these processes."""
        found = b""
        for pid in self.processes():
            with suppress(OSError):  # it has ended
                found += b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
        return found

    def wait_until_idle(self) -> None:
        deadline = time.monotonic() + 100
        while left := self.processes():
            assert time.monotonic() < deadline, left
            time.sleep(0.1)


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Machine, Machine]]:
    """alpha and beta, known to remote.py by these names and set up."""
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "config"))
    with hosts.two_hosts() as both, hosts.uplinks(*both) as addresses, ExitStack() as running:
        made = []
        for host, address in zip(both, addresses, strict=True):
            there = {"OMP_NUM_THREADS": "1", "TANDEM_CONFIG_DIR": str(tmp_path / f"config of {host.name}")}
            place = tmp_path / f"ssh-{host.name}"
            server = ssh_server.ssh_server(place, address, prefix=host.command([]), variables=there)
            made.append(Machine(host, running.enter_context(server), frozenset(host.processes())))
        alpha, beta = (each.server for each in made)
        alpha.known_hosts.write_text(alpha.known_hosts.read_text() + beta.known_hosts.read_text())
        monkeypatch.setenv("PATH", alpha.path)
        for each in made:
            target = [f"root@{each.server.address}", "--port", str(each.server.port), "--key", str(each.server.key)]
            remote(tmp_path, "add", each.host.name, *target, "--price", "2")
            remote(tmp_path, "setup", each.host.name, "--python", sys.executable)
        yield made[0], made[1]


def test_two_rented_machines_train_one_run(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    """This computer is killed as beta is about to join; the run is stopped, goes on, and ends as one on this computer
    alone, to the bit. Then beta is lost in one that the window has started."""
    alpha, beta = machines
    (tmp_path / "images").mkdir()
    images, fast = draw_images(tmp_path / "images", 8), tmp_path / "fast"
    options = {"slow_step_s": 0.2, "slow_until": f"|{fast}"}
    config = tiny_config(images, tmp_path, runs_dir="runs", max_steps=100, family_options=options)
    save_config(config, tmp_path / "cats.json")
    start = ["start", "alpha", str(tmp_path / "cats.json"), "--with", "beta", "--trust_code"]

    said = remote(tmp_path, *start, code=3)
    assert f"beta does not reach alpha at {alpha.server.address}, port " in said
    assert "Sending" not in said
    assert not (tmp_path / "runs").exists()

    start += ["--set", f"master_addr={alpha.host.address}"]
    cut = subprocess.Popen([*REMOTE, *start], cwd=tmp_path, stdout=-1, stderr=-2, encoding="utf-8", stdin=-3)
    assert cut.stdout is not None
    with cut, cut.stdout as lines:
        said = ""
        while f"beta joins alpha at {alpha.host.address}:" not in said:
            said += next(lines)
        cut.kill()
    sent = re.findall(r"^\w+: Sending \d+ files", said, re.MULTILINE)
    assert sorted(sent) == ["alpha: Sending 17 files", "beta: Sending 17 files"]
    said = remote(tmp_path, *start)
    assert "Sending" not in said
    assert "All 2 machines have joined: alpha and beta." in said

    secret = (alpha.home / "runs" / "x" / "log" / "join_line.txt").read_text().split("=")[1].split()[0].encode()
    for each in machines:
        assert each.processes()
        assert secret not in each.known_to_everybody()
    there = Run(RunFolder(alpha.home / "runs" / "x"))
    while len(there.losses) < 3:
        assert alpha.processes()
        time.sleep(0.1)
    remote(tmp_path, "stop", "alpha", "x")
    fast.touch()
    said = remote(tmp_path, "follow", "alpha", "x", code=130)
    assert "All 2 machines have joined: 1 + 1 processes." in said
    assert "at 4 an hour" in said
    for each in machines:
        each.wait_until_idle()
    copy = Run(RunFolder(tmp_path / "runs" / "x"))
    assert 0 < len(copy.losses) < 100
    assert "progress is shown on alpha" in (copy.folder.log_dir / "host-beta.txt").read_text()
    folders = [alpha.home, beta.home, tmp_path / "runs"]
    assert [
        each for folder in folders for each in folder.rglob("*") if each.is_file() and secret in each.read_bytes()
    ] == []

    remote(tmp_path, "start", "alpha", "x", "--resume")
    remote(tmp_path, "follow", "alpha", "x")
    remote(tmp_path, "pull", "alpha", "x")
    program = [sys.executable, str(ROOT / "scripts" / "run_queue.py")]
    place = ["--on", "alpha", "--with", "beta", "--run_name", "queued", "--trust_code"]
    quick = ["--set", "max_steps=2", "--set", f"master_addr={alpha.host.address}"]
    for words in (["add", str(tmp_path / "cats.json"), *place, *quick], ["run"]):
        argv = [*program, *words]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    by_queue = Run(RunFolder(tmp_path / "runs" / "queued"))
    assert len(by_queue.losses) == 2
    assert by_queue.losses[0] == copy.losses[0]
    assert "progress is shown on alpha" in (by_queue.folder.log_dir / "host-beta.txt").read_text()

    alone = config.model_copy(update={"runs_dir": str(tmp_path / "alone"), "family_options": {}, **group_settings(2)})
    save_config(alone, tmp_path / "alone.json")
    train = [sys.executable, str(ROOT / "scripts" / "train.py"), "--config", str(tmp_path / "alone.json")]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # as there
    subprocess.run([*train, "--trust_code"], check=True, capture_output=True, timeout=600, env=one_thread)
    for run in (copy.folder, alone_run := RunFolder(tmp_path / "alone" / "x")):
        (run.model_dir / "tandem.json").unlink()  # it has the time and the paths
    assert hashes(copy.folder.model_dir) == hashes(alone_run.model_dir) != {}

    # As the window starts it, by the program beside the copy
    assert "on 2 machines" in remote(tmp_path, "check", *start[1:], "--run_name", "lost")
    allow_family(config.family, trust=True, ask=None)
    fast.unlink()
    changes = {"run_name": "lost", "max_steps": 10_000, "epochs": 10_000, "master_addr": alpha.host.address}
    long = config.model_copy(update={**changes, "runs_dir": str(tmp_path / "runs")})
    begun = begin(long, "alpha", sends_token=False, joined=["beta"])
    assert not isinstance(begun, NotReady)
    folder, attendant = begun
    while not (lost := Run(folder)).folder.events_file.exists() or not lost.losses:
        assert attendant.poll() is None, (folder.log_dir / "remote.txt").read_text()
        time.sleep(0.1)
    assert "part of the run lost of alpha, active" in remote(tmp_path, "list", "beta")
    assert "takes part in the run lost, which is active on alpha" in remote(tmp_path, "clean", "beta", "--yes", code=3)
    assert "only takes part in the run lost, which is on alpha" in remote(tmp_path, "stop", "beta", "lost", code=3)
    beta.kill()
    while (copy_of := read_copy(folder)) is not None and copy_of.stage != "complete":
        assert not copy_of.fault
        time.sleep(0.1)
    assert lost.exit_code == 3
    assert f"beta ({beta.host.address})" in str(lost.events("error"))
    attendant.wait()
    remote(tmp_path, "clean", "beta", "--all", "--yes")
    assert list(beta.server.home.iterdir()) == []
