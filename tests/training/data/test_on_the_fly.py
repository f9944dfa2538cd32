"""Runs whose images are not cached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from modules.config import ConfigError, TrainConfig
from modules.training.memory.model_setup import check_available
from tests.runs import TINY, same_state, tiny_config, train_alone

FRESH: dict[str, object] = {
    "family": "pixel_diffusion",
    "family_options": {"width": 8, "tokens": 4, "vocabulary": 32},
    "cache_latents": False,
    "masked_training": True,
    "precision": "fp64",
    "max_steps": 4,
    "backup_every": "2 steps",
    "backups_kept": 2,
}
AUGMENTED = {"crop_jitter": True, "horizontal_flip": True, "color_jitter": 0.2, "random_rotate": 15, "random_hue": 0.2}


@pytest.mark.slow
def test_a_resumed_run_decodes_and_augments_as_before(masked_images: Path, tmp_path: Path) -> None:
    config = tiny_config(masked_images, tmp_path, **FRESH, concepts=[{"path": str(masked_images), **AUGMENTED}])
    code, whole = train_alone(config)
    assert code == 0, whole.failure(0)
    assert not list((tmp_path / "cache").glob("rank-*"))
    backup = sorted(whole.folder.backup_dir.iterdir())[0]
    code, resumed = train_alone(config.model_copy(update={"run_name": "again"}), resume=str(backup))
    assert code == 0, resumed.failure(0)
    assert resumed.losses == whole.losses[2:]
    assert same_state(resumed.state, whole.state)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"family": TINY, "cache_latents": False}, "can only be trained on cached images"),
    ],
)
def test_what_needs_a_cache_or_none_is_said(settings: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_available(TrainConfig.model_validate(settings))
    assert re.search(part, str(caught.value))
