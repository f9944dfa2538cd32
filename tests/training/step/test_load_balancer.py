"""Unequal shares, given or measured, give what one rank gives; measured ones follow the speed of the ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config import ConfigError, TrainConfig, check_balance
from modules.data.loading.shares import Shares, share_counts
from modules.monitoring import SilentReport, StepRecord
from modules.training.step.load_balancer import WARM_UP, WINDOW_STEPS, LoadBalancer
from modules.training.step.memory_guard import MemoryGuard
from modules.training.studies.parity import loss_difference, weight_difference
from tests.pair_jobs import PARITY, TIMEOUTS
from tests.runs import ROOT, Job, Run, group_settings, recorded, same_state, tiny_config, train_alone, train_group

GLOBAL_BATCH = 8
STEPS = 14  # of epochs of six, the last of which has one sample
LIST: dict[str, object] = {**PARITY, "max_steps": STEPS, "balance": [2, 1]}
BLOCKS: dict[str, object] = {"family": str(ROOT / "tests" / "block_family.py"), "family_options": {"width": 5}}
# one rank takes three times as long for a sample; the loader reads ahead
SLOW: dict[str, object] = {
    **PARITY,
    "max_steps": 60,
    "balance": "auto",
    "loader_workers": 1,
    "prefetch_factor": 5,
}
PAIR_JOBS: dict[str, dict[str, object]] = {
    "two to one": {**LIST, "family_options": {"record": "two to one"}},
    "two to one accumulated": {**LIST, "batch_size": 1, "gradient_accumulation_steps": 3},
    "two to one sharded": {**LIST, **BLOCKS, "training_mode": "fully_sharded"},
    "two to one in halves": {**LIST, "max_steps": STEPS // 2},
    "two to one resumed": {**LIST, "resumes": "two to one in halves"},
    "a rank has less memory": {
        **LIST,
        "max_steps": 2,
        "balance": [1.001, 1],
        "probe_memory": "on",
        "family_options": {"faults": ["fits:1:2"]},
    },
    "a rank is slow": {**SLOW, "family_options": {"slow_sample_s": [0.003, 0.009], "record": "slow"}},
}


class Notes(SilentReport):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warning(self, text: str) -> None:
        self.warnings.append(text)


class Ranks:
    """Ranks that take so many seconds per sample, in steps of which each is a sync."""

    def __init__(self, samples: int, lead: int = 4, ranks: int = 2) -> None:
        self.shares, self.report, self.samples, self.ranks = Shares(), Notes(), samples, ranks
        self.balancer = LoadBalancer(self.shares, ranks, samples, lead, self.report)
        self.step = 0

    def train(self, steps: int, seconds: Callable[[int, int], float]) -> None:
        """`seconds` per sample of a rank that takes so many."""
        for _ in range(steps):
            counts = share_counts(self.samples, self.ranks, self.shares.divide(self.step))
            self.step += 1
            sums: dict[str, float] = {}
            for rank, count in enumerate(counts):
                took = max(1, count) * seconds(rank, count)
                sums |= {f"forward_s/{rank}": took / 3, f"backward_s/{rank}": took * 2 / 3}
                sums |= {f"samples/{rank}": max(1, count), f"step_s/{rank}": took}  # without samples, padding
            self.balancer.follow(sums, [StepRecord(self.step, 0, 0, 1.0, 0.1, 1.0, 1.0)], self.step)

    @property
    def counts(self) -> tuple[int, ...]:
        """The shares of the steps to come."""
        return share_counts(self.samples, self.ranks, self.shares.latest)


LONG = WARM_UP + 2 * WINDOW_STEPS  # steps


@pytest.mark.parametrize(
    ("samples", "speeds", "counts"),
    [
        (16, (1.0, 0.5), (11, 5)),
        (16, (1.0, 0.3), (13, 3)),
        (4, (1.0, 0.38), (3, 1)),
        (2, (1.0, 0.5), (1, 1)),  # nothing better is possible
        (16, (1.0, 0.95), (8, 8)),
        (6, (1.0, 0.05), (6, 0)),
        (12, (0.5, 1.0, 0.25), (3, 7, 2)),
    ],
)
def test_shares_follow_the_speed(samples: int, speeds: tuple[float, ...], counts: tuple[int, ...]) -> None:
    ranks = Ranks(samples, ranks=len(speeds))
    ranks.train(LONG, lambda rank, _: 1 / speeds[rank])
    assert ranks.counts == counts
    equal = share_counts(samples, len(speeds))
    assert len(ranks.report.notes) == (counts != equal)
    assert all(f"{' + '.join(map(str, counts))} of {samples} samples" in note for note in ranks.report.notes)
    ranks.train(LONG, lambda rank, _: 1 / speeds[rank])
    assert len(ranks.report.notes) == (counts != equal), "they stay"


def test_all_ranks_change_at_the_same_step() -> None:
    clocks = (0.0665, 0.0668)  # seconds of a step, as each rank measures them for itself
    ranks = [Ranks(16), Ranks(16)]
    for sync in range(100):
        fast = sync // 25 % 2
        for rank, clock in zip(ranks, clocks, strict=True):
            rank.step += 3
            for done in range(rank.step - 3, rank.step):
                rank.shares.divide(done)
            sums = {f"{name}/{n}": value for n in (0, 1) for name, value in (("samples", 8), ("step_s", 0.0667))}
            for n in (0, 1):
                took = 0.02 if n == fast else 0.04
                sums |= {f"forward_s/{n}": took / 3, f"backward_s/{n}": took * 2 / 3}
            records = [StepRecord(rank.step - 2 + n, 0, 0, 1.0, 0.1, 1.0, clock) for n in range(3)]
            rank.balancer.follow(sums, records, rank.step)
        assert ranks[0].shares.latest == ranks[1].shares.latest, sync
    assert len(ranks[0].report.notes) > 1


def test_shares_follow_a_change_of_speed() -> None:
    ranks = Ranks(16)
    ranks.train(LONG, lambda rank, _: (1.0, 2.0)[rank])
    assert ranks.counts == (11, 5)
    ranks.train(LONG, lambda rank, _: (3.0, 1.0)[rank])
    assert ranks.counts == (4, 12)
    ranks.train(LONG, lambda rank, _: 1.0)
    assert ranks.counts == (8, 8)


def test_shares_that_turned_out_slower_are_not_tried_twice() -> None:
    """Rank 0 is faster per sample as long as it takes four at once."""
    ranks = Ranks(8)
    ranks.train(20 * WINDOW_STEPS, lambda rank, count: (1.0 if count <= 4 else 2.5, 1.5)[rank])
    assert ranks.counts == (4, 4)
    assert len(ranks.report.notes) == 2, "there and back"


@pytest.mark.parametrize(
    ("given", "kept"),
    [("auto", "auto"), (" Equal ", "equal"), ([2, 1], "2, 1"), ("2.9 : 1.1", "2.9, 1.1"), ("[3, 1, 1]", "3, 1, 1")],
)
def test_balance_is_a_word_or_numbers(given: object, kept: str) -> None:
    config = TrainConfig.model_validate({"balance": given})
    assert config.balance == TrainConfig.model_validate_json(config.model_dump_json()).balance == kept


@pytest.mark.parametrize("given", ["fair", [2, 0], [2, "x"], "2, -1", "", [], [float("inf"), 1], [True, 1], "2;1"])
def test_a_wrong_balance_says_what_is_allowed(given: object) -> None:
    with pytest.raises(ValueError, match="a number above 0 for each rank, such as"):
        TrainConfig.model_validate({"balance": given})


def test_a_rank_with_less_memory_limits_the_others_only_if_shares_are_equal() -> None:
    sums = {"samples_at_once/0": 4, "samples_at_once/1": 2}
    skipped = [StepRecord(3, 0, 0, 1.0, 0.1, 1.0, 0.1, out_of_memory=True)]
    for together, limit, said in (
        (True, 2, "and micro-batches now hold at most 2"),
        (False, 4, "and its micro-batches"),
    ):
        report = Notes()
        guard = MemoryGuard(4, GLOBAL_BATCH, 0, 2, report, together=together)
        guard.follow(sums, skipped)
        assert guard.max_samples == limit
        assert "Out of memory on rank 1" in report.warnings[0]
        assert said in report.warnings[0]


def test_as_many_numbers_as_ranks() -> None:
    check_balance("2, 1", 2)
    check_balance("2, 1", 1)  # which takes every sample
    check_balance("auto", 3)
    with pytest.raises(ConfigError, match=r"balance is \[2, 1\], 2 numbers, but the run has 3 ranks\. .* \[3, 2, 1\]"):
        check_balance("2, 1", 3)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("balance")


@pytest.fixture(scope="module")
def one(images: Path, place: Path) -> Run:
    (place / "one").mkdir()
    settings = {**PARITY, "max_steps": 60, "family_options": {"record": str(place / "one")}}
    code, run = train_alone(tiny_config(images, place, **settings))
    assert code == 0
    return run


def assert_same_losses(first: Run, other: Run, steps: int) -> None:
    assert len(other.losses) == steps
    assert loss_difference(first.losses[:steps], other.losses) <= 1e-12


@pytest.mark.slow
@pytest.mark.xdist_group("pair")
@pytest.mark.parametrize("name", ["two to one", "two to one accumulated"])
def test_given_shares_give_the_losses_of_one_rank(one: Run, pair: dict[str, Run], name: str) -> None:
    assert_same_losses(one, pair[name], STEPS)
    log = pair[name].folder.log_file(0).read_text()
    assert "5 + 3 of 8 samples; 5.3 : 2.7 would be ideal" in log


@pytest.mark.slow
@pytest.mark.xdist_group("pair")
def test_every_sample_is_computed_once_by_the_rank_whose_it_is(
    one: Run, place: Path, pair: dict[str, Run], pair_place: Path
) -> None:
    alone = recorded(place / "one", 0, skip_first_call=False).samples
    ranks = [recorded(pair_place / "two to one", rank, skip_first_call=True).samples for rank in range(2)]
    assert [len(each) for each in ranks] == [12 * 5 + 2, 12 * 3], "of 12 steps of 8 samples and two of one"
    assert sorted(ranks[0] + ranks[1]) == sorted(alone[: len(ranks[0]) + len(ranks[1])])


@pytest.mark.slow
@pytest.mark.xdist_group("pair")
def test_sharded_ranks_take_given_shares(images: Path, place: Path, pair: dict[str, Run]) -> None:
    code, alone = train_alone(tiny_config(images, place, run_name="blocks", **{**PARITY, **BLOCKS, "max_steps": STEPS}))
    assert code == 0
    assert_same_losses(alone, pair["two to one sharded"], STEPS)
    assert weight_difference(alone.state, pair["two to one sharded"].state) <= 1e-12


@pytest.mark.slow
@pytest.mark.xdist_group("pair")
def test_given_shares_keep_the_bits(pair: dict[str, Run]) -> None:
    first, again = pair["two to one"], pair["two to one resumed"]
    assert again.losses[-STEPS:] == first.losses[-len(again.losses) :]
    assert same_state(again.state, first.state)


@pytest.mark.slow
@pytest.mark.xdist_group("pair")
def test_measured_shares_spare_the_slow_rank(one: Run, place: Path, pair: dict[str, Run], pair_place: Path) -> None:
    run = pair["a rank is slow"]
    assert_same_losses(one, run, 60)
    assert "Load balancing: from step " in run.folder.log_file(0).read_text()
    counts = [len(recorded(pair_place / "slow", rank, skip_first_call=True).samples) for rank in range(2)]
    assert counts[0] > counts[1]
    assert sum(counts) == len(recorded(place / "one", 0, skip_first_call=False).samples)


@pytest.mark.slow
@pytest.mark.xdist_group("pair")
def test_the_probe_limits_each_rank_by_its_own_memory(one: Run, pair: dict[str, Run]) -> None:
    run = pair["a rank has less memory"]
    assert "hold at most 2 instead of 4 samples on rank 1, because no more" in run.warnings
    assert_same_losses(one, run, 2)


@pytest.mark.slow
@pytest.mark.long
def test_three_ranks_with_unequal_shares_train_as_one(images: Path, place: Path, one: Run) -> None:
    jobs = {
        "list": {**LIST, "balance": [1, 4, 2]},
        "nothing for one": {**LIST, "balance": [9, 0.1, 9]},
        "sharded": {**LIST, **BLOCKS, "balance": [0.1, 1, 2], "training_mode": "fully_sharded", "batch_size": 2},
        "slow": {**SLOW, "family_options": {"slow_sample_s": [0.003, 0.009, 0.006]}},
    }
    of_three = {**group_settings(3), **TIMEOUTS}
    configs = {
        name: tiny_config(images, place, run_name=f"three-{name.replace(' ', '-')}", **{**of_three, **settings})
        for name, settings in jobs.items()
    }
    runs = train_group(3, {name: Job(config) for name, config in configs.items()})
    for name in ("list", "nothing for one"):
        assert_same_losses(one, runs[name], STEPS)
    assert_same_losses(one, runs["slow"], 60)
    assert "Load balancing: from step " in runs["slow"].folder.log_file(0).read_text()
    alone = {**PARITY, **BLOCKS, "max_steps": STEPS}
    _, whole = train_alone(tiny_config(images, place, run_name="blocks-of-three", **alone))
    assert_same_losses(whole, runs["sharded"], STEPS)
