"""What a program gives to the Trainer: model, data, loss and metrics, checked, and as a family of the engine."""

from __future__ import annotations

import copy
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from modules.config import ConfigError, DataError, Section
from modules.data.batch import DataSets
from modules.data.loading.item_batches import TEST, TRAIN, VALIDATION, item_count
from modules.facts import PROGRAM
from modules.families._by_name import register_family
from modules.families._custom import custom_family
from modules.families._custom_code import CustomCode
from modules.library.unwrap import unwrapped

Loss: TypeAlias = Callable[[nn.Module, Any], Tensor]
BuildOptimizer: TypeAlias = Callable[[Any, float], Optimizer]  # of torch's parameter groups and the learning rate
BuildScheduler: TypeAlias = Callable[[Optimizer], LRScheduler]
Metrics: TypeAlias = Callable[[nn.Module, Any], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Task:
    """What is trained, with live objects of the program."""

    model: nn.Module
    data: DataSets
    loss: Loss
    metrics: Metrics | None = None
    optimizer: BuildOptimizer | None = None
    scheduler: BuildScheduler | None = None

    def check(self) -> None:
        """Raise ConfigError or DataError for what the engine cannot train."""
        if not isinstance(self.model, nn.Module):
            raise ConfigError(f"Trainer: model is {type(self.model).__name__}; give a torch.nn.Module")
        for name, value in (*self.model.named_parameters(), *self.model.named_buffers()):
            if value.device.type == "meta":
                raise ConfigError(
                    f"Trainer: model has no values yet: {name!r} is on the meta device",
                    "Build it on the CPU, or give it values: model.to_empty(device='cpu') and its initialisation",
                )
        for name, data in ((TRAIN, self.data.train), (VALIDATION, self.data.validation), (TEST, self.data.test)):
            if data is not None and not item_count(data, name):
                raise DataError(f"Trainer: the {name} data is empty")
        for name, function in (("loss", self.loss), ("metrics", self.metrics)):
            if function is not None or name == "loss":
                _check_takes_model_and_batch(name, function)

    def register(self) -> None:
        """Let the engine find it in this process, as the family PROGRAM."""
        register_family(PROGRAM, custom_family(self._code()))

    def on_cpu(self) -> Task:
        """With a model that new processes can be sent: on the CPU."""
        if all(value.device.type == "cpu" for value in self.model.state_dict().values()):
            return self
        return replace(self, model=copy.deepcopy(unwrapped(self.model)).cpu())

    def check_sendable(self) -> None:
        """Raise ConfigError, with what to do, if new processes cannot get it: they import functions and classes."""
        parts = {
            "the model": self.model,
            "train_data": self.data.train,
            "validation_data": self.data.validation,
            "test_data": self.data.test,
            "loss": self.loss,
            "metrics": self.metrics,
            "collate": self.data.collate,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
        }
        for name, part in parts.items():
            _check_sendable(name, part)

    def _code(self) -> CustomCode:
        code = getattr(self.loss, "__code__", None)
        return CustomCode(
            name="your program" if code is None else Path(code.co_filename).name,
            build_model=self._build_model,
            build_data=self._build_data,
            loss=self.loss,
            metrics=self.metrics,
            collate=self.data.collate,
            build_optimizer=self.optimizer,
            build_scheduler=self.scheduler,
            is_program=True,
        )

    def _build_model(self, options: Section) -> nn.Module:
        """A copy: the ranks of a machine are sent the same memory, and the program's own model stays as it is."""
        return copy.deepcopy(unwrapped(self.model)).cpu()

    def _build_data(self, options: Section) -> DataSets:
        return self.data


def _check_takes_model_and_batch(name: str, function: Callable[..., object] | None) -> None:
    example = "def loss(model, batch): x, y = batch; return F.cross_entropy(model(x), y, reduction='none')"
    try:
        if function is None or isinstance(function, nn.Module):
            raise TypeError
        inspect.signature(function).bind(None, None)
    except TypeError:
        given = getattr(function, "__name__", type(function).__name__)
        raise ConfigError(
            f"Trainer: {name} is {given}, which cannot be called as {name}(model, batch)", f"For example: {example}"
        ) from None
    except ValueError:
        return  # a function written in C has no signature


class _Probe(ForkingPickler):
    """Pickles as a start of processes does, into nothing, and notes what they would import from `__main__`."""

    def __init__(self) -> None:
        super().__init__(_Nowhere())
        self.of_main: list[str] = []

    def reducer_override(self, obj: object) -> Any:
        """Nothing is overridden."""
        if isinstance(obj, type | types.FunctionType) and obj.__module__ == "__main__":
            self.of_main.append(obj.__qualname__)
        return NotImplemented


class _Nowhere:
    def write(self, data: bytes) -> int:
        return len(data)


def _check_sendable(name: str, part: object) -> None:
    advice = "or train on one device: training_mode='single'"
    probe = _Probe()
    try:
        probe.dump(part)
    except Exception as error:  # a user's object can raise anything
        raise ConfigError(
            f"Several processes are to train, but {name} cannot be sent to them: {error}",
            f"Define it at the top level of a .py file (no lambda, nothing within a function), {advice}",
        ) from error
    if probe.of_main and not hasattr(sys.modules["__main__"], "__file__"):
        raise ConfigError(
            f"Several processes are to train, but {probe.of_main[0]!r} ({name}) is defined in a notebook or on the "
            "command line, from where they cannot import it",
            f"Move it to a .py file and import it, {advice}",
        )
