"""Measures the steps of a run for the benchmark: the real loop on the real data, without anything that follows it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import psutil
import torch

from modules.files import FileFault
from modules.monitoring import RankStepTimes, Report, StepRecord
from modules.monitoring.device_log import Reading
from modules.run.benchmark.records import RESULT, BenchmarkRequest, Measured
from modules.training.loop.generic_trainer import GenericTrainer
from modules.training.memory.meter import peak_of_process
from modules.training.state.requests import Outcome
from modules.training.step.phases import PHASES

MEASURED = Outcome("measured", 0)
MIB = 1 << 20


def measure_steps(trainer: GenericTrainer, request: BenchmarkRequest) -> Outcome:
    """Train the steps of the config, and write what the last `request.steps` took; called by all ranks.

    Nothing is saved, drawn or validated. Raises TandemError as a run does.
    """
    recorder = StepRecorder(trainer.report, request)
    trainer.report = cast("Report", recorder)
    try:
        trainer.setup()
        outcome = trainer.train()
        trainer.sync.settle({})
    finally:
        if hasattr(trainer, "components"):
            trainer.components.close()
    trainer.report = recorder.report
    if not outcome.is_complete:  # somebody has stopped it
        trainer.requests.clear_stop()
        trainer.report.finished(outcome.reason, outcome.exit_code)
        return outcome
    own = json.dumps(taken_mib(trainer.ranks.device))
    memory = [float(json.loads(text)) for text in trainer.ranks.gather("memory", own)]
    devices = [row.model for row in trainer.ranks.cluster_info.rows]
    path = trainer.folder.path / RESULT
    trainer.ranks.run_on_rank0("benchmark", lambda: recorder.measured(memory, devices).save(path))
    trainer.report.finished(MEASURED.reason, MEASURED.exit_code)
    return MEASURED


def taken_mib(device: torch.device) -> float:
    """The most memory that this process has taken: of its GPU, or of the host, where that is known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / MIB
    try:
        return peak_of_process() / MIB
    except (OSError, FileFault, StopIteration):
        return float(psutil.Process().memory_info().rss) / MIB


class StepRecorder:
    """Stands in for a run's report and keeps the times of its steps; passes on all but the lines about them."""

    def __init__(self, report: Report, request: BenchmarkRequest) -> None:
        self.report = report
        self._request = request
        self._seconds: list[float] = []
        self._samples: list[int] = []  # seen after each step
        self._of_ranks: list[tuple[int, Sequence[RankStepTimes]]] = []  # steps, and medians over them

    def __getattr__(self, name: str) -> object:
        return getattr(self.report, name)

    def step(self, record: StepRecord, *, shown: bool) -> None:
        """Keep the time of a step."""
        self._seconds.append(record.seconds)
        self._samples.append(record.samples_seen)
        self.report.step(record, shown=shown)

    def ranks(self, times: Sequence[RankStepTimes], readings: Callable[[], Mapping[int, Reading]], steps: int) -> None:
        """Keep the times of all ranks, once the first steps are over."""
        if len(self._seconds) > self._request.warm_up:
            self._of_ranks.append((steps, times))

    def measured(self, memory_mib: list[float], devices: list[str]) -> Measured:
        """The steps after the warm-up; on rank 0, to which alone steps are reported."""
        first = min(self._request.warm_up, len(self._seconds) - 1)
        seconds = self._seconds[first:]
        deciles = statistics.quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else seconds
        rows = [(steps, row) for steps, times in self._of_ranks for row in times]
        weight = sum(steps for steps, _ in rows) or 1
        phases: dict[str, float] = {
            name: sum(steps * getattr(row, f"{name}_s") for steps, row in rows) / weight for name in PHASES
        }
        counted = [row for _, row in rows if row.model_flops and row.step_s and row.peak_flops]
        per_s = [row.model_flops / row.step_s for row in counted]
        shares = [100 * row.model_flops / row.step_s / row.peak_flops for row in counted]
        return Measured(
            steps=len(seconds),
            samples=self._samples[-1] - (self._samples[first - 1] if first else 0),
            seconds=sum(seconds),
            median_s=statistics.median(seconds),
            p90_s=deciles[-1],
            phases=phases,
            memory_mib=memory_mib,
            devices=devices,
            model_tflops=statistics.fmean(per_s) / 1e12 if per_s else 0.0,
            peak_percent=statistics.fmean(shares) if shares and max(shares) <= 100 else 0.0,  # see is_peak_known
        )
