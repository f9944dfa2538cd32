"""The samples of a run by step and prompt, and which of its validations is the best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from app.monitor.run_list import read_view
from app.monitor.samples import SampleIndex
from modules.config.sections.training import better_direction
from modules.run import RunFolder
from modules.run.view.event_records import SampleFile
from modules.run.view.run_view import RunView


@dataclass(frozen=True)
class Best:
    """The best validation, by the metric that the run's settings name."""

    step: int
    metric: str
    value: float


@dataclass(frozen=True)
class RunSamples:
    """What `read_samples` finds of a run."""

    name: str
    index: SampleIndex
    best: Best | None

    @property
    def best_step(self) -> int | None:
        """The step with samples that is nearest to the best validation."""
        best = self.best
        return None if best is None else min(self.index.steps, key=lambda step: abs(step - best.step), default=None)

    @cached_property
    def of_prompts(self) -> dict[str, list[SampleFile]]:
        """The samples of each prompt, one of each step; "prompt (2)" has the second ones of the steps with several."""
        found: dict[str, list[SampleFile]] = {}
        for prompt in self.index.prompts:
            counts = Counter[int]()
            for sample in self.index.of_prompt(prompt):
                counts[sample.step] += 1
                title = f"{prompt} ({counts[sample.step]})" if counts[sample.step] > 1 else prompt
                found.setdefault(title, []).append(sample)
        return found

    def of(self, prompt: str) -> Sequence[SampleFile]:
        """Those of one of `of_prompts`; empty if the run has none."""
        return self.of_prompts.get(prompt, ())


def read_samples(folder: RunFolder, view: RunView | None = None) -> RunSamples:
    """Read a run; without its `view`, that takes a second per 200,000 steps."""
    view = view or read_view(folder)
    index = SampleIndex()
    index.update(view, folder)
    return RunSamples(folder.name, index, best_validation(view))


def best_validation(view: RunView) -> Best | None:
    """None without a validation, or if only the user knows which values are better."""
    config = {} if view.run_info is None else view.run_info.config
    metric = str(config.get("early_stopping_metric") or "loss")
    mode = config.get("early_stopping_mode")
    direction = better_direction(metric, mode if mode in ("min", "max") else "auto")
    title = metric.replace("_", " ")
    series = view.eval_losses.get("validation") if metric == "loss" else view.eval_metrics.get(title)
    if series is None or not series.count or not direction:
        return None
    curve = series.curve()
    best = (min if direction == "min" else max)(range(len(curve)), key=lambda place: curve.means[place])
    return Best(round(curve.steps[best]), title, curve.means[best])
