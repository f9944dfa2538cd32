"""Causes of slow training: each is named with its figure, once, and a healthy run has none."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from modules.monitoring import PerformanceMonitor, RankStepTimes, RunReport
from modules.monitoring.device_log import Reading
from modules.monitoring.performance_monitor import WARM_UP, WINDOW
from modules.monitoring.performance_rules import RULES, Observation
from modules.run import EventLog
from tests.runs import tiny_config, train_alone

H100: Reading = {
    "utilization_percent": 98,
    "memory_used_mib": 60_000,
    "memory_total_mib": 81_559,
    "power_w": 652.0,
    "power_limit_w": 700.0,
    "power_default_w": 700.0,
    "sm_clock_mhz": 1755,
    "sm_clock_max_mhz": 1980,
    "slowdown": "power limit",
    "process_cpu_percent": 130.0,
    "disk_read_mb_s": 0.2,
}

FULL: Reading = {"power_w": 150.0, "memory_used_mib": 80_900}  # and busy


def found(
    ranks: Sequence[RankStepTimes], readings: Mapping[int, Reading] | None = None, workers: int = 4, devices: str = ""
) -> dict[str, str]:
    """The text of each rule that finds something."""
    rows = {rank: [reading] * 5 for rank, reading in (readings or {}).items()}
    seen = Observation(ranks, workers, rows, devices.split(",") if devices else ())
    return {name: finding.text for name, rule in RULES.items() if (finding := rule(seen))}


def straggler_warning(ranks: Sequence[RankStepTimes]) -> str:
    return found(ranks).get("straggler", "")


def starvation_warning(ranks: Sequence[RankStepTimes], loader_workers: int) -> str:
    return found(ranks, workers=loader_workers).get("starvation", "")


def rank(
    number: int, own_s: float, data_s: float = 0.0, samples: float = 8, step_s: float = 1.0, sync_s: float = 0.0
) -> RankStepTimes:
    return RankStepTimes(number, "alpha" if number < 2 else "beta", step_s, data_s, own_s, samples, sync_s=sync_s)


def test_what_is_being_balanced_is_no_straggler() -> None:
    slow = [rank(0, 0.3), rank(1, 0.9)]
    assert "set balance to auto, which gives it fewer samples; or leave it out" in straggler_warning(slow)
    assert RULES["straggler"](Observation(slow, balances=True)) is None, "it is about to get fewer samples"
    finding = RULES["straggler"](Observation([rank(0, 0.3, samples=1), rank(1, 0.5, samples=1)], balances=True))
    assert finding is not None
    assert "too few samples to share them better than 1 + 1, so raise global_batch_size" in finding.text


def test_straggler_is_named_with_host_and_delay() -> None:
    text = straggler_warning([rank(0, 0.3), rank(1, 0.32), rank(2, 0.66), rank(3, 0.31)])
    assert text.startswith("Rank 2 on beta is a straggler: the others wait 0.35 s of each 1.00 s step.")
    assert "2.1 x as long" in text
    assert "device_ids" in text


def test_slow_loader_is_named_as_the_cause() -> None:
    text = straggler_warning([rank(0, 0.3), rank(1, 0.3), rank(2, 0.7, data_s=0.4)])
    assert "because its loader takes 0.40 s to deliver images" in text
    assert "disk of beta" in text


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(0, 0.3)],
        [rank(0, 0.30), rank(1, 0.36)],  # a fifth slower
        [rank(0, 0.02), rank(1, 0.05)],  # much slower in a negligible part of the step
        [rank(0, 0.001, step_s=0.01), rank(1, 0.009, step_s=0.01)],  # tiny steps
        [rank(0, 0.3, samples=2), rank(1, 0.45, samples=3)],  # it has more to do
        [rank(0, 0.0), rank(1, 0.0)],
    ],
)
def test_no_warning_for_small_delays_or_more_samples(ranks: list[RankStepTimes]) -> None:
    assert straggler_warning(ranks) == ""


def test_waiting_for_the_loader() -> None:
    ranks = [rank(0, 0.6, data_s=0.3), rank(1, 0.6, data_s=0.4)]
    text = starvation_warning(ranks, loader_workers=4)
    assert "40% of each step on rank 1 (alpha) is spent waiting for samples" in text
    assert "loader_workers=8 (now 4)" in text
    assert starvation_warning([rank(0, 0.6, data_s=0.1)], loader_workers=4) == ""
    assert starvation_warning([rank(0, 0.0, step_s=0.0)], loader_workers=4) == ""
    assert starvation_warning([rank(0, 0.005, data_s=0.005, step_s=0.01)], loader_workers=4) == ""
    assert "loader_workers=2 (now 0)" in starvation_warning(ranks, loader_workers=0)


def test_each_warning_comes_once_after_many_steps() -> None:
    monitor = PerformanceMonitor(loader_workers=2)
    step = [rank(0, 0.3, data_s=0.41), rank(1, 0.9, data_s=0.41)]
    warnings = [monitor.update(step) for _ in range(10 * WINDOW)]
    when = [number for number, texts in enumerate(warnings) if texts]
    assert when == [WARM_UP + WINDOW - 1], "within 20 steps"
    assert [text.split(" ")[0] for text in warnings[when[0]]] == ["Rank", "Training"]


def test_fast_steps_are_judged_by_seconds() -> None:
    """Of steps of 20 ms, a stall of a second is other programs' doing; what lasts is warned of."""
    healthy = [rank(0, 0.018, step_s=0.02), rank(1, 0.018, step_s=0.02)]
    stalled = [rank(0, 0.07, data_s=0.06, step_s=0.08), rank(1, 0.07, data_s=0.06, step_s=0.08)]
    monitor = PerformanceMonitor(loader_workers=2)
    for _ in range(5):
        for step in [stalled] * 12 + [healthy] * 300:
            assert monitor.update(step) == []
    syncs = [monitor.update(stalled, steps=2) for _ in range(40)]
    (when,) = (number for number, texts in enumerate(syncs) if texts)
    assert 3.0 <= when * 2 * 0.08 <= 5.0
    assert "limited by data loading" in syncs[when][0]


