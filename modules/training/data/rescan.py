"""Images that come, go or change while a run trains: looked for beside training, and taken into the next epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from modules.config import Concept, DataError, TandemError, TrainConfig
from modules.data.index.build import changed_index, store_index
from modules.data.index.index import Index, load_index
from modules.data.loading.on_the_fly import file_hashes
from modules.data.loading.order import Order, Turn, make_order
from modules.data.loading.progress import Progress
from modules.data.missing import check_not_empty
from modules.distributed import RankGroup
from modules.families._family import Family
from modules.files import printable
from modules.monitoring import Report
from modules.training.data.class_labels import with_classes
from modules.training.data.consistency import DifferentData, check_same_images, check_same_view
from modules.training.data.dataset import Dataset, check_sizes, resolve_concepts

_LOOKS_AFTER: Final = 0.9  # of an epoch's steps
_CHANGED: Final = "changed: "  # what a rank says, with the name of the index; what else it says is an error


class Rescan:
    """Follows the files of a run with `rescan: epoch`. All ranks call its methods after the same steps.

    The first rank at each cache folder looks, in a thread; all take what it found at the end of the epoch, or nothing:
    what cannot be trained on leaves the data as it was, with a warning.
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
        self._look: Future[Index | None] | None = None
        self._said = ""

    def follow(self, data: Dataset, progress: Progress) -> None:
        """Within an epoch: start to look, once most of it is over."""
        is_late = progress.step_in_epoch >= _LOOKS_AFTER * data.order.steps_in(progress.epoch)
        if is_late and self._look is None and self._groups.is_first_in_group:
            self._look = _in_a_thread(partial(self._find, data))

    def take(self, data: Dataset, progress: Progress, schedule: Callable[[Order], object]) -> Dataset | None:
        """At the start of an epoch: the data to go on with, if it is not `data`; what has changed is told.

        `schedule` raises ConfigError if the user's own one does not go with an order.
        """
        changed, said = self._found(data)
        answers = self._ranks.gather("new files", said)
        if not self._agree([each for each in answers if not each.startswith(_CHANGED)]) or not any(answers):
            return None
        assert data.index is not None
        fault, index = "", data.index
        try:
            if changed is not None:
                store_index(changed)
        except TandemError as error:
            fault = str(error)
        if not self._agree(self._ranks.gather("new index", fault)):
            return None
        if name := answers[self._groups.group[0]].removeprefix(_CHANGED):
            index = load_index(index.path.with_name(name))
        if not self._agree(self._ranks.gather("new data", self._fault(index, data, progress, schedule))):
            return None
        try:
            if self._groups.is_shared_by_all:
                check_same_view(index, np.ones(len(index), dtype=np.bool_), self._ranks)
            else:
                check_same_images(index, file_hashes(index), self._ranks)
            former = data.former(progress.samples_seen)
            found = self._prepare(former=former, new_index=index, known_problems=data.problems)
        except DifferentData as error:
            self._agree([str(error)])
            return None
        self._family.offload_frozen()
        data.loader.close()
        self._said = ""
        data.held.push(found.held)
        return replace(found, held=data.held)

    def _agree(self, faults: list[str]) -> bool:
        """Whether no rank has a fault; a warning with the first one, unless it was the last one, too."""
        fault = next(filter(None, faults), "")
        if fault and fault != self._said:
            self._said = fault
            self._report.warning(f"Files have changed, and training goes on with the data as it was: {fault}")
        return not fault

    def _found(self, data: Dataset) -> tuple[Index | None, str]:
        """The index of the files as they are now, if they have changed, and what to tell the others."""
        if not self._groups.is_first_in_group:
            return None, ""
        look, self._look = self._look or _in_a_thread(partial(self._find, data)), None
        if not look.done():
            self._report.phase("indexing")
        try:
            changed = look.result()
        except TandemError as error:
            return None, str(error)
        except OSError as error:
            return None, f"they cannot be listed: {printable(error, 200)}."
        return changed, "" if changed is None else f"{_CHANGED}{changed.path.name}"

    def _find(self, data: Dataset) -> Index | None:
        assert data.index is not None
        config = self._data_config
        changed = changed_index(data.index, config, config.seed, self._family.size_step)
        check_same_concepts(self._config, config, type(self._family))
        return changed

    def _fault(self, index: Index, data: Dataset, progress: Progress, schedule: Callable[[Order], object]) -> str:
        """Why the images of `index` cannot take the place of `data`; empty if they can."""
        config = self._data_config
        try:
            check_not_empty(config, index)
            check_sizes(config, self._family.longest_side(), index)
            if self._family.learns_classes:
                with_classes(config, index)
            usable = np.ones(len(index), dtype=np.bool_)
            size, unseen = data.order.global_batch_size, np.zeros(int((~index.validation).sum()), dtype=np.int64)
            turn = Turn(progress.samples_seen, progress.step, progress.epoch, unseen)
            schedule(make_order(index, config, config.seed, usable, size, turn=turn))
        except TandemError as error:
            return str(error)
        return "No image is held out any more." if data.validation and not index.validation.any() else ""


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


def _in_a_thread(work: Callable[[], Index | None]) -> Future[Index | None]:
    future: Future[Index | None] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  # raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="rescan", daemon=True).start()
    return future
