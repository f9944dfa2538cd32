"""The optimizers of other trainers and their arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from modules.config.explain import show
from modules.config.importing.readers import number
from modules.config.importing.rules import NotCarriedError, Outcome, is_default
from modules.config.options import find_option
from modules.config.train_config import TrainConfig

_8_BIT = "its 8-bit states become 32-bit ones: the same steps, more memory"
_ADAMW_8_BIT = _8_BIT + "; adamw_8bit keeps them, if you install bitsandbytes"
_PAGED = "its states stay on the GPU: the same steps, more memory"
_FREE = "Tandem has no schedule-free optimizer; the nearest stands in: choose a schedule"
_SELF = "Tandem finds the step size with prodigy; leave the learning rate at 1"
_ROUNDING = "weights are kept in 32 bits, so the rounding it corrects does not arise"

_SELF_TUNING = (
    "dadaptation", "dadaptadampreprint", "dadaptadam", "dadaptadan", "dadaptadanip", "dadaptadagrad", "dadaptlion",
    "dadaptsgd",
)  # fmt: skip

# Their names without case and signs -> ours and what is different.
NAMES: Mapping[str, tuple[str, str]] = {
    "adamw": ("adamw", ""),
    "adamw8bit": ("adamw", _ADAMW_8_BIT),
    "pagedadamw": ("adamw", _PAGED),
    "pagedadamw32bit": ("adamw", _PAGED),
    "pagedadamw8bit": ("adamw", _ADAMW_8_BIT),
    "adamwbf16": ("adamw", _ROUNDING),
    "adamwoptimi": ("adamw", _ROUNDING),
    "adamw8bitkahan": ("adamw", _8_BIT),
    "adamwadv": ("adamw", "its additions are left out"),
    "adamwschedulefree": ("adamw", _FREE),
    "schedulefreeadamw": ("adamw", _FREE),
    "adam": ("adam", ""),
    "adam8bit": ("adam", _8_BIT),
    "sgd": ("sgd", ""),
    "sgd8bit": ("sgd", _8_BIT),
    "sgdnesterov": ("sgd", ""),
    "sgdnesterov8bit": ("sgd", _8_BIT),
    "sgdschedulefree": ("sgd", _FREE),
    "schedulefreesgd": ("sgd", _FREE),
    "lion": ("lion", ""),
    "lion8bit": ("lion", _8_BIT),
    "pagedlion8bit": ("lion", _8_BIT),
    "lionadv": ("lion", "its additions are left out"),
    "adafactor": ("adafactor", ""),
    "prodigy": ("prodigy", ""),
    "prodigy8bit": ("prodigy", _8_BIT),
    "prodigyplusschedulefree": ("prodigy", _FREE),
    "prodigyadv": ("prodigy", "its additions are left out"),
    "came": ("came", ""),
    "came8bit": ("came", _8_BIT),
    "automagic": ("prodigy", _SELF),
    **dict.fromkeys(_SELF_TUNING, ("prodigy", _SELF)),
}

# What the same argument is called in ours.
_ALIASES = {"use_bias_correction": "bias_correction", "eps1": "eps", "adam_epsilon": "eps"}
# Arguments that ask for what ours does anyway.
_ALWAYS = {"decouple": True, "relative_step": False, "warmup_init": False, "decoupled": True}


def outcomes(name: object, given: Mapping[str, object], names: tuple[str, ...], prefix: str = "") -> list[Outcome]:
    """Ours of an optimizer's name (the settings `names`) and arguments, whose settings begin with `prefix`.

    A name that is not known becomes adamw, and that is told.
    """
    plain = re.sub(r"[^a-z0-9]", "", str(name).lower().rpartition(".")[2])
    ours, why = NAMES.get(plain, ("adamw", f"Tandem has no optimizer {show(name)}; adamw stands in for it"))
    found = [Outcome("optimizer.name", ours, why, names)]
    if plain.startswith("sgdnesterov"):
        found.append(Outcome("optimizer.nesterov", True, keys=names))
    return found + arguments(ours, given, prefix)


def arguments(optimizer: str, given: Mapping[str, object], prefix: str = "") -> list[Outcome]:
    """Ours of the arguments for one of our optimizers; those that are None were not given."""
    found = []
    rest = {name: value for name, value in given.items() if value is not None}
    betas = [name for name in ("beta1", "beta2", "beta3") if name in rest]
    if betas and find_option(TrainConfig, "optimizer.beta1", optimizer) is None:
        found += _betas(optimizer, [rest.pop(name) for name in betas], tuple(prefix + name for name in betas))
    if "betas" in rest:
        found += _betas(optimizer, _listed(rest.pop("betas")), (f"{prefix}betas",))
    for theirs, value in rest.items():
        name = _ALIASES.get(theirs, theirs)
        keys = (prefix + theirs,)
        option = find_option(TrainConfig, f"optimizer.{name}", optimizer)
        if option is not None and option.variant == optimizer:
            found.append(Outcome(f"optimizer.{name}", value, keys=keys))
        elif name in _ALWAYS and value == _ALWAYS[name]:
            found.append(Outcome("optimizer.name", optimizer, keys=keys))
        elif not is_default(value, None):
            found.append(Outcome("", why=f"{optimizer} has no such setting here", keys=keys))
    return found


def parsed(arguments_text: object) -> dict[str, object]:
    """Arguments written as "name=value": a text with spaces between, or a list; raises NotCarriedError."""
    parts = arguments_text if isinstance(arguments_text, list) else re.split(r"\s+(?=\w+\s*=)", str(arguments_text))
    found: dict[str, object] = {}
    for part in filter(None, (str(part).strip() for part in parts)):
        name, equals, value = part.partition("=")
        if not equals:
            raise NotCarriedError(f"{show(part)} is not written as name=value")
        found[name.strip()] = _literal(value.strip().strip("\"'"))
    return found


def _literal(text: str) -> object:
    if len(text) > 100:
        return text
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {"true": True, "false": False}.get(text.lower(), text)
    return list(value) if isinstance(value, tuple) else value


def _listed(value: object) -> list[object]:
    if isinstance(value, str):
        return [part for part in re.split(r"[,\s()\[\]]+", value) if part]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _betas(optimizer: str, values: list[object], keys: tuple[str, ...]) -> list[Outcome]:
    option = find_option(TrainConfig, "optimizer.betas", optimizer)
    if option is None or not isinstance(option.default, list):
        return [Outcome("", why=f"{optimizer} has no betas here", keys=keys)]
    try:
        numbers = [number(value) for value in values]
    except NotCarriedError as error:
        return [Outcome("", why=str(error), keys=keys)]
    full = (numbers + option.default[len(numbers) :])[: len(option.default)]
    return [Outcome("optimizer.betas", full, keys=keys)]
