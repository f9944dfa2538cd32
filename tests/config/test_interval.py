from __future__ import annotations

import pytest

from modules.config import Interval


@pytest.mark.parametrize(
    ("text", "interval", "written"),
    [
        ("200 steps", Interval(200, "steps"), "200 steps"),
        ("1 step", Interval(1, "steps"), "1 step"),
        (7, Interval(7, "steps"), "7 steps"),
        ("7", Interval(7, "steps"), "7 steps"),
        ("1 epoch", Interval(1, "epochs"), "1 epoch"),
        ("0.5 epochs", Interval(0.5, "epochs"), "0.5 epochs"),
        ("30 minutes", Interval(30, "minutes"), "30 minutes"),
        ("2 hours", Interval(120, "minutes"), "120 minutes"),
        ("30 Seconds", Interval(0.5, "minutes"), "0.5 minutes"),
        (" Never ", Interval.never(), "never"),
    ],
)
def test_reads_and_writes(text: object, interval: Interval, written: str) -> None:
    assert Interval.parse(text) == interval
    assert str(interval) == written
    assert Interval.parse(written) == interval


@pytest.mark.parametrize(
    "text", ["", "soon", "0 steps", "-1 epochs", "1.5 steps", "3 weeks", True, 1.5, None, "1..2", 10**400, -(10**400)]
)
def test_invalid_intervals(text: object) -> None:
    with pytest.raises(ValueError, match=r"interval|count|whole|convert"):
        Interval.parse(text)


def test_only_never_is_false() -> None:
    assert not Interval.never()
    assert Interval(1, "epochs")
    with pytest.raises(ValueError, match="never has no count"):
        Interval(1, "never")
