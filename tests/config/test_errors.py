from __future__ import annotations

import copy

import pytest

from modules.config import ConfigError, DataError, ResumeError, TandemError, TrainingError


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TandemError, "error", 3),
        (ConfigError, "config", 2),
        (DataError, "data", 4),
        (ResumeError, "resume", 2),
        (TrainingError, "training", 3),
    ],
)
def test_kinds_codes_and_advice(kind: type[TandemError], name: str, code: int) -> None:
    error = kind("It broke.", "Try again.")
    assert (error.kind, error.exit_code, error.message, error.advice) == (
        name,
        code,
        "It broke.",
        "Try again.",
    )
    assert str(error) == "It broke. Try again."
    assert str(kind("It broke.")) == "It broke."
    copied = copy.copy(error)
    assert (type(copied), copied.message, copied.advice) == (kind, "It broke.", "Try again.")


def test_one_fault_is_a_sentence_and_several_are_a_list() -> None:
    assert str(ConfigError.from_faults("a.yaml", ["x is 1."])) == "a.yaml: x is 1."
    assert str(ConfigError.from_faults("a.yaml", ["x.", "y."])) == "a.yaml has 2 invalid settings:\n  - x.\n  - y."
