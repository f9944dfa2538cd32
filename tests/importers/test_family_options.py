"""Imported options of Stable Diffusion and classifiers are valid for their families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.classification.options import ClassifierOptions
from modules.diffusion.flow_options import FirstFrameOptions, GuidedFlowOptions
from modules.diffusion.options import DiffusionOptions
from modules.importers import TRAINERS, import_file
from modules.importers.kohya import training
from modules.importers.onetrainer import data


def test_every_option_in_a_rule_exists() -> None:
    paths = {
        path.removeprefix("family_options.")
        for trainer in TRAINERS
        for table in trainer.tables.values()
        for rule in table.rules
        for path in rule.target.split(", ")
        if path.startswith("family_options.")
    }
    assert paths
    kinds = (DiffusionOptions, ClassifierOptions, GuidedFlowOptions, FirstFrameOptions)
    assert paths <= {name for kind in kinds for name in kind.model_fields}


@pytest.mark.parametrize("sampler", sorted({*training.SAMPLERS.values(), *data.SAMPLERS.values()}))
def test_every_sampler_exists(sampler: Any) -> None:
    DiffusionOptions(sample_scheduler=sampler)


def test_imported_options_are_valid_for_the_family(onetrainer: Path, kohya: Path) -> None:
    for file in (onetrainer, kohya, kohya.parent / "kohya_gui.json"):
        options = import_file(file).config.family_options
        assert options
        DiffusionOptions.model_validate(options)
