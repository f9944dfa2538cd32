"""A disk on which nothing more fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

FULL = "File too large"  # what the system says then


@contextmanager
def full_disk() -> Iterator[None]:
    """Inside the block this process can create, rename and remove files, but write nothing into them."""
    resource = pytest.importorskip("resource", reason="Windows limits no files")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
