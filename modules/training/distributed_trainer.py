"""The same run on several processes: other Surroundings, and not one line of another loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from PIL.Image import Image
from torch import Tensor
from torch.nn.parallel import DataParallel

from modules.checkpoint import Position, TrainingState
from modules.config import TrainConfig
from modules.data.batch import Batch
from modules.distributed import (
    Agreement,
    Compression,
    Meeting,
    Neighbours,
    Place,
    Store,
    Watchdog,
    Weights,
    check_unused,
    compress_gradients,
    find_neighbours,
    process_group,
    readings,
    resolve_backend,
    take_roster,
    told_by_name,
    wrap_data_parallel,
)
from modules.families.family import Family
from modules.monitoring import Report
from modules.run import Failure, RunFolder
from modules.training import chores, facts
from modules.training.common_backup import common_state
from modules.training.generic_trainer import GenericTrainer
from modules.training.sampling import Deeds
from modules.training.shared_sampling import buffers_of_first_rank, collect
from modules.training.surroundings import agreement_names
from modules.training.wishes import ENDINGS, StoppedBeforeTraining, Wishes


class DistributedTrainer(GenericTrainer):
    """One rank of a run. Every rank runs the same loop; ranks other than the first hold silent collaborators."""

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        report: Report,
        wishes: Wishes,
        resume: Path | None,
        place: Place,
        store: Store,
    ) -> None:
        super().__init__(config, folder, report, wishes, resume)
        self.own_place = place
        self.store = store
        self.replica_index = place.rank
        self.replica_count = place.world_size
        self.rehearsed = False
        self.compression = Compression()
        self.last_words: Callable[[Failure], None] | None = None  # where no supervisor tells how it ended

    @contextmanager
    def session(self) -> Iterator[None]:
        """The process group from before the first work to after the last, left in every case."""
        self.backend, _ = resolve_backend(self.config.distributed_backend)
        timeout_s = self.config.startup_timeout_s
        with (
            process_group(self.own_place, self.backend, timeout_s, self.store, self.report.note) as self.group,
            Watchdog(
                self.group,
                self.folder,
                wished=(StoppedBeforeTraining,),
                tell_waiting=self.report.waiting if self.replica_index == 0 else None,
                note=self.report.note,
                last_words=self.last_words,
            ) as watchdog,
        ):
            self.device = self.group.device
            self.agreement = Agreement(agreement_names(self.replica_count), self.group.control)
            self.meeting = Meeting(self.group.store, self.replica_index, self.replica_count, watchdog)
            try:
                self.roster = take_roster(self.group, self.config, self.gather)
                facts.tell_roster(self.roster, self.config, self.report)
                with readings(self.roster, self.replica_index, self.group.store) as self.readings:
                    yield
                self.agreement.settle()
                self.leave_together()
            except StoppedBeforeTraining:
                self.leave_together()
                raise

    def leave_together(self) -> None:
        """Rank 0 may hold the store, so nobody leaves before all are done with it."""
        dist.barrier(group=self.group.control)

    def place(self, family: Family) -> Weights:
        """DistributedDataParallel, which also gives every rank rank 0's weights."""
        weights = super().place(family)
        family.model = self.wrapped = wrap_data_parallel(family.model, self.config, self.group)
        self.compression = compress_gradients(self.wrapped, self.config)
        return weights

    def accumulate(self, last: bool) -> AbstractContextManager[object]:
        """Gradients stay local until the last micro-batch of a step."""
        return nullcontext() if last else self.wrapped.no_sync()

    def learn(self, batch: Batch) -> None:
        """As on one device, after one rehearsal."""
        if not self.rehearsed:
            self.rehearse(batch)
        with told_by_name(self.parts.weights.model):
            super().learn(batch)

    def rehearse(self, batch: Batch) -> None:
        """One backward whose gradients are thrown away.

        DDP sorts its buckets after its first backward, which changes the order in which three or more ranks add up.
        Done before the first step, a resumed run adds up exactly as an uninterrupted one. Short time-outs begin here.
        """
        piece = next(batch.to(self.device, self.parts.precision.weights).split(1))
        model = self.parts.weights.model
        averages = [(buffer, buffer.clone()) for buffer in model.buffers()]  # BatchNorm's move in a forward
        with self.parts.precision.autocast():
            losses = self.parts.family.loss(piece)
        self.look_for_unused(losses)
        (losses.sum() * 0).backward()
        model.zero_grad(set_to_none=True)
        for buffer, before in averages:
            buffer.copy_(before)
        self.compression.begin_at(self.progress.step)
        self.rehearsed = True
        self.group.expect_steps_within(self.config.step_timeout_s)

    def look_for_unused(self, losses: Tensor) -> None:
        """Raises ConfigError, on every rank, where weights take no part and the config does not allow for it."""
        if note := check_unused(self.parts.weights.leaves(), losses, self.config, self.group.control):
            self.report.warning(note)

    def do(self, name: str, *, surviving: bool = False) -> None:
        """A backup does not hold what compression keeps on each rank, so that begins anew for those who go on, too."""
        super().do(name, surviving=surviving)
        if name == "backup":
            self.compression.begin_at(self.progress.step)

    def chore(self, name: str, position: Position) -> Deeds:
        """Where sampling is shared, every rank draws its part now; rank 0 gets the pictures and writes them."""
        requests = self.parts.requests
        if name != "sample" or not requests or not self.config.share_sampling or self.meets_in_forward:
            return super().chore(name, position)
        share = requests[self.replica_index :: self.replica_count]
        pictures: list[Image] = []
        with buffers_of_first_rank(self.parts.weights.model):
            self.apart("sampling", lambda: pictures.extend(chores.draw(self.parts, share, self.report)))
        return chores.keep(collect(pictures, self.gather, self.group), self.parts, position, self.report)

    def total(self, value: float) -> float:
        """One all-reduce on the CPU group."""
        tensor = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group.control)
        return tensor.item()

    def together(self, name: str, work: Callable[[], None]) -> None:
        """The others wait through the store, for as long as rank 0 is alive."""
        self.meeting.lead(name, work, self.while_waiting)

    def apart(self, name: str, work: Callable[[], None]) -> None:
        """Ranks wait for each other through the store."""
        self.meeting.all(name, work, self.while_waiting)

    def gather(self, name: str, text: str) -> list[str]:
        """Through the store, too."""
        return self.meeting.gather(name, text, self.while_waiting)

    def neighbours(self, name: str, folder: Path) -> Neighbours:
        """Machines may share a folder or have one each: the disk knows."""
        return find_neighbours(name, folder, self.replica_index, self.gather)

    def former_state(self) -> TrainingState | None:
        """The newest backup that any rank holds, sent to those that do not see its folder."""
        return common_state(self.backup, self.folder, self, self.group)

    def while_waiting(self) -> None:
        """Before the first step a run can be stopped at any time; later all ranks agree on it between two steps."""
        if not self.training:
            self.check_stop()

    def check_stop(self) -> None:
        """What one rank finds out, all ranks follow."""
        if reason := self.meeting.called_off():
            raise StoppedBeforeTraining(next(e for e in ENDINGS.values() if e.reason == reason))
        try:
            super().check_stop()
        except StoppedBeforeTraining as stop:
            if self.meeting.call_off(stop.ending.reason):
                raise
            # too late for this meeting, or another rank's reason came first: the next look tells


class DataParallelTrainer(GenericTrainer):
    """One process that splits every micro-batch over several GPUs with torch's DataParallel."""

    def place(self, family: Family) -> Weights:
        """Replicas on all visible devices (the launch plan hides the others); without a GPU it only passes calls on."""
        weights = super().place(family)
        family.model = DataParallel(family.model)
        return weights
