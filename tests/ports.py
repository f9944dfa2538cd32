"""Ports for runs of this test process. Between finding a free port and listening there lie seconds of imports, so under
`pytest -n` every worker has ports of its own; they lie below those that the system gives to connections."""

from __future__ import annotations

import itertools
import os

from modules.machine import find_free_port

_PER_WORKER = 2_400
_WORKERS = 8
_FIXED = 100  # left for `first_port` and what follows it
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
# without xdist several pytests may run beside each other
_NEXT = itertools.count(os.getpid() * 20)


def first_port() -> int:
    """The `initial_port` of this worker's configs: the same in every process that it starts."""
    return 12_600 + _WORKER * _PER_WORKER


def free_port() -> int:
    """A free port that no other call has returned lately; the next one is left free, too."""
    return find_free_port(first_port() + _FIXED + next(_NEXT) * 2 % (_PER_WORKER - 2 * _FIXED))
