"""The validation loss is that of all images, whichever rank measures them."""

from __future__ import annotations

from multiprocessing import active_children
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
PAIR_JOBS: dict[str, dict[str, object]] = {
    "validated": VALIDATED,
    "validated in pieces": {**VALIDATED, "family_options": {"faults": ["fits_validation:1:1"]}},
    "no validation fits": {
        **VALIDATED,
        "early_stopping_patience": 1,
        "family_options": {"faults": ["fits_validation:1:0"]},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["validated", "validated in pieces"])
def test_two_ranks_validate_as_one_does(images: Path, tmp_path: Path, pair: dict[str, Run], name: str) -> None:
    _, alone = train_alone(tiny_config(images, tmp_path, **VALIDATED, validation_batch_size=5))
    for figure in ("loss", "deviation"):
        one, two = ([event[figure] for event in run.events("validation")] for run in (alone, pair[name]))
        assert len(one) == 3
        assert 0 not in one
        assert two == pytest.approx(one, rel=1e-9)


@pytest.mark.slow
def test_a_validation_that_does_not_fit_is_left_out(pair: dict[str, Run]) -> None:
    run = pair["no validation fits"]
    assert run.exit_code == 0
    assert not run.events("validation")
    assert run.losses == pair["validated"].losses
    assert "Step 2: out of memory with a single sample in the validation on rank 1" in run.warnings


@pytest.mark.slow
@pytest.mark.parametrize("faults", [[], ["error:0:5"]], ids=["to the end", "until an error"])
def test_no_loader_worker_outlives_a_run(images: Path, tmp_path: Path, faults: list[str]) -> None:
    settings = {"loader_workers": 1, "validation_split": 0.3, "validate_every": "1 step", "max_steps": 4}
    concepts = [{"path": str(images)}, {"path": str(images), "kind": "test"}]
    others = set(active_children())
    config = tiny_config(images, tmp_path, **settings, concepts=concepts, family_options={"faults": faults})
    code, run = train_alone(config)
    assert (code == 0) is not bool(faults)
    assert run.events("validation")
    assert not set(active_children()) - others
