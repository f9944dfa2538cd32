"""What passes between index, cache, loader, family and trainer: examples, micro-batches and batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from modules.data.index.problems import Problem
from modules.data.nested import map_leaves, put_tensors

LENGTH = ".length"
# Tensors of references are `reference.0` and so on; a cached example with `references.dropped` is trained without.
REFERENCE, REFERENCES, DROPPED_REFERENCES = "reference.", "references", "references.dropped"


Layout: TypeAlias = tuple[tuple[torch.dtype, torch.Size], ...]  # of several tensors


class MapDataset(Protocol):
    """A map-style data set, as torch.utils.data.Dataset: `len(data)` items, `data[0]` to `data[len(data) - 1]`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


class DataSets(NamedTuple):
    """Data sets that a family brings itself, instead of images in concepts.

    `collate` turns a list of items into a batch: any nesting of tensors. None: torch's default_collate.
    """

    train: MapDataset
    validation: MapDataset | None = None
    test: MapDataset | None = None
    collate: Callable[[list[object]], object] | None = None


@dataclass(frozen=True)
class Example:
    """One view of one image, or a clip of a video, resized and cropped to its bucket, as a family encodes it."""

    pixels: Tensor  # uint8 [3, H, W], RGB; of a clip [3, F, H, W]
    mask: Tensor | None  # uint8 [1, H, W], 255 = full loss weight, of all frames; None without masked_training
    captions: tuple[str, ...]  # with their prefix, at least one
    original_size: tuple[int, int]  # height, width of the file in pixels
    crop: tuple[int, int]  # top, left, in pixels of the resized and perhaps mirrored image before cropping
    flipped: bool  # mirrored left to right
    references: tuple[Tensor, ...] = ()  # uint8 [3, h, w] each: whole, mirrored as the image
    pictures: tuple[Tensor, ...] = ()  # likewise, what text encoders see of them, of a family whose facts say the size

    @property
    def frames(self) -> int:
        """1 of an image."""
        return self.pixels.shape[1] if self.pixels.ndim == 4 else 1


class SampleTransform(Protocol):
    """Turns one cached example into the tensors that `loss` needs; runs in loader workers, so it must be picklable and
    hold no model.

    `cached` is what the family's `encode` or `example_transform` returned for the example, tensors without a batch
    dimension; those returned are stacked to [B, ...]. All randomness (noise, timestep) must come from `generator`,
    which is seeded per sample.

    An attribute `varying_length` may name tensors whose first dimension differs from sample to sample, as the states of
    captions do; `stack_samples` pads them.
    """

    def __call__(self, cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]: ...


class ExampleTransform(Protocol):
    """What `encode` is for images that are not cached: the tensors of an example that SampleTransform gets.

    Runs in loader workers, so it must be picklable and hold no model.
    """

    def __call__(self, example: Example) -> dict[str, Tensor]: ...


class SampleMixing(Protocol):
    """Mixes a sample with another one of the same step and size, as mixup does; runs in loader workers.

    `generator` is seeded by the step, equally for all its samples on all ranks.
    """

    def __call__(
        self, sample: dict[str, Tensor], partner: dict[str, Tensor], generator: torch.Generator
    ) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class MicroBatch:
    """The samples that one rank computes at once, before they are read: the loader turns it into a Batch."""

    rows: tuple[int, ...]  # index rows, all of one bucket
    seeds: tuple[int, ...]  # one per sample, a pure function of (seed, epoch, position in the epoch)
    weights: tuple[float, ...]  # of the loss, one per sample; 0 for padding
    is_last_of_step: bool  # of this rank's micro-batches: the one that synchronises gradients and updates weights
    step_samples: int  # number of samples of the whole step over all ranks, without padding
    partners: tuple[tuple[int, int], ...] = ()  # (row, seed) of the sample to mix each one with; empty without mixing
    step_seed: int = 0  # of the mixing


