"""Other trainers' optimizers and their arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from modules.config.explain import format_value
from modules.config.keywords import keywords_text
from modules.config.names import class_of_torch
from modules.config.options import find_option
from modules.config.sections.optimizers import CLASS_NAME
from modules.config.train_config import TrainConfig
from modules.importers.adafactor import RELATIVE, split_adafactor
from modules.importers.readers import number
from modules.importers.rules import Assignment, UnsupportedValueError, is_default

_8_BIT = "its 8-bit state becomes 32-bit: the same updates, more memory"
_LION_8_BIT = _8_BIT + "; lion_8bit keeps them, if you install bitsandbytes"
_ADAMW_8_BIT = _8_BIT + "; flash_adamw keeps them, and adamw_8bit, if you install bitsandbytes"
_PAGED = "its state stays on the GPU: the same updates, more memory"
_FREE = "the closest one; it is not schedule-free, so choose a schedule"
_SELF = "Tandem finds the step size with prodigy; leave the learning rate at 1"
_ROUNDING = "weights are kept in fp32, so there is no rounding to correct"

_SELF_TUNING = (
    "automagic", "automagic2", "automagic3", "automagicexperiment",
    "dadaptation", "dadaptadampreprint", "dadaptadam", "dadaptadan", "dadaptadanip", "dadaptadagrad",
    "dadaptlion", "dadaptsgd",
)  # fmt: skip

# Names without case and punctuation -> Tandem's optimizer and how it differs.
NAMES: Mapping[str, tuple[str, str]] = {
    **{name: (name, "") for name in ("adamw", "adam", "sgd", "lion", "adafactor", "prodigy", "came", "muon")},
    **{f"{name}8bit": (name, _8_BIT) for name in ("adam", "sgd", "prodigy", "came")},
    **{f"{name}adv": (name, "its extensions are not supported") for name in ("adamw", "lion", "prodigy")},
    **dict.fromkeys(("adamw8bit", "pagedadamw8bit"), ("adamw", _ADAMW_8_BIT)),
    **dict.fromkeys(("pagedadamw", "pagedadamw32bit"), ("adamw", _PAGED)),
    **dict.fromkeys(("adamwbf16", "adamwoptimi"), ("adamw", _ROUNDING)),
    **dict.fromkeys(("adamwschedulefree", "schedulefreeadamw"), ("schedule_free_adamw", "")),
    **dict.fromkeys(("sgdschedulefree", "schedulefreesgd"), ("sgd", _FREE)),
    **dict.fromkeys(_SELF_TUNING, ("prodigy", _SELF)),
    "prodigyplusschedulefree": ("prodigy", _FREE),
    "adamw8bitkahan": ("adamw", _8_BIT),
    **dict.fromkeys(("lion8bit", "pagedlion8bit"), ("lion", _LION_8_BIT)),
    "sgdnesterov": ("sgd", ""),
    "sgdnesterov8bit": ("sgd", _8_BIT),
}

OF_TORCH = (  # arguments of torch's classes
    *("weight_decay", "momentum", "nesterov", "betas", "eps", "fused", "foreach", "amsgrad", "maximize", "dampening"),
    *("lr_decay", "initial_accumulator_value", "rho", "alpha", "centered", "momentum_decay", "lambd", "t0"),
)
_BETAS = ("beta1", "beta2", "beta3")
# Tandem's names of the same arguments.
_ALIASES = {"use_bias_correction": "bias_correction", "eps1": "eps", "adam_epsilon": "eps"}
# Arguments whose value is what Tandem always does.
_ALWAYS = {"decouple": True, "relative_step": False, "warmup_init": False, "decoupled": True}


def optimizer_assignments(
    name: object,
    given: Mapping[str, object],
    key: str,
    prefix: str = "",
    arguments_key: str = "",
    adafactor: Mapping[str, object] = MappingProxyType({}),
) -> list[Assignment]:
    """Convert an optimizer's name, from the setting `key`, and its arguments; another class of torch or with a module
    stays that class, an unknown name becomes adamw.

    The arguments are settings that start with `prefix`, or all in the one setting `arguments_key`; `adafactor` are
    those that the trainer's Adafactor has if they are not given.
    """
    plain = re.sub(r"[^a-z0-9]", "", str(name).lower().rpartition(".")[2])
    other = class_of_torch("torch.optim", name) or (str(name) if CLASS_NAME.fullmatch(str(name)) else "")
    if plain not in NAMES and other:
        return _another_class(other, given, key, prefix, arguments_key)
    target, why = NAMES.get(plain, ("adamw", f"Tandem has no optimizer {format_value(name)}; adamw is used instead"))
    defaults: list[Assignment] = []
    steps: set[str] = set()  # where the arguments are that say who sets the learning rate
    if target == "adafactor":
        steps = {arguments_key or prefix + name for name in RELATIVE if given.get(name) is True}
        given, defaults, why = split_adafactor(given, adafactor, key)
    found = [Assignment("optimizer.name", target, why, (key, *sorted(steps))), *defaults]
    if plain.startswith("sgdnesterov"):
        found.append(Assignment("optimizer.nesterov", True, keys=(key,)))
    if plain == "sgd" and given.get("momentum") is None:
        found.append(Assignment("optimizer.momentum", 0.0, keys=(key,)))  # as in torch, which the trainers use
    arguments = argument_assignments(target, given, prefix)
    if arguments_key:
        reasons = [f"{each.keys[0]}: {each.why}" if each.why else "" for each in arguments]
        arguments = [
            replace(each, why=why, keys=(arguments_key,)) for each, why in zip(arguments, reasons, strict=True)
        ]
    return found + arguments


def _another_class(
    target: str, given: Mapping[str, object], key: str, prefix: str, arguments_key: str
) -> list[Assignment]:
    is_torchs = target.startswith("torch.")
    arguments = {name: value for name, value in given.items() if value is not None}
    taken = {name: value for name, value in arguments.items() if name in OF_TORCH or not is_torchs}
    keys = {name: arguments_key or prefix + name for name in arguments}
    why = f"{target} has no such setting"
    found = [Assignment("optimizer.name", "custom", keys=(key,)), Assignment("optimizer.target", target, keys=(key,))]
    found += [Assignment("", why=why, keys=(keys[name],)) for name in arguments if name not in taken]
    if taken:
        of_taken = tuple(dict.fromkeys(keys[name] for name in taken))
        found.append(Assignment("optimizer.arguments", keywords_text(taken), keys=of_taken))
    return found


def argument_assignments(optimizer: str, given: Mapping[str, object], prefix: str = "") -> list[Assignment]:
    """Convert the arguments of one of Tandem's optimizers; None means not given."""
    found = []
    rest = {name: value for name, value in given.items() if value is not None}
    betas = [name for name in _BETAS if name in rest]
    if betas and find_option(TrainConfig, "optimizer.beta1", optimizer) is None:
        values = {_BETAS.index(name): rest.pop(name) for name in betas}
        found += _betas(optimizer, values, tuple(prefix + name for name in betas))
    if "betas" in rest:
        found += _betas(optimizer, dict(enumerate(_listed(rest.pop("betas")))), (f"{prefix}betas",))
    for source, value in rest.items():
        name = _ALIASES.get(source, source)
        keys = (prefix + source,)
        option = find_option(TrainConfig, f"optimizer.{name}", optimizer)
        if option is not None and option.variant == optimizer:
            found.append(Assignment(f"optimizer.{name}", value, keys=keys))
        elif name in _ALWAYS and value == _ALWAYS[name]:
            found.append(Assignment("optimizer.name", optimizer, keys=keys))
        elif not is_default(value, None):
            found.append(Assignment("", why=f"{optimizer} has no such setting here", keys=keys))
    return found


