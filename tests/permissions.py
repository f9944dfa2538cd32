"""Files that may not be read, also in tests that root runs."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_VERSION_3 = 0x20080522  # of capget and capset (linux/capability.h)
_READS_ANYTHING = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


@contextmanager
def modes_respected() -> Iterator[None]:
    """Inside the block this thread may read what the modes of files allow, also if it is root's."""
    if os.name == "nt" or (os.geteuid() == 0 and sys.platform != "linux"):
        pytest.skip("everything can be read")
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    words = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then their upper halves
    if libc.capget(header, words):
        pytest.skip("capabilities cannot be read")
    before, words[0] = words[0], words[0] & ~_READS_ANYTHING
    assert libc.capset(header, words) == 0
    try:
        yield
    finally:
        words[0] = before
        assert libc.capset(header, words) == 0
