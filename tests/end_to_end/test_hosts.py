"""A queued run and a preflight on two machines, of which the first starts the second over ssh, and stops it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from modules.config import save_config
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import add_host
from modules.run.join.join_line import read_join_line
from modules.run.preflight_report.report import PreflightReport
from modules.run.queue.folder import RunQueue
from tests import hosts, ssh_server
from tests.conftest import draw_images
from tests.end_to_end.test_two_hosts import Terminal, alive, run_of, two_machines
from tests.ports import free_port
from tests.runs import ROOT, tiny_config

REASON = hosts.skip_reason() or ssh_server.skip_reason()
pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.skipif(bool(REASON), reason=REASON or "possible"),
]


@dataclass(frozen=True)
class Machines:
    """Machine 0, which can start beta over ssh as "attic", and the variables of its programs."""

    alpha: hosts.Host
    beta: hosts.Host
    variables: dict[str, Any]
    port: int  # of beta's sshd
    sshd: frozenset[int]  # the processes of beta that were there before

    def left_on_beta(self) -> list[int]:
        """What still runs there, once it has had time to end."""
        deadline = time.monotonic() + 100
        while (left := set(self.beta.processes()) - self.sshd) and time.monotonic() < deadline:
            time.sleep(0.1)
        return sorted(left)


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "config"))
    with hosts.two_hosts() as (alpha, beta):
        there = {"TANDEM_CONFIG_DIR": str(tmp_path / "config of beta"), "OMP_NUM_THREADS": "1"}
        with ssh_server.ssh_server(tmp_path / "ssh", beta.address, prefix=beta.command([]), variables=there) as server:
            own = [f"{name}={tmp_path / 'beta' / name}" for name in ("runs_dir", "cache_dir")]
            add_host(Host.make("attic", f"root@{beta.address}", str(ROOT), port=server.port, settings=own))
            variables = {"PATH": server.path, "TANDEM_CONFIG_DIR": str(tmp_path / "config")}
            yield Machines(alpha, beta, variables, server.port, frozenset(beta.processes()))


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Eight images."""
    (tmp_path / "images").mkdir()
    return draw_images(tmp_path / "images", 8)


def test_a_run_starts_another_machine_and_stops_it(machines: Machines, few: Path, tmp_path: Path) -> None:
    """Both train until Ctrl-C on the queue, which then has the run wait; the token is in no command line there."""
    alpha, beta = machines.alpha, machines.beta
    config = two_machines(
        few, tmp_path, num_nodes=1, processes_per_node=None, max_steps=1000, family_options={"slow_step_s": 0.1}
    )
    queue = RunQueue(config.runs_dir)
    entry = queue.add(config.model_copy(update={"num_nodes": 2}), hosts=["attic"])
    command = [sys.executable, "scripts/run_queue.py", "run", "--runs_dir", config.runs_dir]
    first = Terminal(alpha, command, tmp_path / "alpha.txt", **machines.variables)
    run = run_of(config)
    first.wait_for_step(run, 2)
    said = run.folder.console_file.read_text()
    assert "All 2 machines have joined: 1 + 1 processes" in said
    assert "missing: attic)" in said
    assert f"attic ({beta.address}) has joined as machine 1" in said
    assert "beta" not in said
    token = read_join_line(run.folder).split("=")[1].split()[0]
    there_now = command_lines(beta)
    assert any("--join" in argv for argv in there_now.values())
    assert not any(token in " ".join(argv) for argv in there_now.values())
    interrupt(alpha, "scripts/run_queue.py")
    first.wait(130)
    assert len(run.losses) < 1000
    assert run.exit_code == 130
    assert "--resume latest --run_name x --hosts attic" in run.folder.console_file.read_text()
    assert queue.read().entry(entry.number).state == "waiting"
    said = (run.folder.log_dir / "host-attic.txt").read_text()
    assert "Starting; progress is shown on alpha" in said
    assert run.folder.backup_dir.exists()
    assert alive(alpha) == []
    assert not machines.left_on_beta(), command_lines(beta)


def test_a_preflight_checks_the_machines_that_train_would_start(machines: Machines, few: Path, tmp_path: Path) -> None:
    """One that cannot be reached is named, and the others are checked without it; Stop leaves nothing anywhere."""
    alpha, beta = machines.alpha, machines.beta
    nobody = free_port()
    add_host(Host.make("gamma", f"root@{beta.address}", str(ROOT), port=nobody))
    result = tmp_path / "report.json"
    command = [sys.executable, "scripts/preflight.py", "--config", str(tmp_path / "c.json"), "--json", str(result)]
    save_config(tiny_config(few, tmp_path), tmp_path / "c.json")
    Terminal(alpha, [*command, "--hosts", "attic,gamma"], tmp_path / "alpha.txt", **machines.variables).wait(3)
    report = PreflightReport.parse(result.read_text())
    found = {(cell.check, cell.where): cell for cell in report.cells}
    assert report.verdict == "NOT ready: ssh (gamma)."
    assert found["ssh", "attic"].colour == "green"
    assert f"gamma (root@{beta.address}) is not reachable: " in found["ssh", "gamma"].value
    assert f"on port {nobody}." in found["ssh", "gamma"].value
    assert "rank 0 on alpha and rank 1 on attic" in found["group", "all"].value
    assert found["images", "alpha, attic"].value == "8 images (16 files with captions and masks), the same on 2 hosts"
    assert not machines.left_on_beta(), command_lines(beta)

    again = [*command, "--hosts", "attic", "--test", "all"]
    stopped = Terminal(alpha, again, tmp_path / "again.txt", **machines.variables)
    stopped.wait_for("attic .* has joined as machine 1")
    while "ports" not in {cell.check for cell in PreflightReport.parse(result.read_text()).cells}:
        assert stopped.process.poll() is None, stopped.text()
        time.sleep(0.05)
    assert any("--join" in argv for argv in command_lines(beta).values())
    interrupt(alpha, "scripts/preflight.py")
    assert "Stopped before all was checked." in stopped.wait(130)
    assert alive(alpha) == []
    assert not machines.left_on_beta(), command_lines(beta)


def interrupt(host: hosts.Host, script: str) -> None:
    """Ctrl-C on the first process of a script on a host."""
    found = [pid for pid, argv in command_lines(host).items() if script in argv and argv[0] == sys.executable]
    os.kill(min(found), signal.SIGINT)


def command_lines(host: hosts.Host) -> dict[int, list[str]]:
    """The command line of each process that runs on a host."""
    found = {}
    for pid in host.processes():
        with suppress(psutil.Error):  # it has just ended
            found[pid] = psutil.Process(pid).cmdline()
    return found
