"""The histogram of noise levels for the window is of what the family's own sample transform draws in training."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch

from modules.config import TrainConfig
from modules.families._by_name import family_class
from modules.families._noise_levels import BINS, DRAWS, histogram, serve
from tests.families.flow_checks import load
from tests.families.tiny_flow_pipelines import TINY

pytestmark = pytest.mark.filterwarnings("ignore:.FluxPosEmbed:FutureWarning")


def test_pixel_diffusion_draws_as_its_transform_does() -> None:
    config = TrainConfig(family="pixel_diffusion", family_options={"shift": 3.0, "timesteps": "logit_normal"})
    family = family_class("pixel_diffusion").load(config)
    levels = family.noise_levels(config)
    assert levels is not None
    cached = {"pixels": torch.zeros(3, 8, 8, dtype=torch.uint8)}
    for seed in range(20):
        drawn = levels.draw(torch.Generator().manual_seed(seed))
        assert drawn == family.sample_transform(cached, "", torch.Generator().manual_seed(seed))["timestep"]


@pytest.mark.parametrize("name", ["flux", "flux2", "z_image"])
def test_flow_shift_is_that_of_training_at_the_resolution(name: str, tmp_path: Path) -> None:
    family = load(name, TINY[name](tmp_path / name), resolution=64)
    levels = family.noise_levels(TrainConfig(family=name, base_model=str(tmp_path / name), resolution=64))
    assert levels is not None
    transform = family.sample_transform
    side = 64 // transform.space.pixels
    cached = {"mean": torch.zeros(transform.space.channels, side, side)}
    sigmas = []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        torch.randn(cached["mean"].shape, generator=generator)  # the transform draws the noise first
        sigmas.append(float(levels.draw(generator)))
    trained = [float(transform(cached, "", torch.Generator().manual_seed(seed))["sigma"]) for seed in range(20)]
    assert sigmas == pytest.approx(trained, abs=1e-7)
    assert "64 × 64" in levels.note


def test_limits_of_stable_diffusion_and_a_family_without_levels() -> None:
    counts, _ = histogram(TrainConfig(family="stable_diffusion", family_options={"min_timestep": 0.5}))
    assert len(counts) == BINS
    assert sum(counts) == DRAWS
    assert sum(counts[: BINS // 2]) == 0
    assert histogram(TrainConfig(family="classifier")) == ([], "")


def test_each_line_is_answered_and_bad_ones_by_a_sentence() -> None:
    requests = [
        json.dumps({"family": "pixel_diffusion"}),
        json.dumps({"family": "pixel_diffusion", "family_options": {"shift": -1}}),
        "no json",
    ]
    answers = io.StringIO()
    serve(io.StringIO("\n".join(requests)), answers)
    good, bad, torn = (json.loads(line) for line in answers.getvalue().splitlines())
    assert sum(good["counts"]) == DRAWS
    assert "shift" in bad["error"]
    assert torn["error"]
