"""A model, data sets and a loss that a user wrote, as a family: from a Python file, or from objects of a program."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self

import torch
from PIL import Image
from pydantic import JsonValue
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from modules.config import ConfigError, Section, TrainConfig, TrainingError
from modules.config.code_errors import describe_code_error
from modules.data.batch import Batch, DataSets, Example
from modules.data.random_state import keep_random_state, seed_everything
from modules.families._custom_code import CustomCode, as_data_sets, kind_of, per_sample, read_file
from modules.families._family import Evaluation, Family, Metrics, SampleRequest, read_options
from modules.families._saved_model import saved_options
from modules.files import FileFault, file_size

MODEL_NAME = "TandemCustomModel"


def custom_family(code: CustomCode) -> type[CustomFamily]:
    """The family that trains it."""
    own: dict[str, object] = {"code": code, "Options": code.options}
    if code.metrics is None:  # it measures the loss only
        own["summarize"] = Family.summarize
    return type("Custom", (CustomFamily,), own)


def family_of_file(module: ModuleType) -> type[CustomFamily]:
    """The family of a file without a Family class. Raises ConfigError if its functions are missing or wrong."""
    return custom_family(read_file(module))


class CustomFamily(Family):
    """Trains a user's model on the user's data with the user's loss."""

    image_cache = "none"
    draws_samples = False
    brings_data = True
    size_step = 1
    code: ClassVar[CustomCode]

    def __init__(self, options: Section, model: nn.Module, seed: int) -> None:
        self.options, self.model, self._seed = options, model, seed
        self.encoders: dict[str, nn.Module] = {}

    @classmethod
    def base_model_notes(cls, config: TrainConfig) -> Sequence[str]:
        """Nothing; see Family for the errors."""
        _options(config, cls.code)
        return []

    @classmethod
    def own_optimizer(cls, config: TrainConfig) -> Callable[[Any, float], Optimizer] | None:
        """The user's `build_optimizer`."""
        code = cls.code
        if code.build_optimizer is None:
            return None

        def build(parameters: Any, learning_rate: float) -> Optimizer:
            built: Optimizer = _called(code, "build_optimizer", _options(config, code), parameters, learning_rate)
            return built

        return build

    @classmethod
    def own_scheduler(cls, config: TrainConfig) -> Callable[[Optimizer], LRScheduler] | None:
        """The user's `build_scheduler`."""
        code = cls.code
        if code.build_scheduler is None:
            return None

        def build(optimizer: Optimizer) -> LRScheduler:
            built: LRScheduler = _called(code, "build_scheduler", _options(config, code), optimizer)
            return built

        return build

    @classmethod
    def load(cls, config: TrainConfig) -> Self:
        """What `build_model` returns, with the weights of `base_model`, a folder that `export` wrote."""
        code, options = cls.code, _options(config, cls.code)
        with keep_random_state():
            seed_everything(config.seed)
            model = _called(code, "build_model", options)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"{code.place('build_model')} returned {kind_of(model)} instead of a torch.nn.Module.")
        _check_weights(model, f"{code.place('build_model')} returned a model")
        if config.base_model is not None:
            _load_weights(model, Path(config.base_model))
        return cls(options, model, config.seed)

    def data_sets(self) -> DataSets:
        """What `build_data` returns, with the global random generators seeded equally on every rank."""
        with keep_random_state():
            seed_everything(self._seed)
            given = _called(self.code, "build_data", self.options)
        try:
            return as_data_sets(given, self.code.collate and self.code.bound("collate", self.options))
        except ConfigError as error:
            raise ConfigError(f"{self.code.place('build_data')}: {error.message}", error.advice) from None

    def fingerprint(self) -> str:
        """Nothing is cached."""
        return "custom"

    def encode(self, example: Example) -> dict[str, Tensor]:
        """There are no images."""
        raise NotImplementedError

    def loss(self, batch: Batch) -> Tensor:
        """What the user's `loss` returns; a mean counts equally for each sample."""
        place = self.code.place("loss")
        losses = per_sample(self._computed("loss", batch.content), len(batch), place)
        if not losses.is_floating_point():
            raise TrainingError(f"{place} returned {losses.dtype} numbers; a loss is floating point.")
        if torch.is_grad_enabled() and not losses.requires_grad:
            raise TrainingError(
                f"{place} returned a loss without a gradient.",
                "Compute it with the output of the model, without torch.no_grad(), .detach() or .item().",
            )
        return losses

    def evaluate(self, batch: Batch) -> Evaluation:
        """Losses, and of each metric its sum over the samples and their number."""
        losses = self.loss(batch)
        if self.code.metrics is None:
            return Evaluation(losses)
        place = self.code.place("metrics")
        found = self._computed("metrics", batch.content)
        if not isinstance(found, Mapping):
            raise TrainingError(f"{place} returned {kind_of(found)} instead of a mapping of names to values.")
        counted = batch.weights > 0
        counts = {}
        for name, given in found.items():
            if not isinstance(name, str) or name == "loss":
                raise TrainingError(f"{place} returned a metric named {name!r}; name it by another text.")
            value = torch.tensor(given) if isinstance(given, int | float) else given
            values = per_sample(value, len(batch), f"{place}, {name!r},").detach()
            if values.is_complex():
                raise TrainingError(f"{place}, {name!r}, returned {values.dtype} numbers; a metric is real.")
            values = values.to(counted.device, torch.float64)
            counts[f"{name}/sum"] = torch.where(counted, values, 0.0).sum()
            counts[f"{name}/samples"] = counted.sum()
        return Evaluation(losses, counts)

    def summarize(self, counts: Mapping[str, Tensor]) -> Metrics:
        """The mean of each metric over all samples."""
        names = sorted(name.removesuffix("/sum") for name in counts if name.endswith("/sum"))
        return Metrics({name: float(counts[f"{name}/sum"]) / float(counts[f"{name}/samples"]) for name in names})

    def sample(self, request: SampleRequest) -> Image.Image:
        """There are no images; `load` refuses samples."""
        raise _no_samples(self.code)

    def export(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """model.safetensors, and the options in config.json."""
        # clones, because safetensors refuses tied weights that share memory
        tensors = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in state.items()}
        save_file(tensors, folder / "model.safetensors")
        config = {"_class_name": MODEL_NAME, "file": self.code.name, "options": self.options.model_dump(mode="json")}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def _computed(self, function: str, batch: object) -> Any:
        try:
            return self.code.bound(function, self.options)(self.model, batch)
        except AttributeError as error:
            if type(self.model).__name__ not in str(error) or not hasattr(self.model, "module"):
                raise
            raise TrainingError(
                f"{describe_code_error(error)}.",
                "On several GPUs the model is wrapped, so that its gradients are summed: only call it, model(...); "
                "give it an argument that says what to compute, and use its attributes inside forward().",
            ) from error