def parse_arguments(arguments_text: object) -> dict[str, object]:
    """Parse "name=value" arguments from a list or a text separated by spaces; raises UnsupportedValueError.

    Quotes in a text are removed, as kohya's GUI does (kohya_gui/lora_gui.py).
    """
    if isinstance(arguments_text, list):
        parts = arguments_text
    else:
        parts = re.split(r"\s+(?=\w+\s*=)", str(arguments_text).replace('"', ""))
    found: dict[str, object] = {}
    for part in filter(None, (str(part).strip() for part in parts)):
        name, equals, value = part.partition("=")
        if not equals:
            raise UnsupportedValueError(f"{format_value(part)} is not written as name=value")
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


def _betas(optimizer: str, values: Mapping[int, object], keys: tuple[str, ...]) -> list[Assignment]:
    """From the values by their place: a file may give the second one alone."""
    option = find_option(TrainConfig, "optimizer.betas", optimizer)
    try:
        numbers = {place: number(value) for place, value in values.items()}
    except UnsupportedValueError as error:
        return [Assignment("", why=str(error), keys=keys)]
    if 0 in numbers and optimizer == "adafactor":
        return [Assignment("optimizer.beta1", numbers[0], "decay_rate sets how fast the others are forgotten", keys)]
    if option is None or not isinstance(option.default, list):
        return [Assignment("", why=f"{optimizer} has no betas here", keys=keys)]
    full = [numbers.get(place, default) for place, default in enumerate(option.default)]
    return [Assignment("optimizer.betas", full, keys=keys)]
