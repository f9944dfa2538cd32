"""Trains cases on the pretended GPU in one process: python -m tests.fake_cuda.run_cases [--races] CASE...

Prints a line of JSON for each, a `Result`.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import torch

from tests.fake_cuda.gpu import Card, Gpu, install
from tests.fake_cuda.watch import Watch

FIRST = 3  # the first step that is judged: before it there are the memory probe and the optimizer's first step
PEAK_SIDE = 64  # of the matrices whose product measures the peak; 4096 takes half a minute on a CPU


@dataclass
class Result:
    """What a run showed."""

    name: str
    exit_code: int | None = None  # None if its settings are refused
    message: str = ""  # of the refusal or the failure
    findings: dict[str, int] = field(default_factory=dict)  # see watch.Watch
    faults: Counter[str] = field(default_factory=Counter)  # of the steps that were judged, see `faults_of_step`
    judged_steps: int = 0
    losses: list[float] = field(default_factory=list)
    attention: Counter[str] = field(default_factory=Counter)  # calls in these steps by kernel
    devices: list[str] = field(default_factory=list)  # of the weights
    contexts: list[int] = field(default_factory=list)  # the devices that the process has used
    backups: str = ""  # a digest of the tensors in all of them
    seconds: float = 0.0  # of the processor

    def __post_init__(self) -> None:
        self.faults, self.attention = Counter(self.faults), Counter(self.attention)  # which JSON makes dictionaries

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return self.exit_code == 0 and not self.findings and not self.faults

    def summary(self) -> str:
        """A line, and one more for each thing that is wrong."""
        if self.exit_code is None:
            return f"refused  {self.name}: {self.message}"
        wrong = [f"{count:5d}  {text}" for text, count in (*self.findings.items(), *self.faults.items())]
        said = f": {self.message[-2000:]}" if self.exit_code else ""
        verdict = "clean" if self.is_clean else "FAULTS"
        return "\n".join((f"{verdict:8} {self.name} ({self.judged_steps} steps, {self.seconds:.1f} s){said}", *wrong))


def faults_of_step(watch: Watch, operators: int) -> Counter[str]:
    """What no step of `operators` operators should do: to keep the device busy, the host waits only for what was
    issued a step before, once at each place; it copies nothing that is not pinned, and every random number has a seed
    of its own."""
    faults = Counter(
        f"waits for the newest work: {wait.kind}, {wait.line}" for wait in watch.waits if 2 * wait.behind < operators
    )
    older = Counter(f"{wait.kind}, {wait.line}" for wait in watch.waits if 2 * wait.behind >= operators)
    faults.update({f"waits more than once: {place}": count - 1 for place, count in older.items() if count > 1})
    faults.update({f"copies pageable memory: {text}": count for text, count in watch.pageable.items()})
    faults.update({f"draws from the default generator: {text}": count for text, count in watch.draws.items()})
    return faults


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, whatever the runs do."""
    parser = argparse.ArgumentParser(description="Train cases on the pretended GPU; a line of JSON for each.")
    parser.add_argument("cases", nargs="+", help="such as 'flux lora int8'")
    parser.add_argument("--races", action="store_true", help="look for data races, too, which takes time")
    given = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    gpu = install(Card(races=given.races))
    results = sys.stdout
    with tempfile.TemporaryDirectory(prefix="fake-cuda-") as folder:
        for name in given.cases:
            with redirect_stdout(sys.stderr):
                result = run_case(name, Path(folder), gpu)
            print(json.dumps(vars(result)), file=results, flush=True)
    return 0


def run_case(name: str, place: Path, gpu: Gpu) -> Result:
    """Train it; `place` is shared by the cases of a process."""
    from modules.config import TandemError, trusted_code
    from modules.run.exit_codes import BAD_CONFIG
    from tests.fake_cuda.cases import Case
    from tests.runs import tiny_config, train_alone

    torch.set_num_threads(1)
    os.environ[trusted_code.VARIABLE] = "any"  # the family files of the tests
    result = Result(name)
    gc.collect()  # pinned memory of the run before is released by a wait, which is none of this run's
    started = time.process_time()
    gpu.watch.findings.clear()
    case = Case.named(name)
    try:
        runs = tempfile.mkdtemp(prefix="runs-", dir=place)
        config = tiny_config(place / "images", place, **case.settings(place), runs_dir=runs)
    except (TandemError, ValueError) as error:
        result.message = str(error)
        return result
    with recorded_steps(gpu, result):
        try:
            result.exit_code, run = train_alone(config)
        except TandemError as error:
            result.message = str(error)
            return result
        except Exception:  # noqa: BLE001  # the other cases go on
            result.exit_code, result.message = 1, traceback.format_exc()
            return result
    gpu.queue.complete()
    result.message = run.failure(0)
    if result.exit_code == BAD_CONFIG:
        result.exit_code = None
        return result
    result.losses = run.losses
    result.backups = digest_of(run.folder.backup_dir)
    result.findings = dict(gpu.watch.findings)
    result.contexts = sorted(gpu.contexts)
    result.seconds = time.process_time() - started
    return result


def digest_of(folder: Path) -> str:
    """Of all tensors in a folder and those within it."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@contextmanager
def recorded_steps(gpu: Gpu, result: Result) -> Iterator[None]:
    """Inside the block the steps of a run are judged, but for those in which samples or a backup are due."""
    from modules.training.loop.generic_trainer import GenericTrainer
    from modules.training.step import metrics

    watch = gpu.watch
    acted, operators = False, 0

    def run_action(self, *arguments, **named):  # type: ignore[no-untyped-def]
        nonlocal acted
        acted = True
        with watch.set_aside():
            return former_action(self, *arguments, **named)

    def after_step(self):  # type: ignore[no-untyped-def]
        nonlocal acted, operators
        done = former_step(self)
        now = sum(gpu.extension.issued().values())
        if self.progress.step >= FIRST and not acted:
            result.faults.update(faults_of_step(watch, now - operators))
            result.attention.update(watch.attention)
            result.judged_steps += 1
        result.devices = sorted({str(weight.device) for weight in self.components.family.model.parameters()})
        watch.forget()
        acted, operators = False, now
        return done

    former_action, former_step = GenericTrainer.run_action, GenericTrainer.after_step
    GenericTrainer.run_action, GenericTrainer.after_step = run_action, after_step  # type: ignore[method-assign]
    try:
        with small_peak_measurement(), patch.object(metrics, "SYNC_EVERY_S", 0.0):  # each step, however slow it is
            yield
    finally:
        GenericTrainer.run_action, GenericTrainer.after_step = former_action, former_step  # type: ignore[method-assign]


def small_peak_measurement() -> AbstractContextManager[object]:
    """Inside the block the matrices whose product measures the peak are small ones."""
    from modules.training.step import model_flops

    return patch.dict(model_flops._SIZE, cuda=PEAK_SIDE)


if __name__ == "__main__":
    sys.exit(main())
