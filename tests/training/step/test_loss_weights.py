"""The loss of a step is the plain mean of its samples' losses, each times the weight of its concept.

kohya-ss/sd-scripts, train_network.py (process_batch): loss * batch["loss_weights"], then loss.mean().
Nerogar/OneTrainer, modules/modelSetup/mixin/ModelSetupDiffusionLossMixin.py: losses *= loss_weight, then their mean.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.training.studies.parity import loss_difference, weight_difference
from tests.runs import Run, tiny_config, train_alone

pytestmark = pytest.mark.xdist_group("pair")

WEIGHTED: dict[str, object] = {
    "precision": "fp64",
    "max_steps": 6,
    "batch_size": 3,
    "validation_split": 0.2,
    "validate_every": "3 steps",
}
CONCEPTS: list[dict[str, object]] = [{"loss_weight": 2.0}, {"loss_weight": 0.3, "prior": True, "repeats": 0.5}]
PAIR_JOBS: dict[str, dict[str, object]] = {
    "weighted": {**WEIGHTED, "concepts": CONCEPTS},
    "weighted and sharded": {**WEIGHTED, "concepts": CONCEPTS, "training_mode": "fully_sharded"},
}
# the model stays as it is, so that the losses and gradients of several runs can be compared
STILL = {"optimizer": {"name": "sgd", "momentum": 0.0}, "learning_rate": 1e-30, "max_grad_norm": None}


@pytest.fixture(scope="module")
def still(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[float, float], Run]:
    """Runs of two concepts by the weights of their losses."""
    place = tmp_path_factory.mktemp("still")
    runs = {}
    for first, second in ((1.0, 1.0), (2.0, 1.0), (0.5, 3.0), (0.25, 0.25)):
        concepts = [
            {"path": str(images), "loss_weight": first},
            {"path": str(images), "loss_weight": second, "prior": True, "repeats": 0.5},
        ]
        name = f"{first:g}-{second:g}"
        code, runs[first, second] = train_alone(
            tiny_config(images, place, run_name=name, concepts=concepts, **WEIGHTED, **STILL)
        )
        assert code == 0
    return runs


def validation_losses(run: Run) -> list[float]:
    return [float(str(event["loss"])) for event in run.events("validation")]


@pytest.mark.slow
def test_one_weight_for_all_scales_loss_and_gradient(still: dict[tuple[float, float], Run]) -> None:
    plain, quarter = still[1.0, 1.0], still[0.25, 0.25]
    assert quarter.losses == pytest.approx([0.25 * loss for loss in plain.losses], rel=1e-12)
    norms = [[float(str(event["grad_norm"])) for event in run.events("step")] for run in (plain, quarter)]
    assert norms[1] == pytest.approx([0.25 * norm for norm in norms[0]], rel=1e-9)
    assert validation_losses(quarter) == pytest.approx([0.25 * loss for loss in validation_losses(plain)], rel=1e-12)


@pytest.mark.slow
def test_each_weight_counts_for_its_own_concept(still: dict[tuple[float, float], Run]) -> None:
    for values in (lambda run: run.losses, validation_losses):
        one, two, other = (values(still[weights]) for weights in ((1.0, 1.0), (2.0, 1.0), (0.5, 3.0)))
        of_first = [b - a for a, b in zip(one, two, strict=True)]  # the sum over its samples by the number of all
        of_second = [a - b for a, b in zip(one, of_first, strict=True)]
        expected = [0.5 * a + 3 * b for a, b in zip(of_first, of_second, strict=True)]
        assert other == pytest.approx(expected, rel=1e-12)
        assert any(of_first)
        assert any(of_second)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weighted", "weighted and sharded"])
def test_two_ranks_weigh_as_one_does(images: Path, tmp_path: Path, pair: dict[str, Run], name: str) -> None:
    concepts = [{"path": str(images), **concept} for concept in CONCEPTS]
    _, alone = train_alone(tiny_config(images, tmp_path, concepts=concepts, **WEIGHTED))
    assert len(alone.losses) == 6
    assert loss_difference(alone.losses, pair[name].losses) <= 1e-9
    assert weight_difference(alone.state, pair[name].state) <= 1e-9
    assert validation_losses(pair[name]) == pytest.approx(validation_losses(alone), rel=1e-9)
