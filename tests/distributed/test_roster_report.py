"""The start-up report: its table at the width of a terminal, and a warning for everything odd."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from modules.config import ConfigError
from modules.distributed.rank_facts import Differences, RankFacts
from modules.distributed.roster import Roster, raise_differences
from modules.distributed.roster_report import roster_lines, roster_warnings
from modules.machine import Link

VERSIONS = {"Python": "3.11.7", "torch": "2.13.0", "cuda": "12.8", "nccl": "2.27.5", "driver": "580.65.06"}


def row(rank: int, host: str = "alpha", **other: Any) -> RankFacts:
    a100: dict[str, Any] = {
        "device": f"cuda:{rank % 4}",
        "model": "NVIDIA A100-SXM4-80GB",
        "memory_mib": 81_920,
        "free_mib": 80_500,
        "threads": 8,
        "versions": VERSIONS,
    }
    return RankFacts(rank=rank, host=host, process_id=4000 + rank, backend="nccl", **{**a100, **other})


def group(**other: Any) -> tuple[RankFacts, ...]:
    """Two hosts with four like GPUs each; rank 5's row has `other` values."""
    rows = [row(rank, "alpha" if rank < 4 else "beta") for rank in range(8)]
    return (*rows[:5], replace(rows[5], **other), *rows[6:])


def only(rows: tuple[RankFacts, ...], batch: int | None = None, **other: Any) -> str:
    """The one warning."""
    (text,) = roster_warnings(Roster(rows, **other), batch)
    return text


def test_one_line_a_host_where_all_ranks_are_alike() -> None:
    assert roster_lines(Roster(group(), link_mb_s=2900.0)) == [
        "host   ranks  device                     memory    free      process ids",
        "alpha  0-3    4 x NVIDIA A100-SXM4-80GB  80.0 GiB  78.6 GiB  4000, 4001 +2",
        "beta   4-7    4 x NVIDIA A100-SXM4-80GB  80.0 GiB  78.6 GiB  4004, 4005 +2",
        "nccl, 8 threads a process; torch 2.13.0, CUDA 12.8, NCCL 2.27.5, driver 580.65.06, Python 3.11.7; "
        "2900 MB/s between hosts",
    ]


def test_other_models_get_a_line_of_their_own_and_the_table_fits_80_columns() -> None:
    lines = roster_lines(Roster(group(model="NVIDIA RTX 6000 Ada Generation, of a long name")))
    assert [line.split()[1] for line in lines[1:-1]] == ["0-3", "4", "5", "6-7"]
    assert all(len(line) <= 90 for line in lines[:-1])


def test_nothing_is_said_of_like_ranks() -> None:
    assert roster_warnings(Roster(group(), link_mb_s=2900.0), 64) == []
    assert roster_warnings(Roster((row(0),)), None) == []


def test_mixed_models_say_how_much_the_faster_one_idles() -> None:
    rows = (row(0), row(1, "beta", model="NVIDIA A30", memory_mib=81_920))
    text = only(rows, speeds=(2.0, 1.0))
    assert "1 x NVIDIA A100-SXM4-80GB, 1 x NVIDIA A30" in text
    assert "rank 1 (NVIDIA A30 on beta): rank 0 (NVIDIA A100-SXM4-80GB on alpha) is 2.0 x as fast" in text
    assert "idles 50% of each step, 33% of all GPUs' work is lost" in text
    assert roster_warnings(Roster(rows, speeds=(1.0, 0.99)), None) == []


def test_a_batch_that_does_not_divide_says_what_would() -> None:
    assert "some take 2 samples and others 1" in only(group(), 10)
    assert "38% of the devices' work is lost. 16 would use them fully, and so would 8." in only(group(), 10)
    assert roster_warnings(Roster(group()), 8 * 100 - 1) == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"free_mib": 20_000}, "only 19.5 GiB are free: another program uses it"),
        ({"memory_mib": 40_960, "free_mib": 40_000}, "Rank 5 on beta has 40.0 GiB, rank 0 on alpha 80.0 GiB"),
        ({"versions": {**VERSIONS, "torch": "2.12.1"}}, "alpha has torch 2.13.0, but beta torch 2.12.1"),
        ({"versions": {**VERSIONS, "driver": "570.1"}}, "driver 580.65.06, but beta driver 570.1"),
    ],
)
def test_what_one_rank_has_otherwise(other: dict[str, Any], said: str) -> None:
    assert said in only(group(**other))


def test_a_newer_patch_of_python_is_not_worth_a_word() -> None:
    assert roster_warnings(Roster(group(versions={**VERSIONS, "Python": "3.11.9"})), None) == []


def test_other_code_that_was_allowed_is_told() -> None:
    rows = tuple(replace(each, code={0: "a", 4: "b"}.get(each.rank, "")) for each in group())
    assert only(rows).startswith("beta runs other code than alpha, as --allow_differences lets it")


def test_links_come_with_their_matrix() -> None:
    ways = (Link(0, 1, "NV4", 4, 4, peer_access=True), Link(0, 2, "SYS"), Link(1, 2, "SYS"))
    rows = (row(0, links=ways), row(1), row(2))
    assert "not all GPUs are joined by NVLink" in only(rows)
    assert "\n  GPU0  X     NV4   SYS\n" in only(rows)
    closed = (ways[0], replace(ways[1], peer_access=False), ways[2])
    assert "On alpha the GPUs 0 and 2 cannot read each other's memory" in only(
        (replace(rows[0], links=closed), *rows[1:])
    )
    assert roster_warnings(Roster((replace(rows[0], links=ways[:1]), *rows[1:])), None) == []


def test_a_slow_link_says_what_it_costs() -> None:
    assert "only 11.5 MB/s" in only(group(), link_mb_s=11.5)
    assert "take 35 s a step" in only(group(), link_mb_s=11.5)


def test_clocks() -> None:
    rows = tuple(replace(each, clock=1000.0 - 40 * (each.host == "beta")) for each in group())
    assert "The clock of beta is 40 s behind that of alpha" in only(rows)


def test_a_row_survives_being_sent() -> None:
    own = row(0, links=(Link(0, 1, "NV4", 4, 4, peer_access=True),))
    assert RankFacts.parse(own.dump()) == own
    assert own.event()["model"] == "NVIDIA A100-SXM4-80GB"


def test_differing_settings_and_files_are_refused_by_name() -> None:
    raise_differences("alpha", [Differences("alpha"), Differences("beta")])
    with pytest.raises(ConfigError, match=r"settings differ between alpha \(rank 0\) and beta \(rank 1\): epochs\."):
        raise_differences("alpha", [Differences("alpha"), Differences("beta", ("epochs",), ("modules/a.py",))])
    with pytest.raises(ConfigError, match=r"files of Tandem differ .*: a, b, c, d and 2 more\..*git pull"):
        raise_differences("alpha", [Differences("alpha"), Differences("beta", (), tuple("abcdef"))])
