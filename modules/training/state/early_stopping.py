"""Ending a run that no longer improves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from modules.checkpoint import Position
from modules.config import ConfigError, TrainConfig, better_direction
from modules.distributed import RankGroup


class UnknownMetric(ConfigError):
    """early_stopping_metric names none of what a validation measures."""


LOSS = "loss"  # the metric that every family has


@dataclass
class EarlyStopping:
    """Finds the best validation, and counts those without improvement. A pure function of the metric's values."""

    patience: int | None  # validations without improvement before the run ends; None: never
    mode: Literal["min", "max", ""] = "min"  # which values are better; empty, as min: nobody asks
    min_delta: float = 0.0  # an improvement is larger than this
    best: float | None = None
    best_step: int | None = None
    wait_count: int = 0

    @classmethod
    def of(cls, config: TrainConfig) -> EarlyStopping:
        """As the config wants it, before the first validation."""
        mode = better_direction(config.early_stopping_metric, config.early_stopping_mode)
        return cls(config.early_stopping_patience, mode, config.early_stopping_min_delta)

    def update(self, value: float, step: int | None = None) -> None:
        """Take in the metric of one more validation, at `step`."""
        sign = -1.0 if self.mode == "max" else 1.0
        is_better = self.best is None or sign * value < sign * self.best - self.min_delta
        if math.isfinite(value) and is_better:
            self.best, self.best_step, self.wait_count = value, step, 0
        else:
            self.wait_count += 1

    def restore(self, position: Position, config: TrainConfig, former: Mapping[str, object]) -> bool:
        """Go on from a backup, whose config was `former`. False if that judged by another metric or mode: it starts
        anew."""
        metric = str(former.get("early_stopping_metric", "loss"))
        mode = former.get("early_stopping_mode", "auto")
        known: Literal["auto", "min", "max"] = mode if mode in ("min", "max") else "auto"
        if (metric, better_direction(metric, known)) != (config.early_stopping_metric, self.mode):
            return position.best_validation is None
        self.best, self.best_step = position.best_validation, position.best_step
        self.wait_count = position.validations_without_improvement
        return True

    @property
    def should_stop(self) -> bool:
        """True if the patience is used up."""
        return self.patience is not None and self.wait_count >= self.patience


def keeps_best(config: TrainConfig) -> bool:
    """Whether the weights of the best validation are kept."""
    return config.restore_best or config.early_stopping_patience is not None


def value_of_rank0(ranks: RankGroup, values: Mapping[str, float], metric: str) -> float:
    """Rank 0's value of the metric, on every rank, so that one of them decides for all.

    Raises UnknownMetric, on every rank, if rank 0 has no such metric.
    """
    own = values if ranks.rank == 0 else {metric: 0.0}
    missing = ranks.all_reduce(float(metric not in own))
    value = ranks.all_reduce(own.get(metric, 0.0))  # the others add zeros, which change nothing
    if missing:
        known = json.loads(ranks.gather("metrics", json.dumps(list(own)))[0])
        raise UnknownMetric(
            f"early_stopping_metric is {metric!r}, but a validation of this model measures {', '.join(known)}; use "
            f"{'one of them' if len(known) > 1 else 'it'}.",
            "The run is backed up: continue with --resume latest and --set early_stopping_metric=NAME.",
        )
    return value
