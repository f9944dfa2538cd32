"""A machine whose GPU this PyTorch cannot use: every start ends with the reason, and nothing trains on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from modules.config import save_config
from tests.nvml import RTX, fake_nvml
from tests.ports import free_port
from tests.runs import ROOT, environment, tiny_config

pytestmark = pytest.mark.end_to_end

# CUDA 9 is too old for every torch that Tandem runs with, if that is not a CPU-only build anyway.
MACHINE = fake_nvml(RTX, driver="384.130", cuda=9_000)
SUMMARY = """
import sys
from app.multi_gpu.plan_summary import describe
from modules.config import load_config
print(*describe(load_config(sys.argv[1])))
"""


@pytest.fixture
def config(images: Path, tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    save_config(tiny_config(images, tmp_path, max_steps=1), file)
    return file


def run(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**environment(), **MACHINE, **variables}
    env["PYTHONPATH"] += f":{ROOT}"
    return subprocess.run(
        [sys.executable, *argv], env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


def script(name: str) -> str:
    return str(ROOT / "scripts" / name)


@pytest.mark.parametrize(
    "command", [["train.py"], ["train.py", "--dry_run"], ["train.py", "--multi_gpu"], ["preflight.py"]]
)
def test_commands_end_with_the_reason(config: Path, tmp_path: Path, command: list[str]) -> None:
    done = run(script(command[0]), "--config", str(config), *command[1:])
    assert done.returncode == 2, done.stdout + done.stderr
    assert "NVIDIA GeForce RTX 4090 and the NVIDIA driver 384.130" in done.stderr
    assert "set device to cpu" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_window_shows_the_reason(config: Path) -> None:
    assert "NVIDIA driver 384.130" in run("-c", SUMMARY, str(config)).stdout


def test_a_rank_started_by_hand_ends_with_the_reason(config: Path) -> None:
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(free_port())}
    done = run(script("train.py"), "--config", str(config), **rank)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "NVIDIA driver 384.130" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("flags", "variables"), [(["--set", "device=cpu"], {}), ([], {"CUDA_VISIBLE_DEVICES": ""})])
def test_the_cpu_trains_if_it_was_asked_for(config: Path, flags: list[str], variables: dict[str, str]) -> None:
    done = run(script("train.py"), "--config", str(config), *flags, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
