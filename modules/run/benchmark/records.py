"""What the benchmark of a config is asked, and what it found; as JSON for other programs and for comparisons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from modules.files import decode_json, read_text, validate_record

RESULT: Final = "benchmark.json"  # in the run folder of a case
VARIABLE: Final = "TANDEM_BENCHMARK"  # how the processes of a run are told to measure steps and to save nothing
MOST_STEPS: Final = 100_000

Positive = Annotated[int, Field(ge=1, lt=1 << 53)]
Seconds = Annotated[float, Field(ge=0, lt=1e9)]
Text = Annotated[str, Field(max_length=2000)]


@dataclass(frozen=True)
class BenchmarkRequest:
    """How many optimizer steps are measured, after how many that are not."""

    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 30
    warm_up: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 10

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> BenchmarkRequest | None:
        """The request that this process was started with, if any. Raises FileFault if it is none."""
        text = environment.get(VARIABLE)
        return None if text is None else validate_record(cls, decode_json(text))

    def environment(self) -> dict[str, str]:
        """The variable that tells a process."""
        return {VARIABLE: json.dumps(asdict(self))}


@dataclass(frozen=True)
class Measured:
    """The measured steps of one case. Times in seconds, of rank 0; phases are means over ranks and steps."""

    steps: Positive
    samples: Positive  # of all ranks in all these steps
    seconds: Seconds  # of all these steps
    median_s: Seconds  # of a step
    p90_s: Seconds  # nine of ten steps took no longer
    phases: dict[Text, Seconds]  # phase of a step -> seconds; they add up to a step
    memory_mib: list[Seconds]  # the most that each rank has taken: of its GPU as torch reserved it, or of the host
    devices: list[Text]  # of each rank
    model_tflops: Seconds = 0.0  # per second on a device, 0 if not counted
    peak_percent: Seconds = 0.0  # of the measured peak of the device

    @property
    def samples_per_s(self) -> float:
        """Of all ranks together."""
        return self.samples / self.seconds if self.seconds else 0.0

    def save(self, path: Path) -> None:
        """Write it for `load`."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Measured:
        """What `save` wrote. Raises OSError, or FileFault if it is none."""
        return validate_record(cls, decode_json(read_text(path)))


@dataclass(frozen=True)
class CaseResult:
    """One case: how many ranks and which batch of each, and what was measured, or why nothing was."""

    ranks: Positive
    batch_size: Positive
    measured: Measured | None
    failure: Text = ""
    machines: list[Text] = field(default_factory=list)  # machine 0 first; empty in files of earlier versions

    @property
    def key(self) -> tuple[int, int, int]:
        """By which cases of two benchmarks are compared: as many ranks on more machines are another case."""
        return self.ranks, self.batch_size, max(1, len(self.machines))


@dataclass(frozen=True)
class BenchmarkResult:
    """All cases of one benchmark, with what they ran on."""

    config: Text  # its file or preset
    family: Text
    machine: Text
    versions: dict[Text, Text]
    cases: list[CaseResult] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write it for `load` and for other programs, with samples_per_s of each case."""
        data = asdict(self)
        for case, written in zip(self.cases, data["cases"], strict=True):
            if case.measured is not None:
                written["samples_per_s"] = round(case.measured.samples_per_s, 4)
        path.write_text(json.dumps(data, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> BenchmarkResult:
        """What `save` wrote, by this or another machine. Raises OSError, or FileFault if it is none."""
        return validate_record(cls, decode_json(read_text(path)))