def test_what_a_gpu_did_between_the_steps_is_not_held_against_them() -> None:
    """Its load while images are sampled on rank 0, or cached before the first step."""
    busy = {**H100, "utilization_percent": 60, "memory_used_mib": 9000, "slowdown": ""}
    monitor, step = PerformanceMonitor(loader_workers=2), [rank(0, 0.9)]
    idle = {**busy, "utilization_percent": 0}
    for _ in range(4):
        for readings in ({0: idle}, {0: idle}, *({0: busy} for _ in range(8))):
            for _ in range(2):
                assert monitor.update(step, readings=readings) == []
        monitor.interrupt()
    small = [{0: {**busy, "utilization_percent": 30}} for _ in range(12)]
    texts = [text for readings in small for _ in range(2) for text in monitor.update(step, readings=readings)]
    assert len(texts) == 1
    assert texts[0].startswith("The batch is too small")


def test_steps_beside_a_backup_are_not_judged(tmp_path: Path) -> None:
    """Its thread takes CPUs and the disk from the loader."""
    report = RunReport(EventLog(tmp_path / "events.jsonl"), None, PerformanceMonitor(loader_workers=2))
    step = [rank(0, 0.9, data_s=0.8)]
    report.backing_up(5)
    for _ in range(3 * WINDOW):
        report.ranks(step, dict, 1)
    assert "data loading" not in (tmp_path / "events.jsonl").read_text()
    report.backing_up(None)
    for _ in range(3 * WINDOW):
        report.ranks(step, dict, 1)
    report.close()
    assert "data loading" in (tmp_path / "events.jsonl").read_text()


def test_ranks_that_wait_for_each_other_in_turns_have_no_slow_network() -> None:
    """As processes do that share their cores with others."""
    monitor = PerformanceMonitor(loader_workers=2)
    for number in range(10 * WINDOW):
        late = number % 2
        step = [rank(n, 0.9 if n == late else 0.2, sync_s=0.05 if n == late else 0.75) for n in range(2)]
        assert monitor.update(step) == []
    slow_link = [rank(n, 0.3, sync_s=0.65) for n in range(2)]
    assert [text.split(" ")[4] for _ in range(2 * WINDOW) for text in monitor.update(slow_link)] == ["communication:"]


def test_medians_count_as_the_steps_they_cover() -> None:
    monitor = PerformanceMonitor(loader_workers=2)
    step = [rank(0, 0.3, data_s=0.41), rank(1, 0.9, data_s=0.41)]
    warnings = [monitor.update(step, steps=8) for _ in range(WINDOW)]
    assert [number for number, texts in enumerate(warnings) if texts] == [4]  # the fifth sync


def test_single_slow_steps_are_ignored() -> None:
    monitor = PerformanceMonitor(loader_workers=2)
    for number in range(10 * WINDOW):
        assert monitor.update([rank(0, 0.3), rank(1, 2.0 if number % 5 == 0 else 0.3)]) == []


def test_communication_is_named_if_all_ranks_wait_and_no_straggler() -> None:
    text = found([rank(n, 0.4, sync_s=0.45) for n in range(4)])["communication"]
    assert "45% of each step" in text
    assert "gradient_accumulation_steps" in text
    assert found([rank(0, 0.3, sync_s=0.4), rank(1, 0.7, sync_s=0.0)]).keys() == {"straggler"}
    assert found([rank(0, 0.002, step_s=0.01, sync_s=0.006), rank(1, 0.002, step_s=0.01, sync_s=0.006)]) == {}


def test_mixed_gpus_and_throttled_stragglers_have_their_reason() -> None:
    ranks = [rank(0, 0.3), rank(1, 0.9)]
    text = found(ranks, devices="NVIDIA H100 on alpha,NVIDIA RTX A4000 on alpha")["mixed_gpus"]
    assert "idle for 60% of each step, waiting for rank 1 (NVIDIA RTX A4000 on alpha)" in text
    hot = {**H100, "slowdown": "power limit, temperature (driver limit)", "sm_clock_mhz": 900}
    texts = found(ranks, {0: H100, 1: hot}, devices="NVIDIA H100 on alpha,NVIDIA H100 on alpha")
    assert "held back by: power limit, temperature (driver limit)" in texts["straggler"]
    assert "runs at 45% of its clock (900 of 1980 MHz)" in texts["throttled"]


