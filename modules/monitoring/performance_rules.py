"""What slows a run down, and what to try: one rule for each cause, with its thresholds. See RULES.

A rule gets what was typical of all ranks over a window of steps, and returns a sentence with the figure and what to
try, or None. Each is reported once (`PerformanceMonitor`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Final

from modules.machine.gpu_load import POWER_LIMIT
from modules.monitoring.device_log import Reading
from modules.monitoring.step_times import RankStepTimes

MIN_WAIT_S: Final = 0.01  # shorter waits are never reported: logging itself takes some of that
OFTEN_LATE: Final = 0.6  # of the steps; processes that share cores with others are late in turns
LATE_FRACTION: Final = 0.1  # of a step, that the others wait for a straggler
SLOWDOWN: Final = 1.25  # times the median of the other ranks
STARVED_FRACTION: Final = 0.2  # of a step, waiting for the loader
IDLE_CPU: Final = 0.5  # of the loader's workers, in a run that waits for its data: the disk is what is slow
DISK_READS_MB_S: Final = 1.0
COMMUNICATION_FRACTION: Final = 0.3  # of a step on the median rank, and half of that on every rank
MIN_READINGS: Final = 3  # of a GPU, two seconds apart
LOW_CLOCK: Final = 0.85  # of its highest clock, with a throttle reason
LIMITED_CLOCK: Final = 0.7  # with the power limit as reason, which under full load is usual at higher clocks
LOWERED_LIMIT: Final = 0.98  # of the power limit that a card comes with, at which small cards are slow by design
BUSY_PERCENT: Final = 90.0
LOW_POWER: Final = 0.35  # of the power limit, in a GPU that is busy and
FULL_MEMORY: Final = 0.95  # whose memory is full
UNDERUSED_PERCENT: Final = 50.0  # load of a GPU that waits neither for data nor for other ranks, with
FREE_MEMORY: Final = 0.5  # of its memory


@dataclass(frozen=True)
class Finding:
    """What a rule says; `excess` is its figure over its threshold. Readings, which last ten seconds, count twice."""

    text: str
    excess: float = 2.0


@dataclass(frozen=True)
class Observation:
    """What was typical of each rank; `readings` are its latest ones, `devices` the name of its device.

    `late`: in which share of the steps a rank was the last; None: always the one that typically is. `exchange`: which
    share of a step the rank that waits least waits for the sum of the gradients; the others also wait for that rank.
    `balances`: the ranks' shares of a step follow their speed (`balance: auto`).
    """

    ranks: Sequence[RankStepTimes]
    loader_workers: int = 0
    readings: Mapping[int, Sequence[Reading]] = field(default_factory=dict)
    devices: Sequence[str] = ()
    late: Mapping[int, float] | None = None
    exchange: float = 1.0
    balances: bool = False

    def mean(self, rank: int, name: str) -> float | None:
        """The mean of a metric over a rank's readings; None if they are too few."""
        found = [value for each in self._of(rank) if isinstance(value := each.get(name), (int, float))]
        return fmean(found) if len(found) >= MIN_READINGS else None

    def held_back_by(self, rank: int) -> str:
        """The throttle reasons that all of a rank's readings have; empty if there are none."""
        texts = [str(each.get("slowdown") or "") for each in self._of(rank)]
        common = set(texts[0].split(", ")) if len(texts) >= MIN_READINGS else set()
        return ", ".join(sorted(common.intersection(*(text.split(", ") for text in texts)) - {""}))

    def device(self, rank: int) -> str:
        """The name of a rank's device; empty if it is not known."""
        return self.devices[rank] if rank < len(self.devices) else ""

    def _of(self, rank: int) -> Sequence[Reading]:
        return self.readings.get(rank, ())


def straggler(seen: Observation) -> Finding | None:
    """One rank that all others wait for, and why."""
    slowest, late_s, others, excess = _slowest(seen)
    if slowest is None:
        return None
    host, rank = slowest.host, slowest.rank
    delay = f"the others wait {late_s:.2f} s of each {slowest.step_s:.2f} s step"
    who = f"Rank {rank} on {host} is a straggler: {delay}"
    if _is_late_by_data(slowest, late_s, others):
        return Finding(
            f"{who}, because its loader takes {slowest.data_s:.2f} s to deliver images. Is the disk of {host} slower, "
            "or are its CPUs busy? Put cache_dir on a local disk, or raise loader_workers.",
            excess,
        )
    ratio = _slowness(slowest, others)
    if ratio < SLOWDOWN or _is_mixed(seen, slowest) or _is_being_balanced(seen, slowest):
        return None  # it has more samples, which the start-up report shows; or see mixed_gpus
    if reasons := seen.held_back_by(rank):
        return Finding(
            f"{who}. It takes {ratio:.1f} x as long per sample, and its GPU is held back by: {reasons}. Check cooling.",
            excess,
        )
    return Finding(
        f"{who}. It takes {ratio:.1f} x as long as the others per sample. Check {host} for other programs on the GPU "
        "or CPU, for thermal throttling (nvidia-smi -q -d PERFORMANCE), and for a slower GPU model; if nothing helps: "
        f"{_remedy(seen)}leave it out with device_ids.",
        excess,
    )


