"""From the config's folders to a loader: index, cache, global order, report. Ranks share the encoding."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from modules.config import TrainConfig
from modules.data.cache import Cache
from modules.data.groups import Groups, pictures_at_once
from modules.data.index import Index, index_path, load_index
from modules.data.indexing import build_index
from modules.data.loader import Loader, make_loader
from modules.data.order import Order, StepSamples, validation_steps
from modules.data.problems import write_problems
from modules.data.reading import CachedExamples
from modules.data.report import data_report
from modules.distributed import Neighbours
from modules.families.family import Family
from modules.machine import hostname
from modules.monitoring import Report
from modules.training.same_pictures import check_same_pictures, tell_of_folders

TELL_EVERY_S = 0.5


class Replicas(Protocol):
    """What preparing data needs to know of the other ranks; GenericTrainer and DistributedTrainer answer it."""

    replica_index: int
    replica_count: int
    meets_in_forward: bool

    def neighbours(self, name: str, folder: Path) -> Neighbours:
        """The ranks that see the same `folder`."""

    def gather(self, name: str, text: str) -> list[str]:
        """What every rank has to say, in the order of ranks."""

    def together(self, name: str, work: Callable[[], None]) -> None:
        """Rank 0 works, the others meet it."""

    def apart(self, name: str, work: Callable[[], None]) -> None:
        """Every rank works on its part, then all meet."""


@dataclass(frozen=True)
class Dataset:
    """Everything the loop needs to know of the pictures."""

    index: Index
    cached: CachedExamples
    order: Order
    loader: Loader
    validation: list[StepSamples]
    test: list[StepSamples]


def prepare_dataset(
    config: TrainConfig,
    family: Family,
    global_batch_size: int,
    replicas: Replicas,
    report: Report,
    problems_file: Path,
    check_stop: Callable[[], None],
) -> Dataset:
    """Index and cache what is new, once for each cache folder that ranks share, then lay out the global order.

    Raises DataError where nothing is usable, and what `check_stop` raises while pictures are encoded.
    """
    cache_dir = Path(config.cache_dir)
    tell = _Teller(report, check_stop)
    near = replicas.neighbours("cache_dir", cache_dir)
    tell_of_folders(near, replicas.gather("hosts", hostname()), report)

    def bring_index_up_to_date() -> None:
        if near.is_first:
            build_index(config, family.size_step, cache_dir, tell.counting("indexing", 1))

    replicas.apart("index", bring_index_up_to_date)
    index = load_index(index_path(config, family.size_step, cache_dir))
    cache = Cache(cache_dir, family.fingerprint(), index, config, family.encodes_captions)
    _fill_cache(cache, config, family, near, replicas, tell, report)
    if not near.is_shared:
        check_same_pictures(index, cache.words(), near, replicas.gather)
    cached = cache.load()
    order = Order.of(index, config, cached.usable, global_batch_size)
    problems = [*index.problems(), *cached.problems]
    replicas.together("problems", lambda: write_problems(problems, problems_file))
    for line in data_report(index, cached, order).lines():
        report.note(line)
    captions = _captions(index, config)
    for remark in family.remarks(captions):
        report.warning(remark)
    if config.method == "embedding" and not any(config.embedding_token in caption for caption in captions):
        report.warning(
            f"The word {config.embedding_token!r} is in none of the {len(captions)} captions, so nothing is learned; "
            "write it into them, or into prompt_prefix of the concept."
        )
    if problems:
        count = f"{len(problems)} files have problems" if len(problems) > 1 else "1 file has a problem"
        report.warning(f"{count}, such as {problems[0].line()}. All are listed in {problems_file}.")
    loader = make_loader(
        config,
        index,
        cached,
        order,
        family.draw,
        replica_index=replicas.replica_index,
        replica_count=replicas.replica_count,
        batch_size=config.batch_size,
        min_micro_batches=config.gradient_accumulation_steps if config.global_batch_size else 1,
        equally_many=replicas.meets_in_forward,
    )
    validation, test = (
        validation_steps(index, config, cached.usable, global_batch_size, test=test) for test in (False, True)
    )
    return Dataset(index, cached, order, loader, validation, test)


def _captions(index: Index, config: TrainConfig) -> list[str]:
    """All captions as they are trained with, but for shuffled and dropped tags."""
    prefixes = [config.concepts[number].prompt_prefix for number in index.concept]
    return [prefix + caption for row, prefix in enumerate(prefixes) for caption in index.captions(row)]


def _fill_cache(
    cache: Cache,
    config: TrainConfig,
    family: Family,
    near: Neighbours,
    replicas: Replicas,
    tell: _Teller,
    report: Report,
) -> None:
    """The ranks that share a cache folder encode what it lacks: all of them, or only their first."""
    size = pictures_at_once(config.cache_batch_size, config.resolution, family.device.type)
    looked: list[Groups] = []
    # Before anyone writes: all ranks then find the same groups, and take different ones.
    replicas.apart("cache", lambda: looked.append(cache.groups(cache.missing(), size)))
    helpers = len(near.ranks) if config.distributed_data_loading else 1
    counting = tell.counting("caching", helpers)

    def encode_own_part() -> None:
        if near.position < helpers:
            mine = looked[0].share(near.position, helpers)
            if len(mine):
                counting(0, len(mine))  # said before the first picture, in which it may fail
            cache.encode(mine, family.encode_together, replicas.replica_index, counting, report.warning)

    replicas.apart("caching", encode_own_part)


class _Teller:
    """Reports counted progress at most twice a second, and looks whether the run should stop."""

    def __init__(self, report: Report, check_stop: Callable[[], None]) -> None:
        self._report = report
        self._check_stop = check_stop
        self._told_at = 0.0
        self._name = ""

    def counting(self, name: str, replica_count: int) -> Callable[[int, int], None]:
        """A callback (done, total) for this rank's part of `replica_count` about equal ones."""

        def tell(done: int, total: int) -> None:
            now = time.monotonic()
            if now - self._told_at >= TELL_EVERY_S or done >= total or name != self._name:
                self._told_at, self._name = now, name
                self._check_stop()
                self._report.phase(name, done * replica_count, total * replica_count)

        return tell
