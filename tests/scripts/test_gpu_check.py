"""scripts/gpu_check.py: all checks with two CPU processes, and what it prints without a GPU."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from modules.run import Failure, RunFolder
from modules.run.folder.failures import record_failure
from scripts import gpu_check
from scripts.gpu_check import FAILED, NO_GPU, WORKS, Layout, evaluate, summary
from scripts.gpu_check_list import Check, CheckFailed, checks, matches
from scripts.gpu_points import POINTS, run_point
from scripts.gpu_run_points import said
from tests.runs import ROOT, Run, environment, tiny_config, train_alone

ON_CPU = Layout("gloo, 2 CPU processes", "gloo", 2, "")
# Of the points that train whole runs one is enough here: other tests try on the CPU what they try on a GPU.
REHEARSED = [
    *("TF32 and caching", "metric copies", "gradients in buckets", "optimizers without waiting"),
    *("blocks in host memory", "NVML's GPUs are torch's", "out of memory: last backward, two ranks"),
]


def run(*options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / "scripts" / "gpu_check.py"), *options]
    return subprocess.run(argv, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=850)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_list_passes_with_two_cpu_processes(tmp_path: Path) -> None:
    table = tmp_path / "results.md"
    names = [*(check.name for check in checks(2)), *REHEARSED]
    done = run("--device", "cpu", "--markdown", str(table), *(f"--only={name}" for name in names), folder=tmp_path)
    assert done.returncode == WORKS, done.stdout + done.stderr
    assert table.read_text().startswith("# GPU check\n\nCPU, torch ")
    rows = [line for line in table.read_text().splitlines() if line.startswith("| ")]
    assert [row.split("|")[1].strip() for row in rows[1:]] == names
    assert set(REHEARSED) <= set(POINTS)
    left_out = [row for row in rows if "not on the CPU" in row]
    assert left_out == [row for row in rows if "sync_batch_norm" in row or "NVML" in row]
    assert f"All {len(rows) - 3} checks passed. 2 cannot run on the CPU." in done.stdout
    assert " parameters in 2 processes" not in done.stdout
    assert " parameters in 2 processes" in (tmp_path / "gpu_check.log").read_text()


@pytest.mark.slow
def test_a_point_that_fails_or_hangs_says_so(tmp_path: Path) -> None:
    assert run_point("metric copies", "cpu", tmp_path / "a", limit_s=0.1) == "FAILED: no result within 0 s"
    answer = run_point("metric copies", "nonsense", tmp_path / "b")
    assert answer.startswith("FAILED: ")
    assert "invalid choice: 'nonsense'" in answer
    with pytest.raises(CheckFailed, match="no warning of 'Out of memory'"):
        said(Run(RunFolder(tmp_path)), "Out of memory")


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_check, "visible_gpus", list)
    assert gpu_check.main([]) == NO_GPU
    assert "There is no CUDA GPU that torch can use here." in capsys.readouterr().out


def test_one_failed_check_is_the_verdict() -> None:
    text, code = summary({"NCCL, 1 process": {"DDP": "differs by 1e-07", "resume": "FAILED: it differs"}})
    assert code == FAILED
    assert text.splitlines()[-1] == "1 of 2 checks FAILED."
    assert "| resume | FAILED: it differs |" in text


def test_the_recorded_reason_is_in_the_table(images: Path, tmp_path: Path) -> None:
    one = Run(train_alone(tiny_config(images, tmp_path, max_steps=1))[1].folder)
    for rank, code in enumerate((1, 1)):
        (one.folder.log_dir / f"exit-{rank}").write_text(str(code))
    record_failure(
        one.folder, Failure.from_exception(ValueError("no such kernel"), rank=0, traceback="", training=True)
    )
    check = Check("DDP", {"run": {}}, matches("plain", 1e-3))
    assert evaluate(check, {"run": one}, {}, ON_CPU) == "FAILED: ValueError: no such kernel"
    assert evaluate(check, "the group broke", {}, replace(ON_CPU, visible="0")) == "FAILED: the group broke"


def test_a_run_that_differs_too_much_fails(images: Path, tmp_path: Path) -> None:
    _, one = train_alone(tiny_config(images, tmp_path, max_steps=2))
    _, other = train_alone(tiny_config(images, tmp_path, run_name="other", max_steps=2, learning_rate=0.02))
    assert matches("plain", 1e-9)({"run": one}, {"plain": one}) == "differs by 0e+00"
    with pytest.raises(CheckFailed, match="differs from one process by"):
        matches("plain", 1e-9)({"run": other}, {"plain": one})