def mixed_gpus(seen: Observation) -> Finding | None:
    """A straggler whose GPU is another model: the faster ones are idle."""
    slowest, late_s, others, excess = _slowest(seen)
    if slowest is None or not _is_mixed(seen, slowest):
        return None
    if _is_late_by_data(slowest, late_s, others) or _slowness(slowest, others) < SLOWDOWN:
        return None  # see straggler; or it has more samples
    if _is_being_balanced(seen, slowest):
        return None
    return Finding(
        f"The GPUs differ, and the faster ones are idle for {late_s / slowest.step_s:.0%} of each step, waiting for "
        f"rank {slowest.rank} ({seen.device(slowest.rank)}). To even that out: {_remedy(seen)}leave it out with "
        "device_ids, or use it for another run.",
        excess,
    )


def starvation(seen: Observation) -> Finding | None:
    """Training waits for the loader."""
    worst, fraction = _starved(seen.ranks)
    if worst is None or _waits_for_disk(seen, worst):
        return None
    more = max(2, seen.loader_workers * 2)
    return Finding(
        f"Training is limited by data loading: {fraction:.0%} of each step on rank {worst.rank} "
        f"({worst.host}) is spent waiting for samples. Try loader_workers={more} (now {seen.loader_workers}), a larger "
        "prefetch_factor, or a faster disk for the data or cache_dir.",
        fraction / STARVED_FRACTION,
    )


def slow_disk(seen: Observation) -> Finding | None:
    """Training waits for the loader, whose processes wait for the disk."""
    worst, fraction = _starved(seen.ranks)
    if worst is None or not _waits_for_disk(seen, worst):
        return None
    speed = seen.mean(worst.rank, "disk_read_mb_s") or 0.0
    return Finding(
        f"Training waits for a disk: {fraction:.0%} of each step on rank {worst.rank} ({worst.host}), which reads "
        f"{speed:.1f} MB/s while its loader's CPUs are idle. Put cache_dir on a local SSD.",
        fraction / STARVED_FRACTION,
    )


def communication(seen: Observation) -> Finding | None:
    """All ranks wait for the gradients to arrive, not in turns for each other."""
    shares = [each.sync_s / each.step_s for each in seen.ranks if each.step_s > 0]
    if len(shares) < 2 or median(each.sync_s for each in seen.ranks) < MIN_WAIT_S or _slowest(seen)[0]:
        return None
    if median(shares) < COMMUNICATION_FRACTION or min(*shares, seen.exchange) < COMMUNICATION_FRACTION / 2:
        return None
    return Finding(
        f"Training is limited by communication: {median(shares):.0%} of each step is spent waiting for gradients to be "
        "summed over the ranks. Try a higher gradient_accumulation_steps or batch_size, gradient_compression=bf16, or "
        "a faster link; scripts/preflight.py measures the links.",
        median(shares) / COMMUNICATION_FRACTION,
    )


def throttled(seen: Observation) -> Finding | None:
    """A GPU whose clocks are held back by heat, by its power supply, or far below by a lowered power limit."""
    for each in seen.ranks:
        reasons = seen.held_back_by(each.rank)
        clock, highest = (seen.mean(each.rank, name) for name in ("sm_clock_mhz", "sm_clock_max_mhz"))
        if not reasons or not clock or not highest:
            continue
        share, is_limit = clock / highest, reasons == POWER_LIMIT
        limit, default = (seen.mean(each.rank, name) for name in ("power_limit_w", "power_default_w"))
        if is_limit and limit and default and limit >= LOWERED_LIMIT * default:
            continue
        if share < (LIMITED_CLOCK if is_limit else LOW_CLOCK):
            what = "Raise the limit with nvidia-smi -pl if the cooling allows it." if is_limit else "Check its cooling."
            usual = f" instead of {default:.0f} W" if default else ""
            at = f" of {limit:.0f} W{usual}" if is_limit and limit else ""
            return Finding(
                f"The GPU of rank {each.rank} on {each.host} runs at {share:.0%} of its clock ({clock:.0f} of "
                f"{highest:.0f} MHz), held back by: {reasons}{at}. {what}",
            )
    return None


def spilling(seen: Observation) -> Finding | None:
    """A GPU that is busy with little power and full memory: Windows' driver moves memory to and from the host."""
    for each in seen.ranks:
        if not seen.mean(each.rank, "spills_to_host"):
            continue
        names = ("utilization_percent", "power_w", "power_limit_w", "memory_used_mib", "memory_total_mib")
        load, power, limit, used, total = (seen.mean(each.rank, name) for name in names)
        # NCCL's kernels, too, keep a GPU busy with little power while they wait for other ranks
        if not (load and power and limit and used and total) or each.sync_s >= STARVED_FRACTION * each.step_s:
            continue
        if load >= BUSY_PERCENT and power < LOW_POWER * limit and used >= FULL_MEMORY * total:
            return Finding(
                f"The GPU of rank {each.rank} on {each.host} is busy ({load:.0f} %) but takes only {power:.0f} of "
                f"{limit:.0f} W, with {used / total:.0%} of its memory in use: the driver moves memory to the host. "
                "Lower batch_size, or turn on gradient_checkpointing.",
            )
    return None


