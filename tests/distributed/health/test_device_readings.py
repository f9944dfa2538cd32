"""Which GPU's load is shown for which rank: a real process with NVIDIA's own binding over a stand-in library."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.nvml import LOST, NO_PERMISSION, RTX, fake_nvml
from tests.runs import ROOT, environment

PROGRAM = """
import json, sys
from modules.distributed.health.device_readings import read_host
from modules.distributed.startup.rank_info import RankInfo
def row(rank, device, uuid):
    return RankInfo(rank, "alpha", 1, device, "GPU", 1, 1, "nccl", 1, {}, gpu_uuid=uuid)
rows = [row(rank, *each) for rank, each in enumerate(json.loads(sys.argv[1]))]
print(json.dumps({rank: reading.get("temperature_c") for rank, reading in read_host(rows).items()}))
"""
GPUS = [{**RTX, "uuid": f"GPU-{letter}", "temperature_c": 40 + n} for n, letter in enumerate("abc")]


def temperatures(ranks: list[tuple[str, str]], *gpus: dict[str, object], **variables: str) -> list[float | None]:
    machine = fake_nvml(*gpus, path=[str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(ranks)],
        env={**environment(), **machine, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout).values())


def test_slurm_tasks_with_one_visible_gpu_each_show_their_own() -> None:
    ranks = [("cuda:0", "GPU-a"), ("cuda:0", "GPU-c"), ("cuda:0", "GPU-b")]
    assert temperatures(ranks, *GPUS, CUDA_VISIBLE_DEVICES="0") == [40, 42, 41]


def test_the_order_of_cuda_visible_devices() -> None:
    ranks = [("cuda:0", ""), ("cuda:1", "")]
    assert temperatures(ranks, *GPUS, CUDA_VISIBLE_DEVICES="2,0") == [42, 40]


def test_a_gpu_that_is_hidden_or_lost_shows_nothing() -> None:
    gpus = [GPUS[0], {**GPUS[1], "code": NO_PERMISSION}, {**GPUS[2], "code": LOST}]
    ranks = [("cuda:0", "GPU-a"), ("cuda:0", "GPU-b"), ("cuda:0", "GPU-c")]
    assert temperatures(ranks, *gpus) == [40, None, None]
