"""What is given and has no effect is named, and nothing else."""

from __future__ import annotations

import pytest

from modules.config import preset_names, resolve_config
from modules.config.unused import unused_settings


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        ((), []),
        (("validate_every=1 epoch", "sample_every=1 epoch", "samples=[]"), []),
        (("validation_batch_size=4", "concepts.0.kind=validation"), []),
        (
            ("world_size=2", "static_graph=true"),
            ["world_size, static_graph have no effect: enable_multi_gpu is false."],
        ),
        (("enable_multi_gpu=true", "world_size=2", "static_graph=true"), []),
        (("concepts.0.kept_tags=a",), ["concepts.0.kept_tags has no effect: concepts.0.tag_dropout is 0.0."]),
        (
            ("validation_batch_size=4", "validation_workers=0"),
            ["validation_batch_size, validation_workers have no effect: no images are held out."],
        ),
        (("scheduler_cycles=3",), ['scheduler_cycles has no effect: scheduler is "cosine".']),
    ],
)
def test_what_has_no_effect_is_named(assignments: tuple[str, ...], expected: list[str]) -> None:
    assert unused_settings(resolve_config("demo", assignments)) == expected


def test_no_preset_has_a_setting_without_effect() -> None:
    assert {name: found for name in preset_names() if (found := unused_settings(resolve_config(name)))} == {}
