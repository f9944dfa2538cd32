"""Ten small images for the tests of the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.helpers import write_image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for n in range(10):
        write_image(tmp_path / f"d/{n}.png", 40 + 8 * (n % 3), 40, seed=n)
    return tmp_path / "d"
