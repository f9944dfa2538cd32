"""scripts/gpu_check.py: all checks with two CPU processes, cut off and resumed, and the plan without torch."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest
import torch

from modules.run import Failure, RunFolder
from modules.run.folder.failures import record_failure
from scripts import gpu_cells, gpu_check
from scripts.gpu_cells import FAILED, NO_GPU, WORKS, Cell, Layout, Workers, summary
from scripts.gpu_check_list import FIRST, OF_A_CHECK, POINTS, Check, CheckFailed, Limits, checks, matches
from scripts.gpu_modes import evaluate
from scripts.gpu_run_points import said
from tests.runs import ROOT, Run, environment, group_settings, tiny_config, train_alone

ALONE = Layout("alone", "", 1, "")
# Each way to evaluate a check, with what differs most: other tests train every mode on the CPU.
MODES = [
    *("DDP", "DDP, fp64: parity with one process", "adapters in one bucket", "fully sharded (FSDP2)"),
    *("PowerSGD", "sync_batch_norm", "mixed precision, fp16", "out of memory on one rank", "resume"),
]
# Of the points that train whole runs one is enough here: other tests try on the CPU what they try on a GPU.
REHEARSED = [
    *("NVML's GPUs are torch's", "metric copies", "gradients in buckets", "blocks in host memory"),
    *("TF32 and caching", "optimizers without waiting", "out of memory: step"),
]
QUICK = ("--only=NVML", "--only=metric copies", "--only=gradients in buckets")


def command(folder: Path, *options: str) -> list[str]:
    script = str(ROOT / "scripts" / "gpu_check.py")
    return [sys.executable, script, "--device", "cpu", "--out", str(folder), *options]


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    argv = command(folder, *options)
    return subprocess.run(argv, env=environment(), capture_output=True, text=True, check=False, timeout=850)


def recorded_cells(folder: Path) -> list[str]:
    lines = (folder / "cells.jsonl").read_text().splitlines()[1:]
    return [json.loads(line)["name"] for line in lines if line.endswith("}")]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_list_passes_with_two_cpu_processes_and_is_resumed_where_it_was_cut_off(tmp_path: Path) -> None:
    names = [*MODES, *REHEARSED]
    only = [f"--only={name}" for name in names]
    first = subprocess.Popen(command(tmp_path, *only), env=environment(), stdout=subprocess.DEVNULL)
    while not (tmp_path / "cells.jsonl").exists() or REHEARSED[0] not in recorded_cells(tmp_path):
        assert first.poll() is None
        time.sleep(0.05)
    workers = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.wait()
    assert len(workers) >= 3, "the pair, and one alone"
    assert psutil.wait_procs(workers, timeout=100)[1] == []
    before = (tmp_path / "cells.jsonl").read_text()
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write('{"layout": "alo')  # it might have been killed here

    done = run(tmp_path, "--resume", *only)
    assert done.returncode == WORKS, done.stdout + done.stderr
    assert (tmp_path / "cells.jsonl").read_text().startswith(before)
    table = (tmp_path / "table.md").read_text()
    assert table.startswith("# GPU check\n\nCPU, torch ")
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert [row.split("|")[1].strip() for row in rows[1:]] == names == recorded_cells(tmp_path)
    assert set(REHEARSED) <= set(POINTS)
    left_out = [row for row in rows if "not on the CPU" in row]
    assert left_out == [row for row in rows if "sync_batch_norm" in row or "NVML" in row]
    assert f"All {len(rows) - 3} checks passed. 2 cannot run on the CPU." in done.stdout
    assert " parameters in 2 processes" not in done.stdout
    assert " parameters in 2 processes" in (tmp_path / "log.txt").read_text()


@pytest.mark.slow
def test_another_machine_starts_anew_and_without_time_nothing_is_tried(tmp_path: Path) -> None:
    cell = {"layout": "alone", "name": "metric copies", "outcome": "quick", "seconds": 1}
    (tmp_path / "cells.jsonl").write_text(f"{json.dumps({'machine': 'an abacus'})}\n{json.dumps(cell)}\n")
    done = run(tmp_path, "--resume", "--minutes=0.01", *QUICK)
    assert done.returncode == WORKS
    assert "is of another machine or other versions, an abacus" in done.stdout
    assert "All 0 checks passed. For 3 there was no time" in done.stdout
    assert "quick" not in (tmp_path / "table.md").read_text()


@pytest.mark.slow
def test_wheels_come_before_what_is_installed_and_must_fit(tmp_path: Path) -> None:
    name = "peft-99.0.dist-info"
    with zipfile.ZipFile(tmp_path / "peft-99.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/METADATA", "Metadata-Version: 2.1\nName: peft\nVersion: 99.0\n")
        wheel.writestr(f"{name}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}/RECORD", "")
    done = run(tmp_path / "out", "--wheels", str(tmp_path), "--minutes=0.01", *QUICK)
    assert done.returncode == WORKS, done.stdout + done.stderr
    assert ", peft 99.0, " in done.stdout
    (tmp_path / "peft-99.0-py3-none-any.whl").rename(tmp_path / "peft-99.0-cp27-none-any.whl")
    done = run(tmp_path / "out", "--wheels", str(tmp_path), *QUICK)
    assert done.returncode == NO_GPU
    assert "peft-99.0-cp27-none-any.whl is not a supported wheel" in done.stderr


@pytest.mark.slow
def test_a_point_that_fails_hangs_or_dies_says_so_and_the_next_one_is_tried(tmp_path: Path) -> None:
    def cell(function: str, limit_s: float = 60) -> Cell:
        return Cell(ALONE, f"{function} {limit_s}", f"tests.scripts.gpu_points:{function}", {}, Limits(0, limit_s))

    with Workers("cpu", tmp_path, tmp_path / "log.txt") as workers:
        assert workers.outcome(cell("works"), left_s=600) == "on cpu"
        assert workers.outcome(cell("fails"), left_s=600) == "FAILED: ValueError: on purpose"
        assert workers.outcome(cell("hangs"), left_s=2) is None
        named = str(tmp_path / "alone" / "hangs-60")
        left = [each for each in psutil.process_iter(["cmdline"]) if named in (each.info["cmdline"] or [])]
        assert psutil.wait_procs(left, timeout=100)[1] == []
        assert workers.outcome(cell("works", 61), left_s=600) == "on cpu"
        assert workers.outcome(cell("hangs", 0.5), left_s=600) == "FAILED: no result within 0.5 s"
        assert workers.outcome(cell("dies"), left_s=600) == "FAILED: its processes ended with the exit codes [7]"
    assert "on purpose" in (tmp_path / "log.txt").read_text()


def test_the_plan_needs_no_torch_and_names_the_locked_wheels() -> None:
    code = (
        "import sys; sys.modules.update(torch=None, pydantic=None); import scripts.gpu_check as c; c.main(sys.argv[1:])"
    )
    argv = [sys.executable, "-c", code, "--plan", "3.13"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--python-version 3.13 " in done.stdout
    wheels = {word for word in done.stdout.split() if "==" in word}
    assert len(wheels) == 11
    assert wheels <= set((ROOT / "requirements.lock").read_text().splitlines())


def test_without_a_gpu_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_cells, "visible_gpus", list)
    assert gpu_check.main(["--out", str(tmp_path)]) == NO_GPU
    assert "There is no CUDA GPU that torch can use here." in capsys.readouterr().out


def test_one_failed_check_is_the_verdict() -> None:
    ddp, resume = (Cell(ALONE, name, "", {}, OF_A_CHECK) for name in ("DDP", "resume"))
    text, code = summary({ddp: "differs by 1e-07", resume: "FAILED: it differs"})
    assert code == FAILED
    assert text.splitlines()[-1] == "1 of 2 checks FAILED."
    assert "| resume | FAILED: it differs |" in text


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_every_check_has_valid_settings(ranks: int, images: Path, tmp_path: Path) -> None:
    for check in checks(ranks):
        for settings in check.jobs.values():
            tiny_config(images, tmp_path, **{**group_settings(ranks), **settings})


def test_every_point_exists() -> None:
    for point in (*FIRST.values(), *POINTS.values()):
        module, _, name = point.function.partition(":")
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
        assert f"\ndef {name}(device: torch.device, place: Path) -> str:" in source


def test_the_recorded_reason_is_in_the_table(images: Path, tmp_path: Path) -> None:
    one = Run(train_alone(tiny_config(images, tmp_path, max_steps=1))[1].folder)
    for rank, code in enumerate((1, 1)):
        (one.folder.log_dir / f"exit-{rank}").write_text(str(code))
    record_failure(
        one.folder, Failure.from_exception(ValueError("no such kernel"), rank=0, traceback="", training=True)
    )
    check = Check("DDP", {"run": {}}, matches("plain", 1e-3))
    with pytest.raises(CheckFailed, match="ValueError: no such kernel"):
        evaluate(check, {"run": one}, {}, 2, torch.device("cpu"))


def test_a_point_without_its_warning_fails(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="no warning of 'Out of memory'"):
        said(Run(RunFolder(tmp_path)), "Out of memory")


def test_a_run_that_differs_too_much_fails(images: Path, tmp_path: Path) -> None:
    _, one = train_alone(tiny_config(images, tmp_path, max_steps=2))
    _, other = train_alone(tiny_config(images, tmp_path, run_name="other", max_steps=2, learning_rate=0.02))
    assert matches("plain", 1e-9)({"run": one}, {"plain": one}) == "differs by 0e+00"
    with pytest.raises(CheckFailed, match="differs from one process by"):
        matches("plain", 1e-9)({"run": other}, {"plain": one})