def small_batch(seen: Observation) -> Finding | None:
    """GPUs that have little to do although nothing keeps them waiting."""
    for each in seen.ranks:
        names = ("utilization_percent", "memory_used_mib", "memory_total_mib")
        load, used, total = (seen.mean(each.rank, name) for name in names)
        if load is None or not used or not total or each.step_s <= 0:
            return None
        waits = (each.data_s + each.sync_s + each.logging_s) / each.step_s
        if load >= UNDERUSED_PERCENT or used >= FREE_MEMORY * total or waits >= STARVED_FRACTION:
            return None
    first = seen.ranks[0].rank
    return Finding(
        f"The batch is too small to fill the GPU: its load is {seen.mean(first, 'utilization_percent'):.0f} % on rank "
        f"{first}, and half of its memory is free. Raise batch_size (scripts/find_batch_size.py), or set compile.",
    )


RULES: Final[Mapping[str, Callable[[Observation], Finding | None]]] = {
    "straggler": straggler,
    "mixed_gpus": mixed_gpus,
    "starvation": starvation,
    "slow_disk": slow_disk,
    "communication": communication,
    "throttled": throttled,
    "spilling": spilling,
    "small_batch": small_batch,
}


def _slowest(seen: Observation) -> tuple[RankStepTimes | None, float, Sequence[RankStepTimes], float]:
    """The rank that all others wait for, for how long, the others, and the excess; None if they do not wait."""
    ranks = seen.ranks
    if len(ranks) < 2:
        return None, 0.0, (), 0.0
    slowest = max(ranks, key=lambda each: each.own_s)
    others = [each for each in ranks if each is not slowest]
    usual_s = median(each.own_s for each in others)
    late_s = slowest.own_s - usual_s
    limits = (LATE_FRACTION * slowest.step_s, MIN_WAIT_S, (SLOWDOWN - 1) * usual_s)
    excess = late_s / max(*limits, 1e-9)
    often = seen.late is None or seen.late.get(slowest.rank, 0.0) >= OFTEN_LATE
    return (slowest if excess >= 1 and often else None), late_s, others, excess


def _is_late_by_data(slowest: RankStepTimes, late_s: float, others: Sequence[RankStepTimes]) -> bool:
    """Whether its loader is why."""
    return slowest.data_s - median(each.data_s for each in others) > late_s / 2


def _slowness(slowest: RankStepTimes, others: Sequence[RankStepTimes]) -> float:
    """Its time per sample over that of the others."""
    return _s_per_sample(slowest) / median(_s_per_sample(each) for each in others)


def _is_mixed(seen: Observation, slowest: RankStepTimes) -> bool:
    """Whether the other ranks have another model of GPU; `devices` are "MODEL on HOST"."""
    models = [each.partition(" on ")[0] for each in seen.devices]
    return slowest.rank < len(models) and len(models) > 1 and models.count(models[slowest.rank]) < len(models)


def _is_being_balanced(seen: Observation, slowest: RankStepTimes) -> bool:
    """Whether `balance: auto` is about to spare this rank, as another one would clearly end earlier with one sample
    more."""
    end_s = _s_per_sample(slowest) * slowest.samples
    return seen.balances and any(
        (1 + LATE_FRACTION) * _s_per_sample(each) * (each.samples + 1) < end_s for each in seen.ranks
    )


def _remedy(seen: Observation) -> str:
    """What to try first if a rank is slow."""
    if not seen.balances:
        return "set balance to auto, which gives it fewer samples; or "
    shares = " + ".join(f"{each.samples:.0f}" for each in seen.ranks[:8]) + " + …" * (len(seen.ranks) > 8)
    return f"a step has too few samples to share them better than {shares}, so raise global_batch_size; or "


def _starved(ranks: Sequence[RankStepTimes]) -> tuple[RankStepTimes | None, float]:
    """The rank that waits for the loader for the largest share of its step, if all of them wait long."""
    fractions = {each.rank: each.data_s / each.step_s for each in ranks if each.step_s > 0}
    if median(fractions.values() or [0.0]) < STARVED_FRACTION or median(each.data_s for each in ranks) < MIN_WAIT_S:
        return None, 0.0
    worst = max(ranks, key=lambda each: fractions.get(each.rank, 0.0))
    return worst, fractions[worst.rank]


def _waits_for_disk(seen: Observation, worst: RankStepTimes) -> bool:
    """Whether the loader's processes read from a disk and have little to compute."""
    cpu, reads = (seen.mean(worst.rank, name) for name in ("process_cpu_percent", "disk_read_mb_s"))
    return cpu is not None and (reads or 0.0) >= DISK_READS_MB_S and cpu < 100 * IDLE_CPU * (seen.loader_workers + 1)


def _s_per_sample(times: RankStepTimes) -> float:
    return max(times.own_s - times.data_s, 1e-9) / max(times.samples, 1.0)
