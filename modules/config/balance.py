"""How the ranks share the samples of a step: "auto", "equal", or a number for each rank."""

from __future__ import annotations

import math
from typing import Annotated, Final

from pydantic import BeforeValidator

from modules.config.errors import ConfigError

AUTO: Final = "auto"
EQUAL: Final = "equal"
_LARGEST: Final = 1_000_000.0  # a number that floats and people can tell from its neighbours
_ALLOWED: Final = "it must be auto, equal, or a number above 0 for each rank, such as [2, 1]"


def _in_file_format(value: object) -> str:
    """What files keep: a list becomes "2, 1". Raises ValueError for what is neither a word nor such numbers."""
    if isinstance(value, str):
        value = value.strip().strip("[]()").replace(":", ",").split(",")
    if not isinstance(value, (list, tuple)):
        raise ValueError(_ALLOWED)
    words = [str(each).strip() for each in value]
    if len(words) == 1 and words[0].lower() in (AUTO, EQUAL):
        return words[0].lower()
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        raise ValueError(_ALLOWED) from None
    if not numbers or not all(0 < number <= _LARGEST and math.isfinite(number) for number in numbers):
        raise ValueError(_ALLOWED)
    return ", ".join(f"{number!r}".removesuffix(".0") for number in numbers)


Balance = Annotated[str, BeforeValidator(_in_file_format)]


def balance_numbers(balance: Balance) -> tuple[float, ...]:
    """The number of each rank; empty for a word."""
    return () if balance in (AUTO, EQUAL) else tuple(map(float, balance.split(",")))


def check_balance(balance: Balance, ranks: int) -> None:
    """Raises ConfigError unless there is a number for each of several ranks; a rank alone takes every sample."""
    numbers = balance_numbers(balance)
    if ranks > 1 and len(numbers) not in (0, ranks):
        example = ", ".join(map(str, range(ranks, 0, -1))) if ranks <= 8 else f"{ranks} numbers"
        count = f"{len(numbers)} number{'s' * (len(numbers) != 1)}"
        raise ConfigError(
            f"balance is [{balance}], {count}, but the run has {ranks} ranks",
            f"Give one number for each rank, such as [{example}], or auto, or equal",
        )
