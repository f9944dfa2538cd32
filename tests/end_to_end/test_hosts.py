"""A queued run on two machines of which the first starts the second over ssh, and stops it."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from modules.run.hosts.host import Host
from modules.run.hosts.host_list import add_host
from modules.run.join.join_line import read_join_line
from modules.run.queue.folder import RunQueue
from tests import hosts, ssh_server
from tests.conftest import draw_images
from tests.end_to_end.test_two_hosts import Terminal, alive, run_of, two_machines
from tests.runs import ROOT

REASON = hosts.skip_reason() or ssh_server.skip_reason()
pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.skipif(bool(REASON), reason=REASON or "possible"),
]


def test_a_run_starts_another_machine_and_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both train until Ctrl-C on the queue, which then has the run wait; the token is in no command line there."""
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "config"))
    with hosts.two_hosts() as (alpha, beta):
        there = {"TANDEM_CONFIG_DIR": str(tmp_path / "config of beta"), "OMP_NUM_THREADS": "1"}
        with ssh_server.ssh_server(tmp_path / "ssh", beta.address, prefix=beta.command([]), variables=there) as server:
            daemons = beta.processes()
            own = [f"{name}={tmp_path / 'beta' / name}" for name in ("runs_dir", "cache_dir")]
            target = {"target": f"root@{beta.address}", "port": server.port, "settings": own}
            (tmp_path / "images").mkdir()
            images = draw_images(tmp_path / "images", 8)
            config = two_machines(
                images, tmp_path, num_nodes=1, processes_per_node=None, max_steps=1000,
                family_options={"slow_step_s": 0.1},
            )  # fmt: skip
            path = {"PATH": server.path, "TANDEM_CONFIG_DIR": str(tmp_path / "config")}
            add_host(Host.make("beta", folder=str(ROOT), **target))  # type: ignore[arg-type]
            queue = RunQueue(config.runs_dir)
            entry = queue.add(config.model_copy(update={"num_nodes": 2}), hosts=["beta"])
            command = [sys.executable, "scripts/run_queue.py", "run", "--runs_dir", config.runs_dir]
            first = Terminal(alpha, command, tmp_path / "alpha.txt", **path)
            run = run_of(config)
            first.wait_for_step(run, 2)
            assert "All 2 machines have joined: 1 + 1 processes" in run.folder.console_file.read_text()
            token = read_join_line(run.folder).split("=")[1].split()[0]
            there_now = command_lines(beta)
            assert any("--join" in argv for argv in there_now.values())
            assert not any(token in " ".join(argv) for argv in there_now.values())
            for pid, argv in command_lines(alpha).items():
                if "scripts/run_queue.py" in argv and argv[0] == sys.executable:
                    os.kill(pid, signal.SIGINT)
            first.wait(130)
            assert len(run.losses) < 1000
            assert run.exit_code == 130
            assert queue.read().entry(entry.number).state == "waiting"
            said = (run.folder.log_dir / "host-beta.txt").read_text()
            assert "Training; progress is shown on alpha" in said
            assert run.folder.backup_dir.exists()
            assert alive(alpha) == []
            deadline = time.monotonic() + 5
            while not set(beta.processes()) <= set(daemons):
                assert time.monotonic() < deadline, f"left there: {command_lines(beta)}"
                time.sleep(0.1)


def command_lines(host: hosts.Host) -> dict[int, list[str]]:
    """The command line of each process that runs on a host."""
    found = {}
    for pid in host.processes():
        with suppress(psutil.Error):  # it has just ended
            found[pid] = psutil.Process(pid).cmdline()
    return found
