"""Printed commands, pasted into a real shell, start exactly what is planned."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config import TrainConfig
from modules.machine import Gpu
from modules.run import LaunchPlan

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX shells")

ODD_NAMES = ("plain", "two words", "it's", 'a "quoted" name', "$HOME `id` \\ *;&|", "ünïcödé~!#", "-dash\ttab")
SHELLS = [shell for shell in ("sh", "bash", "dash", "zsh") if shutil.which(shell)]


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A "python" at an unusual path that prints its arguments and environment."""
    program = tmp_path / "my own 'python'" / "python"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv, dict(os.environ)]))\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return program


def plan(place: Path, **settings: object) -> LaunchPlan:
    config = TrainConfig.model_validate({"enable_multi_gpu": True, "run_name": "x", **settings})
    gpus = [Gpu(index, "GPU", 24_000, f"GPU-{index}") for index in range(2)]
    return LaunchPlan.from_config(
        config,
        config_path=place / "config.json",
        run_folder=place,
        extra_args=["--set", "prompt=a 'b' \"c\" $d"],
        gpus=gpus,
        environment={},
        cores=4,
    )


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ODD_NAMES)
def test_pasted_command_matches_the_plan(interpreter: Path, tmp_path: Path, shell: str, name: str) -> None:
    here = {"num_nodes": 2, "node_rank": 1, "master_addr": "10.0.0.5"}
    made = plan(tmp_path / name, **here, debug_distributed=True, device_ids=[1, 0])
    for node in range(2):
        done = subprocess.run(
            [shell, "-c", made.command_line(node)], capture_output=True, text=True, check=True, env={"PATH": os.defpath}
        )
        argv, environment = json.loads(done.stdout)
        assert argv == made.argv(node)
        assert made.environment(node).items() <= environment.items()
        assert environment["CUDA_VISIBLE_DEVICES"] == "1,0"
        assert environment["NCCL_DEBUG_FILE"].startswith(str(tmp_path / name))


@pytest.mark.parametrize("settings", [{}, {"use_torchrun": False}, {"on_machine_loss": "wait", "max_restarts": 2}])
def test_every_launcher_is_quoted_for_the_shell(interpreter: Path, tmp_path: Path, settings: dict[str, object]) -> None:
    made = plan(tmp_path / "it's here", **settings)
    done = subprocess.run(["sh", "-c", made.command_line()], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)[0] == made.argv()


def test_local_variables_are_not_shown_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = {"GLOO_SOCKET_IFNAME": "eth7", "NCCL_SOCKET_IFNAME": "eth7"}
    monkeypatch.setattr("modules.run.launch.environment.network_interfaces", lambda master_addr: cards)
    made = plan(tmp_path, num_nodes=2, node_rank=1, world_size=4, master_addr="10.0.0.5")
    assert "GLOO_SOCKET_IFNAME=eth7 NCCL_SOCKET_IFNAME=eth7" in made.command_line(1)
    assert "eth7" not in made.command_line(0)
    assert "OMP_NUM_THREADS=2" in made.command_line(0)
