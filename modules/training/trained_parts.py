"""Which parts of a family's model are trained, and how each goes its own way in the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from modules.config import ConfigError, Interval, Part, TrainConfig, unknown_parts
from modules.data.progress import Progress
from modules.families.family import Family, changed_parts
from modules.training.calendar import has_passed

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class PartGroup:
    """The trained weights of one part: a group of the optimizer."""

    part: str  # empty: the whole model
    weights: tuple[str, ...]  # names, as in `Weights.own`
    factor: float  # on the learning rate of the run
    stop_after: Interval

    def opening(self, learning_rate: float) -> str:
        """A line for the terminal: what is the part's own; empty where there is nothing."""
        until = f", for {self.stop_after}" if self.stop_after else ""
        own = f"learning rate {learning_rate * self.factor:.3g}{until}"
        return f"{self.part}: {own}." if self.part and (until or self.factor != 1.0) else ""

    def rests(self, progress: Progress) -> bool:
        """Whether the next step leaves the part as it is: a function of the progress, so a resumed run does so, too."""
        return has_passed(self.stop_after, progress)


def check_parts(kind: type[Family], config: TrainConfig) -> None:
    """Raises ConfigError where the config names a part that the family has not."""
    for path, sentence in unknown_parts([entry.part for entry in config.parts], config.family, kind.parts):
        raise ConfigError(f"{path} {sentence}.")


def part_of(name: str, parts: Iterable[str]) -> str:
    """The part that a weight or module of the model belongs to; empty where it belongs to none."""
    head = name.partition(".")[0]
    return head if head in parts else ""


def trained_parts(family: Family, config: TrainConfig) -> tuple[str, ...]:
    """The names of the parts that are trained; ("",) for the whole model of a family without parts."""
    return names_of_trained(config, family.parts)


def names_of_trained(config: TrainConfig, parts: Sequence[str]) -> tuple[str, ...]:
    """As `trained_parts`, from the names of the family's parts."""
    if not parts:
        return ("",)
    off = {entry.part for entry in config.parts if not entry.train}  # an encoder may be told not to learn a word
    wanted = changed_parts(config, parts) - off
    return tuple(part for part in parts if part in wanted)


def freeze_others(family: Family, config: TrainConfig) -> None:
    """Only weights of trained parts can change from now on, and none that the family itself has frozen."""
    wanted = trained_parts(family, config)
    for name, weight in family.model.named_parameters():
        if part_of(name, family.parts) not in wanted:
            weight.requires_grad_(False)


def keep_frozen_small(family: Family, config: TrainConfig) -> None:
    """Frozen linear and convolution layers in the format that their part asks for; autocast computes with either."""
    wanted = {entry.part: FORMATS[entry.weights] for entry in config.parts if entry.weights in FORMATS}
    for name, module in family.model.named_modules():
        layout = wanted.get(part_of(name, family.parts))
        layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
        if layout and isinstance(module, layers) and not any(w.requires_grad for w in module.parameters()):
            module.to(layout)


def part_groups(family: Family, config: TrainConfig, names: Iterable[str]) -> list[PartGroup]:
    """A group for each part that has any of the trained weights `names`, in the family's order of parts."""
    members: dict[str, list[str]] = {part: [] for part in family.parts or ("",)}
    for name in names:
        members[part_of(name, family.parts)].append(name)
    entries = {entry.part: entry for entry in config.parts}
    return [_group(part, weights, entries.get(part), config) for part, weights in members.items() if weights]


def _group(part: str, weights: list[str], entry: Part | None, config: TrainConfig) -> PartGroup:
    if entry is None:
        return PartGroup(part, tuple(weights), 1.0, Interval.never())
    own = entry.learning_rate
    return PartGroup(part, tuple(weights), 1.0 if own is None else own / config.learning_rate, entry.stop_after)