def _called(code: CustomCode, function: str, options: Section, *arguments: object) -> Any:
    """What the function returns. Raises ConfigError, with its line, for whatever it raises."""
    try:
        return code.bound(function, options)(*arguments)
    except (ConfigError, MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:  # a user's code can raise anything
        raise ConfigError(f"{code.said(function)} failed: {describe_code_error(error)}.") from error


def _check_weights(model: nn.Module, what: str) -> None:
    """Raise ConfigError for a model that cannot be trained."""
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(value):
            raise ConfigError(
                f"{what} whose {name!r} has no shape yet.",
                "Give the layer its sizes, or run one forward of the model in build_model.",
            )
        if value.device.type == "meta":
            raise ConfigError(f"{what} whose {name!r} has no values.", "Build the model on the CPU, not 'meta'.")
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not trained:
        raise ConfigError(
            f"{what} without weights to train; it has {len(list(model.parameters()))}, all of them frozen.",
            "Leave requires_grad=True on those that are to be trained.",
        )
    for name, weight in trained.items():
        if weight.is_complex():
            raise ConfigError(
                f"{what} whose weight {name!r} is {str(weight.dtype)[6:]}; only real numbers are trained.",
                "Keep it as real numbers [..., 2], and use torch.view_as_complex in forward().",
            )


def _no_samples(code: CustomCode) -> ConfigError:
    return ConfigError(f"samples: the model of {code.name} generates no images; leave samples empty.")


def _options(config: TrainConfig, code: CustomCode) -> Section:
    """The options of the config; those that it does not give are the base model's."""
    if any(sample.enabled for sample in config.samples):
        raise _no_samples(code)
    given: Mapping[str, JsonValue] = config.family_options
    if config.base_model is not None:
        trained = _options_of(Path(config.base_model))
        given = {**{name: trained[name] for name in code.options.model_fields if name in trained}, **given}
    return read_options(code.options, given)


def _options_of(folder: Path) -> Mapping[str, JsonValue]:
    advice = "Give the model folder of an earlier run of this file."
    return saved_options(folder, MODEL_NAME, "model of your own", advice)


def _load_weights(model: nn.Module, folder: Path) -> None:
    try:
        file_size(folder / "model.safetensors")  # raises for what is no file
        model.load_state_dict(load_file(folder / "model.safetensors"))
    except (OSError, FileFault, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"base_model: the weights in {str(folder)!r} do not fit this model ({reason}).",
            "Give the family_options with which they were trained, and the same build_model.",
        ) from error
