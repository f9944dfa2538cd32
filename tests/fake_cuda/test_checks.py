"""The pretended GPU is as strict as a real one, and finds the mistakes for which it was made."""

from __future__ import annotations

import sys

import pytest

from tests.fake_cuda.build import extension_file, obstacle
from tests.fake_cuda.checks import CHECKS
from tests.fake_cuda.matrix import json_lines

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first test waits for all of them, on a machine that runs other tests
    pytest.mark.skipif(bool(obstacle()), reason=obstacle()),
]


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    """Of all checks, in one process."""
    extension_file()
    found = json_lines([sys.executable, "-m", "tests.fake_cuda.run_checks"], len(CHECKS))
    return {each["name"]: each["error"] for each in found}


@pytest.mark.parametrize("name", CHECKS)
def test_check(name: str, errors: dict[str, str]) -> None:
    assert not errors[name], errors[name]
