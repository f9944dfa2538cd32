"""The commands for several machines, without a window."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.multi_gpu.commands import build_commands
from modules.config import TrainConfig


def batch_script(images: Path, tmp_path: Path, *counts: int) -> str:
    config = TrainConfig.model_validate(
        {
            "concepts": [{"path": str(images)}],
            "runs_dir": str(tmp_path),
            "num_nodes": 2,
            "processes_per_node": list(counts) or None,
            "distributed_backend": "gloo",
            "master_addr": "10.0.0.1",
        }
    )
    return build_commands(config, tmp_path / "config.yaml", "token")[-1].text


@pytest.mark.parametrize("counts", [(4, 2), (1, 3)])
def test_no_slurm_script_for_unequal_machines(images: Path, tmp_path: Path, counts: tuple[int, int]) -> None:
    script = batch_script(images, tmp_path, *counts)
    assert "#SBATCH" not in script
    assert f"{counts[0]} + {counts[1]} processes" in script
    assert "Processes per machine" in script


def test_slurm_script_asks_for_what_the_machines_start(images: Path, tmp_path: Path) -> None:
    script = batch_script(images, tmp_path, 3, 3)
    assert "#SBATCH --nodes=2" in script
    assert "#SBATCH --ntasks-per-node=3" in script
