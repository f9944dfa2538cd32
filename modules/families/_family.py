"""The interface of a model family: all that training, data loading and the window know about models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

import torch
from PIL.Image import Image
from pydantic import JsonValue, ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from modules.config import ConfigError, Section, TrainConfig
from modules.config.explain import explain
from modules.data.batch import Batch, DataSets, Example, ExampleTransform, SampleMixing, SampleTransform
from modules.facts import FamilyFacts
from modules.files.videos import Clip

if TYPE_CHECKING:
    from modules.diffusion.hub.model import HubModel


@dataclass(frozen=True)
class ReferenceImage:
    """An image that a sample is generated from: whole, RGB, and the name of its file."""

    name: str
    image: Image


@dataclass(frozen=True)
class SampleRequest:
    """One image or clip to generate. `width` and `height` in pixels, multiples of the family's `size_step`."""

    prompt: str
    negative_prompt: str
    width: int
    height: int
    steps: int
    guidance_scale: float
    seed: int
    references: tuple[ReferenceImage, ...] = ()  # of families whose facts say that they take some
    written_prompt: str = ""  # with the choices that `prompt` was drawn from; empty if there were none
    frames: int = 1  # of families whose facts have `clips`: more than one are a clip

    def settings(self) -> dict[str, object]:
        """What an image that is generated keeps of it; no path of this machine."""
        found: dict[str, object] = {name: value for name, value in vars(self).items() if name != "references"}
        found["reference"] = "; ".join(each.name for each in self.references)
        found["frames"] = self.frames if self.frames > 1 else 0
        unsaid = ("reference", "written_prompt", "frames")
        return {name: value for name, value in found.items() if value or name not in unsaid}


@dataclass(frozen=True)
class Evaluation:
    """A batch of validation images: `losses` [B], and `counts`, tensors of any shape that are added over all batches
    and ranks; samples of weight 0 are padding and must not be counted. Integers add up exactly for any number of ranks.
    """

    losses: Tensor
    counts: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Metrics:
    """What the counts of a whole validation say."""

    values: Mapping[str, float]  # such as accuracy
    by_class: Mapping[str, float] = field(default_factory=dict)  # accuracy of each class
    # Title -> function that draws the image, which a thread calls and saves among the samples.
    images: Mapping[str, Callable[[], Image]] = field(default_factory=dict)
    confusion: Sequence[Sequence[int]] = ()  # samples of each class (row) by prediction, for the event


@dataclass(frozen=True)
class NoiseLevels:
    """How training samples noise levels, from 0 (the image) to 1 (pure noise).

    `draw` returns one level, fp32 []; `note` is a phrase on what the distribution depends on, or empty.
    """

    draw: Callable[[torch.Generator], Tensor]
    note: str = ""


@dataclass(frozen=True)
class FrozenNetwork:
    """A network that is never trained, such as an autoencoder, for estimates of memory."""

    name: str
    weights: str  # the format that it is kept in, such as bf16
    bytes: int
    is_exact: bool  # counted in the model's files, not known from its name
    # "steps": on the device in every step. "caching": while images are cached, and for samples, from host memory.
    # "loaded": as "caching", but in no memory otherwise.
    needed: Literal["steps", "caching", "loaded"]


class NoOptions(Section):
    """For families without options of their own."""


