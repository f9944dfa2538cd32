"""Which GPU's load is shown for which rank: a real process with NVIDIA's own binding over a stand-in library."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.nvml import A100_MIG, H100, LAPTOP, LOST, NO_PERMISSION, RTX, fake_nvml
from tests.runs import ROOT, environment

pytestmark = pytest.mark.slow

# Answers each line, with a machine and the ranks on it, in a fork: NVML is loaded once for a process.
PROGRAM = """
import json, os, platform, sys
platform.release = lambda: os.environ.get("RELEASE", "6.8.0-45-generic")
from modules.distributed.health.device_readings import HostReader
from modules.distributed.startup.rank_info import RankInfo
def row(rank, device, uuid):
    return RankInfo(rank, "alpha", os.getpid(), device, "GPU", 1, 1, "nccl", 1, {}, gpu_uuid=uuid)
for line in sys.stdin:
    variables, ranks = json.loads(line)
    if not (child := os.fork()):
        os.environ.update(variables)
        rows = [row(rank, *each) for rank, each in enumerate(ranks)]
        print(json.dumps(HostReader(rows).read()), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
GPUS = [{**RTX, "uuid": f"GPU-{letter}", "temperature_c": 40 + n} for n, letter in enumerate("abc")]


class Reader:
    """The process that reads; importing torch takes it seconds."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def readings(
        self, ranks: list[tuple[str, str]], *gpus: dict[str, object], **variables: str
    ) -> list[dict[str, Any]]:
        """Of each rank."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([{**fake_nvml(*gpus), **variables}, ranks]) + "\n")
        self._process.stdin.flush()
        return list(json.loads(self._process.stdout.readline()).values())

    def temperatures(
        self, ranks: list[tuple[str, str]], *gpus: dict[str, object], **variables: str
    ) -> list[float | None]:
        """Of each rank's GPU; None if it shows nothing."""
        return [each.get("temperature_c") for each in self.readings(ranks, *gpus, **variables)]


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    variables = {**environment(), **fake_nvml(path=[str(ROOT)])}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Reader(process)


def test_slurm_tasks_with_one_visible_gpu_each_show_their_own(reader: Reader) -> None:
    ranks = [("cuda:0", "GPU-a"), ("cuda:0", "GPU-c"), ("cuda:0", "GPU-b")]
    assert reader.temperatures(ranks, *GPUS, CUDA_VISIBLE_DEVICES="0") == [40, 42, 41]


def test_the_order_of_cuda_visible_devices(reader: Reader) -> None:
    ranks = [("cuda:0", ""), ("cuda:1", "")]
    assert reader.temperatures(ranks, *GPUS, CUDA_VISIBLE_DEVICES="2,0") == [42, 40]


def test_a_gpu_that_is_hidden_or_lost_shows_nothing(reader: Reader) -> None:
    gpus = [GPUS[0], {**GPUS[1], "code": NO_PERMISSION}, {**GPUS[2], "code": LOST}]
    ranks = [("cuda:0", "GPU-a"), ("cuda:0", "GPU-b"), ("cuda:0", "GPU-c")]
    assert reader.temperatures(ranks, *gpus) == [40, None, None]


def test_every_kind_of_gpu_shows_what_its_driver_offers(reader: Reader) -> None:
    later = {**RTX, "code": LOST, "works_for": 2}  # lost while the run is going on
    uuids = ("GPU-h100", "GPU-laptop", "GPU-slice", "GPU-aa")
    first, laptop, part, gone = reader.readings([("cuda:0", uuid) for uuid in uuids], H100, LAPTOP, A100_MIG, later)
    assert (first["utilization_percent"], first["memory_used_mib"], first["power_w"]) == (98, 20_480, 652.31)
    assert (first["sm_clock_mhz"], first["sm_clock_max_mhz"], first["slowdown"]) == (1755, 1980, "power limit")
    assert (laptop["power_w"], laptop["slowdown"]) == (None, "temperature (driver limit)")
    assert (part["memory_total_mib"], part["memory_used_mib"], part["power_w"]) == (20_096, 512, 130)
    assert (part["index"], part["utilization_percent"]) == (2, None)
    assert (gone["fault"], gone["temperature_c"]) == ("GPU is lost", None)
    assert all(each["process_ram_mib"] > 0 and each["disk_read_mb_s"] >= 0 for each in (first, laptop, part, gone))
    assert "network_sent_mb_s" in first
    assert "spills_to_host" not in first, "not on Linux itself"


def test_a_slice_and_a_uuid_in_cuda_visible_devices(reader: Reader) -> None:
    (part,) = reader.readings([("cuda:0", "")], H100, A100_MIG, CUDA_VISIBLE_DEVICES="MIG-slice")
    assert part["memory_total_mib"] == 20_096
    wsl = {"RELEASE": "5.15.153.1-microsoft-standard-WSL2"}
    (whole,) = reader.readings([("cuda:0", "")], H100, {**LAPTOP}, CUDA_VISIBLE_DEVICES="GPU-lap", **wsl)
    assert (whole["temperature_c"], whole["spills_to_host"]) == (87, 1)
