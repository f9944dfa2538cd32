"""What the preflight detects: wrong sums and values, full disks, closed ports, clocks, hot GPUs; and its table."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from modules.config import DataError, TrainConfig
from modules.data.index.build import build_index
from modules.distributed.startup.member import Member
from modules.files.addresses import VARIABLE, copy_of
from modules.preflight import all_reduce, clocks, disk, gpus, images, loader, pairs, ports, speed
from modules.preflight.coordinator import Context, Coordinator, run_task
from modules.run.preflight_report.report import Cell, PreflightReport
from tests import points
from tests.conftest import draw_images
from tests.runs import tiny_config

ALPHA, BETA = Member(0, 0, "alpha", 100, 0, 1), Member(1, 0, "beta", 200, 1, 1)
GPU = {"index": 0, "memory_mib": 81_920, "free_mib": 80_000, "temperature_c": 40, "slowdown_reasons": []}


def context(folder: Path) -> Context:
    config = TrainConfig(runs_dir=str(folder / "runs"), cache_dir=str(folder / "cache"))
    cpu = torch.device("cpu")
    return Context(
        own=ALPHA,
        everyone=(ALPHA, BETA),
        group=None,
        device=cpu,
        backend="gloo",
        master=("127.0.0.1", 1),
        config=config,
        has_config=False,
        thorough=False,
        timeout_s=6,
    )


def test_a_single_wrong_value_of_a_sum_is_found() -> None:
    world = 5
    total = torch.stack([all_reduce.test_pattern(rank, 10_000) for rank in range(world)]).sum(dim=0)
    assert all_reduce.first_wrong(total, world) == ""
    total[1234] += 1
    assert all_reduce.first_wrong(total, world) == "1 of 10000 values; value 1234 is 1166 instead of 1165"
    (cell,) = all_reduce.judge({0: {"seconds": 1, "wrong": ""}, 3: {"wrong": "1 of 10000 values"}}, 4096)
    assert (cell.where, cell.colour, cell.value) == ("rank 3", "red", "wrong sum of 4 KiB: 1 of 10000 values")
    assert "do not train with this" in cell.advice


def test_the_worse_side_of_a_pair_counts() -> None:
    good = {"latency_ms": 0.1, "mb_s": 900.0, "wrong": ""}
    assert pairs.judge({0: good, 1: {**good, "mb_s": 500.0}}) == {"error": "", "latency_ms": 0.1, "mb_s": 500.0}
    assert (
        pairs.judge({0: good, 1: {**good, "wrong": "3 of 8 values"}})["error"]
        == "wrong values at rank 1: 3 of 8 values"
    )
    assert pairs.judge({0: {"error": "timed out"}, 1: good})["error"] == "timed out"


@pytest.mark.parametrize(("place", "said"), [(None, ""), (7, "1 of 256 values")])
def test_a_value_corrupted_by_a_link_is_found(monkeypatch: pytest.MonkeyPatch, place: int | None, said: str) -> None:
    def turn(sent: torch.Tensor, got: torch.Tensor) -> None:
        """The link to rank 1, which a test cannot really break."""
        if len(got) > 1:
            got.copy_(all_reduce.test_pattern(1, len(got)))
            if place is not None:
                got[place] += 1

    monkeypatch.setattr(pairs, "_alternate", lambda first, other, limit: turn)
    assert pairs.exchange(context(Path()), 0, 1, 1024)["wrong"] == said


def test_a_broken_pair_is_red_and_the_others_green() -> None:
    everyone = (ALPHA, BETA, replace(BETA, rank=2))
    good: dict[str, object] = {"error": "", "latency_ms": 0.1, "mb_s": 900.0}
    red, green = pairs.pair_cells({(0, 1): {"error": "timed out"}, (0, 2): good, (1, 2): good}, everyone)
    assert (red.where, red.colour, red.value) == ("ranks 0, 1", "red", "alpha - beta: timed out")
    assert (green.where, green.colour) == ("2 pairs", "green")
    (slow,) = pairs.pair_cells({(0, 1): {**good, "mb_s": 12.0}}, everyone)
    assert (slow.colour, "33 s per step" in slow.advice) == ("yellow", True)


def test_matrices_are_aligned_and_show_gaps() -> None:
    found: dict[tuple[int, int], dict[str, object]] = {
        (0, 1): {"error": "", "latency_ms": 0.123, "mb_s": 1234.5},
        (0, 2): {"error": "timed out"},
    }
    _, (_, rows) = pairs.matrices(found, (ALPHA, BETA, replace(BETA, rank=2)))
    assert rows == (
        "         0     1     2",
        "0 alpha  .     1234  -",
        "1 beta   1234  .     -",
        "2 beta   -     -     .",
    )


@pytest.mark.parametrize(
    ("apart_s", "colour", "said"),
    [
        (0.3, "green", "same as on alpha (within 0.3 s)"),
        (-7.0, "yellow", "7 s behind alpha"),
        (90.0, "red", "90 s ahead of alpha"),
    ],
)
def test_clocks(apart_s: float, colour: str, said: str) -> None:
    cell = clocks.judge("beta", "alpha", 0.01, apart_s)
    assert (cell.where, cell.colour, cell.value) == ("beta", colour, said)


def test_a_slow_answer_is_not_a_wrong_clock() -> None:
    assert clocks.judge("beta", "alpha", 5.0, 4.0).colour == "green"


def test_disk(tmp_path: Path) -> None:
    answer = run_task(
        {"probe_disk": disk.probe_disk}, context(tmp_path), "probe_disk", {"setting": "runs_dir", "size": 1 << 20}
    )
    assert answer["folder"] == str(tmp_path)  # nothing is created or left behind
    assert float(str(answer["mb_s"])) > 0
    assert list(tmp_path.iterdir()) == []
    assert disk.judge("runs_dir", "alpha", {**answer, "free_mib": 50_000, "mb_s": 200.0}).colour == "green"
    assert disk.judge("runs_dir", "alpha", {**answer, "free_mib": 5_000}).colour == "yellow"
    assert disk.judge("runs_dir", "alpha", {**answer, "free_mib": 500}).colour == "red"
    slow = disk.judge("cache_dir", "alpha", {**answer, "free_mib": 50_000, "mb_s": 5.0})
    assert (slow.colour, "takes 33 min. Move cache_dir" in slow.advice) == ("yellow", True)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small disk needs root on Linux")
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_is_red_with_advice(full_disk: Path) -> None:
    answer = run_task(
        {"probe_disk": disk.probe_disk}, context(full_disk), "probe_disk", {"setting": "cache_dir", "size": 16 << 20}
    )
    cell = disk.judge("cache_dir", "beta", answer)
    assert (cell.check, cell.where, cell.colour) == ("disk cache_dir", "beta", "red")
    assert "No space left on device" in cell.value
    assert cell.advice.startswith("Free space on that disk")
    assert list(full_disk.iterdir()) == []


def test_ports() -> None:
    here = context(Path())
    listening = ports.listen(here)
    numbers = listening["ports"]
    assert isinstance(numbers, list)
    assert set(ports.connect(here, "127.0.0.1", numbers, greeted=True).values()) == {""}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        number = silent.getsockname()[1]
        said = ports.connect(here, "127.0.0.1", [number], greeted=True)
        assert said == {str(number): "no answer within 1 s"}
    said = ports.connect(here, "127.0.0.1", [number], greeted=True)
    (cell,) = ports._judge(said, "alpha to beta", "127.0.0.1", "port")
    assert (cell.where, cell.colour) == ("alpha to beta", "red")
    assert cell.value == f"port 127.0.0.1:{number}: Connection refused"
    assert "firewall" in cell.advice


@pytest.mark.parametrize(
    ("state", "colour", "said"),
    [
        ({}, "green", "1 x A100, 78.1 GiB free or more"),
        ({"free_mib": 10_240}, "yellow", "only 10.0 GiB of 80.0 GiB free"),
        ({"temperature_c": 90}, "yellow", "90 °C at idle"),
        ({"slowdown_reasons": ["heat"], "temperature_c": 92}, "red", "throttled at 92 °C by heat"),
    ],
)
def test_gpus(state: dict[str, Any], colour: str, said: str) -> None:
    (cell,) = gpus.judge("alpha", {"names": ["A100"], "health": [{**GPU, **state}], "links": []})
    assert (cell.colour, cell.value) == (colour, said)


def test_gpus_without_peer_access() -> None:
    link = {"first": 0, "second": 1, "label": "SYS", "peer_access": False}
    (cell,) = gpus.judge("alpha", {"names": ["A", "A"], "health": [GPU], "links": [link]})
    assert (cell.colour, cell.value) == ("yellow", "no peer access between 0 and 1")


def test_a_rank_says_how_fast_it_computes(tmp_path: Path) -> None:
    assert 0 < cast(float, speed.measure_speed(context(tmp_path))["tflops"]) < 100  # of a CPU


@pytest.mark.parametrize(
    ("settings", "beta", "colour", "advice"),
    [
        ({}, 95.0, "green", ""),
        (
            {"global_batch_size": 24},
            50.0,
            "yellow",
            "balance: auto the ranks would take 16 + 8 of 24 samples, about 1.5 x",
        ),
        ({"global_batch_size": 2}, 50.0, "yellow", "A step of 2 samples cannot be shared better than equally"),
        ({"global_batch_size": 24, "balance": "auto"}, 50.0, "yellow", "With balance: auto the ranks take 16 + 8"),
        ({"global_batch_size": 24, "balance": [1, 2]}, 50.0, "yellow", "8 + 16 of 24 samples, about 0.8 x"),
        ({"global_batch_size": 24, "sync_batch_norm": True}, 50.0, "yellow", "With balance: [2, 1] the ranks"),
    ],
)
def test_unequal_gpus_are_told_what_balance_gains(
    settings: dict[str, Any], beta: float, colour: str, advice: str
) -> None:
    config = TrainConfig.model_validate({"precision": "bf16", **settings})
    cell = speed.judge(config, {ALPHA: 100.0, BETA: beta}, is_cpu=False)
    assert (cell.colour, advice in cell.advice) == (colour, True), cell.advice
    if colour == "yellow":
        assert (cell.where, cell.value) == ("rank 1 on beta", "50 TFLOP/s in bf16; rank 0 on alpha 100 TFLOP/s")


def test_a_speed_that_no_device_has_is_refused() -> None:
    for said in (0.0, -1.0, float("nan"), float("inf"), "fast"):
        with pytest.raises(ValueError, match=r"TFLOP/s|could not convert"):
            speed._speed({"tflops": said})


def test_an_error_of_a_task_is_an_answer() -> None:
    def broken(context: Context) -> dict[str, object]:
        raise RuntimeError("[enforce fail at x.cc]\nstack")

    assert run_task({"broken": broken}, context(Path()), "broken", {}) == {"error": "[enforce fail at x.cc]"}


REPORT = PreflightReport(
    "Preflight of 2 processes",
    (
        Cell("group", "all", "green", "formed"),
        Cell("ports", "alpha to beta", "red", "port 10.0.0.2:4711: no answer within 5 s", "Open all TCP ports. " * 4),
        Cell("pairs", "1 pair", "yellow", "slow", "Use another network."),
    ),
    (("Speed", ("0  1", "1  0")),),
)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_fits_and_ends_with_the_verdict(width: int) -> None:
    lines = REPORT.lines(width)
    assert all(len(line) <= width for line in lines)
    assert lines[2].split() == ["check", "where", "result"]
    assert lines[3] == "group  all            ok    formed"
    assert lines[4].startswith("ports  alpha to beta  RED   port 10.0.0.2:4711")
    assert any(line.strip().startswith("-> Open all TCP ports.") for line in lines)
    assert lines[-1] == "NOT ready: ports (alpha to beta)."
    assert "  1  0" in lines


def test_verdicts() -> None:
    assert (REPORT.exit_code, len(REPORT.reds)) == (3, 1)
    well = replace(REPORT, cells=(REPORT.cells[0], REPORT.cells[2]))
    assert (well.exit_code, well.verdict) == (0, "Ready to train (1 note).")


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    REPORT.save(tmp_path / "a.json")
    assert PreflightReport.parse((tmp_path / "a.json").read_text()) == REPORT
    with pytest.raises(ValueError, match="colour"):
        PreflightReport.parse((tmp_path / "a.json").read_text().replace('"red"', '"purple"'))


def test_gpus_of_a_host_are_those_that_any_of_its_ranks_sees() -> None:
    """Under Slurm each task may see one GPU, which is number 0 for it."""
    state = {"memory_mib": 80_000, "free_mib": 79_000, "temperature_c": 40, "slowdown_reasons": []}
    seen: list[dict[str, object]] = [
        {"device": "A100", "names": ["A100"], "ids": [key], "health": [{**state, "index": index}], "links": []}
        for index, key in enumerate(("GPU-a", "GPU-b", "GPU-b"))
    ]
    seen[1]["health"] = [{**state, "index": 1, "temperature_c": 95}]
    merged = gpus.merge(seen)
    assert merged["names"] == ["A100", "A100"]
    assert [(cell.where, cell.value) for cell in gpus.judge("alpha", merged)] == [("alpha GPU 1", "95 °C at idle")]
    assert [cell.value for cell in gpus.judge("alpha", gpus.merge(seen[:1] * 2))] == ["1 x A100, 77.1 GiB free or more"]
    assert gpus.merge([seen[0], {"error": "lost"}]) == {"error": "lost"}
    assert gpus.merge([{**each, "health": []} for each in seen])["names"] == ["A100", "A100"]


@pytest.mark.parametrize("label", ["{}.cls", "metadata.csv"])
def test_the_classes_of_a_classifier_are_copied_with_its_images(label: str, tmp_path: Path) -> None:
    """Else they would be those of its folders, which are others in the copy."""
    names = [f"{number:02}" for number in range(8)]
    (tmp_path / "images").mkdir()
    draw_images(tmp_path / "images", len(names))
    for name in names:
        (tmp_path / "images" / f"{name}.txt").unlink()
        (tmp_path / "images" / label.format(name)).write_text(f"class {int(name) % 2}")
    if label == "metadata.csv":
        rows = [f"{name}.png,class {int(name) % 2}" for name in names]
        (tmp_path / "images" / label).write_text("\n".join(["file_name,label", *rows]))
    config = tiny_config(tmp_path / "images", tmp_path, family="classifier", loader_workers=0)
    (tmp_path / "copy").mkdir()
    config = loader._small_config(config, tmp_path / "copy", learns_classes=True)
    index = build_index(config, 0, 64, tmp_path / "copy")
    assert {index.captions(row)[0] for row in range(len(index))} == {"class 0", "class 1"}


def test_an_address_is_measured_in_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "copies"))
    config = tiny_config(tmp_path, tmp_path, concepts=[{"path": "s3://b/cats"}])
    (tmp_path / "small").mkdir()
    with pytest.raises(DataError, match="'s3://b/cats' is not downloaded yet"):
        loader._small_config(config, tmp_path / "small", learns_classes=False)
    copy = Path(copy_of("s3://b/cats"))
    copy.mkdir(parents=True)
    draw_images(copy, 4)
    config = loader._small_config(config, tmp_path / "small", learns_classes=False)
    assert len(build_index(config, 0, 64, tmp_path / "small")) == 4


def test_data_of_ones_own_is_loaded_without_images(tmp_path: Path) -> None:
    settings = {"family": points.__file__, "runs_dir": str(tmp_path), "cache_dir": str(tmp_path), "loader_workers": 0}
    own = replace(context(tmp_path), config=TrainConfig.model_validate(settings), has_config=True, timeout_s=0.6)
    answer = loader.measure_loader(own)
    assert float(str(answer["loaded_per_s"])) > 0
    assert answer["encoded_per_s"] == 0
    coordinator = cast(Coordinator, SimpleNamespace(context=own, first_ranks=[ALPHA]))
    assert [cell.colour for cell in images.check(coordinator)] == ["grey"]
