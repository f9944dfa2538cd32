"""The functions that make a model of one's own trainable: what they are, and how they are read from a file.

A file defines these functions, and may define a class `Options`, a `Section` whose fields are the `family_options`:

    build_model(options)  -> torch.nn.Module
    build_data(options)   -> a data set, or several: see `as_data_sets`
    loss(model, batch)    -> a loss for each sample [B], or their mean []
    metrics(model, batch) -> {name: a value for each sample [B], or their mean []}  (may be left out)
    collate(items)        -> a batch, any nesting of tensors                        (may be left out)
    build_optimizer(parameters, learning_rate) -> a torch.optim.Optimizer           (with optimizer: custom)
    build_scheduler(optimizer) -> a torch.optim.lr_scheduler.LRScheduler            (with scheduler: custom)

Each of them gets the options if it has a parameter of that name. docs/custom_models.md is the guide.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from modules.config import ConfigError, Section, TrainingError
from modules.data.batch import DataSets, MapDataset
from modules.families._family import NoOptions

_SETS = ("train", "validation", "test")
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {  # besides the options
    "build_model": (),
    "build_data": (),
    "loss": ("model", "batch"),
    "metrics": ("model", "batch"),
    "collate": ("items",),
    "build_optimizer": ("parameters", "learning_rate"),
    "build_scheduler": ("optimizer",),
}
_REQUIRED = ("build_model", "build_data", "loss")


@dataclass(frozen=True)
class CustomCode:
    """What a user wrote: the functions of this module's first lines. `name` is the file's, for messages; `options` is
    the class of what a function gets that has a parameter `options`, besides its other arguments.

    Raises ConfigError if a function takes other arguments.
    """

    name: str
    build_model: Callable[..., nn.Module]
    build_data: Callable[..., object]  # see `as_data_sets`
    loss: Callable[..., Tensor]
    metrics: Callable[..., Mapping[str, Tensor]] | None = None
    collate: Callable[..., object] | None = None
    build_optimizer: Callable[..., Optimizer] | None = None
    build_scheduler: Callable[..., LRScheduler] | None = None
    options: type[Section] = NoOptions
    is_program: bool = False  # whose Trainer takes `optimizer` and `scheduler`

    def __post_init__(self) -> None:
        for function in _ARGUMENTS:
            if getattr(self, function) is not None:
                self._check_arguments(function)

    def bound(self, function: str, options: Section) -> Callable[..., Any]:
        """The function, with the options if it wants them."""
        given = getattr(self, function)
        return partial(given, options=options) if _wants_options(given) else given

    def said(self, function: str) -> str:
        """What the user calls the function."""
        return function.removeprefix("build_") if self.is_program else function

    def place(self, function: str) -> str:
        """Such as "gnn.py, line 34: loss", for messages."""
        code = getattr(getattr(self, function), "__code__", None)
        line = f", line {code.co_firstlineno}" if code is not None else ""
        return f"{self.name}{line}: {self.said(function)}"

    def _check_arguments(self, function: str) -> None:
        given, arguments = getattr(self, function), _ARGUMENTS[function]
        try:
            signature = inspect.signature(given)
        except (TypeError, ValueError):
            return  # some of C++ have none
        try:
            signature.bind(*arguments, **({"options": None} if _wants_options(given) else {}))
        except TypeError:
            ways = [f"{self.said(function)}({', '.join(arguments)})"]
            if not self.is_program:
                ways.append(f"{function}({', '.join((*arguments, 'options'))})")
            raise ConfigError(
                f"{'Trainer' if self.is_program else 'family'}: {self.place(function)}{signature} cannot be called.",
                f"Define it as {' or '.join(ways)}.",
            ) from None


def read_file(module: ModuleType) -> CustomCode:
    """What a file without a Family class defines. Raises ConfigError if that is not what `CustomCode` needs."""
    name, own = Path(str(module.__file__)).name, vars(module)
    missing = [each for each in _REQUIRED if not callable(own.get(each))]
    if missing:
        raise ConfigError(
            f"family: {name} defines no {' and no '.join(missing)}.",
            "A file of your own defines build_model, build_data and loss (docs/custom_models.md), or one Family class.",
        )
    options = own.get("Options", NoOptions)
    if not (isinstance(options, type) and issubclass(options, Section)):
        raise ConfigError(f"family: Options in {name} is no Section.", "Derive it from modules.config.Section.")
    functions = {each: own[each] for each in _ARGUMENTS if callable(own.get(each))}
    return CustomCode(name=name, options=options, **functions)


def as_data_sets(given: object, collate: Callable[[list[object]], object] | None = None) -> DataSets:
    """One data set, a tuple of up to three, or a mapping or named tuple of them, as DataSets. Raises ConfigError."""
    if isinstance(given, DataSets):
        return given if collate is None else given._replace(collate=collate)
    if isinstance(given, tuple):
        named = given._asdict() if hasattr(given, "_asdict") else dict(zip(_SETS, given, strict=False))
        fits = hasattr(given, "_asdict") or 1 <= len(given) <= len(_SETS)
    else:
        named, fits = dict(given) if isinstance(given, Mapping) else {"train": given}, True
    unknown = [str(each) for each in named if each not in _SETS]
    if not fits or unknown or named.get("train") is None:
        found = (
            f"{', '.join(unknown)}, which is no name of a data set"
            if unknown
            else f"{kind_of(given)} without training data"
        )
        raise ConfigError(
            f"the data is {found}.",
            'Return one data set, (training, validation), or {"train": ..., "validation": ..., "test": ...}.',
        )
    sets: dict[str, MapDataset | None] = {each: named.get(each) for each in _SETS}
    return DataSets(sets["train"], sets["validation"], sets["test"], collate)  # type: ignore[arg-type]


def per_sample(value: object, samples: int, place: str) -> Tensor:
    """[B]; a mean [] is repeated. Raises TrainingError for any other shape."""
    if isinstance(value, Tensor) and value.shape == ():
        return value.expand(samples)
    if isinstance(value, Tensor) and value.shape == (samples,):
        return value
    given = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else kind_of(value)
    advice = "Average over the other dimensions, such as .mean(dim=1), or over everything, .mean()."
    if isinstance(value, Tensor) and value.numel() == samples:
        advice = "Remove the other dimensions, such as .squeeze(1)."
    raise TrainingError(
        f"{place} returned {given} for {samples} samples; it must be one value for each, [{samples}], or their mean, "
        "[].",
        advice,
    )


def kind_of(value: object) -> str:
    return "None (is a `return` missing?)" if value is None else f"a {type(value).__name__}"


def _wants_options(function: Callable[..., Any]) -> bool:
    try:
        return "options" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
