"""scripts/benchmark.py: the steps of a config measured, as a table, a plot and JSON, and beside another result."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from modules.config import ConfigError
from modules.machine import system_hostname
from modules.run import RunFolder
from modules.run.benchmark.plot import save_plot
from modules.run.benchmark.records import RESULT, BenchmarkRequest, BenchmarkResult, CaseResult, Measured
from modules.run.benchmark.start import case_config, cases_of, this_machine
from modules.run.benchmark.tables import compared_lines, differences, result_lines
from modules.training.loop.generic_trainer import GenericTrainer
from scripts.benchmark import main
from tests.runs import ROOT, run_command, tiny_config, train_alone, train_command

PHASES = {"data": 0.01, "forward": 0.03, "backward": 0.05, "optimizer": 0.01}


def measured(samples_per_s: float, **more: object) -> Measured:
    found = Measured(10, 100, 100 / samples_per_s, 0.1, 0.12, PHASES, [1024.0, 2048.0], ["GPU", "GPU"])
    return replace(found, **more)  # type: ignore[arg-type]


def result(*speeds: float | None) -> BenchmarkResult:
    """One, two, three ... ranks of these speeds; None has failed."""
    cases = [
        CaseResult(ranks, 4, None if speed is None else measured(speed), "" if speed else "Out of memory.")
        for ranks, speed in enumerate(speeds, start=1)
    ]
    return BenchmarkResult("my.yaml", "demo", "here", {"tandem": "1"}, cases)


def test_the_steps_of_the_real_loop_are_measured_and_nothing_is_saved(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = BenchmarkRequest(steps=6, warm_up=3)
    for name, value in request.environment().items():
        monkeypatch.setenv(name, value)
    config = case_config(tiny_config(images, tmp_path), 1, 4, request)
    code, run = train_alone(config)
    assert code == 0
    found = Measured.load(run.folder.path / RESULT)
    assert (found.steps, found.samples) == (6, 41), "the batches of 8 and 1 at the end of the first epoch, too"
    assert sum(found.phases.values()) == pytest.approx(found.seconds / 6, rel=0.5), "they add up to a step"
    assert found.median_s <= found.p90_s <= found.seconds
    assert found.memory_mib[0] > 100
    assert found.peak_percent > 0
    assert not run.folder.model_dir.exists()
    assert not list(run.folder.backup_dir.glob("step-*"))


@pytest.mark.slow
def test_phases_are_those_that_a_clock_around_the_calls_finds(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = BenchmarkRequest(steps=12, warm_up=4)
    for name, value in request.environment().items():
        monkeypatch.setenv(name, value)
    by_hand: dict[str, list[float]] = {"forward": [0.0], "backward": [0.0], "optimizer": [0.0]}  # of each step

    def timed(name: str, call: Any, seconds: float) -> Any:
        def clocked(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            found = call(*arguments, **options)
            time.sleep(seconds)  # long beside what a busy machine adds
            by_hand[name][-1] += time.perf_counter() - began
            if name == "optimizer":  # the end of a step of one or more micro-batches
                for times in by_hand.values():
                    times.append(0.0)
            return found

        return clocked

    setup, backward = GenericTrainer.setup, torch.Tensor.backward

    def timed_setup(self: GenericTrainer) -> None:
        setup(self)
        monkeypatch.setattr(self.components.family, "loss", timed("forward", self.components.family.loss, 0.06))
        step = self.components.guarded_step
        monkeypatch.setattr(step, "apply", timed("optimizer", step.apply, 0.03))

    monkeypatch.setattr(GenericTrainer, "setup", timed_setup)
    monkeypatch.setattr(torch.Tensor, "backward", timed("backward", backward, 0.09))
    config = case_config(tiny_config(images, tmp_path, batch_size=4), 1, 4, request)
    code, run = train_alone(config)
    assert code == 0
    found = Measured.load(run.folder.path / RESULT)
    for name, times in by_hand.items():
        assert found.phases[name] == pytest.approx(statistics.fmean(times[request.warm_up : -1]), rel=0.15), name


@pytest.mark.slow
def test_one_and_two_processes_and_what_is_written(images: Path, tmp_path: Path) -> None:
    config = tiny_config(images, tmp_path, global_batch_size=8)
    train_command(config, tmp_path / "c.yaml")  # writes the file
    script = [str(Path(ROOT) / "scripts" / "benchmark.py"), "--config", str(tmp_path / "c.yaml"), "--trust_code"]
    options = ["--multi_gpu", "--ranks", "1", "2", "--steps", "3", "--warm_up", "2"]
    files = ["--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "r.png")]
    done = run_command([*train_command(config, tmp_path / "c.yaml")[:1], *script, *options, *files])
    assert done.returncode == 0, done.stdout + done.stderr
    found = BenchmarkResult.load(tmp_path / "r.json")
    assert [case.key for case in found.cases] == [(1, 4, 1), (2, 4, 1)]
    assert {name for case in found.cases for name in case.machines} == {system_hostname()}
    assert [each.measured is not None and each.measured.samples for each in found.cases] == [24, 24]
    assert json.loads((tmp_path / "r.json").read_text())["cases"][0]["samples_per_s"] > 0
    assert "What a step consists of, on average:" in done.stdout
    with Image.open(tmp_path / "r.png") as picture:
        assert picture.width > 800
    assert not RunFolder(Path(config.runs_dir) / "1-4").path.exists(), "the cases ran elsewhere"


def test_a_table_shows_scaling_failures_and_phases() -> None:
    lines = result_lines(result(50.0, 90.0, None))
    assert lines[1].split()[:4] == ["1", "4", "50", "100%"]
    assert lines[2].split()[:4] == ["2", "4", "90", "90%"]
    assert "3 ranks, batch size 4: Out of memory." in lines
    assert lines[-1].split()[2:5] == ["10.0", "ms", "10%"]
    assert "50.0 ms 50%" in lines[-1]


def test_two_results_side_by_side() -> None:
    before, after = result(50.0, 90.0, 100.0), replace(result(55.0, 91.0, None), machine="there")
    lines = compared_lines(before, after)
    assert lines[1].split()[-1] == "faster"
    assert "+10.0%" in lines[1]
    assert lines[2].endswith("the same"), "1 % is noise"
    assert lines[3] == "3 ranks, batch size 4: not measured after"
    assert differences(before, after) == ["machine: here -> there"]


def test_a_row_says_on_which_machines_it_was_measured(tmp_path: Path) -> None:
    """Two ranks on two machines are another case than two on one, which no other result's is compared with."""
    alone, both = ["alpha"], ["alpha", "beta"]
    made = [CaseResult(2, 4, measured(90.0), machines=alone), CaseResult(2, 4, measured(60.0), machines=both)]
    found = BenchmarkResult("my.yaml", "demo", "here", {}, made)
    found.save(tmp_path / "r.json")
    assert BenchmarkResult.load(tmp_path / "r.json") == found
    lines = result_lines(found)
    assert [line.split()[-1] for line in lines[:2]] == ["machines", "alpha"]
    assert lines[2].endswith("  alpha, beta")
    assert lines[-1].endswith("  alpha, beta")
    before = replace(found, cases=[CaseResult(2, 4, measured(60.0))])  # of an earlier version
    assert compared_lines(before, found)[1].split()[-2:] == ["alpha", "faster"]
    assert compared_lines(before, found)[2] == "2 ranks on alpha and beta, batch size 4: not measured before"
    same = compared_lines(found, found)
    assert [line.split()[-1] for line in same] == ["machines", *["same"] * 2], "each with its like"
    assert this_machine(["beta", system_hostname()]) == f"{system_hostname()} (this machine)"


