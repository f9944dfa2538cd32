"""Numbers in sentences, and as they are typed."""

from __future__ import annotations

import pytest

from modules.config import TrainConfig, allowed, find_option
from modules.config.numbers import format_number, plain_number


@pytest.mark.parametrize(
    ("value", "sentence", "typed"),
    [
        (0.0, "0", "0"),
        (0.0001, "1e-4", "1e-4"),
        (1.5e-7, "1.5e-7", "1.5e-7"),
        (0.9999, "0.9999", "0.9999"),
        (4096, "4096", "4096"),
        (10_000.0, "10,000", "10000"),
        (-12345.5, "-12,345.5", "-12345.5"),
        (1_000_000_000, "1,000,000,000", "1000000000"),
        (2**63 - 1, "9,223,372,036,854,775,807", "9223372036854775807"),
        (1e300, "1e300", "1e300"),
    ],
)
def test_thousands_are_separated_in_sentences_only(value: float, sentence: str, typed: str) -> None:
    assert (format_number(value), plain_number(value)) == (sentence, typed)


def test_bounds_are_for_people() -> None:
    option = find_option(TrainConfig, "max_steps")
    assert option is not None
    assert allowed(option) == "a whole number from 1 to 1,000,000,000, or empty (null)"
