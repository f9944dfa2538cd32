"""What the imports say of Stable Diffusion is understood by its families."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config.importing import TRAINERS, import_file, kohya_training, onetrainer_data
from modules.families.parts.diffusion_options import DiffusionOptions


def test_every_option_that_a_rule_names_exists() -> None:
    paths = {
        path.removeprefix("family_options.")
        for trainer in TRAINERS
        for table in trainer.tables.values()
        for rule in table.rules
        for path in rule.ours.split(", ")
        if path.startswith("family_options.")
    }
    assert paths
    assert paths <= set(DiffusionOptions.model_fields)


@pytest.mark.parametrize("sampler", sorted({*kohya_training.SAMPLERS.values(), *onetrainer_data.SAMPLERS.values()}))
def test_every_sampler_exists(sampler: str) -> None:
    DiffusionOptions(sample_scheduler=sampler)


def test_the_files_of_these_tests_are_valid_for_the_family(onetrainer: Path, kohya: Path) -> None:
    for file in (onetrainer, kohya, kohya.parent / "kohya_gui.json"):
        options = import_file(file).config.family_options
        assert options
        DiffusionOptions.model_validate(options)
