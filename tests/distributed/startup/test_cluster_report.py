"""The start-up report: its table fits a terminal, and every problem gets a warning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from modules.config import ConfigError
from modules.distributed.startup.cluster_info import ClusterInfo, raise_differences
from modules.distributed.startup.cluster_report import cluster_lines, cluster_warnings
from modules.distributed.startup.rank_info import Differences, RankInfo
from modules.machine import Link

VERSIONS = {"Python": "3.11.7", "torch": "2.13.0", "cuda": "12.8", "nccl": "2.27.5", "driver": "580.65.06"}


def row(rank: int, host: str = "alpha", **other: Any) -> RankInfo:
    a100: dict[str, Any] = {
        "device": f"cuda:{rank % 4}",
        "model": "NVIDIA A100-SXM4-80GB",
        "memory_mib": 81_920,
        "free_mib": 80_500,
        "threads": 8,
        "versions": VERSIONS,
    }
    return RankInfo(rank=rank, host=host, process_id=4000 + rank, backend="nccl", **{**a100, **other})


def group(**other: Any) -> tuple[RankInfo, ...]:
    """Two hosts with four identical GPUs each; rank 5's row has `other` values."""
    rows = [row(rank, "alpha" if rank < 4 else "beta") for rank in range(8)]
    return (*rows[:5], replace(rows[5], **other), *rows[6:])


def only(rows: tuple[RankInfo, ...], batch: int | None = None, **other: Any) -> str:
    """The one warning."""
    (text,) = cluster_warnings(ClusterInfo(rows, **other), batch)
    return text


def test_one_line_per_host_if_all_ranks_are_alike() -> None:
    assert cluster_lines(ClusterInfo(group(), link_mb_s=2900.0)) == [
        "host   ranks  device                     memory    free      process ids",
        "alpha  0-3    4 x NVIDIA A100-SXM4-80GB  80.0 GiB  78.6 GiB  4000, 4001 +2",
        "beta   4-7    4 x NVIDIA A100-SXM4-80GB  80.0 GiB  78.6 GiB  4004, 4005 +2",
        "nccl, 8 threads per process; torch 2.13.0, CUDA 12.8, NCCL 2.27.5, driver 580.65.06, Python 3.11.7; "
        "2900 MB/s between hosts",
    ]


def test_other_models_get_their_own_line() -> None:
    lines = cluster_lines(ClusterInfo(group(model="NVIDIA RTX 6000 Ada Generation, of a long name")))
    assert [line.split()[1] for line in lines[1:-1]] == ["0-3", "4", "5", "6-7"]
    assert all(len(line) <= 90 for line in lines[:-1])


def test_no_warning_for_identical_ranks() -> None:
    assert cluster_warnings(ClusterInfo(group(), link_mb_s=2900.0), 64) == []
    assert cluster_warnings(ClusterInfo((row(0),)), None) == []


def test_mixed_models_warn_of_idle_time() -> None:
    rows = (row(0), row(1, "beta", model="NVIDIA A30", memory_mib=81_920))
    text = only(rows, speeds=(2.0, 1.0))
    assert "1 x NVIDIA A100-SXM4-80GB, 1 x NVIDIA A30" in text
    assert "rank 1 (NVIDIA A30 on beta): rank 0 (NVIDIA A100-SXM4-80GB on alpha) is 2.0 x as fast" in text
    assert "idles 50% of each step; 33% of the total GPU capacity is wasted" in text
    assert cluster_warnings(ClusterInfo(rows, speeds=(1.0, 0.99)), None) == []


def test_an_uneven_batch_suggests_one_that_divides() -> None:
    assert "some process 2 samples and others 1" in only(group(), 10)
    assert "38% of the devices' capacity is wasted. 16 would use them fully, and so would 8." in only(group(), 10)
    assert cluster_warnings(ClusterInfo(group()), 8 * 100 - 1) == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            {"free_mib": 20_000},
            "Only 19.5 GiB of 80.0 GiB are free on rank 5's NVIDIA A100-SXM4-80GB on beta: another",
        ),
        ({"memory_mib": 40_960, "free_mib": 40_000}, "Rank 5 on beta has 40.0 GiB, rank 0 on alpha 80.0 GiB"),
        ({"versions": {**VERSIONS, "torch": "2.12.1"}}, "alpha has torch 2.13.0, but beta has torch 2.12.1"),
        ({"versions": {**VERSIONS, "driver": "570.1"}}, "driver 580.65.06, but beta has driver 570.1"),
    ],
)
def test_differences_of_one_rank(other: dict[str, Any], said: str) -> None:
    assert said in only(group(**other))


def test_patch_versions_of_python_may_differ() -> None:
    assert cluster_warnings(ClusterInfo(group(versions={**VERSIONS, "Python": "3.11.9"})), None) == []


def test_permitted_differences_of_code_are_reported() -> None:
    rows = tuple(replace(each, code={0: "a", 4: "b"}.get(each.rank, "")) for each in group())
    assert only(rows).startswith("beta runs different code from alpha, as --allow_differences permits")


def test_link_warnings_include_the_matrix() -> None:
    ways = (Link(0, 1, "NV4", 4, 4, peer_access=True), Link(0, 2, "SYS"), Link(1, 2, "SYS"))
    rows = (row(0, links=ways), row(1), row(2))
    assert "not all GPUs are connected by NVLink" in only(rows)
    assert "\n  GPU0  X     NV4   SYS\n" in only(rows)
    closed = (ways[0], replace(ways[1], peer_access=False), ways[2])
    assert "On alpha, GPUs 0 and 2 have no peer-to-peer access" in only((replace(rows[0], links=closed), *rows[1:]))
    assert cluster_warnings(ClusterInfo((replace(rows[0], links=ways[:1]), *rows[1:])), None) == []


def test_a_slow_link_reports_its_cost() -> None:
    assert "only 11.5 MB/s" in only(group(), link_mb_s=11.5)
    assert "take 35 s per step" in only(group(), link_mb_s=11.5)
    (sharded,) = cluster_warnings(ClusterInfo(group(), link_mb_s=11.5), None, fully_sharded=True)
    assert "otherwise set fsdp_replicate to machines" in sharded


def test_clocks() -> None:
    rows = tuple(replace(each, clock=1000.0 - 40 * (each.host == "beta")) for each in group())
    assert "The clock of beta is 40 s behind that of alpha" in only(rows)


def test_a_row_survives_serialisation() -> None:
    own = row(0, links=(Link(0, 1, "NV4", 4, 4, peer_access=True),))
    assert RankInfo.parse(own.dump(), own.rank) == own
    assert own.event()["model"] == "NVIDIA A100-SXM4-80GB"


def test_differing_settings_and_files_are_named() -> None:
    raise_differences("alpha", [Differences("alpha"), Differences("beta")])
    with pytest.raises(ConfigError, match=r"settings differ between alpha \(rank 0\) and beta \(rank 1\): epochs\."):
        raise_differences("alpha", [Differences("alpha"), Differences("beta", ("epochs",), ("modules/a.py",))])
    with pytest.raises(ConfigError, match=r"files of Tandem differ .*: a, b, c, d and 2 more\..*git pull"):
        raise_differences("alpha", [Differences("alpha"), Differences("beta", (), tuple("abcdef"))])
