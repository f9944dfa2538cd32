"""The validation loss is that of all images, whichever rank measures them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs import Run, tiny_config, train_alone

pytestmark = pytest.mark.xdist_group("pair")

VALIDATED: dict[str, object] = {
    "precision": "fp64",
    "max_steps": 3,
    "validation_split": 0.3,
    "validate_every": "1 step",
}
PAIR_JOBS: dict[str, dict[str, object]] = {"validated": VALIDATED}


@pytest.mark.slow
def test_two_ranks_validate_as_one_does(images: Path, tmp_path: Path, pair: dict[str, Run]) -> None:
    _, alone = train_alone(tiny_config(images, tmp_path, **VALIDATED))
    one, two = ([event["loss"] for event in run.events("validation")] for run in (alone, pair["validated"]))
    assert len(one) == 3
    assert two == pytest.approx(one, rel=1e-9)
