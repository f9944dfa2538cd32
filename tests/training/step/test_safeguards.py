"""What is advised fits the run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from modules.config import TrainingError
from modules.monitoring import StepRecord
from modules.training.step.safeguards import NonFiniteGuard
from tests.runs import tiny_config, train_alone


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_only_fp16_is_advised_to_use_bf16(precision: str) -> None:
    warnings: list[str] = []
    report = cast("Any", SimpleNamespace(warning=warnings.append))
    guard = NonFiniteGuard(1, precision, lambda: "", report)
    record = cast("StepRecord", SimpleNamespace(step=3, grad_norm=float("nan"), out_of_memory=False))
    with pytest.raises(TrainingError, match="There is no backup yet") as caught:
        guard.check(record)
    assert ("bf16" in caught.value.advice) == (precision == "fp16")
    assert "a lower learning_rate" in caught.value.advice


def test_restore_best_without_any_validation_says_so(images: Path, tmp_path: Path) -> None:
    settings = {"max_steps": 2, "validate_every": "5 steps", "validation_split": 0.2, "restore_best": True}
    code, run = train_alone(tiny_config(images, tmp_path, **settings))
    assert code == 0
    assert "no validation with a finite loss has taken place (validate_every is 5 steps)" in run.warnings