def test_a_plot_of_one_case(tmp_path: Path) -> None:
    found = replace(result(50.0), config="$x_$.yaml")  # no formula
    for dark, background in ((False, (255, 255, 255)), (True, (0x1D, 0x20, 0x26))):
        save_plot(found, tmp_path / "x.png", dark=dark)
        with Image.open(tmp_path / "x.png") as picture:
            assert picture.width > 500
            assert picture.convert("RGB").getpixel((0, 0)) == background


def test_cases_follow_from_the_config(images: Path, tmp_path: Path) -> None:
    one = tiny_config(images, tmp_path, batch_size=4)
    several = one.model_copy(update={"enable_multi_gpu": True, "world_size": 3})
    assert cases_of(one, [], []) == [(1, 4)]
    assert cases_of(several, [], [8, 2, 4]) == [(1, 4), (2, 4), (3, 4), (1, 2), (1, 8)]
    with pytest.raises(ConfigError, match="add --multi_gpu"):
        cases_of(one, [2], [])
    two = {"num_nodes": 2, "node_rank": 0, "processes_per_node": (3, 1), "world_size": None}
    machines = several.model_copy(update=two)
    assert cases_of(machines, [], []) == [(1, 4), (2, 4), (3, 4)], "of this machine"
    assert case_config(machines, 3, 4, BenchmarkRequest()).num_nodes == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--config is missing"),
        (["--config", "demo", "--json", "nowhere/x.json"], "its folder does not exist"),
        (["--compare", "a.json", "b.json"], "a.json cannot be read or written: No such file"),
    ],
)
def test_mistakes_are_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_no_result_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result(50.0).save(tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "b.json").write_text(text.replace('"seconds": 2.0', '"seconds": -1'))
    assert main(["--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "is wrong in 'cases.0.measured.seconds'" in capsys.readouterr().err
    (tmp_path / "b.json").write_text(text.replace('"seconds": 2.0', '"seconds": null'))
    assert main(["--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "is wrong in 'cases.0.measured.seconds': null is no value here" in capsys.readouterr().err
    (tmp_path / "b.json").write_text("[]")
    assert main(["--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "Nothing was compared: " in (said := capsys.readouterr().err)
    assert "b.json is wrong: it must be one JSON object, {…}. Give files that --json has written" in said
