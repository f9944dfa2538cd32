"""Settings that a joining machine may choose, and settings that the run shares."""

from __future__ import annotations

import pytest

from modules.config import ConfigError, TrainConfig
from modules.run.join.local_settings import check_local_settings, shared_settings


@pytest.mark.parametrize("name", ["concepts.0.path", "cache_dir", "runs_dir", "device_ids", "base_model", "node_rank"])
def test_local_settings_are_accepted(name: str) -> None:
    check_local_settings([f"{name}=x", f"--{name}=x"])


@pytest.mark.parametrize(
    "name", ["learning_rate", "concepts.0.repeats", "cache_dir2", "world_size", "concepts", "rescue_dir", ""]
)
def test_run_wide_settings_are_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} applies to the whole run, so only machine 0 can set it"):
        check_local_settings(["cache_dir=x", f"{name}=x"])


def test_shared_settings_exclude_local_ones() -> None:
    def shared(**settings: object) -> dict[str, str]:
        made = {"num_nodes": 2, "concepts": [{"path": "a"}], **settings}
        return shared_settings(TrainConfig.model_validate(made))

    assert shared() == shared(node_rank=1, cache_dir="x", run_name="y", concepts=[{"path": "b"}], initial_port=2000)
    assert shared() == shared(family_options={"layout": "here"})
    assert shared(rescue_dir="/home/a/rescue") == shared(rescue_dir="/home/b/rescue"), "machine 0 alone saves models"
    changes: list[dict[str, object]] = [
        {"seed": 7},
        {"family_options": {"width": 16}},
        {"concepts": [{"path": "a", "repeats": 2}]},
        {"concepts": []},
    ]
    for change in changes:
        assert shared() != shared(**change)