@dataclass(frozen=True)
class Batch:
    """One micro-batch, ready for `family.loss`."""

    tensors: dict[str, Tensor]  # each [B, ...], of the dtypes that the SampleTransform returned until `to`
    ids: Tensor  # int64 [B], index rows
    seeds: Tensor  # int64 [B]
    weights: Tensor  # float64 [B], of the loss
    is_last_of_step: bool
    step_samples: int
    problems: tuple[Problem, ...] = ()  # files that could not be read; what stands for them has weight 0
    # Of a family's own data sets: what `collate` returned without its tensors, which are in `tensors`, each of any
    # shape; and a function that makes a batch of some of the samples anew, because such a batch cannot be cut.
    structure: object = None
    remake: Callable[[MicroBatch], Batch] | None = None

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def content(self) -> object:
        """What `collate` returned, of a family's own data sets."""
        return put_tensors(self.structure, list(self.tensors.values()))

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Batch:
        """The batch on `device`, floating-point `tensors` as `dtype`. Copies from pinned memory do not block.

        `weights` stay float64; `ids`, `seeds` and the lengths of `stack_samples` stay on the CPU.
        """
        moved = {
            name: tensor
            if name.endswith(LENGTH)
            else tensor.to(device, dtype if tensor.is_floating_point() else None, non_blocking=True)
            for name, tensor in self.tensors.items()
        }
        remake = self.remake
        return replace(
            self,
            tensors=moved,
            weights=self.weights.to(device, non_blocking=True),
            structure=map_leaves(lambda leaf: leaf.to(device) if hasattr(leaf, "to") else leaf, self.structure),
            remake=None if remake is None else lambda some: remake(some).to(device, dtype),
        )

    def clone(self) -> Batch:
        """A copy whose tensors may be changed; `structure` is shared."""
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        ids, seeds, weights = self.ids.clone(), self.seeds.clone(), self.weights.clone()
        return replace(self, tensors=tensors, ids=ids, seeds=seeds, weights=weights)

    def pin_memory(self) -> Batch:
        """Called by the DataLoader if pin_memory is on."""
        pinned = {name: tensor.pin_memory() for name, tensor in self.tensors.items()}
        return replace(self, tensors=pinned, weights=self.weights.pin_memory())

    def split(self, max_samples: int) -> Iterator[Batch]:
        """The same samples in batches of at most `max_samples`; only the final one keeps `is_last_of_step`."""
        if max_samples >= len(self):
            yield self
            return
        for start in range(0, len(self), max_samples):
            part = slice(start, start + max_samples)
            is_last = self.is_last_of_step and start + max_samples >= len(self)
            if self.remake is not None:
                yield self.remake(self._micro_batch(part, is_last))
                continue
            yield replace(
                self,
                tensors=_cut(self.tensors, part),
                ids=self.ids[part],
                seeds=self.seeds[part],
                weights=self.weights[part],
                is_last_of_step=is_last,
            )

    def _micro_batch(self, part: slice, is_last: bool) -> MicroBatch:
        """Some of the samples, to be read again."""
        return MicroBatch(
            tuple(self.ids[part].tolist()),
            tuple(self.seeds[part].tolist()),
            tuple(self.weights[part].tolist()),
            is_last_of_step=is_last,
            step_samples=self.step_samples,
        )


def _cut(tensors: Mapping[str, Tensor], part: slice) -> dict[str, Tensor]:
    """Some of the samples, padded to the longest of them alone."""
    found = {name: tensor[part] for name, tensor in tensors.items()}
    for name in found:
        if name + LENGTH in found:
            found[name] = found[name][:, : max(found[name + LENGTH].tolist())]
    return found


def stack_samples(
    samples: Sequence[dict[str, Tensor]],
    varying_length: Collection[str] = (),
    places: Callable[[Layout], Sequence[Tensor] | None] = lambda layout: None,
) -> dict[str, Tensor]:
    """The tensors of samples, stacked to [B, ...], in `places` for such a layout, if it gives some.

    Those that `varying_length` names are padded with zeros to the longest one, and NAME.length, int64 [B], says how
    long each is.
    """
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}
    layout: dict[str, tuple[torch.dtype, torch.Size]] = {}
    for name, own in columns.items():
        shape = own[0].shape
        if name in varying_length:
            layout[name + LENGTH] = torch.int64, torch.Size([len(own)])
            shape = torch.Size([max(map(len, own)), *shape[1:]])
        layout[name] = own[0].dtype, torch.Size([len(own), *shape])
    is_uniform = all(tensor.dtype == own[0].dtype for own in columns.values() for tensor in own)
    given = places(tuple(layout.values())) if is_uniform else None
    stacked = dict(zip(layout, given or (), strict=bool(given)))
    for name, own in columns.items():
        if name not in varying_length:
            stacked[name] = torch.stack(own, out=stacked.get(name))
            continue
        lengths = torch.tensor([len(tensor) for tensor in own])
        if given is None:
            stacked[name + LENGTH] = lengths
            stacked[name] = torch.nn.utils.rnn.pad_sequence(own, batch_first=True)
            continue
        stacked[name + LENGTH].copy_(lengths)
        stacked[name].zero_()
        for number, tensor in enumerate(own):
            stacked[name][number, : len(tensor)] = tensor
    return stacked
