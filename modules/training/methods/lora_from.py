"""`lora_from`: a run that continues training a LoRA from a file, of Tandem or of another program.

The file decides which layers have a LoRA, of which rank and alpha, and whether it is a DoRA: a LoRA cannot change its
rank, and continued with another alpha it would not start as the one in the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from torch import Tensor

from modules.checkpoint.formats import (
    AdapterWeights,
    LohaWeights,
    LokrWeights,
    LoraWeights,
    OftWeights,
    OutputOftWeights,
    PartWeights,
    adapter_algorithm,
    adapter_file,
    fits,
    lora_of_family,
    read_adapter,
)
from modules.config import ConfigError, TrainConfig
from modules.families._family import Family
from modules.training.methods.adapter_layers import ADAPTABLE, NAMES
from modules.training.methods.submodules import trained_names

_KINDS: Final[Mapping[str, type[AdapterWeights]]] = {
    "lora": LoraWeights,
    "loha": LohaWeights,
    "lokr": LokrWeights,
    "oft": OftWeights,
}
ANOTHER_FILE = "Give a LoRA for this base model, or leave lora_from empty to start a new one."


def check_lora_from(config: TrainConfig) -> None:
    """Raises ConfigError if `lora_from` cannot be continued; reads only the file's header."""
    if config.lora_from is None:
        return
    if config.method != "lora":
        raise ConfigError(
            f"lora_from is {config.lora_from!r}, but method is {config.method!r}; only method lora continues a LoRA.",
            "To fine-tune a model with that LoRA in it, merge it first: scripts/convert.py BASE OUT --merge LORA.",
        )
    try:
        found = adapter_algorithm(Path(config.lora_from))
    except ConfigError as error:
        raise ConfigError(f"lora_from: {error.message}", error.advice) from error
    if found != config.lora_algorithm:
        raise ConfigError(
            f"lora_from: {config.lora_from!r} is a {NAMES[found]}, but lora_algorithm is {config.lora_algorithm!r}.",
            f"Set lora_algorithm to {found}, or give another file.",
        )


def read_lora_from(
    family: Family, config: TrainConfig, prefixes: Mapping[str, tuple[str, str]]
) -> dict[str, AdapterWeights]:
    """The adapters in `lora_from` by the names of their layers in `family.model`.

    Raises ConfigError if they are for another model or for other submodules than the run trains.
    """
    assert config.lora_from is not None
    try:
        weights = read_adapter(Path(config.lora_from), prefixes, [] if config.lora_from_skip_unread else None)
    except ConfigError as error:
        raise ConfigError(f"lora_from: {error.message}", error.advice) from error
    _check_submodules(family, config, weights)
    layers = dict(family.model.named_modules())
    found: dict[str, AdapterWeights] = {}
    for one in weights:
        name = one.module if one.submodule not in family.adapter_prefixes else f"{one.submodule}.{one.module}"
        layer = layers.get(name)
        weight = getattr(layer, "weight", None)
        if not isinstance(layer, ADAPTABLE[config.lora_algorithm]) or not isinstance(weight, Tensor):
            raise _misfit(config, one, "no such layer")
        if isinstance(one, OutputOftWeights):
            raise ConfigError(
                f"lora_from: {config.lora_from!r} is an OFT that rotates outputs, as LyCORIS' does; Tandem trains "
                "rotations of inputs only.",
                "Merge it into the base model (scripts/convert.py BASE OUT --merge LORA), and train a new one on that.",
            )
        if isinstance(one, PartWeights):
            raise ConfigError(
                f"lora_from: {config.lora_from!r} has a LoKr for a layer that is several in diffusers, among them "
                f"{name!r}, and the rows of that one are no LoKr, so Tandem cannot train it.",
                "Merge it into the base model (scripts/convert.py BASE OUT --merge LORA), and train a new one on that.",
            )
        if not isinstance(one, _KINDS[config.lora_algorithm]):
            raise ConfigError(
                f"lora_from: {config.lora_from!r} is a {NAMES[config.lora_algorithm]} in some layers and another kind "
                f"of adapter in others, such as {name!r}; Tandem trains one kind.",
                "Merge it into the base model (scripts/convert.py BASE OUT --merge LORA), and train a new one on that.",
            )
        if not fits(one, weight.shape):
            raise _misfit(config, one, f"one of the shape {list(weight.shape)}")
        found[name] = one
    decomposed = {one.magnitude is not None for one in weights}
    if decomposed == {True} and config.lora_algorithm != "lora":
        raise ConfigError(
            f"lora_from: {config.lora_from!r} is a {NAMES[config.lora_algorithm]} with magnitudes (DoRA), which "
            "Tandem cannot train.",
            ANOTHER_FILE,
        )
    if len(decomposed) > 1:
        raise ConfigError(
            f"lora_from: {config.lora_from!r} is a DoRA in some layers only, which Tandem cannot train.", ANOTHER_FILE
        )
    return found


def structure_digest(weights: Mapping[str, AdapterWeights]) -> str:
    """A hash of all that a backup does not hold of a LoRA: its layers, ranks, alphas and whether it is a DoRA."""
    lines = sorted(f"{name} {one.rank} {one.alpha!r} {one.magnitude is not None}" for name, one in weights.items())
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=12).hexdigest()


def _check_submodules(family: Family, config: TrainConfig, weights: Sequence[AdapterWeights]) -> None:
    """Raises ConfigError unless the file has layers in every submodule that is trained, and in no other."""
    trained = set(trained_names(config, family.submodules)) - {""}
    inside = {one.submodule for one in weights} & set(family.submodules)
    for names, problem, advice in (
        (inside - trained, "has layers of", "which parts does not train. Add {} to parts"),
        (trained - inside, "has no layers of", "which parts trains. Remove {} from parts"),
    ):
        if family.submodules and names:
            listed = " and ".join(sorted(names))
            raise ConfigError(
                f"lora_from: {config.lora_from!r} {problem} {listed}, {advice.format(listed)}, or use another LoRA."
            )


def _misfit(config: TrainConfig, one: AdapterWeights, has: str) -> ConfigError:
    origin = lora_of_family(adapter_file(Path(config.lora_from or "")))
    return ConfigError(
        f"lora_from: {config.lora_from!r} is for a layer {one.submodule}.{one.module} of the shape "
        f"{list(one.matrix_shape)}{origin}, but the base model has {has}.",
        ANOTHER_FILE,
    )
