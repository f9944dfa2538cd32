"""Images that come, go or change while a run trains: looked for beside training, and taken into the next epoch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from modules.config import Concept, DataError, TrainConfig
from modules.data.index.build import changed_index, store_index
from modules.data.index.index import Index, load_index
from modules.data.loading.order import Order
from modules.data.loading.progress import Progress
from modules.distributed import RankGroup
from modules.families._family import Family
from modules.files import printable
from modules.monitoring import Report
from modules.training.data.agreement import AgreeingRanks, NotAgreed
from modules.training.data.class_labels import with_classes
from modules.training.data.dataset import Dataset, resolve_concepts

_LOOKS_AFTER: Final = 0.9  # of an epoch's steps

T = TypeVar("T")


class Rescan:
    """Follows the files of a run with `rescan: epoch`. All ranks call its methods after the same steps.

    The first rank at each cache folder looks, in a thread; all take what it found at the end of the epoch, or nothing:
    what cannot be trained on, or fails on any of them, leaves the data as it was, with a warning.
    """

    def __init__(
        self,
        config: TrainConfig,
        data_config: TrainConfig,
        family: Family,
        prepare: Callable[..., Dataset],
        ranks: RankGroup,
        report: Report,
    ) -> None:
        """`data_config` is what `prepare`, a partial `prepare_dataset`, was given in place of `config`."""
        self._config, self._data_config, self._family = config, data_config, family
        self._prepare, self._ranks, self._report = prepare, ranks, report
        self._groups = ranks.shared_folder_groups("cache_dir", Path(config.cache_dir))
        self._thread = ThreadPoolExecutor(1, "rescan")
        self._is_closed = False
        self._look: Future[Index | None] | None = None
        self._said = ""

    def follow(self, data: Dataset, progress: Progress, total_steps: int) -> None:
        """Within an epoch: start to look, once most of it is over, unless it is the last one."""
        steps, until = data.order.steps_in(progress.epoch), data.order.progress(0).steps_until(progress.epoch + 1)
        if progress.step_in_epoch >= _LOOKS_AFTER * steps and until < total_steps and self._look is None:
            self._start(data)

    def take(self, data: Dataset, progress: Progress, schedule: Callable[[Order], T]) -> tuple[Dataset, T] | None:
        """At the start of an epoch: the data to go on with, if it is not `data`, and its schedule; changes are told.

        `schedule` raises ConfigError if the user's own one does not go with an order.
        """
        ranks = AgreeingRanks(self._ranks, "new data", self._groups)
        try:
            taken = ranks.agree(partial(self._taken, ranks, data, progress, schedule))
        except NotAgreed as error:
            if str(error) != self._said:
                self._said = str(error)
                self._report.warning(f"Files have changed, and training goes on with the data as it was: {error}")
            return None
        finally:
            self._family.offload_frozen()
        if taken is None:
            return None
        data.loader.close()
        self._said = ""
        found, made = taken
        data.held.push(found.held)
        return replace(found, held=data.held), made

    def close(self) -> None:
        """End the thread: an interpreter that ends beside one that reads files may crash."""
        self._is_closed = True
        self._thread.shutdown(cancel_futures=True)

    def _taken(
        self, ranks: RankGroup, data: Dataset, progress: Progress, schedule: Callable[[Order], T]
    ) -> tuple[Dataset, T] | None:
        assert data.index is not None
        config, index, changed = self._data_config, data.index, self._found(data)
        names = ranks.gather("new files", "" if changed is None else changed.path.name)
        if not any(names):
            return None
        ranks.run_on_all("new index", (lambda: None) if changed is None else partial(store_index, changed))
        if name := names[self._groups.group[0]]:
            index = load_index(index.path.with_name(name))
        if self._family.learns_classes:
            with_classes(config, index)
        if data.validation and not index.validation.any():
            raise DataError("No image is held out any more.")
        schedules: list[T] = []
        found = self._prepare(
            ranks=ranks,
            former=data.former(progress.samples_seen),
            new_index=index,
            known_problems=data.problems,
            on_order=lambda order: schedules.append(schedule(order)),
        )
        return found, schedules[0]

    def _start(self, data: Dataset) -> None:
        if self._groups.is_first_in_group:
            self._look = self._thread.submit(self._find, data)

    def _found(self, data: Dataset) -> Index | None:
        """The index of the files as they are now, if they have changed. Raises TandemError."""
        if self._look is None:
            self._start(data)
        look, self._look = self._look, None
        if look is None:
            return None
        if not look.done():
            self._report.phase("indexing")
        try:
            return look.result()
        except OSError as error:
            raise DataError(f"they cannot be listed: {printable(error, 200)}.") from None

    def _find(self, data: Dataset) -> Index | None:
        assert data.index is not None
        config = self._data_config
        changed = changed_index(data.index, config, config.seed, self._family.size_step, self._check_open)
        check_same_concepts(self._config, config, type(self._family))
        return changed

    def _check_open(self, done: int, total: int) -> None:
        if self._is_closed:
            raise CancelledError


def check_same_concepts(config: TrainConfig, data_config: TrainConfig, kind: type[Family]) -> None:
    """Raise DataError if the files now make other concepts of `config` than those that `data_config` has of it: the
    folder of a new number of repeats, or the first captions in one whose name was the caption."""
    known = {concept.key(number): concept for number, concept in enumerate(data_config.concepts)}
    for number, concept in enumerate(resolve_concepts(config, kind).concepts):
        before = known.get(concept.key(number))
        what = "a concept of its own"
        if before is not None:
            values = {name: (getattr(concept, name), getattr(before, name)) for name in Concept.model_fields}
            new = [f"{name} {now!r} instead of {then!r}" for name, (now, then) in values.items() if now != then]
            what = f"a concept with {', '.join(new)}" if new else ""
        if what:
            raise DataError(f"{concept.path!r} is now {what}.", "--resume latest reads it.")
