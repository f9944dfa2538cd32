"""Options of Stable Diffusion on their way from the config to where they act: what is kept, and what is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from modules.families._latent_diffusion import LatentDiffusion
from tests.families.diffusion_checks import CAPTIONS, encoded_text, example, load, pipeline

SEEDS = range(400)
VARYING = {"concepts": [{"path": "x", "tag_shuffle": True}]}


def drawn(family: LatentDiffusion, name: str) -> list[Tensor]:
    """What the loader's workers draw of one image, for many seeds."""
    encoded = {**family.encode(example(1)), **encoded_text(family, CAPTIONS[1])}
    return [family.sample_transform(encoded, CAPTIONS[1], torch.Generator().manual_seed(n))[name] for n in SEEDS]


def test_offset_noise_option(sd_folder: Path) -> None:
    for asked in (0.0, 0.5):
        family = load("stable_diffusion", sd_folder, family_options={"offset_noise": asked})
        means = torch.stack([noise.mean(dim=(1, 2)) for noise in drawn(family, "noise")])
        alone = 1 / (8 * 16) ** 0.5  # of the mean of a channel's 8 x 16 independent numbers
        assert means.std().item() == pytest.approx((alone**2 + asked**2) ** 0.5, rel=0.1)


@pytest.mark.slow
def test_timestep_options(sd_folder: Path) -> None:
    def steps(**options: object) -> Tensor:
        return torch.stack(drawn(load("stable_diffusion", sd_folder, family_options=options), "timestep")).float()

    everything, limited = steps(), steps(min_timestep=0.25, max_timestep=0.5)
    assert everything.min() < 50
    assert everything.max() > 950
    assert 250 <= limited.min() < 275
    assert 475 < limited.max() < 500
    assert steps(timestep_distribution="logit_normal").std() < 0.8 * everything.std()


@pytest.mark.slow
def test_latents_are_sampled_or_the_mode(sd_folder: Path) -> None:
    for family_options in ({}, {"latents": "mode"}):
        family = load("stable_diffusion", sd_folder, family_options=family_options)
        latents = torch.stack(drawn(family, "latents"))
        encoded = family.encode(example(1))
        middle = encoded["mean"] * pipeline("stable_diffusion", sd_folder).vae.config.scaling_factor
        if family_options:
            assert "spread" not in encoded
            assert torch.equal(latents, middle.expand_as(latents))
        else:
            spread = (encoded["spread"] * 0.18215).mean().item()
            assert latents.std(dim=0).mean().item() == pytest.approx(spread, rel=0.05)
            torch.testing.assert_close(latents.mean(dim=0), middle, rtol=0, atol=spread / 3)


@pytest.mark.parametrize(
    ("change", "matters"),
    [
        ({"family_options": {"latents": "mode"}}, "images"),
        ({"family_options": {"vae_tiling": True}}, "images"),
        ({"family_options": {"clip_skip": 1}}, "captions"),
        ({"family_options": {"long_prompts": "chunk", "prompt_windows": 2}}, "captions"),
        ({"family_options": {"long_prompts": "chunk", "prompt_windows": 3}}, "captions"),
        ({"precision": "bf16"}, "captions"),
        ({"masked_training": True}, "images"),
        (VARYING, "captions"),
        ({"parts": [{"part": "unet"}, {"part": "text_encoder"}]}, "captions"),
        ({"family_options": {"offset_noise": 0.1, "loss": "huber", "loss_weighting": "min_snr"}}, ""),
        ({"family_options": {"prediction_type": "v_prediction"}}, ""),
        ({"method": "lora", "caption_dropout": 0.5}, ""),
    ],
    ids=str,
)
def test_cache_is_reused_only_if_encoding_would_be_the_same(
    change: dict[str, Any], matters: str, sd_folder: Path
) -> None:
    before, after = load("stable_diffusion", sd_folder), load("stable_diffusion", sd_folder, **change)
    assert (before.fingerprint() != after.fingerprint()) == (matters == "images")
    assert (before.text_fingerprint() != after.text_fingerprint()) == (matters == "captions")
    if not matters:
        kept = [family.encode(example(1)) for family in (before, after)]
        assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])


@pytest.mark.slow
def test_fingerprint_depends_on_encoder_weights(sd_folder: Path) -> None:
    before, after = (load("stable_diffusion", sd_folder) for _ in range(2))
    prints = [(each.fingerprint(), each.text_fingerprint()) for each in (before, after)]
    assert prints[0] == prints[1]
    for number, name in enumerate(("vae", "text_encoder")):
        weight = next(after.encoders[name].parameters())
        weight.flatten()[0] += 1e-6
        changed = after.fingerprint(), after.text_fingerprint()
        assert [one != other for one, other in zip(changed, prints[0], strict=True)] == [number == 0, number == 1], name
        weight.flatten()[0] -= 1e-6
    with torch.no_grad():
        next(after.model.unet.parameters()).mul_(2)
    after_again = load("stable_diffusion", sd_folder)
    assert before.fingerprint() == after_again.fingerprint()


def test_caption_dropout_with_trained_text_encoders(sd_folder: Path) -> None:
    family = load("stable_diffusion", sd_folder, parts=[{"part": "text_encoder"}], caption_dropout=0.5)
    encoded = family.encode(example(1))
    empty = family.sample_transform(encoded, "", torch.Generator().manual_seed(1))["text_encoder.tokens"]
    assert torch.equal(empty, family.sample_transform.tokenizer.input_ids("text_encoder", ""))
    assert (empty == family.sample_transform.tokenizer.tokenizers["text_encoder"].eos_token_id).sum() == 76


def test_vae_tiling_is_used_for_large_images_only(sd_folder: Path) -> None:
    plain = load("stable_diffusion", sd_folder)
    tiled = load("stable_diffusion", sd_folder, family_options={"vae_tiling": True})
    vae: Any = tiled.encoders["vae"]
    assert vae.use_tiling
    small, large = (example(1), example(2))
    vae.tile_sample_min_size, vae.tile_latent_min_size = 128, 16
    assert torch.equal(tiled.encode(small)["mean"], plain.encode(small)["mean"])
    vae.tile_sample_min_size, vae.tile_latent_min_size = 64, 8
    one, other = tiled.encode(large)["mean"], plain.encode(large)["mean"]
    assert one.shape == other.shape
    assert not torch.equal(one, other)
