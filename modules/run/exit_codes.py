"""The exit codes of the run folder protocol, version 1."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FINISHED: Final = 0
BAD_CONFIG: Final = 2
FAILED: Final = 3
NO_DATA: Final = 4
INTERRUPTED: Final = 130
PAUSED: Final = 138  # 128 + SIGUSR1: the sender intends to continue with --resume latest
TERMINATED: Final = 143

EXIT_CODES: Final = frozenset({FINISHED, BAD_CONFIG, FAILED, NO_DATA, INTERRUPTED, PAUSED, TERMINATED})

_BY_KIND: Final[Mapping[str, int]] = MappingProxyType(
    {
        "config": BAD_CONFIG,
        "resume": BAD_CONFIG,
        "data": NO_DATA,
        "interrupted": INTERRUPTED,
        "terminated": TERMINATED,
    }
)


def exit_code_of(kind: str) -> int:
    """The exit code of a run that failed with this kind of failure."""
    return _BY_KIND.get(kind, FAILED)
