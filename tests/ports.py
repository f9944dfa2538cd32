"""Ports for the runs of this test process. Seconds of imports pass between finding a free port and listening on it, so
under `pytest -n` every worker has its own range, below the ephemeral ports of the system."""

from __future__ import annotations

import itertools
import os

from modules.machine import find_free_port

_PER_WORKER = 2_400
_WORKERS = 8
_FIXED = 100  # for `first_port` and the ports after it
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
# without xdist, several pytests may run at once
_NEXT = itertools.count(os.getpid() * 20)


def first_port() -> int:
    """The `initial_port` of this worker's configs: the same in every process that it starts."""
    return 12_600 + _WORKER * _PER_WORKER


def free_port() -> int:
    """A free port that was not returned recently; the port after it is free as well."""
    return find_free_port(first_port() + _FIXED + next(_NEXT) * 2 % (_PER_WORKER - 2 * _FIXED))