@pytest.mark.parametrize(
    ("name", "change", "figure"),
    [
        (
            "throttled",
            {"sm_clock_mhz": 1200, "power_limit_w": 500.0},
            "61% of its clock (1200 of 1980 MHz), held back by: power limit of 500 W instead of 700 W",
        ),
        ("spilling", {**FULL, "spills_to_host": 1.0}, "takes only 150 of 700 W, with 99%"),
        ("small_batch", {"utilization_percent": 31, "memory_used_mib": 9000, "slowdown": ""}, "load is 31 % on rank 0"),
    ],
)
def test_gpus(name: str, change: Reading, figure: str) -> None:
    texts = found([rank(0, 0.5), rank(1, 0.5)], {0: {**H100, **change}, 1: {**H100, **change}})
    assert texts.keys() == {name}
    assert figure in texts[name]
    if name == "throttled":
        unknown = {**H100, "sm_clock_mhz": 1200, "power_default_w": None}
        assert "power limit of 700 W. Raise" in found([rank(0, 0.5)], {0: unknown})["throttled"]
    silent = dict.fromkeys(H100)
    assert found([rank(0, 0.5)], {0: silent}) == {}, "a GPU that does not report anything"


def test_what_only_looks_like_a_fault_of_a_gpu() -> None:
    slow_by_design = {**H100, "sm_clock_mhz": 900, "sm_clock_max_mhz": 1590, "power_limit_w": 70.0, "power_w": 69.0}
    assert found([rank(0, 0.5)], {0: {**slow_by_design, "power_default_w": 70.0}}) == {}, "a T4 at its own limit"
    waiting = {**H100, **FULL, "spills_to_host": 1.0}  # NCCL's kernels wait, busily
    names = found([rank(n, 0.5, sync_s=0.4) for n in range(2)], {0: waiting, 1: waiting})
    assert names.keys() == {"communication"}
    assert found([rank(0, 0.5)], {0: {**H100, **FULL}}) == {}, (
        "Linux, whose driver spills nothing: memory-bound kernels"
    )
    devices = "NVIDIA H100 on alpha,NVIDIA RTX A4000 on alpha"
    assert "mixed_gpus" not in found([rank(0, 0.3), rank(1, 0.9, data_s=0.6)], devices=devices), "its loader"
    assert found([rank(0, 0.3, samples=2), rank(1, 0.45, samples=3)], devices=devices) == {}, "it has more to do"


def test_a_slow_disk_is_told_from_too_few_workers() -> None:
    ranks = [rank(0, 0.6, data_s=0.4)]
    disk = found(ranks, {0: {**H100, "process_cpu_percent": 60.0, "disk_read_mb_s": 8.5}})
    assert disk.keys() == {"slow_disk"}
    assert "8.5 MB/s" in disk["slow_disk"]
    assert found(ranks, {0: {**H100, "process_cpu_percent": 470.0, "disk_read_mb_s": 8.5}}).keys() == {"starvation"}


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_run_of_1000_steps_has_no_warning(seed: int) -> None:
    """Steps as 4 ranks have them: a tenth of noise, a hiccup of one rank in fifty steps, an H100 at its power limit."""
    draw = random.Random(seed)
    monitor = PerformanceMonitor(loader_workers=4)
    monitor.devices = ["NVIDIA H100 on alpha"] * 4
    for step in range(1000):
        if step % 4 == 0:
            readings = {n: {**H100, "sm_clock_mhz": draw.randint(1600, 1980)} for n in range(4)}
        own = [0.3 * draw.gauss(1, 0.1) + 0.5 * (draw.random() < 0.02) for _ in range(4)]
        step_s = max(own) + 0.2
        times = [
            rank(n, s, data_s=0.01 * draw.random(), step_s=step_s, sync_s=step_s - s - 0.15) for n, s in enumerate(own)
        ]
        assert monitor.update(times, 1, readings) == []


def test_what_is_not_clear_is_warned_of_once_it_lasts() -> None:
    monitor = PerformanceMonitor(loader_workers=2)
    healthy, waiting = [rank(0, 0.6)], [rank(0, 0.6, data_s=0.3)]  # 30 % of the step
    for _ in range(4):
        for step in [waiting] * 5 * WINDOW + [healthy] * WINDOW:
            assert monitor.update(step) == []
    texts = [text for _ in range(7 * WINDOW) for text in monitor.update(waiting)]
    assert len(texts) == 1


def test_a_real_healthy_run_has_no_warning(images: Path, tmp_path: Path) -> None:
    code, run = train_alone(tiny_config(images, tmp_path, max_steps=150))
    assert code == 0
    assert run.events("warning") == []
