"""Which submodules of a family's model are trained, and each one's own group in the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from modules.config import ConfigError, Interval, SubmoduleSettings, TrainConfig, unknown_submodules
from modules.data.loading.progress import Progress
from modules.families._family import Family, trained_submodules
from modules.training.step.triggers import has_passed


@dataclass(frozen=True)
class SubmoduleGroup:
    """The trained weights of one submodule, or some of them: a parameter group of the optimizer."""

    name: str  # of the submodule; empty: the whole model
    weights: tuple[str, ...]  # names, as in `Weights.local`
    learning_rate_factor: float  # relative to the run's learning rate
    stop_after: Interval
    pattern: str = ""  # of `learning_rate_factors`, if the weights are those that it selects
    has_weight_decay: bool = True  # that of the optimizer; otherwise none

    def summary(self, learning_rate: float) -> str:
        """A line for the terminal if the group has its own learning rate, end or weight decay; else empty."""
        until = f", for {self.stop_after}" if self.stop_after else ""
        decay = (
            ""
            if self.has_weight_decay
            else f", {len(self.weights)} weights (norms, biases and such) without weight decay"
        )
        differs = until or decay or self.learning_rate_factor != 1.0
        rate = f"learning rate {learning_rate * self.learning_rate_factor:.3g}{decay}{until}"
        name = ", ".join(filter(None, (self.name, repr(self.pattern) if self.pattern else ""))) or "all other weights"
        return f"{name}: {rate}." if differs else ""

    def for_optimizer(self, weights: Mapping[str, nn.Parameter]) -> dict[str, Any]:
        """The group as torch.optim takes it."""
        own = {} if self.has_weight_decay else {"weight_decay": 0.0}
        return {"params": [weights[name] for name in self.weights], **own}

    def is_frozen(self, progress: Progress) -> bool:
        """Whether the next step leaves the group as it is. A function of the progress, so a resumed run agrees."""
        return has_passed(self.stop_after, progress)


def check_submodules(family: type[Family], config: TrainConfig) -> None:
    """Raises ConfigError if the config names a submodule that the family does not have."""
    for path, sentence in unknown_submodules([entry.part for entry in config.parts], config.family, family.submodules):
        raise ConfigError(f"{path} {sentence}.")


def submodule_of(name: str, submodules: Iterable[str]) -> str:
    """The submodule that a weight or module of the model belongs to; empty if none."""
    head = name.partition(".")[0]
    return head if head in submodules else ""


def trained_names(config: TrainConfig, submodules: Sequence[str]) -> tuple[str, ...]:
    """Which of a family's `submodules` are trained; ("",), the whole model, for a family without any."""
    if not submodules:
        return ("",)
    off = {entry.part for entry in config.parts if not entry.train}  # an encoder may be excluded from an embedding
    trained = trained_submodules(config, submodules) - off
    return tuple(name for name in submodules if name in trained)


def freeze_others(family: Family, config: TrainConfig) -> None:
    """Leave only the weights of trained submodules trainable, and none that the family itself has frozen."""
    freeze_untrained(family.model, family.submodules, config)


def freeze_untrained(model: nn.Module, submodules: Sequence[str], config: TrainConfig) -> None:
    """As `freeze_others`, for a model of a family with these submodules."""
    trained = trained_names(config, submodules)
    for name, weight in model.named_parameters():
        if submodule_of(name, submodules) not in trained:
            weight.requires_grad_(False)


def submodule_groups(family: Family, config: TrainConfig, names: Iterable[str]) -> list[SubmoduleGroup]:
    """A group for each submodule that has any of the trained weights `names`, in the family's order."""
    members: dict[str, list[str]] = {submodule: [] for submodule in family.submodules or ("",)}
    for name in names:
        members[submodule_of(name, family.submodules)].append(name)
    entries = {entry.part: entry for entry in config.parts}
    return [_group(name, weights, entries.get(name), config) for name, weights in members.items() if weights]


def _group(name: str, weights: list[str], entry: SubmoduleSettings | None, config: TrainConfig) -> SubmoduleGroup:
    if entry is None:
        return SubmoduleGroup(name, tuple(weights), 1.0, Interval.never())
    factor = 1.0 if entry.learning_rate is None else entry.learning_rate / config.learning_rate
    return SubmoduleGroup(name, tuple(weights), factor, entry.stop_after)
