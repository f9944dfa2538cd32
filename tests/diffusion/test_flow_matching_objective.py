"""Noise levels, shifts and weights of flow matching against diffusers' own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
from diffusers.training_utils import compute_density_for_timestep_sampling, compute_loss_weighting_for_sd3

from modules.diffusion.flow_matching import SigmaShift, sample_sigma, sigma_weights
from modules.diffusion.flow_options import FlowOptions
from modules.families.flux2 import _INTERCEPT, _SLOPE

DEFAULTS = {"base_image_seq_len": 256, "max_image_seq_len": 4096, "base_shift": 0.5, "max_shift": 1.15}


@pytest.mark.parametrize("distribution", ["uniform", "logit_normal", "mode"])
def test_noise_levels_are_distributed_as_in_diffusers_scripts(distribution: Any) -> None:
    options = FlowOptions(timestep_distribution=distribution, logit_mean=0.4, logit_std=0.7, mode_scale=0.9)
    mine = [float(sample_sigma(options, 1.0, torch.Generator().manual_seed(seed))) for seed in range(20)]
    theirs = [
        float(
            compute_density_for_timestep_sampling(
                distribution, 1, 0.4, 0.7, 0.9, generator=torch.Generator().manual_seed(seed)
            )
        )
        for seed in range(20)
    ]
    assert mine == pytest.approx(theirs, abs=1e-6)


def test_shift_by_resolution_is_that_of_pipeline_and_scheduler() -> None:
    scheduler: Any = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, max_shift=0.9)
    shift = SigmaShift.of_scheduler(scheduler.config, DEFAULTS)
    options = FlowOptions(timestep_distribution="uniform")
    for tokens in (256, 1000, 4096):
        mu = calculate_shift(tokens, 256, 4096, 0.5, 0.9)
        unshifted = sample_sigma(options, 1.0, torch.Generator().manual_seed(1))
        shifted = sample_sigma(options, shift.of_tokens(tokens), torch.Generator().manual_seed(1))
        assert float(shifted) == pytest.approx(float(scheduler.time_shift(mu, 1.0, unshifted)), abs=1e-6)


def test_a_static_shift_is_the_schedulers() -> None:
    scheduler: Any = FlowMatchEulerDiscreteScheduler(shift=3.0)
    factor = SigmaShift.of_scheduler(scheduler.config, DEFAULTS).of_tokens(1000)
    even = torch.linspace(1, 1000, 1000).flip(0) / 1000
    torch.testing.assert_close(factor * even / (1 + (factor - 1) * even), scheduler.sigmas[:1000])


def test_the_shift_of_flux2_is_the_pipelines_for_50_steps() -> None:
    for tokens in (64, 1024, 4096):
        shift = SigmaShift(slope=_SLOPE, intercept=_INTERCEPT).of_tokens(tokens)
        assert math.log(shift) == pytest.approx(compute_empirical_mu(tokens, 50), abs=1e-9)


@pytest.mark.parametrize("weighting", ["none", "sigma_sqrt", "cosmap"])
def test_loss_weights_are_those_of_diffusers_scripts(weighting: str) -> None:
    sigma = torch.linspace(0.01, 0.99, 9)
    torch.testing.assert_close(sigma_weights(sigma, weighting), compute_loss_weighting_for_sd3(weighting, sigma))  # type: ignore[arg-type]
