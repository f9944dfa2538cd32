"""The exit codes of the run folder protocol, version 1."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FINISHED: Final = 0
BAD_CONFIG: Final = 2
FAILED: Final = 3
NO_DATA: Final = 4
INTERRUPTED: Final = 130
PAUSED: Final = 138  # 128 + SIGUSR1: whoever sent it means to go on with --resume latest
TERMINATED: Final = 143

DECIDED: Final = frozenset({FINISHED, BAD_CONFIG, FAILED, NO_DATA, INTERRUPTED, PAUSED, TERMINATED})

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
    """The exit code of a run that ended with a failure of this kind."""
    return _BY_KIND.get(kind, FAILED)
