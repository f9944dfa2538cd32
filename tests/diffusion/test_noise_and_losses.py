"""Noise schedules, losses and masks, each compared with its paper."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from modules.diffusion.losses import elementwise_loss, mean_per_sample, snr_weights
from modules.diffusion.noise import add_noise, alphas_cumprod, sample_noise, velocity
from modules.diffusion.pixels import MAX_SIDE, MIN_SIDE, downsample_mask, inpaint_mask, mask_loss_weights
from modules.diffusion.timesteps import sample_timestep
from tests.families.diffusion_checks import example

SCHEDULE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "num_train_timesteps": 1000}


def test_zero_terminal_snr_schedule_ends_in_pure_noise() -> None:
    plain, zero = alphas_cumprod(SCHEDULE, False), alphas_cumprod(SCHEDULE, True)
    assert plain[-1] > 0.004
    assert zero[-1] == 0
    torch.testing.assert_close(zero[0], plain[0])
    assert (zero.diff() < 0).all()
    # algorithm 1 of arXiv:2305.08891: the square roots are shifted and scaled
    root = plain.double().sqrt()
    expected = ((root - root[-1]) * root[0] / (root[0] - root[-1])).square()
    torch.testing.assert_close(zero.double(), expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(alphas_cumprod({**SCHEDULE, "rescale_betas_zero_snr": True}, False), zero)


def test_x_t_and_velocity_are_a_rotation_of_image_and_noise() -> None:
    x_0, epsilon = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.randn(2, 3, 4, 4, dtype=torch.float64)
    alpha_bar = torch.tensor([0.3, 0.9], dtype=torch.float64)
    x_t, v = add_noise(x_0, epsilon, alpha_bar), velocity(x_0, epsilon, alpha_bar)
    signal, noise = alpha_bar.sqrt().view(-1, 1, 1, 1), (1 - alpha_bar).sqrt().view(-1, 1, 1, 1)
    torch.testing.assert_close(signal * x_t - noise * v, x_0)
    torch.testing.assert_close(noise * x_t + signal * v, epsilon)


def test_offset_noise_shifts_whole_channels() -> None:
    shape = torch.Size((4, 64, 64))
    plain = sample_noise(shape, 0.0, torch.Generator().manual_seed(1))
    shifted = sample_noise(shape, 0.5, torch.Generator().manual_seed(1))
    difference = shifted - plain
    torch.testing.assert_close(difference, difference.mean(dim=(1, 2), keepdim=True).expand(shape))
    assert difference.abs().max() > 0.05


def test_huber_losses_are_linear_beyond_delta() -> None:
    prediction, target = torch.tensor([[0.05, 2.0]]), torch.zeros(1, 2)
    torch.testing.assert_close(elementwise_loss(prediction, target, "mse", 0.1), torch.tensor([[0.0025, 4.0]]))
    torch.testing.assert_close(elementwise_loss(prediction, target, "huber", 0.1), torch.tensor([[0.00125, 0.195]]))
    torch.testing.assert_close(elementwise_loss(prediction, target, "smooth_l1", 0.1), torch.tensor([[0.0125, 1.95]]))


@pytest.mark.parametrize("weighting", ["none", "min_snr", "debiased"])
def test_snr_weights_are_finite_at_both_ends(weighting: str) -> None:
    snr = torch.tensor([0.0, 1e-8, 0.5, 5.0, 1e6])
    for prediction in ("epsilon", "v_prediction"):
        weights = snr_weights(snr, prediction, weighting, 5.0)  # type: ignore[arg-type]
        assert weights.isfinite().all()
        assert (weights >= 0).all()


def test_min_snr_clips_the_weight_of_clean_images() -> None:
    snr = torch.tensor([1.0, 5.0, 50.0])
    assert snr_weights(snr, "epsilon", "min_snr", 5.0).tolist() == pytest.approx([1, 1, 0.1])
    assert snr_weights(snr, "v_prediction", "min_snr", 5.0).tolist() == pytest.approx([1 / 2, 5 / 6, 5 / 51])
    assert snr_weights(snr, "epsilon", "debiased", 5.0).tolist() == pytest.approx([1, 5**-0.5, 50**-0.5])


def test_mask_weights_the_loss_of_each_sample() -> None:
    error = torch.ones(2, 4, 2, 2)
    error[:, :, 0] = 3.0
    weights = torch.tensor([2.0, 0.0]).view(1, 1, 2, 1).expand(2, 1, 2, 2)
    assert mean_per_sample(error, weights).tolist() == [3.0, 3.0]
    assert mean_per_sample(error, None).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("distribution", ["uniform", "logit_normal"])
def test_timesteps_stay_within_their_limits(distribution: str) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(low: float, high: float) -> Tensor:
        return torch.stack([sample_timestep(distribution, 1000, low, high, generator) for _ in range(2000)])  # type: ignore[arg-type]

    middle = drawn(0.2, 0.6)
    assert middle.min() >= 200
    assert middle.max() <= 599
    assert middle.dtype == torch.int64
    everything = drawn(0, 1).float()
    inner = ((everything > 250) & (everything < 750)).float().mean().item()
    assert inner == pytest.approx({"uniform": 0.5, "logit_normal": 0.728}[distribution], abs=0.05)
    assert drawn(0.9999, 1.0).unique().tolist() == [999]


def test_masks_are_downsampled_by_averaging() -> None:
    mask = torch.zeros(1, 16, 16, dtype=torch.uint8)
    mask[:, :8, :4] = 255
    small = downsample_mask(mask, torch.Size((2, 2)))
    assert small.tolist() == [[[128, 0], [0, 0]]]
    weights = torch.tensor([[[0.5 + 0.5 * 128 / 255, 0.5], [0.5, 0.5]]])
    torch.testing.assert_close(mask_loss_weights(small, 0.5, normalize=False), weights)
    torch.testing.assert_close(mask_loss_weights(small, 0.5, normalize=True), weights / weights.mean())
    assert mask_loss_weights(torch.zeros(1, 2, 2, dtype=torch.uint8), 0.0, normalize=True).sum() == 0


def test_inpaint_masks_depend_on_the_image_alone() -> None:
    masks = [inpaint_mask(example(number)) for number in range(8)]
    assert torch.equal(masks[0], inpaint_mask(example(0)))
    assert any(not torch.equal(masks[0], other) for other in masks[1:])
    for mask in masks:
        assert MIN_SIDE**2 * 0.9 < (mask > 0).float().mean() < MAX_SIDE**2 * 1.1
    mask = torch.full((1, 64, 128), 200, dtype=torch.uint8)
    mask[:, 0] = 20
    assert torch.equal(inpaint_mask(example(0, mask=mask))[:, :2, 0], torch.tensor([[0, 255]], dtype=torch.uint8))
