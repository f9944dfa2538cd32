"""Two slices of a GPU (MIG): every rank that Tandem or torchrun starts has its own before torch looks for a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from modules.config import save_config
from modules.machine import installed_gpus
from tests.ports import free_port
from tests.runs import ROOT, environment, group_settings, tiny_config

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.skipif(bool(installed_gpus()), reason="a driver that is there knows no such slices"),
]
FAMILY = """
import os
from pathlib import Path
from tests import tiny_family

if "RANK" in os.environ:
    Path(__file__).with_name("rank-" + os.environ["RANK"]).write_text(os.environ["CUDA_VISIBLE_DEVICES"])

class Mine(tiny_family.TinyFamily): ...
"""


@pytest.mark.parametrize("launcher", ["train.py", "torchrun"])
def test_each_rank_has_its_own(images: Path, tmp_path: Path, launcher: str) -> None:
    (tmp_path / "mine.py").write_text(FAMILY)
    config = tiny_config(images, tmp_path, family=str(tmp_path / "mine.py"), max_steps=1, **group_settings(2))
    save_config(config, tmp_path / "c.json")
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}"]
    train = [str(ROOT / "scripts" / "train.py"), "--config", str(tmp_path / "c.json")]
    done = subprocess.run(
        [sys.executable, *(torchrun if launcher == "torchrun" else ()), *train],
        capture_output=True, text=True, check=False, timeout=300,
        env=environment(CUDA_VISIBLE_DEVICES="MIG-a,MIG-b", PYTHONPATH=str(ROOT)),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in (0, 1)] == ["MIG-a", "MIG-b"]
