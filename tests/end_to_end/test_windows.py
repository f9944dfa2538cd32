"""Training on several processes as on Windows, as far as another system can show it; see tests/fake_windows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config import resolve_config
from scripts.make_demo_data import make_demo_data
from tests.end_to_end.conftest import TrainingProcess
from tests.ports import first_port
from tests.runs import ROOT, assert_error_message, environment

pytestmark = pytest.mark.end_to_end

FAKE = ROOT / "tests" / "fake_windows"
WINDOWS = {
    "PYTHONPATH": str(FAKE),
    "TANDEM_FAKE_WINDOWS": os.pathsep.join(str(ROOT / folder) for folder in ("modules", "app", "scripts")),
}


def run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv], env=environment(**WINDOWS), cwd=cwd, capture_output=True, text=True, timeout=200
    )


def test_the_stand_in_itself(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "probe.py").write_text(
        "import os, signal, sys\nfrom torch._C._distributed_c10d import TCPStore\n"
        "assert (sys.platform, os.name) == ('win32', 'nt')\n"
        "assert not hasattr(signal, 'SIGKILL') and not hasattr(os, 'fork') and hasattr(signal, 'SIGTERM')\n"
        "try:\n    import fcntl\nexcept ImportError:\n    import msvcrt\n    assert msvcrt.LK_NBLCK\n"
        "TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
    )
    variables = {**WINDOWS, "TANDEM_FAKE_WINDOWS": str(tmp_path / "modules")}
    argv = [sys.executable, str(tmp_path / "modules" / "probe.py")]
    done = subprocess.run(argv, env=environment(**variables), capture_output=True, text=True, check=False)
    assert "PyTorch was built without libuv support" in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.slow
def test_the_demo_trains_stops_and_resumes_on_two_processes(
    start: Callable[..., TrainingProcess], tmp_path: Path
) -> None:
    make_demo_data(tmp_path / "images", count=12)
    settings = {
        "runs_dir": tmp_path / "runs",
        "cache_dir": tmp_path / "cache",
        "run_name": "demo",
        "initial_port": first_port(),
        "world_size": 2,
        "loader_workers": 1,  # of the first run: starting one takes seconds
        "resolution": 16,
        "family_options.width": 8,
        "max_steps": 12,
        "samples": "[]",
        "concepts": f'[{{"path": "{tmp_path / "images"}"}}]',
    }
    config = resolve_config("demo", [f"{name}={value}" for name, value in settings.items()])
    training = start(config, "--multi_gpu", **WINDOWS)
    training.wait_for_step(2)
    training.process.send_signal(signal.SIGINT)
    code, output = training.wait()
    assert code == 130, output
    assert "Traceback" not in output
    stopped_at = training.run.state.position.step
    assert 2 <= stopped_at < 12
    assert training.leftovers() == []

    flags = ("--multi_gpu", "--no_torchrun", "--resume", "latest", "--set", "loader_workers=0")
    resumed = start(config, *flags, **WINDOWS)
    code, output = resumed.wait()
    assert code == 0, output
    assert [event["step"] for event in resumed.run.events("step")] == list(range(1, 13))
    assert (resumed.run.folder.model_dir / "tandem.json").exists()
    log = resumed.run.folder.launcher_log.read_text()
    assert "--spawn 2" in log
    assert "torchrun" not in log


def test_what_needs_torchrun_is_refused_at_once(tmp_path: Path) -> None:
    train = str(ROOT / "scripts" / "train.py")
    for setting in ("num_nodes=2", "max_restarts=1"):
        flags = ["--dry_run", "--multi_gpu", "--set", "world_size=2", "--set", setting]
        done = run(train, "--config", "demo", *flags, cwd=tmp_path)
        assert_error_message(done, 2, setting.replace("=", " is "), "torchrun does not work on Windows", "WSL2")
