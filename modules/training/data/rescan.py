"""Images that come, go or change while a run trains: looked for beside training, and taken into the next epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from modules.config import DataError, TandemError, TrainConfig
from modules.data.index.build import changed_index
from modules.data.index.expand import parts
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
from modules.training.data.dataset import Dataset, check_sizes

_LOOKS_AFTER: Final = 0.9  # of an epoch's steps
_CHANGED: Final = "changed"  # what a rank says of its files; what else it says is an error
_SECOND: Final = "-b"  # of the two files of an index, of which one is in use

StoreIndex: TypeAlias = Callable[[Path], None]


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
        *,
        by_image: bool,
    ) -> None:
        """`data_config` is what `prepare`, a partial `prepare_dataset`, was given in place of `config`."""
        self._config, self._data_config, self._family = config, data_config, family
        self._prepare, self._ranks, self._report, self._by_image = prepare, ranks, report, by_image
        self._groups = ranks.shared_folder_groups("cache_dir", Path(config.cache_dir))
        self._look: Future[StoreIndex | None] | None = None
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
        store, said = self._found(data)
        answers = self._ranks.gather("new files", said)
        if not self._agree([each for each in answers if each != _CHANGED]) or _CHANGED not in answers:
            return None
        assert data.index is not None
        file, fault = data.index.path, ""
        if answers[self._groups.group[0]] == _CHANGED:
            stem = file.stem
            file = file.with_stem(stem.removesuffix(_SECOND) if stem.endswith(_SECOND) else stem + _SECOND)
        try:
            if store is not None:
                store(file)
        except TandemError as error:
            fault = str(error)
        if not self._agree(self._ranks.gather("new index", fault)):
            return None
        index = load_index(file)
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
        return replace(found, held=data.held)

    def _agree(self, faults: list[str]) -> bool:
        """Whether no rank has a fault; a warning with the first one, unless it was the last one, too."""
        fault = next(filter(None, faults), "")
        if fault and fault != self._said:
            self._said = fault
            self._report.warning(f"Files have changed, and training goes on with the data as it was: {fault}")
        return not fault

    def _found(self, data: Dataset) -> tuple[StoreIndex | None, str]:
        """What stores the index of the files as they are now, if they have changed, and what to tell the others."""
        if not self._groups.is_first_in_group:
            return None, ""
        look, self._look = self._look or _in_a_thread(partial(self._find, data)), None
        if not look.done():
            self._report.phase("indexing")
        try:
            store = look.result()
        except TandemError as error:
            return None, str(error)
        except OSError as error:
            return None, f"they cannot be listed: {printable(error, 200)}."
        return store, _CHANGED if store is not None else ""

    def _find(self, data: Dataset) -> StoreIndex | None:
        assert data.index is not None
        config = self._data_config
        known = {concept.path for concept in config.concepts}
        for concept in self._config.concepts if not self._family.learns_classes else ():
            new = [part.path for part in parts(concept) if part.path not in known and part.path != concept.path]
            if new:
                raise DataError(
                    f"{new[0]} is a new folder with a number of repeats, and so a new concept.",
                    "--resume latest reads it.",
                )
        return changed_index(data.index, config, config.seed, self._family.size_step, by_image=self._by_image)

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
            turn = Turn(progress.samples_seen, progress.step, progress.epoch, unseen) if self._by_image else None
            schedule(make_order(index, config, config.seed, usable, size, by_image=self._by_image, turn=turn))
        except TandemError as error:
            return str(error)
        return "No image is held out any more." if data.validation and not index.validation.any() else ""


def _in_a_thread(work: Callable[[], StoreIndex | None]) -> Future[StoreIndex | None]:
    future: Future[StoreIndex | None] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  # raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="rescan", daemon=True).start()
    return future
