"""From the config's folders to a loader: index, cache, global order, report. Ranks share the encoding."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from modules.config import TrainConfig
from modules.data.cache import Cache, share_of_work
from modules.data.index import Index, index_path, load_index
from modules.data.indexing import build_index
from modules.data.loader import Loader, make_loader
from modules.data.order import Order, StepSamples, validation_steps
from modules.data.problems import write_problems
from modules.data.reading import CachedExamples
from modules.data.report import data_report
from modules.families.family import Family
from modules.monitoring import Report

TELL_EVERY_S = 0.5


class Replicas(Protocol):
    """What preparing data needs to know of the other ranks; GenericTrainer and DistributedTrainer answer it."""

    replica_index: int
    replica_count: int

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
    """Index and cache what is new, then lay out the global order.

    Raises DataError where nothing is usable, and what `check_stop` raises while pictures are encoded.
    """
    cache_dir = Path(config.cache_dir)
    tell = _Teller(report, check_stop)
    replicas.together(
        "index",
        lambda: ignore(build_index(config, family.size_step, cache_dir, tell.counting("indexing", 1))),
    )
    index = load_index(index_path(config, family.size_step, cache_dir))
    cached = _fill_cache(config, family, index, replicas, tell)
    order = Order.of(index, config, cached.usable, global_batch_size)
    problems = [*index.problems(), *cached.problems]
    replicas.together("problems", lambda: ignore(write_problems(problems, problems_file)))
    for line in data_report(index, cached, order).lines():
        report.note(line)
    if problems:
        report.warning(f"{len(problems)} files have problems and are listed in {problems_file}.")
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
    )
    validation, test = (
        validation_steps(index, config, cached.usable, global_batch_size, test=test) for test in (False, True)
    )
    return Dataset(index, cached, order, loader, validation, test)


def ignore(result: object) -> None:
    """Drop a result: work that ranks do together returns nothing."""


def _fill_cache(config: TrainConfig, family: Family, index: Index, replicas: Replicas, tell: _Teller) -> CachedExamples:
    cache = Cache(Path(config.cache_dir), family.fingerprint(), index, config, family.encodes_captions)
    work = cache.missing()
    if config.distributed_data_loading:
        mine = share_of_work(work, replicas.replica_index, replicas.replica_count)
        counting = tell.counting("caching", replicas.replica_count)
        replicas.apart("caching", lambda: cache.encode(mine, family.encode, replicas.replica_index, counting))
    else:
        counting = tell.counting("caching", 1)
        replicas.together("caching", lambda: cache.encode(work, family.encode, 0, counting))
    return cache.load()


class _Teller:
    """Reports counted progress at most twice a second, and looks whether the run should stop."""

    def __init__(self, report: Report, check_stop: Callable[[], None]) -> None:
        self._report = report
        self._check_stop = check_stop
        self._told_at = 0.0

    def counting(self, name: str, replica_count: int) -> Callable[[int, int], None]:
        """A callback (done, total) for this rank's part of `replica_count` about equal ones."""

        def tell(done: int, total: int) -> None:
            now = time.monotonic()
            if now - self._told_at >= TELL_EVERY_S or done >= total:
                self._told_at = now
                self._check_stop()
                self._report.phase(name, done * replica_count, total * replica_count)

        return tell
