"""The largest batch that fits into the memory of every rank: found by doubling and bisection, without a step."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, islice
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from modules.data.batch import Batch
from modules.data.index.index import Index
from modules.machine import hostname
from modules.monitoring import Report
from modules.run.batch_size.records import GIB, RESULT, RankBatchSize, SearchRequest, SearchResult
from modules.training.loop.distributed_trainer import DistributedTrainer
from modules.training.loop.generic_trainer import GenericTrainer
from modules.training.memory.meter import memory_meter
from modules.training.memory.probe import buckets_of, fits, micro_batch_of, pixels_of_buckets, unchanged
from modules.training.state.requests import Outcome
from modules.training.step.memory_guard import OutOfMemory, explain_single_sample

SEARCHED = Outcome("searched", 0)
_PER_BUCKET = 4  # images of each bucket that are encoded, in case the first cannot be read


def search_batch_size(trainer: GenericTrainer, request: SearchRequest) -> Outcome:
    """Set up `trainer`, search, and write the result of all ranks into the run folder; called by all ranks.

    Raises OutOfMemory on all ranks if not even one sample fits on one of them.
    """
    trainer.select_rows = first_of_buckets
    report, trainer.report = trainer.report, cast("Report", _WithoutNotes(trainer.report))
    trainer.setup()
    trainer.report = report
    found: list[RankBatchSize] = []
    try:
        search = RankSearch(trainer, request)
        trainer.ranks.run_on_all("batch size search", lambda: found.append(search.run()))  # can be stopped meanwhile
    finally:
        trainer.components.close()
    ranks = [RankBatchSize.parse(text) for text in trainer.ranks.gather("batch size", found[0].dump())]
    result = SearchResult(tuple(ranks), largest_useful(trainer))
    if result.batch_size == 0:
        rank = next(number for number, each in enumerate(ranks) if each.batch_size == 0)
        raise OutOfMemory(
            f"Not even one sample fits into the memory of rank {rank}, {ranks[rank].device}: it takes "
            f"{ranks[rank].peak / GIB:.2f} of at most {ranks[rank].limit / GIB:.2f} GiB.",
            "Try gradient_checkpointing, a lower resolution, precision bf16, an optimizer with less state, or a "
            "smaller model.",
        )
    trainer.ranks.run_on_rank0("batch size", lambda: result.save(trainer.folder.path / RESULT))
    trainer.report.finished(SEARCHED.reason, SEARCHED.exit_code)
    return SEARCHED


def first_of_buckets(index: Index) -> NDArray[np.int64]:
    """int64 [rows]: a few training images of each bucket, all that the search has to encode."""
    rows = np.flatnonzero(~index.validation)
    chosen = [rows[index.bucket[rows] == bucket][:_PER_BUCKET] for bucket in np.unique(index.bucket[rows])]
    return np.sort(np.concatenate(chosen))


def largest_useful(trainer: GenericTrainer) -> int:
    """The most samples that a rank may ever get at once: all of its share of an epoch, or of one bucket."""
    counts = _samples_by_bucket(trainer)
    return max(1, min(int(counts.max()), -(-int(counts.sum()) // trainer.ranks.world_size)))


def _samples_by_bucket(trainer: GenericTrainer) -> NDArray[np.int64]:
    """int64 [buckets]: the training samples of an epoch, images as often as their concept repeats them."""
    data = trainer.components.data
    if data.index is None:
        return np.array([data.order.samples_per_epoch])
    repeats = np.array([max(1.0, concept.repeats) for concept in data.concepts])
    rows = np.flatnonzero(~data.index.validation)
    weights = repeats[data.index.concept[rows]]
    counts = np.bincount(data.index.bucket[rows], weights=weights, minlength=len(data.index.buckets))
    return np.floor(counts).astype(np.int64)


def largest_that_fits(does_fit: Callable[[int], bool], most: int) -> int:
    """The largest count up to `most` for which `does_fit`, 0 if there is none: doubled from 1, then bisected."""
    fitting, too_large = 0, most + 1
    size = 1
    while too_large - fitting > 1:
        if does_fit(size):
            fitting = size
        else:
            too_large = size
        size = min(2 * size, most) if too_large > most else (fitting + too_large) // 2
    return fitting


class RankSearch:
    """The search of one rank, in which no other takes part; the trainer is set up and has made no step."""

    def __init__(self, trainer: GenericTrainer, request: SearchRequest) -> None:
        self._trainer = trainer
        self._components = trainer.components
        self._counts = _samples_by_bucket(trainer)
        self._adds_up = (
            int(np.count_nonzero(self._counts)) > 1
            or trainer.config.gradient_accumulation_steps > 1
            or trainer.config.global_batch_size is not None
        )
        if isinstance(trainer, DistributedTrainer):
            with explain_single_sample(trainer.ranks.rank):
                trainer.warm_up_ddp(self._batch(1))  # allocates what DDP and the communication need
        here = trainer.ranks.gather("host of the search", hostname()).count(hostname())
        self._meter = memory_meter(trainer.ranks.device, request, here)
        trainer.ranks.gather("memory before the search", "")  # no rank begins while another still looks
        self._measured: dict[int, int] = {}  # bytes at the peak, by batch size

    def run(self) -> RankBatchSize:
        """The largest batch of this rank."""
        with unchanged(self._components, self._trainer.local_model()):
            size = largest_that_fits(self._does_fit, largest_useful(self._trainer))
        peak = self._measured.get(size, max(self._measured.values(), default=0))
        return RankBatchSize(_describe(self._components.device), size, peak, self._meter.limit)

    def _does_fit(self, size: int) -> bool:
        self._trainer.check_stop()
        expected = self._expected(size)
        if not self._meter.allows(expected):
            self._trainer.report.note(f"batch_size {size}: would take about {expected / GIB:.2f} GiB, too much")
            return False
        self._components.weights.clear_gradients()
        self._meter.restart()
        device, dtype = self._components.device, self._components.precision.weights
        does_fit = fits(
            self._components,
            self._trainer.dropout,
            lambda: self._batch(size).to(device, dtype),
            adds_up=self._adds_up,
        )
        peak = self._meter.peak()
        self._measured[size] = peak
        does_fit = does_fit and peak <= self._meter.limit
        answer = "fits" if does_fit else "too much" if peak > self._meter.limit else "runs out of memory"
        self._trainer.report.note(
            f"batch_size {size}: {answer} ({peak / GIB:.2f} of at most {self._meter.limit / GIB:.2f} GiB)"
        )
        return does_fit

    def _expected(self, size: int) -> int:
        """About how many bytes a batch will take: on the line through the two largest smaller ones; 0 if unknown."""
        smaller = sorted(each for each in self._measured if each < size)[-2:]
        if len(smaller) < 2:
            return 0
        (first, second), (low, high) = smaller, (self._measured[each] for each in smaller)
        return high + max(0, high - low) * (size - second) // (second - first)

    def _batch(self, size: int) -> Batch:
        """The most pixels that a micro-batch of up to `size` samples may have; images may come more than once."""
        data = self._components.data
        rows = np.unique(data.order.epoch(0))
        buckets = buckets_of(data, rows)
        readable = np.bincount(buckets, minlength=len(self._counts)) > 0
        counts = np.minimum(self._counts, size) * readable
        bucket = int(np.argmax(counts * pixels_of_buckets(data)))
        taken = islice(cycle(rows[buckets == bucket].tolist()), int(counts[bucket]))
        return data.loader.load(micro_batch_of(list(taken)))


class _WithoutNotes:
    """A report that leaves out what the set-up says about the data and the steps, which are not those of a run."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __getattr__(self, name: str) -> object:
        return getattr(self._report, name)

    def note(self, text: str) -> None:
        """Nothing."""


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)} on {hostname()}"
    return f"{device} on {hostname()}"
