"""What a model family must say about itself: the only interface the trainer, the data and the window know."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import torch
from PIL.Image import Image
from pydantic import JsonValue, ValidationError
from torch import Tensor, nn

from modules.config import ConfigError, Section, TrainConfig
from modules.config.explain import explain
from modules.data.batch import Batch, Draw, Example

if TYPE_CHECKING:
    from modules.families.parts.hub import HubModel


@dataclass(frozen=True)
class SampleRequest:
    """One picture to draw. Sizes in pixels, a multiple of the family's `size_step`."""

    prompt: str
    negative_prompt: str
    width: int
    height: int
    steps: int
    guidance_scale: float
    seed: int


class NoOptions(Section):
    """The options of a family that has none."""


class Family(ABC):
    """One model family. `model` is the one module that is trained, wrapped, averaged and saved; encoders are frozen."""

    Options: ClassVar[type[Section]] = NoOptions
    methods: ClassVar[tuple[str, ...]] = ("fine_tune",)
    size_step: ClassVar[int] = 8  # sides of buckets and samples are multiples of it
    # Sub-modules of `model` that may be trained each for itself, the one trained by default first; none: all of it.
    # A part that is trained is an attribute of `model` under this name; one that is not may be among `encoders`.
    parts: ClassVar[tuple[str, ...]] = ()
    # Part -> what the keys of its adapter begin with in diffusers' files and in kohya's.
    adapter_names: ClassVar[Mapping[str, tuple[str, str]]] = MappingProxyType({})
    single_file: ClassVar[bool] = False  # whether its folder can also be one file, in the layout that other tools read
    encodes_captions: bool = False  # whether `encode` looks at captions: the cache then depends on them

    model: nn.Module
    encoders: Mapping[str, nn.Module]
    draw: Draw
    device: torch.device = torch.device("cpu")  # where encoders work; the trainer sets it before it encodes

    @classmethod
    @abstractmethod
    def load(cls, config: TrainConfig) -> Self:
        """Build or load the model on the CPU in fp32; with equal seeds every rank gets equal weights.

        Raises ConfigError where `config.base_model` or `config.family_options` do not fit.
        """

    @classmethod
    def on_hub(cls, config: TrainConfig) -> HubModel | None:
        """What `load` reads from the hub, so that it can be fetched before, once a machine; None where nothing.

        Raises ConfigError as `load` does.
        """
        return None

    @abstractmethod
    def fingerprint(self) -> str:
        """Everything that changes what `encode` returns; part of the cache key."""

    @abstractmethod
    def encode(self, example: Example) -> dict[str, Tensor]:
        """What is cached of one example: CPU tensors without a batch dimension, equal shapes within a bucket."""

    def encode_together(self, examples: Sequence[Example], size: int) -> Sequence[Mapping[str, Tensor]]:
        """What `encode` makes of each of these examples of one bucket; at most `size`, which fill a batch.

        A network should always be given `size` pictures, the last one repeated where there are fewer: then what is
        cached of a picture does not depend on its company.
        """
        return [self.encode(example) for example in examples]

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """Per-sample losses [B]. Calls `self.model(...)` itself, never its children: wrappers see only that."""

    @abstractmethod
    def sample(self, request: SampleRequest) -> Image:
        """Draw one picture; equal requests give equal pictures on the same device."""

    @abstractmethod
    def export(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """Write the model with the weights `state` (names as in `model.state_dict()`) as a diffusers folder."""

    def blocks(self) -> Sequence[nn.Module]:
        """The units to shard, checkpoint, compile and offload; the whole model where nothing finer is said."""
        return [self.model]

    def modelspec(self) -> Mapping[str, str]:
        """`architecture` and `prediction_type` as modelspec 1.0.1 names them; nothing where it has no name for them."""
        return {}

    def rest(self) -> None:  # noqa: B027 - few families have something to do
        """All pictures are encoded: what the steps do without may leave `device`; `sample` calls it back."""

    def sampling_facts(self) -> Mapping[str, str]:
        """What a picture's settings should tell beside its request, such as the sampler."""
        return {}

    def remarks(self, captions: Sequence[str]) -> list[str]:
        """Sentences about these captions that should be told once, such as how many are too long."""
        return []

    def learn_words(self, token: str, vectors: int, init: str) -> Mapping[str, list[int]]:
        """Make `token` a new word of the prompts, told by `vectors` rows that begin as those of the words `init`.

        Returns the token numbers by the name of the embedding within `model`. Raises ConfigError where there is no
        text encoder to teach, or the token is a word already.
        """
        raise ConfigError(
            f"method is 'embedding'; the family {type(self).__module__.rpartition('.')[2]!r} has no text encoder to "
            "teach a word; use fine_tune or lora."
        )


Chosen = TypeVar("Chosen", bound=Section)


def changed_parts(config: TrainConfig, parts: Sequence[str]) -> frozenset[str]:
    """Which of a family's `parts` training changes; for new words all text encoders, whose token tables grow."""
    if config.method == "embedding":
        return frozenset(parts[1:])
    return frozenset(part.part for part in config.parts if part.train) or frozenset(parts[:1])


def read_options(kind: type[Chosen], given: Mapping[str, JsonValue]) -> Chosen:
    """`family_options` as the family declares them; raises ConfigError with a sentence for each fault."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise ConfigError.from_faults("family_options", explain(error, kind)) from error


def family_class(name: str) -> type[Family]:
    """The Family in modules/families/NAME.py, or in the Python file that `name` is a path of.

    Raises ConfigError where there is no such family or the file does not define exactly one.
    """
    module = _module_from_file(Path(name)) if name.endswith(".py") else _built_in_module(name)
    found = [
        member
        for member in vars(module).values()
        if isinstance(member, type) and issubclass(member, Family) and member.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise ConfigError(f"family: {name!r} defines {len(found)} Family classes; a family file defines exactly one.")
    return found[0]


def family_names() -> list[str]:
    """The built-in families: one file each beside this one."""
    not_families = {"__init__", "family", "describe"}
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in not_families)


def _built_in_module(name: str) -> ModuleType:
    if name not in family_names():
        raise ConfigError(
            f"family is {name!r}; use one of {', '.join(family_names())}, or the path of a .py file with a Family."
        )
    return importlib.import_module(f"modules.families.{name}")


def _module_from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"family: there is no file {str(path)!r}.")
    spec = importlib.util.spec_from_file_location(f"tandem_family_{path.stem}", path.resolve())
    if spec is None or spec.loader is None:
        raise ConfigError(f"family: {str(path)!r} cannot be loaded as a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a user's file does, it is that file which is at fault
        del sys.modules[spec.name]
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        cause = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(f"family: {str(path)!r}{line} cannot be loaded: {type(error).__name__}: {cause}.") from error
    return module
