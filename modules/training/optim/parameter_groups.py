"""The optimizer's parameter groups: those of the submodules, divided by learning rate and weight decay."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import product

import torch
from torch import nn

from modules.config import ConfigError, TrainConfig, parse_learning_rate_factors
from modules.training.methods.submodules import SubmoduleGroup

EXAMPLES = 3


def parameter_groups(
    groups: Sequence[SubmoduleGroup],
    shapes: Mapping[str, torch.Size],
    config: TrainConfig,
    undecayed: Sequence[str] = (),
) -> list[SubmoduleGroup]:
    """`groups`, divided by `learning_rate_factors`, `lora_plus_ratio` and `decay_norms_and_biases`.

    With the defaults they are as they were. `shapes` are those of the full weights, `undecayed` as in `without_decay`.
    Raises ConfigError for a pattern that selects no weight.
    """
    factors = parse_learning_rate_factors(config.learning_rate_factors)
    names = [name for group in groups for name in group.weights]
    chosen = {name: _first_match(name, factors) for name in names}
    for number, (pattern, _) in enumerate(factors):
        if number not in chosen.values():
            raise _selects_nothing(pattern, names, factors[:number])
    found: list[SubmoduleGroup] = []
    for group in groups:
        # all other weights first
        for number, is_faster, decays in product((None, *range(len(factors))), (False, True), (True, False)):
            pattern, factor = ("", 1.0) if number is None else factors[number]
            own = [
                name
                for name in group.weights
                if chosen[name] == number
                and _is_faster(name, config) is is_faster
                and (config.decay_norms_and_biases or _decays(name, shapes, undecayed)) is decays
            ]
            if own:
                rate = group.learning_rate_factor * factor * (config.lora_plus_ratio if is_faster else 1.0)
                named = ", ".join(filter(None, (pattern, "lora_B" if is_faster else "")))
                divided = replace(group, weights=tuple(own), learning_rate_factor=rate, pattern=named)
                found.append(replace(divided, has_weight_decay=decays))
    return found


def _is_faster(name: str, config: TrainConfig) -> bool:
    """Whether LoRA+ (Hayou et al. 2024, arXiv:2402.12354) has a learning rate of its own for the weight."""
    return config.method == "lora" and config.lora_plus_ratio != 1 and ".lora_B." in name


def without_decay(model: nn.Module) -> list[str]:
    """Names of weights, or patterns as of files, that a model or a part of it wants to be left out of weight decay.

    Models of timm, and many after them, name position embeddings and class tokens by a method no_weight_decay().
    """
    found = []
    for prefix, module in model.named_modules():
        method = getattr(module, "no_weight_decay", None)
        names = method() if callable(method) else ()
        if isinstance(names, set | frozenset | list | tuple | Mapping):
            found += [f"{prefix}.{name}" if prefix else str(name) for name in names]
    return found


def _decays(name: str, shapes: Mapping[str, torch.Size], undecayed: Sequence[str]) -> bool:
    """Whether the weight is neither a bias nor a norm's nor `undecayed`: timm's rule, param_groups_weight_decay."""
    if len(shapes[name]) <= 1 or name.rpartition(".")[2] == "bias":
        return False
    return not any(fnmatchcase(name, pattern) for pattern in undecayed)


def _first_match(name: str, factors: Sequence[tuple[str, float]]) -> int | None:
    return next((number for number, (pattern, _) in enumerate(factors) if re.search(pattern, name)), None)


def _selects_nothing(pattern: str, names: Sequence[str], former: Sequence[tuple[str, float]]) -> ConfigError:
    taken = [name for name in names if re.search(pattern, name)]
    if taken:
        first = former[_first_match(taken[0], former) or 0][0]
        return ConfigError(
            f"learning_rate_factors: all weights that {pattern!r} matches are selected by a pattern before it, such as "
            f"{taken[0]} by {first!r}.",
            "Put the narrower pattern first.",
        )
    words = {part: name for name in reversed(names) for part in (name, *name.split("."))}
    close = dict.fromkeys(words[word] for word in get_close_matches(pattern, words, EXAMPLES, cutoff=0.5))
    some = list(close) or names[:: max(1, len(names) // EXAMPLES)][:EXAMPLES]
    return ConfigError(
        f"learning_rate_factors: {pattern!r} matches none of the {len(names)} weights that are trained; "
        f"{'close to it are' if close else 'some of them are'} {', '.join(some)}.",
        "Correct the pattern, a regular expression that is searched for in these names, or leave it out.",
    )
