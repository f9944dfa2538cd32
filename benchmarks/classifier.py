"""The classifier's demo against a hand-written loop: time of an epoch, waiting for the loader, and a validation.

python benchmarks/classifier.py [--rounds N] [--workers N] [--threads N] [--count N]

The trainer is the real one, with events, TensorBoard, metric syncs and clipping. After each of its epochs, the bare
loop (the same network, fused AdamW, foreach clipping) runs one over a loader of its own with the same settings, and
then once more: the ratio of these two is the noise. So a busy machine slows all of them.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch
from torch import nn

from benchmarks.side_by_side import Screen
from benchmarks.targets import Targets
from modules.config import TrainConfig, load_preset
from modules.data.loading.loader import Loader, make_loader
from modules.families.classifier import Classifier
from modules.monitoring import RunReport
from modules.run import EventLog, RunFolder
from modules.training.actions import evaluate
from modules.training.loop.generic_trainer import GenericTrainer
from modules.training.state.components import Components
from modules.training.state.requests import Outcome
from modules.training.step.phases import Phase
from modules.training.worker import control_requests, join_ranks
from scripts.make_class_data import make_class_data

SPEED, WAITING, VALIDATION = 0.97, 0.05, 1.05  # the targets
LOOPS = ("trainer", "bare", "bare again")


@dataclass
class Found:
    """Seconds of each epoch of each loop, waiting included; of waiting in each epoch; of each validation and its
    forwards."""

    epochs: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in LOOPS})
    waited: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in LOOPS})
    validations: list[tuple[float, float]] = field(default_factory=list)


def main() -> None:
    arguments = parser().parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {arguments.workers} workers")
    with tempfile.TemporaryDirectory(prefix="tandem-classifier-") as folder:
        make_class_data(Path(folder) / "classes", count=arguments.count)
        found = run(config_in(Path(folder), arguments))
    show(found)


def config_in(folder: Path, arguments: argparse.Namespace) -> TrainConfig:
    """The demo, with its images in `folder`, for a warm-up epoch and those that are measured."""
    preset = load_preset("classifier_demo")
    parts = ("train", "test")
    concepts = [
        each.model_copy(update={"path": str(folder / "classes" / part)})
        for each, part in zip(preset.concepts, parts, strict=True)
    ]
    changes = {
        "concepts": tuple(concepts),
        "cache_dir": str(folder / "cache"),
        "runs_dir": str(folder / "runs"),
        "run_name": "benchmark",
        "epochs": arguments.rounds + 1,
        "loader_workers": arguments.workers,
        "validate_every": type(preset.validate_every).never(),
        "backup_every": type(preset.backup_every).never(),
    }
    return preset.model_copy(update=changes)


def run(config: TrainConfig) -> Found:
    """One run of the trainer, with the bare loop after each of its epochs."""
    found = Found()

    class TimedTrainer(GenericTrainer):
        """The trainer as it is, timed between its epochs."""

        def setup(self) -> None:
            super().setup()
            self.others = {name: BareLoop(self.components) for name in LOOPS[1:]}
            self.waits: list[float] = []
            begin, since = self.metrics.begin, [0.0]

            def timed(phase: Phase) -> None:
                begin(phase)
                if phase == "data":
                    since[0] = time.perf_counter()
                elif since[0]:
                    self.waits.append(time.perf_counter() - since[0])
                    since[0] = 0.0

            self.metrics.begin = timed  # type: ignore[method-assign]
            self.started = time.perf_counter()

        def after_step(self) -> Outcome | None:
            outcome = super().after_step()
            if self.progress.step % self.components.data.order.steps_per_epoch == 0:
                self.note(self.progress.step // self.components.data.order.steps_per_epoch - 1)
            return outcome

        def note(self, epoch: int) -> None:
            """The end of an epoch; the first one warms up."""
            seconds = time.perf_counter() - self.started
            if epoch:
                found.epochs["trainer"].append(seconds)
                found.waited["trainer"].append(sum(self.waits))
            for name, loop in self.others.items():
                wall, waited = loop.epoch(epoch)
                if epoch:
                    found.epochs[name].append(wall)
                    found.waited[name].append(waited)
            if epoch:
                found.validations.append(self.validate())
            self.waits.clear()
            self.started = time.perf_counter()

        def validate(self) -> tuple[float, float]:
            """Seconds of a validation, and of its forwards alone with the batches in memory."""
            steps, family = self.components.data.validation, self.components.family
            batches = [batch.to(self.ranks.device) for batch in self.components.data.loader.validation(steps)]
            family.model.eval()
            forward = time.perf_counter()
            with torch.no_grad():
                for batch in batches:
                    family.evaluate(batch)
            forward = time.perf_counter() - forward
            family.model.train()
            began = time.perf_counter()
            evaluate(self.action_context(), "validation", steps)
            return time.perf_counter() - began, forward

        def finish(self, outcome: Outcome) -> None:
            for loop in self.others.values():
                loop.loader.close()

    screen, sys.stdout = sys.stdout, Screen()
    try:
        folder = RunFolder.create(config)
        report = RunReport(EventLog(folder.events_file), folder.tensorboard_dir)
        with join_ranks(config, folder, report, None, None, supervised=True) as ranks:
            TimedTrainer(config, folder, report, control_requests(config, folder, 0), ranks).run()
        report.close()
    finally:
        sys.stdout = screen
    return found


class BareLoop:
    """A hand-written loop for this network and these images."""

    def __init__(self, components: Components) -> None:
        config, data, family = components.config, components.data, components.family
        assert isinstance(family, Classifier)
        assert data.index is not None
        assert data.examples is not None
        self.model: nn.Module = copy.deepcopy(components.weights.model)
        self.mean, self.std = (torch.tensor(each).view(3, 1, 1) for each in family.normalization)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, weight_decay=0.01, fused=True)
        self.max_norm = config.max_grad_norm
        self.loader: Loader = make_loader(
            config,
            data.index,
            data.examples,
            data.order,
            family.sample_transform,
            family.validation_transform,
            family.sample_mixing,
            batch_size=config.batch_size,
        )

    def epoch(self, number: int) -> tuple[float, float]:
        """Seconds in all, and of waiting for the loader."""
        started, waited = time.perf_counter(), 0.0
        batches = self.loader.epoch(number)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - asked
            if batch is None:
                return time.perf_counter() - started, waited
            pixels, labels = batch.tensors["pixels"], batch.tensors["label"]
            logits = self.model((pixels.float() - self.mean) / self.std)
            nn.functional.cross_entropy(logits, labels).backward()
            if self.max_norm is not None:
                nn.utils.clip_grad_norm_(self.parameters, self.max_norm, foreach=True)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def show(found: Found) -> None:
    """Medians and verdicts."""
    seconds = {name: statistics.median(times) for name, times in found.epochs.items()}
    waiting = {name: sum(found.waited[name]) / sum(found.epochs[name]) for name in LOOPS}
    for name in LOOPS:
        print(f"{name:<12} {seconds[name]:7.3f} s an epoch, {100 * waiting[name]:5.1f} % of it waiting for the loader")
    ratios = [bare / own for own, bare in zip(found.epochs["trainer"], found.epochs["bare"], strict=True)]
    noise = [bare / again for bare, again in zip(found.epochs["bare"], found.epochs["bare again"], strict=True)]
    validation = statistics.median(all_of_it / forward for all_of_it, forward in found.validations)
    print(f"noise of the speed: {statistics.median(noise):.3f}")
    targets = Targets()
    targets.at_least("an epoch: bare / trainer", statistics.median(ratios), SPEED)
    targets.at_most("part of an epoch spent waiting for the loader", waiting["trainer"], WAITING)
    targets.at_most("a validation / its forwards", validation, VALIDATION)
    targets.end()


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--rounds", type=int, default=5, help="measured epochs of each loop")
    top.add_argument("--workers", type=int, default=2, help="loader workers of each loop")
    top.add_argument("--threads", type=int, default=1, help="threads of the loops")
    top.add_argument("--count", type=int, default=100, help="training images of each of the 24 classes")
    return top


if __name__ == "__main__":
    main()
