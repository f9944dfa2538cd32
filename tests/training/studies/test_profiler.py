"""`profile_steps`: a trace of each rank, the operations that take longest, and the same result."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.monitoring import SilentReport
from modules.run import RunFolder
from modules.training.studies.profiler import profiled
from tests.runs import Run, same_state, tiny_config, train_alone

pytestmark = pytest.mark.xdist_group("pair")

PAIR_JOBS: dict[str, dict[str, object]] = {"profiled": {"max_steps": 6, "profile_steps": 2}}


def trace(run: Run, rank: int) -> list[dict[str, object]]:
    with gzip.open(run.folder.path / "profile" / f"rank-{rank}.json.gz") as file:
        return list(json.load(file)["traceEvents"])


def optimizer_steps(events: list[dict[str, object]]) -> int:
    return sum(str(event.get("name", "")).startswith("Optimizer.step#") for event in events)


@pytest.mark.slow
def test_some_steps_are_traced_without_changing_any(images: Path, tmp_path: Path) -> None:
    _, plain = train_alone(tiny_config(images, tmp_path, max_steps=6))
    code, run = train_alone(tiny_config(images, tmp_path, run_name="profiled", max_steps=6, profile_steps=2))
    assert code == 0
    assert same_state(plain.state, run.state)
    events = trace(run, 0)
    assert optimizer_steps(events) == 2
    assert any(event.get("name") == "aten::convolution_backward" for event in events)
    lines = run.folder.log_file(0).read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if "Profile of 2 steps" in line)
    found = [re.search(r" (\d+\.\d\d) ms ", line) for line in lines[start + 2 : start + 12]]
    times = [float(each[1]) for each in found if each is not None]
    assert len(times) == 10, "the ten costliest operations"
    assert times == sorted(times, reverse=True)


@pytest.mark.slow
def test_a_run_that_ends_early_keeps_what_was_traced_and_one_too_short_says_so(images: Path, tmp_path: Path) -> None:
    _, run = train_alone(tiny_config(images, tmp_path, max_steps=4, profile_steps=50))
    assert optimizer_steps(trace(run, 0)) == 1
    _, short = train_alone(tiny_config(images, tmp_path, run_name="short", max_steps=2, profile_steps=50))
    assert "Nothing was profiled: the run had no more than 3 steps." in short.warnings


def test_a_profile_that_cannot_be_written_does_not_end_the_run(images: Path, tmp_path: Path) -> None:
    warnings: list[str] = []
    report: Any = SilentReport()
    report.warning = warnings.append
    (tmp_path / "profile").write_text("a file is in the way")
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    with profiled(tiny_config(images, tmp_path, profile_steps=1), RunFolder(tmp_path), 1, report):
        for _ in range(5):
            optimizer.step()
    assert len(warnings) == 1
    assert "The profile could not be written" in warnings[0]
    assert weight.tolist() == [-1.5] * 3


@pytest.mark.slow
def test_each_rank_has_its_own_trace(pair: dict[str, Run]) -> None:
    assert [optimizer_steps(trace(pair["profiled"], rank)) for rank in (0, 1)] == [2, 2]
