"""Time spans as text."""

from __future__ import annotations

from modules.run.format_duration import format_duration, in_words


def test_long_spans_are_told_in_minutes_and_hours() -> None:
    spans = (-1, 40, 119, 119.6, 1800, 3599.9, 7500, 86_400, 90_061, 604_800)
    words = ("0 s", "40 s", "119 s", "2 minutes", "30 minutes", "1 hour", "2 hours 5 minutes", "1 day", "1 day 1 hour")
    assert [in_words(each) for each in spans] == [*words, "7 days"]


def test_spans_in_tables_are_rounded_to_the_nearest() -> None:
    spans = (45, 119, 179, 3570, 7499, 86_399, 4 * 86_400 + 2.6 * 3600)
    words = ["45 s", "119 s", "3 min", "1 h 00 min", "2 h 05 min", "1 d 0 h", "4 d 3 h"]
    assert [format_duration(each) for each in spans] == words
