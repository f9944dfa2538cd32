"""All errors of a config are found at once."""

from __future__ import annotations

import pytest

from modules.config import ConfigError, all_faults, validate

TWO_OF_A_CONCEPT = ["concepts.0.path", "concepts.0.repeats"]


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        ({"run_name": "my run?"}, ["run_name"]),
        ({"run_name": "my run?", "backups_kept": "1.5"}, ["backups_kept", "run_name"]),
        ({"optimizer": "adamx", "warmup_steps": 3, "warmup_fraction": 0.5}, ["optimizer.name", "warmup_fraction"]),
        ({"samples": [{"prompt": "", "steps": "x"}], "node_rank": 3}, ["samples.0.steps", "node_rank"]),
        ({"nonsense": 3, "node_rank": 3}, ["nonsense", "node_rank"]),
        ({"concepts": [{"path": "", "repeats": 0}], "node_rank": 3}, [*TWO_OF_A_CONCEPT, "node_rank"]),
    ],
)
def test_rules_are_checked_beside_invalid_settings(data: dict[str, object], paths: list[str]) -> None:
    assert [fault.path for fault in all_faults(data)] == paths


@pytest.mark.parametrize(
    "data",
    [
        {"restore_best": True, "validate_every": "abc", "validation_split": 0.1},
        {"restore_best": True, "validate_every": "1 epoch", "concepts": [{"path": "", "kind": "validation"}]},
    ],
)
def test_a_rule_of_an_invalid_setting_is_left_out(data: dict[str, object]) -> None:
    assert len(all_faults(data)) == 1


def test_a_file_lists_them_together() -> None:
    with pytest.raises(ConfigError, match="has 2 invalid settings"):
        validate({"run_name": "my run?", "backups_kept": "1.5"}, "a.yaml")