class Family(ABC):
    """One model family: how its model is loaded, trained, sampled and saved.

    Setup calls `load`, and `add_placeholder_token` for textual inversion. Each rank then encodes its share of the
    images (`fingerprint`, `encode_batch`) and calls `offload_frozen`. The loader's workers apply `sample_transform` to
    cached examples; every step calls `loss`. Between steps, `sample` generates images and `export` saves the model.

    Images that are not cached (`image_cache`) pass `example_transform` in the workers instead of `encode_batch`.
    A family without images (`brings_data`) has data sets of its own, whose batches are `Batch.content`.
    """

    facts: ClassVar[FamilyFacts] = FamilyFacts("")  # of a built-in family those beside its file
    about: ClassVar[str] = ""  # of a user's family, for the window: the model's name, its maker, size and licence
    source: ClassVar[object] = None  # of a user's file: another process that unpickles this has loaded the file, too
    Options: ClassVar[type[Section]] = NoOptions
    methods: ClassVar[tuple[str, ...]] = ("fine_tune",)
    size_step: ClassVar[int] = 8  # pixels; sides of buckets and samples are multiples of it
    # Submodules of `model` that can be trained separately (the config's `parts`), the default one first; empty if
    # `model` is always trained as a whole. One that is trained is an attribute of `model` under its name; one that is
    # not may be among `encoders`.
    submodules: ClassVar[tuple[str, ...]] = ()
    # Submodule -> the prefixes of its keys in LoRA files, in diffusers' layout and in kohya's.
    adapter_prefixes: ClassVar[Mapping[str, tuple[str, str]]] = MappingProxyType({})
    single_file: ClassVar[bool] = False  # whether its folder can be written as one file in the original layout
    # Whether frozen layers are kept in bf16 or fp16 if that is the run's precision, and `parts` does not say otherwise.
    half_frozen_weights: ClassVar[bool] = False
    # "optional": the setting `cache_latents` decides. "none": images are always decoded anew by the loader's workers.
    image_cache: ClassVar[Literal["required", "optional", "none"]] = "required"
    # What `cache_precision` rounds: the names of the cached tensors (up to the first dot) that are an image's latents.
    latent_names: ClassVar[tuple[str, ...]] = ()
    example_transform: ExampleTransform | None = None  # of images that are not cached; None: they are all cached
    draws_samples: ClassVar[bool] = True  # whether it generates images
    brings_data: ClassVar[bool] = False  # whether it trains on its `data_sets`, and has no use for concepts
    # Captions are class names; set-up gives those of the training images to `load`, as the family option `classes`.
    learns_classes: ClassVar[bool] = False
    classes: tuple[str, ...] = ()  # in the order of the model's outputs; a run cannot be resumed with others
    validation_transform: SampleTransform | None = None  # of validation and test images; None: `sample_transform`
    sample_mixing: SampleMixing | None = None  # of training samples
    encodes_captions: bool = False  # whether `encode` uses captions, so that an image's entry depends on them

    model: nn.Module  # the one module that is trained, wrapped, averaged and saved
    encoders: Mapping[str, nn.Module]  # frozen
    sample_transform: SampleTransform
    expected_requests: Sequence[SampleRequest] = ()  # the samples of the run, whose prompts can be encoded beforehand
    device: torch.device = torch.device("cpu")  # for encoders; the trainer sets it before encoding
    on_sampling_step: Callable[[int, int], object] | None = None  # called in `sample` with steps done and all steps

    @classmethod
    @abstractmethod
    def load(cls, config: TrainConfig) -> Self:
        """Build or load the model on the CPU in fp32; with equal `config.seed` every rank gets equal weights.

        Raises ConfigError if `config.base_model` or `config.family_options` are unsuitable.
        """

    @classmethod
    def load_for_training(cls, config: TrainConfig) -> Self:
        """As `load`, except that weights of `model` may still be in the dtype of their file and mapped into memory.

        The ranks of a machine then share them, until training moves them to the device in the dtypes that it needs.
        """
        return cls.load(config)

    @classmethod
    def hub_model(cls, config: TrainConfig) -> HubModel | None:
        """What `load` reads from the hub, or None; it is downloaded before `load`, once per cache.

        Raises ConfigError for the same reasons as `load`.
        """
        return None

    def longest_side(self) -> int | None:
        """The side in pixels of the largest image that the model takes; None: of any."""
        return None

    @classmethod
    def base_model_notes(cls, config: TrainConfig) -> Sequence[str]:
        """What is found in the base model and matters for training, for `--dry_run` and the start; reads no weights.

        Raises ConfigError if the model cannot be trained.
        """
        return []

    @classmethod
    def check_small_parts(cls, config: TrainConfig) -> None:
        """Load what is small of the base model, such as its tokenizers, if it is on this computer: for `--dry_run`.

        Raises ConfigError as `load`.
        """
        return

    @classmethod
    def noise_levels(cls, config: TrainConfig) -> NoiseLevels | None:
        """The noise levels that training would sample with `config`, for the window; reads no weights.

        None for a family without noise levels. Raises ConfigError if `config.family_options` are unsuitable.
        """
        return None

    @classmethod
    def meta_model(cls, config: TrainConfig) -> nn.Module | None:
        """`model` without weights, on torch's meta device, for `--dry_run`: are there layers for a LoRA?

        None if the family does not offer that, or the model is to be downloaded. Raises ConfigError as `load`.
        """
        return None

    @classmethod
    def meta_loss(cls, config: TrainConfig, model: nn.Module, size: tuple[int, int], samples: int) -> Tensor | None:
        """As `loss`, [B], for so many images, or clips, of size (width, height) in pixels, all of zeros, and `model`,
        which is built as that of `meta_model`, perhaps with an adapter: for estimates of memory. None if that is not
        offered.
        """
        return None

    @classmethod
    def meta_encoder(cls, config: TrainConfig) -> Callable[[Tensor], Tensor] | None:
        """What `encode_batch` computes first, from images [B, 3, H, W] or clips [B, 3, F, H, W], by a network in fp32
        that is built for it: for estimates of memory. None if that is not offered.
        """
        return None

    @classmethod
    def frozen_networks(cls, config: TrainConfig) -> Sequence[FrozenNetwork]:
        """Networks besides those in `meta_model`, as far as they are known before loading."""
        return ()

    @abstractmethod
    def fingerprint(self) -> str:
        """A text that changes with everything that `encode` depends on; part of the cache key."""

    @abstractmethod
    def encode(self, example: Example) -> dict[str, Tensor]:
        """The tensors to cache for one example: any dtype, on the CPU, without a batch dimension.

        All examples of a bucket need equal shapes.
        """

    def encode_batch(self, examples: Sequence[Example], size: int) -> Sequence[Mapping[str, Tensor]]:
        """`encode` for at most `size` examples of one bucket, in their order.

        Override it to encode several at once. Always pad the batch to `size` examples (see `pad_batch`): then the
        result for an image does not depend on the others in its batch.
        """
        return [self.encode(example) for example in examples]

    def text_fingerprint(self) -> str:
        """A text that changes with everything that `encode_captions` depends on; empty if captions are not cached by
        themselves."""
        return ""

    def encode_captions(self, captions: Sequence[str], size: int) -> Sequence[Mapping[str, Tensor]]:
        """The tensors to cache for each of at most `size` captions: any dtype, on the CPU, without a batch dimension.

        `sample_transform` gets those of the sample's caption among the tensors of its image, under names that no image
        has, and none if the caption was dropped. As for `encode_batch`, a result does not depend on the others.
        """
        raise NotImplementedError

    def data_sets(self) -> DataSets:
        """What a family with `brings_data` trains on: equal on every rank. Raises ConfigError or DataError."""
        raise NotImplementedError

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """Per-sample losses, floating point [B]: no mean, no sample weights; those belong to the trainer.

        `batch.tensors` are the stacked outputs of `sample_transform`, each [B, ...], floating point ones in the dtype
        of training. Call `self.model(...)`, never its children: DDP and FSDP hook only that forward.
        Draw no random numbers here; dropout gets masks for each sample, on tensors of [B, ...] or of N rows for each
        sample, one sample after the other.
        """

    def evaluate(self, batch: Batch) -> Evaluation:
        """Losses of a validation batch, as `loss`, and the counts that `summarize` makes metrics of."""
        return Evaluation(self.loss(batch))

    @classmethod
    def own_optimizer(cls, config: TrainConfig) -> Callable[[Any, float], Optimizer] | None:
        """What makes an optimizer of parameters or groups of them, and the learning rate; None: the config names it."""
        return None

    @classmethod
    def own_scheduler(cls, config: TrainConfig) -> Callable[[Optimizer], LRScheduler] | None:
        """What makes a scheduler of an optimizer, whose steps are those of the optimizer; None: the config names it."""
        return None

    def summarize(self, counts: Mapping[str, Tensor]) -> Metrics:
        """The metrics of a validation, from the sum of the counts of all its batches on all ranks."""
        return Metrics({})

    @abstractmethod
    def sample(self, request: SampleRequest) -> Image | Clip:
        """Generate one image, or a clip of several frames; equal requests give equal ones on the same device."""

    @abstractmethod
    def export(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """Write the model as a diffusers folder, with the weights `state` instead of the live ones.

        `state` has the names and shapes of `model.state_dict()`, in any floating point dtype, on the CPU.
        """

    def blocks(self) -> Sequence[nn.Module]:
        """The submodules to shard, checkpoint, compile and offload as units; by default the whole model."""
        return [self.model]

    def modelspec(self) -> Mapping[str, str]:
        """`architecture`, `prediction_type` and `encoder_layer` for headers of saved files, as in modelspec 1.0.1."""
        return {}

    def offload_frozen(self) -> None:  # noqa: B027 - optional
        """Move encoders that `loss` does not need off `device`: all images are encoded. `sample` moves them back."""

    def sample_metadata(self) -> Mapping[str, str]:
        """What to store in a generated image besides its request, for example the sampler."""
        return {}

    def prompt_warnings(self, captions: Sequence[str]) -> list[str]:
        """Warnings about these captions, logged once, for example how many are truncated."""
        return []

    def add_placeholder_token(self, token: str, vectors: int, init: str) -> Mapping[str, list[int]]:
        """For textual inversion: add `token`, made of `vectors` embeddings that start as those of the words `init`.

        Returns the token ids by the name of the nn.Embedding within `model`. Raises ConfigError if the family has no
        text encoder to train, or the token is already in the vocabulary.
        """
        raise ConfigError(
            f"method is 'embedding'; the family {type(self).__module__.rpartition('.')[2]!r} has no text encoder "
            "that could learn a token; use fine_tune or lora."
        )


OptionsT = TypeVar("OptionsT", bound=Section)


def trained_submodules(config: TrainConfig, submodules: Sequence[str]) -> frozenset[str]:
    """Which of a family's `submodules` are trained; with textual inversion all but the first, the text encoders."""
    if config.method == "embedding":
        return frozenset(submodules[1:])
    return frozenset(part.part for part in config.parts if part.train) or frozenset(submodules[:1])


def read_options(options: type[OptionsT], given: Mapping[str, JsonValue]) -> OptionsT:
    """Validate `family_options`; raises ConfigError with a sentence for each fault."""
    try:
        return options.model_validate(given)
    except ValidationError as error:
        raise ConfigError.from_faults("family_options", explain(error, options)) from error
