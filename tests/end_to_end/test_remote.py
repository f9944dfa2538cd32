"""From an address and a key to a model: a run on another machine over a real ssh, cut at every stage of it."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from modules.config import TrainConfig, save_config
from modules.run import RunFolder
from modules.run.hosts.hardware import known_hardware
from modules.run.hosts.host_list import find_hosts
from modules.run.preflight_report.report import PreflightReport
from tests.conftest import draw_images
from tests.nvml import H100, RTX, fake_nvml
from tests.runs import ROOT, Run, hashes, tiny_config
from tests.ssh_server import SshServer, skip_reason, ssh_server

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "possible"),
]
REMOTE = [sys.executable, str(ROOT / "scripts" / "remote.py")]
# An ssh whose connection breaks in the middle of Tandem's code, unless a folder says no
_CUTTING = """#!{python}
import os, subprocess, sys
try:
    os.mkdir("{no}")
except FileExistsError:
    os.execv("{ssh}", ["{ssh}", *sys.argv[1:]])
ssh, left = subprocess.Popen(["{ssh}", *sys.argv[1:]], stdin=subprocess.PIPE), 1_000_000
while left and (data := os.read(0, min(left, 50_000))):
    left -= os.write(ssh.stdin.fileno(), data)
ssh.kill()
sys.exit(255)
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    """An sshd with another home, and an `ssh` that may cut a connection."""
    there = {"OMP_NUM_THREADS": "1", "TANDEM_CONFIG_DIR": str(tmp_path / "config of beta")}
    with ssh_server(tmp_path / "ssh", variables=there) as running:
        cuts = tmp_path / "cut" / "ssh"
        no, ssh = cuts.parent / "no", running.place / "bin" / "ssh"
        no.mkdir(parents=True)
        cuts.write_text(_CUTTING.format(python=sys.executable, no=no, ssh=ssh))
        cuts.chmod(0o755)
        monkeypatch.setenv("PATH", f"{cuts.parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "config"))
        monkeypatch.setenv("HF_TOKEN", "hf_" + "secret")
        yield running


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Eight images; beside them is what a run does not read."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "diary.docx").write_bytes(b"private")
    return draw_images(tmp_path / "images", 8)


def remote(place: Path, *words: str, code: int = 0) -> str:
    """What the command prints, in a folder whose runs/ has the copies."""
    done = subprocess.run(
        [*REMOTE, *words], cwd=place, capture_output=True, encoding="utf-8", timeout=600, check=False, stdin=-3
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_from_an_address_and_a_key_to_a_model(server: SshServer, images: Path, tmp_path: Path) -> None:
    here, home = tmp_path / "here", server.home / ".tandem"
    here.mkdir()
    address = f"root@{server.address}"
    remote(here, "add", "beta", address, "--port", str(server.port), "--key", str(server.key))
    assert find_hosts(["beta"])[0].key == str(server.key)
    assert "start with setup" in remote(here, "list", "beta", code=3)
    (tmp_path / "cut" / "no").rmdir()

    said = remote(here, "setup", "beta", "--python", sys.executable)
    assert "was lost; connecting again" in said
    assert "beta is ready. Tandem " in said.replace(f"beta ({address})", "beta")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert "Sending" not in remote(here, "setup", "beta")

    config = tiny_config(images, tmp_path, runs_dir="runs", backup_every="3 steps")
    save_config(config, tmp_path / "cats.json")
    start = ["start", "beta", str(tmp_path / "cats.json"), "--trust_code", "--send_token"]
    remote(here, *start, "--hosts", "beta", code=2)
    assert "Sending 17 files" in remote(here, *start)
    assert "already exists" in remote(here, *start, code=2)
    assert not list(home.rglob("*.docx"))
    assert "exit code 0" in remote(here, "follow", "beta", "x")
    assert (here / "runs" / "x" / "report.html").is_file(), "of this computer's own"
    assert "model" in remote(here, "pull", "beta", "x")
    assert remote(here, "pull", "beta", "x").startswith("Nothing new")
    copy, there = RunFolder(here / "runs" / "x"), RunFolder(home / "runs" / "x")
    assert copy.events_file.read_bytes() == there.events_file.read_bytes()
    assert copy.config_file.read_bytes() != there.config_file.read_bytes()  # each has its own paths
    assert hashes(copy.backup_dir) == {k: v for k, v in hashes(there.backup_dir).items() if k.startswith("step-000006")}
    assert not [file for file in home.rglob("*") if file.is_file() and b"hf_secret" in file.read_bytes()]

    a_long_run(server, config, here, tmp_path)

    local = config.model_copy(update={"runs_dir": str(tmp_path / "local")})
    save_config(local, tmp_path / "local.json")
    train = [sys.executable, str(ROOT / "scripts" / "train.py"), "--config", str(tmp_path / "local.json")]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # as there
    subprocess.run([*train, "--trust_code"], check=True, capture_output=True, timeout=600, env=one_thread)
    for run in (copy, local_run := RunFolder(tmp_path / "local" / "x")):
        (run.model_dir / "tandem.json").unlink()  # it has the time and the paths
    assert hashes(copy.model_dir) == hashes(local_run.model_dir) != {}

    assert "nobody is there to ask" in remote(here, "clean", "beta", "--all", code=2)
    remote(here, "clean", "beta", "--all", "--yes")
    assert not home.exists()
    assert list(server.home.iterdir()) == []


def a_long_run(server: SshServer, config: TrainConfig, here: Path, place: Path) -> None:
    """One that is followed over a broken connection, and stopped; test_remote_machines resumes one."""
    slow = config.model_copy(
        update={"run_name": "long", "max_steps": 5000, "epochs": 5000, "family_options": {"slow_step_s": 0.1}}
    )
    save_config(slow, place / "long.json")
    stale = server.home / ".tandem" / "data" / str(place / "images" / "deleted_here.png").strip("/")
    stale.write_bytes(b"")
    remote(here, "start", "beta", str(place / "long.json"), "--trust_code")
    assert not stale.exists()
    follow = subprocess.Popen([*REMOTE, "follow", "beta", "long"], cwd=here, stdout=-1, stderr=-2, encoding="utf-8")
    assert follow.stdout is not None
    with follow, follow.stdout as lines:
        seen = [next(lines)]
        for ssh in psutil.Process(follow.pid).children():
            ssh.kill()
        while "was lost; connecting again" not in seen[-1]:
            seen.append(next(lines))
        while "Training 387 parameters" not in seen[-1]:
            seen.append(next(lines))
        assert "is active" in remote(here, "clean", "beta", "long", "--yes", code=3)
        assert "another program is at work" in remote(here, "pull", "beta", "long", code=2)
        assert "It will back up and stop" in remote(here, "stop", "beta", "long")
        seen += lines
        assert follow.wait(300) == 130, seen
    copy = Run(RunFolder(here / "runs" / "long"))
    assert 0 < len(copy.losses) < 5000
    remote(here, "pull", "beta", "long")
    assert copy.state.position.step > 0
    remote(here, "clean", "beta", "long", "--yes")
    assert not (server.home / ".tandem" / "runs" / "long").exists()


def with_gpus(place: Path, *gpus: dict[str, object]) -> Path:
    """A Python for that machine which finds these GPUs."""
    python = place / "python there"
    variables = [f"{name}={shlex.quote(value)}" for name, value in fake_nvml(*gpus).items()]
    python.write_text(f'#!/bin/sh\n{" ".join(variables if gpus else [])} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def preflights_there(server: SshServer) -> list[psutil.Process]:
    """Processes of a preflight, found by the folder that they run in."""
    code, found = str(server.home / ".tandem" / "code"), list[psutil.Process]()
    for process in psutil.process_iter():
        try:
            if process.cwd() == code and "preflight.py" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_the_devices_of_a_machine_and_its_preflight(server: SshServer, images: Path, tmp_path: Path) -> None:
    here, python = tmp_path / "here", with_gpus(tmp_path, RTX, H100)
    here.mkdir()
    remote(here, "add", "beta", f"root@{server.address}", "--port", str(server.port), "--key", str(server.key))
    assert "The devices of beta are not known yet" in str(known_hardware(find_hosts(["beta"])[0]))
    assert "remote.py setup beta" in remote(here, "preflight", "beta", code=3)
    said = remote(here, "setup", "beta", "--python", str(python))
    assert "1 x GeForce RTX 4090 (24 GiB), 1 x H100 80GB HBM3 (80 GiB)" in said
    known = known_hardware(find_hosts(["beta"])[0])
    assert [gpu.memory_mib for gpu in known.gpus] == [24_564, 81_559]
    with_gpus(tmp_path)
    assert f"beta has {known.cores} CPU core" in remote(here, "list", "beta")
    server.known_hosts.rename(tmp_path / "unknown")
    config = tiny_config(images, tmp_path, runs_dir="runs")
    save_config(config, tmp_path / "cats.json")
    preflight = ["preflight", "beta", str(tmp_path / "cats.json")]
    remote(here, *preflight, code=3)
    assert "--gpus=2 is of a Slurm job" in remote(here, *preflight, "--gpus", "2", code=2)
    (tmp_path / "unknown").rename(server.known_hosts)

    several = ["--set", "num_nodes=2", "--multi_gpu"]  # as the window has switched them on
    said = remote(here, *preflight, "--trust_code", "--json", str(tmp_path / "report.json"), *several)
    assert "Only beta is tested" in said
    report = PreflightReport.parse((tmp_path / "report.json").read_text())
    assert report.complete
    assert [cell.colour for cell in report.cells if cell.check == "images"] == ["grey"], "they are not there yet"
    assert all(f"{cell.where}: {cell.value}" in said for cell in report.cells)
    assert said.rstrip().endswith(report.verdict)
    assert not (server.home / ".tandem" / "runs").exists()

    for ends in ("by Ctrl-C", "with its connection"):
        with subprocess.Popen(
            [*REMOTE, *preflight, "--trust_code"], cwd=here, stdout=-1, stderr=-2, encoding="utf-8"
        ) as child:
            while not preflights_there(server):
                assert child.poll() is None
                time.sleep(0.05)
            if ends == "by Ctrl-C":
                child.send_signal(signal.SIGINT)
            else:
                for ssh in psutil.Process(child.pid).children():
                    ssh.kill()
            said = child.communicate()[0]
            assert child.returncode == (130 if ends == "by Ctrl-C" else 3), said
            assert ends == "by Ctrl-C" or "the preflight there has ended with it. Start it again" in said
        psutil.wait_procs(preflights_there(server), 200)
        assert preflights_there(server) == []
    assert not list((server.home / ".tandem" / "partial").iterdir())
