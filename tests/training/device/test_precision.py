"""TF32 and cuDNN's choice of algorithms: torch's own switches, per precision, and what they mean for the cache."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, cast

import pytest
import torch

from modules.config import TrainConfig
from modules.distributed import RankGroup, Weights
from modules.training.device.precision import Name, Precision, can_use_tf32
from modules.training.loop.setup import Parallelism, choose_precision
from tests.runs import ROOT

CPU, GPU = torch.device("cpu"), torch.device("cuda")

# In a process of its own, because the switches are torch's, for the whole process. They can be read without a GPU.
READ_SWITCHES = """
import json, sys, torch, warnings
from modules.config import TrainConfig
from modules.distributed import RankGroup, Weights
from modules.training.device.precision import Precision
warnings.simplefilter("ignore")  # there is no GPU for the scaler
found = []
for name, tf32, shapes, attention in json.loads(sys.argv[1]):
    precision = Precision(name, torch.device("cuda"), tf32=tf32, attention=attention)
    precision.benchmark_convolutions(shapes)
    with torch.backends.cudnn.flags(enabled=True):  # raises if torch's old and new switches disagree
        pass
    backends = torch.backends
    found.append({
        "products": backends.cuda.matmul.fp32_precision == "tf32",
        "convolutions": backends.cudnn.conv.fp32_precision == "tf32",
        "as inductor reads them": torch.get_float32_matmul_precision() != "highest",
        "as older code reads them": backends.cuda.matmul.allow_tf32 or backends.cudnn.allow_tf32,
        "benchmark": backends.cudnn.benchmark,
        "deterministic convolutions": backends.cudnn.deterministic,
        "cudnn attention": backends.cuda.cudnn_sdp_enabled(),
        "flash attention": backends.cuda.flash_sdp_enabled(),
        "memory-efficient attention": backends.cuda.mem_efficient_sdp_enabled(),
    })
print(json.dumps(found))
"""


def read_switches(cases: list[tuple[Name, bool, int, str]]) -> list[dict[str, bool]]:
    """The switches after each of (precision, TF32, number of image sizes, attention backend) in one process."""
    done = subprocess.run(
        [sys.executable, "-c", READ_SWITCHES, json.dumps(cases)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, bool]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_the_switches_of_torch_for_each_precision() -> None:
    cases: list[tuple[Name, bool, int, str]] = [
        ("fp32", False, 4, "auto"), ("bf16", True, 4, "cudnn"), ("fp32", False, 4, "auto"), ("fp16", True, 4, "math"),
        ("tf32", True, 4, "auto"), ("fp64", False, 4, "auto"), ("bf16", False, 4, "auto"), ("bf16", True, 40, "auto"),
    ]  # fmt: skip
    for (name, tf32, shapes, attention), found in zip(cases, read_switches(cases), strict=True):
        rounds, fused = name in ("bf16", "fp16", "tf32"), attention != "math"
        expected = {"benchmark": rounds and shapes == 4, "cudnn attention": attention == "cudnn"}
        expected |= {
            "deterministic convolutions": not rounds,
            "flash attention": fused,
            "memory-efficient attention": fused,
        }
        assert found == dict.fromkeys(found, tf32) | expected, (name, tf32, shapes)


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [("bf16", (8, 0), True), ("fp16", (12, 0), True), ("tf32", (8, 6), True), ("fp16", (7, 5), False),
     ("fp32", (9, 0), False), ("fp64", (9, 0), False)],
)  # fmt: skip
def test_tf32_is_used_on_gpus_that_have_it_and_never_with_fp32(
    name: Name, capability: tuple[int, int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    assert can_use_tf32(name, GPU) == expected
    assert not can_use_tf32(name, CPU)


def test_deterministic_algorithms_are_not_chosen_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    precision = Precision("bf16", CPU)
    precision.device = GPU
    torch.use_deterministic_algorithms(True)
    try:
        precision.benchmark_convolutions(1)
        assert not torch.backends.cudnn.benchmark
    finally:
        torch.use_deterministic_algorithms(False)
    precision.benchmark_convolutions(1)
    assert torch.backends.cudnn.benchmark


def test_a_cpu_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before: list[Any] = [torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark]
    Precision("bf16", CPU).benchmark_convolutions(1)
    assert [torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark] == before


class OneOfThree:
    """A rank of a group in which the ranks' GPUs differ."""

    device = GPU

    def __init__(self, answers: list[str]) -> None:
        self.answers = answers

    def gather(self, name: str, text: str) -> list[str]:
        return [text, *self.answers]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ranks_whose_gpus_differ_all_compute_without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.version, "hip", None)
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    parallelism = Parallelism(
        lambda family: Weights(family.model),
        torch.amp.GradScaler,
        equal_micro_batches=False,
        backup_writer=lambda rotation: pytest.fail("no backup is asked for"),
        gradient_ranks=2,
    )
    config = TrainConfig(precision="bf16")
    try:
        assert choose_precision(config, cast(RankGroup, OneOfThree(["True", "True"])), parallelism).tf32
        assert not choose_precision(config, cast(RankGroup, OneOfThree(["True", "False"])), parallelism).tf32
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
