"""The exchange of requests and metrics between the ranks, every few steps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from modules.data.loading.progress import Progress
from modules.distributed import RankGroup
from modules.monitoring import Report
from modules.training.backup.writer import BackupWriter
from modules.training.loop import run_info
from modules.training.state.components import Components
from modules.training.state.requests import ControlRequests
from modules.training.step.finite_weights import check_weights
from modules.training.step.load_balancer import LoadBalancer
from modules.training.step.memory_guard import MemoryGuard
from modules.training.step.metrics import StepMetrics
from modules.training.step.safeguards import NonFiniteGuard
from modules.training.step.triggers import TimeTrigger, is_due


class MetricSync:
    """Sums what the ranks send, reports it, and lets memory guard, shares, loss scale and lists of images follow it."""

    def __init__(
        self,
        components: Components,
        metrics: StepMetrics,
        memory: MemoryGuard,
        balancer: LoadBalancer | None,
        ranks: RankGroup,
        report: Report,
        progress: Progress,
        requests: ControlRequests,
        skipped_by: str,
    ) -> None:
        """`progress` is where training starts or goes on, `skipped_by` who skips a step that is not finite."""
        config = components.config
        self._requests = requests
        self._components, self._metrics, self._memory = components, metrics, memory
        self._balancer = balancer
        self._ranks, self._report = ranks, report
        # no method of this object: a cycle would keep the group's connections open after a failure
        newest_backup = partial(_newest_backup, components.backups, ranks)
        check = partial(check_weights, config, components.family, components.weights.model)
        self._nonfinite = NonFiniteGuard(
            config.max_nonfinite_steps, config.precision, newest_backup, report, check, skipped_by
        )
        self._log_timer = TimeTrigger({"log": config.log_every})
        self._logged = progress

    def exchange(self, *, flush: bool = False, polls: bool = True) -> Mapping[str, float]:
        """Send this rank's requests and metrics to the others; report what all ranks sent at the previous sync.

        Returns the sums over the ranks, in which a request is positive if any rank made it. The newest step may still
        be computing on the device and waits for the next sync, unless `flush`. Without `polls`, no new request is read.
        """
        unreadable = self._components.data.unreadable
        own = {
            **(self._requests.poll(at_once=flush) if polls else {}),
            **self._metrics.take_group(flush=flush),
            **self._memory.metrics(),
            **unreadable.metrics(),
        }
        sums = self._ranks.sync_metrics(own)
        unreadable.follow(sums)
        records = self._metrics.finish_group(sums)
        for record in records:
            progress = self._components.data.order.progress(record.samples_seen)
            shown = is_due(self._components.config.log_every, self._logged, progress) or bool(self._log_timer.due())
            self._logged = progress
            self._report.step(record, shown=shown)
            self._nonfinite.check(record)
        if records:
            rank_times = run_info.rank_times(sums, self._ranks.cluster_info)
            self._report.ranks(rank_times, self._ranks.readings.latest, len(records))
            self._memory.follow(sums, records)
            if self._balancer is not None:
                self._balancer.follow(sums, records, self._metrics.steps_done)
            # ranks that average their gradients learn of these steps here at once, and have to keep one scale
            self._components.guarded_step.undo_backoff(self._metrics.skipped_for_memory(sums))
        return sums

    def settle(self, requested: Mapping[str, float]) -> Mapping[str, float]:
        """Read and report the metrics of all steps: a backup at this step has to hold the loss scale that follows from
        them, and a run that continues from it reports none of them again.

        Returns the requests of all ranks: `requested` and those that were still on their way.
        """
        while self._metrics.pending:
            requested = _sum(requested, self.exchange(flush=True))
        return requested

    def finish(self) -> Mapping[str, float]:
        """Read and report what is left after the last step. Returns the requests that were made up to now."""
        requested = self.settle(self.exchange(flush=True))
        return _sum(requested, self.exchange(flush=True, polls=False))


def _sum(first: Mapping[str, float], second: Mapping[str, float]) -> Mapping[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}


def _newest_backup(backups: BackupWriter, ranks: RankGroup) -> str:
    """The newest valid backup, which rank 0 finds for all; empty if there is none."""
    found = ""

    def find() -> None:
        nonlocal found
        newest, _ = backups.newest_valid()
        found = "" if newest is None else str(newest)

    ranks.run_on_rank0("newest backup", find)
    return ranks.gather("newest backup found", found)[0]
