"""What a real run of two ranks reports of each: start-up table, step times, device readings, and stragglers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from modules.machine import hostname
from tests.runs import Run

pytestmark = [pytest.mark.xdist_group("pair"), pytest.mark.slow]

PAIR_JOBS: dict[str, dict[str, object]] = {
    "slow rank": {
        "max_steps": 60,
        "family_options": {"faults": ["slow:1:1+", "loader_slow:0:1+", "loader_slow:1:1+"]},
        "batch_size": 1,
        "global_batch_size": 2,
    },
}


def test_started_event_has_a_row_per_rank(pair: dict[str, Run]) -> None:
    (started,) = pair["slow rank"].events("started")
    rows = cast("list[dict[str, Any]]", started["ranks"])
    assert [(row["rank"], row["host"], row["device"], row["backend"]) for row in rows] == [
        (0, hostname(), "cpu", "gloo"),
        (1, hostname(), "cpu", "gloo"),
    ]
    assert rows[0]["process_id"] != rows[1]["process_id"]
    assert all(row["memory_mib"] >= row["free_mib"] > 0 and row["versions"]["torch"] for row in rows)
    assert started["devices"] == [f"{row['model']} on {hostname()}" for row in rows]


def test_rank_table_is_in_the_log_of_rank_0(pair: dict[str, Run]) -> None:
    log = pair["slow rank"].folder.log_file(0).read_text()
    assert "host" in log
    assert "2 x CPU" in log


def test_ranks_event_has_step_times_and_readings(pair: dict[str, Run]) -> None:
    *_, last = pair["slow rank"].events("ranks")
    first, second = cast("list[dict[str, Any]]", last["ranks"])
    assert (first["rank"], second["rank"], second["host"], second["samples"]) == (0, 1, hostname(), 1)
    assert all(row["ram_used_mib"] > 0 and 0 <= row["cpu_percent"] <= 100 for row in (first, second))
    assert all(row["data_s"] <= row["own_s"] <= row["step_s"] for row in (first, second))
    assert second["own_s"] > first["own_s"]


def test_phases_add_up_to_the_step(pair: dict[str, Run]) -> None:
    for event in pair["slow rank"].events("ranks"):
        for row in cast("list[dict[str, Any]]", event["ranks"]):
            phases = ("logging_s", "data_s", "forward_s", "backward_s", "sync_s", "optimizer_s")
            assert sum(row[name] for name in phases) == pytest.approx(row["step_s"], rel=0.03)
            assert 0 < row["peak_percent"] < 100
            assert row["samples_per_s"] == pytest.approx(row["samples"] / row["step_s"], rel=0.01)


def test_the_end_of_a_run_has_means_and_maxima(pair: dict[str, Run]) -> None:
    (summary,) = pair["slow rank"].events("ranks_summary")
    for row in cast("list[dict[str, Any]]", summary["ranks"]):
        assert 0 < row["mean"]["process_ram_mib"] <= row["max"]["process_ram_mib"]
        assert row["mean"]["step_s"] <= row["max"]["step_s"]
    assert "Rank 1 on average: " in pair["slow rank"].folder.log_file(0).read_text()


def test_straggler_and_slow_loader_are_reported_once(pair: dict[str, Run]) -> None:
    warnings = pair["slow rank"].warnings
    assert warnings.count(f"Rank 1 on {hostname()} is a straggler") == 1
    assert warnings.count("Training is limited by data loading") == 1
    assert "Try loader_workers=2 (now 0)" in warnings
    kinds = [event for event in pair["slow rank"].events() if event["type"] in ("step", "warning")]
    texts = ("is a straggler", "limited by data loading")
    named = [n for n, event in enumerate(kinds) if any(text in str(event.get("message")) for text in texts)]
    assert len(named) == 2
    assert any(event["type"] == "step" for event in kinds[named[-1] :]), "while it trains"
