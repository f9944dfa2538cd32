"""Suggestions for misspelt or outdated names of settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from modules.config.aliases import ALIASES, FORMER_NAMES
from modules.config.options import Option, generalise, options
from modules.config.section import Section

_LONGEST_NAME = 64  # comparing names takes the square of their length
# Classes of torch that Tandem has no setting of its own for, and that can train with it.
_OF_TORCH: Final[Mapping[str, tuple[str, ...]]] = {
    "torch.optim": ("Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"),
    "torch.optim.lr_scheduler": (
        *("ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR", "LinearLR"),
        *("MultiStepLR", "OneCycleLR", "PolynomialLR", "StepLR"),
    ),
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to this one, ignoring case and dashes; None if none is similar or it is no name."""
    if len(name) > _LONGEST_NAME:
        return None
    plain = {other.lower().replace("-", "_"): other for other in known}
    found = get_close_matches(name.lower().replace("-", "_").strip(), list(plain), n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def class_of_torch(module: str, name: object) -> str | None:
    """The class of torch.optim or torch.optim.lr_scheduler with this name, whatever its case, as `module.Class`."""
    plain = str(name).lower()
    return next(
        (f"{module}.{each}" for each in _OF_TORCH[module] if plain in (each.lower(), f"{module}.{each}".lower())), None
    )


def nearest_path(model: type[Section], path: str, variant: str | None = None) -> str | None:
    """The path that an unknown one probably meant: the same name elsewhere, or in the same group the one whose title it
    is (training_method for method), that other trainers call so (num_processes for world_size), or a similar
    one; else an argument of the class that the config names as optimizer or scheduler."""
    group, name = _split(path)
    inside = [
        option for option in options(model) if _fits(option, variant) and _split(option.path)[0] == generalise(group)
    ]
    same = [option for option in options(model) if option.name == FORMER_NAMES.get(name, name)]
    if same and generalise(same[0].path) != generalise(path):
        return same[0].path.replace("*", "0")
    titled = [option.name for option in inside if _plain(option.title) == name]
    own = {option.path: option.name for option in inside}
    called = [own[place] for place, names in ALIASES.items() if place in own and name in names]
    name = next(iter(titled + called), None) or nearest(name, known_names(model, path, variant)) or ""
    if not name and (group == "scheduler." or (group == "optimizer." and variant == "custom")):
        return f"{group}arguments.{path.removeprefix(group)}"
    return group + name if name else None


def optimizers_with(model: type[Section], path: str) -> list[str]:
    """The optimizers that have a setting at this path."""
    return [o.variant for o in options(model) if o.path == generalise(path) and o.variant is not None]


def known_names(model: type[Section], path: str, variant: str | None = None) -> list[str]:
    """The known names in the group of this path."""
    group = generalise(_split(path)[0])
    applicable = [option for option in options(model) if _fits(option, variant)]
    inside = [option.path[len(group) :] for option in applicable if option.path.startswith(group)]
    return list(dict.fromkeys(rest.split(".")[0] for rest in inside if not rest.startswith("*")))


def _plain(title: str) -> str:
    """A title as a name: batch_size_per_gpu."""
    return re.sub(r"\W+", "_", title.partition(" (")[0].lower())


def _fits(option: Option, variant: str | None) -> bool:
    return variant is None or option.variant in (None, variant)


def _split(path: str) -> tuple[str, str]:
    group, dot, name = path.rpartition(".")
    return group + dot, name
