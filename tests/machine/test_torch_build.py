"""A GPU that PyTorch cannot use is noticed before a run trains on the CPU.

Real processes and NVIDIA's own binding (pynvml); below it a stand-in for the driver's library.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from modules.machine.torch_build import TorchBuild, parse_build
from tests.nvml import DRIVER_NOT_LOADED, LOST, NO_PERMISSION, RTX, VERSION_MISMATCH, fake_nvml
from tests.runs import ROOT, environment

OTHER = {"name": "NVIDIA GeForce RTX 3060", "uuid": "GPU-bb", "memory_mib": 12_288}
# It shares the host's memory, which NVML does not report.
UNIFIED: dict[str, object] = {"name": "NVIDIA GB10", "uuid": "GPU-cc"}

REPORT = """
import json, sys
from dataclasses import asdict
from modules.machine import gpu_health, gpu_links, gpu_load, gpu_obstacle, installed_gpus, visible_gpus
from modules.machine.torch_build import TorchBuild
build = TorchBuild(*json.loads(sys.argv[1])) if len(sys.argv) > 1 else None
every = installed_gpus()
assert len(gpu_load(every)) == len(gpu_health(every)) == len(every)
gpu_links(every)
gpus = [[asdict(gpu) for gpu in some] for some in (visible_gpus(), every)]
print(json.dumps([*gpus, str(gpu_obstacle(build=build))]))
"""


def report(machine: dict[str, str], build: tuple[str, str | None] | None = None) -> tuple[list[Any], list[Any], str]:
    """What a process sees of a machine: the usable GPUs, all GPUs, and the obstacle ("None" without one)."""
    argv = [sys.executable, "-c", REPORT, *([] if build is None else [json.dumps(build)])]
    variables = {**environment(), **machine, "PYTHONPATH": f"{machine['PYTHONPATH']}:{ROOT}"}
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    usable, every, obstacle = json.loads(done.stdout)
    return usable, every, obstacle


def test_a_cpu_only_build_is_named_with_what_to_install() -> None:
    _, _, obstacle = report(fake_nvml(RTX), ("2.13.0", None))
    assert "NVIDIA GeForce RTX 4090 and the NVIDIA driver 560.94" in obstacle
    assert "PyTorch 2.13.0 is a CPU-only build" in obstacle
    assert "pytorch.org" in obstacle
    assert "CUDA 12.6 or the next older one" in obstacle
    assert "device=cpu" in obstacle


@pytest.mark.parametrize(
    ("cuda", "build", "first"),
    # docs.nvidia.com/deploy/cuda-compatibility: 12.x needs driver 525, 13.x driver 580; minor versions do not matter
    [(11_040, "12.6", "525"), (12_060, "13.0", "580"), (12_020, "12.9", ""), (13_000, "12.6", "")],
)
def test_a_driver_too_old_for_the_build(cuda: int, build: str, first: str) -> None:
    _, _, obstacle = report(fake_nvml(RTX, driver="1.2", cuda=cuda), ("2.13.0", build))
    if not first:
        assert obstacle == "None"
        return
    assert f"supports CUDA up to {cuda // 1000}.{cuda % 1000 // 10}" in obstacle
    assert f"is a build for CUDA {build}" in obstacle
    assert f"Update the driver to version {first} or newer" in obstacle


@pytest.mark.slow
def test_no_obstacle_without_a_gpu_that_may_be_used() -> None:
    for hidden in ("", "-1", "NoDevFiles"):
        assert report({**fake_nvml(RTX), "CUDA_VISIBLE_DEVICES": hidden})[2] == "None"
    assert report(fake_nvml())[2] == "None"
    assert report(fake_nvml(init=DRIVER_NOT_LOADED))[2] == "None"  # NVIDIA's libraries in a container without a GPU


def test_a_driver_that_does_not_answer_is_reported() -> None:
    usable, _, obstacle = report(fake_nvml(RTX, init=VERSION_MISMATCH))
    assert usable == []
    assert "mismatch" in obstacle
    assert "Restart this machine" in obstacle


def test_one_unreadable_gpu_leaves_the_others() -> None:
    lost: dict[str, object] = {**OTHER, "code": LOST}
    usable, every, obstacle = report(fake_nvml(RTX, lost, UNIFIED), ("2.13.0", "12.6"))
    assert obstacle == "None"
    assert [(gpu["index"], gpu["cuda_index"]) for gpu in usable] == [(0, None), (2, 1)]
    assert [gpu["memory_mib"] for gpu in usable] == [24_564, 0]
    assert every[1]["fault"] == "GPU is lost"
    _, _, obstacle = report(fake_nvml(lost), ("2.13.0", "12.6"))
    assert "can read none of this machine's GPUs: GPU is lost" in obstacle


def test_gpus_of_other_jobs_are_not_there() -> None:
    hidden = {**OTHER, "code": NO_PERMISSION}
    usable, every, _ = report({**fake_nvml(hidden, RTX), "CUDA_VISIBLE_DEVICES": "0"})
    assert [(gpu["index"], gpu["uuid"], gpu["cuda_index"]) for gpu in usable] == [(1, "GPU-aa", 0)]
    assert len(every) == 1


def test_version_files() -> None:
    # as torch's wheels for the CPU (Windows, without a suffix), for CUDA and for ROCm have them
    cpu = "from typing import Optional\n__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip = None\n"
    assert parse_build(cpu) == TorchBuild("2.13.0+cpu", None)
    assert parse_build("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\n") == TorchBuild(
        "2.13.0+cu130", "13.0"
    )
    rocm = "__version__ = '2.13.0'\ncuda = None\nhip = '7.0.51831'\n"
    assert parse_build(rocm) == TorchBuild("2.13.0", None, is_for_other_gpus=True)
