"""Whole runs on the pretended GPU: of every family, and with everything that may make the host wait for a device."""

from __future__ import annotations

import pytest

from modules.facts import family_names
from tests.fake_cuda.build import extension_file, obstacle
from tests.fake_cuda.cases import CHOSEN, FAMILIES, FEATURES, UNAVOIDABLE, Case
from tests.fake_cuda.matrix import results_of
from tests.fake_cuda.run_cases import Result

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),  # the first test waits for all runs, on a machine that runs other tests
    pytest.mark.skipif(bool(obstacle()), reason=obstacle()),
]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """All runs, in one process: its start takes longer than most of them."""
    extension_file()
    return {result.name: result for result in results_of(CHOSEN)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN)
def test_a_step_neither_waits_nor_copies_pageable_memory_nor_draws_unseeded(
    name: str, results: dict[str, Result]
) -> None:
    result = results[name]
    allowed = result.judged_steps * sum(UNAVOIDABLE.get(feature, 0) for feature in Case.named(name).features)
    assert result.exit_code == 0, result.summary()
    assert not result.findings, result.summary()
    assert result.faults.total() <= allowed, result.summary()
    assert result.devices == ["cuda:0"]
    assert result.judged_steps >= 3
    assert "efficient" not in result.attention, "a mask keeps flash attention out"


def test_every_family_and_every_feature_occurs() -> None:
    cases = [Case.named(name) for name in CHOSEN]
    assert {case.family for case in cases} == set(FAMILIES)
    assert {feature for case in cases for feature in case.features} == set(FEATURES)
    assert set(family_names()) <= set(FAMILIES)
