"""Families that train on clips against diffusers: latents, losses, samples and their files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from modules.config import ConfigError, TrainConfig
from modules.data.batch import Example
from modules.families._by_name import family_class
from modules.files.videos import Clip, read_video_header, video_frames
from modules.monitoring import save_sample
from modules.training.actions.sample import _pack, _unpack
from modules.training.state.sample_requests import sample_requests
from tests.families.diffusion_checks import encoded_text
from tests.families.flow_checks import CAPTIONS, REQUEST, batch_of, load, pipeline
from tests.families.tiny_flow_pipelines import TINY
from tests.pair_jobs import TIMEOUTS
from tests.runs import Job, group_settings, tiny_config, train_alone, train_group

pytest.importorskip("av")
FRAMES = 9  # three latents


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TINY["wan"](tmp_path_factory.mktemp("clips") / "wan")


def clip(number: int, mask: Tensor | None = None) -> Example:
    """A clip of noise, 48 x 64 pixels."""
    generator = torch.Generator().manual_seed(number)
    pixels = torch.randint(0, 256, (3, FRAMES, 64, 48), generator=generator, dtype=torch.uint8)
    return Example(pixels, mask, (CAPTIONS[number],), (100, 80), (0, 0), flipped=False)


def samples(family: Any, masks: tuple[Tensor | None, Tensor | None] = (None, None)) -> list[dict[str, Tensor]]:
    """Two, as the loader makes them."""
    transform, encode = family.sample_transform, family.example_transform or family.encode
    return [
        transform(
            {**encode(clip(number, mask)), **encoded_text(family, CAPTIONS[number])},
            CAPTIONS[number],
            torch.Generator().manual_seed(number),
        )
        for number, mask in enumerate(masks)
    ]


@torch.no_grad()
def direct_loss(folder: Path, given: dict[str, Tensor], number: int) -> Tensor:
    """The squared errors of a clip's latents, by diffusers alone."""
    pipe = pipeline(folder)
    config = pipe.vae.config
    mean, std = (torch.tensor(each).view(1, -1, 1, 1, 1) for each in (config.latents_mean, config.latents_std))
    x_0 = (pipe.vae.encode(clip(number).pixels[None].float() / 127.5 - 1).latent_dist.mode() - mean) / std
    noise, sigma = given["noise"][None], given["sigma"]
    states, _ = pipe.encode_prompt(CAPTIONS[number], do_classifier_free_guidance=False, max_sequence_length=512)
    out = pipe.transformer((1 - sigma) * x_0 + sigma * noise, 1000 * sigma[None], states).sample
    return (out - (noise - x_0)).square()


@pytest.mark.slow
def test_the_loss_of_clips_is_that_of_diffusers_and_of_what_is_not_cached(folder: Path) -> None:
    options = {"family_options": {"latents": "mode"}}
    family = load("wan", folder, **options)
    given = samples(family)
    assert given[0]["latents"].shape == (4, 3, 8, 6)
    losses = family.loss(batch_of(given, family.sample_transform))
    direct = torch.stack([direct_loss(folder, one, number).mean() for number, one in enumerate(given)])
    torch.testing.assert_close(losses, direct, atol=1e-6, rtol=1e-6)
    uncached = load("wan", folder, cache_latents=False, **options)
    encoded_now = uncached.loss(batch_of(samples(uncached), uncached.sample_transform))
    torch.testing.assert_close(encoded_now, losses, atol=1e-6, rtol=1e-6)


def test_a_mask_counts_in_all_frames_of_a_clip(folder: Path) -> None:
    mask = torch.zeros(1, 64, 48, dtype=torch.uint8)
    mask[:, :32] = 255
    settings = {"masked_training": True, "unmasked_weight": 0.0, "normalize_masked_area_loss": False}
    family = load("wan", folder, **settings, family_options={"latents": "mode"})
    given = samples(family, (mask, None))
    masked, whole = family.loss(batch_of(given, family.sample_transform))
    halves = [direct_loss(folder, one, number) for number, one in enumerate(given)]
    torch.testing.assert_close(masked, halves[0][..., :4, :].sum() / halves[0].numel(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(whole, halves[1].mean(), atol=1e-6, rtol=1e-6)


def test_the_shift_is_the_schedulers(folder: Path) -> None:
    assert load("wan", folder).shift.of_tokens(1) == load("wan", folder).shift.of_tokens(1000) == 3.0


def test_a_clip_is_the_pipelines_to_the_bit_and_is_written_with_a_poster(folder: Path, tmp_path: Path) -> None:
    request = replace(REQUEST, frames=FRAMES)
    sample = load("wan", folder).sample(request)
    assert isinstance(sample, Clip)
    assert (len(sample.frames), sample.fps) == (FRAMES, 16.0)
    generator = torch.Generator().manual_seed(REQUEST.seed)
    pipe = pipeline(folder)
    drawn = pipe(
        REQUEST.prompt,
        REQUEST.negative_prompt,
        height=REQUEST.height,
        width=REQUEST.width,
        num_frames=FRAMES,
        num_inference_steps=REQUEST.steps,
        guidance_scale=REQUEST.guidance_scale,
        generator=generator,
        output_type="pil",
    ).frames[0]
    assert [np.array(each).tobytes() for each in sample.frames] == [np.array(each).tobytes() for each in drawn]
    poster = save_sample(sample, tmp_path / "one.png", request.settings())
    header = read_video_header(tmp_path / "one.mp4")
    assert (header.width, header.height, header.frames, header.fps) == (64, 48, FRAMES, 16.0)
    with Image.open(tmp_path / "one.png") as written:
        assert written.tobytes() == poster.tobytes() == drawn[0].tobytes()
        assert f'"frames": {FRAMES}' in written.info["tandem"]
    received = _unpack(_pack(["a fault", sample, poster]))  # as another rank sends them
    assert isinstance(received[1], Clip)
    assert [each.tobytes() for each in received[1].frames] == [each.tobytes() for each in sample.frames]
    assert received[0] == "a fault"
    assert isinstance(received[2], Image.Image)
    assert received[2].tobytes() == poster.tobytes()


@pytest.mark.parametrize(
    ("family", "frames", "said"),
    [("wan", 8, "samples.0.frames is 8; wan needs 1 more than a multiple of 4, for example 9"),
     ("flux", 5, "samples.0.frames is 5; flux generates single images")],
)  # fmt: skip
def test_frames_that_a_model_does_not_generate_are_refused(family: str, frames: int, said: str) -> None:
    config = TrainConfig.model_validate({"family": family, "samples": [{"prompt": "a", "frames": frames}]})
    with pytest.raises(ConfigError, match=said):
        sample_requests(config, 16)


def test_frames_that_are_inherited_are_named_by_their_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyAV, which writes samples."""
    monkeypatch.setattr("modules.training.state.sample_requests.has_pyav", lambda: False)
    for own, said in ((None, "^frames is 17; "), (9, r"^samples\.0\.frames is 9; ")):
        samples = [{"prompt": "a", "frames": own}]
        config = TrainConfig.model_validate({"family": "wan", "frames": 17, "samples": samples})
        with pytest.raises(ConfigError, match=said + "a video is written by PyAV"):
            sample_requests(config, 16)


def test_clips_beyond_the_positions_of_the_model_are_refused(folder: Path) -> None:
    """The tiny one has 32 for latents in time, and for squares of 16 pixels along a side."""
    config = TrainConfig.model_validate({"family": "wan", "base_model": str(folder), "resolution": 64, "frames": 125})
    kind = family_class("wan")
    kind.base_model_notes(config)
    for change, said in (
        ({"frames": 129}, r"frames is 129, but the positions of .* cover 125 frames.\s+Use at most 125\."),
        ({"resolution": 528}, r"resolution is 528, but the positions of .* cover 512 pixels"),
    ):
        with pytest.raises(ConfigError, match=said):
            kind.base_model_notes(config.model_copy(update=change))
    with pytest.raises(ConfigError, match="has 129 frames, but the positions of this model end at 125"):
        load("wan", folder).sample(replace(REQUEST, frames=129))


@pytest.mark.parametrize("changes", [{"boundary_ratio": 0.875}, {"expand_timesteps": True}])
def test_a_later_model_is_refused_before_it_is_loaded(changes: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "wan")
    index = tmp_path / "wan" / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | changes))
    config = TrainConfig.model_validate({"family": "wan", "base_model": str(index.parent)})
    for read in (family_class("wan").base_model_notes, family_class("wan").load_for_training):
        with pytest.raises(ConfigError, match=r"base_model is Wan 2\.2, which"):
            read(config)


def test_a_scheduler_without_flow_matching_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "wan")
    file = tmp_path / "wan" / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"use_flow_sigmas": False}))
    config = TrainConfig.model_validate({"family": "wan", "base_model": str(tmp_path / "wan")})
    for read in (family_class("wan").check_small_parts, family_class("wan").load_for_training):
        with pytest.raises(ConfigError, match="has no flow matching: use_flow_sigmas is False"):
            read(config)


@pytest.mark.slow
def test_ranks_that_share_samples_leave_the_videos_of_one(folder: Path, images: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "family": "wan", "base_model": str(folder), "method": "lora", "lora_rank": 2, "precision": "fp64",
        "resolution": 32, "frames": 5, "batch_size": 1, "global_batch_size": 2, "max_steps": 1,
        "samples": [{"prompt": "a square, moving left", "steps": 2}, {"prompt": "a still", "frames": 1, "steps": 2}],
        "sample_every": "1 steps", "share_sampling": True,
    }  # fmt: skip
    config = tiny_config(images, tmp_path, **settings, run_name="alone")
    code, alone = train_alone(config)
    assert code == 0, alone.failure(0)
    pair = TrainConfig.model_validate(config.model_dump() | {**group_settings(2), **TIMEOUTS, "run_name": "pair"})
    two = train_group(2, {"pair": Job(pair)})["pair"]
    for run in (alone, two):
        names = sorted(file.name for file in run.folder.samples_dir.glob("step-000001-0*"))
        assert names == ["step-000001-00.mp4", "step-000001-00.png", "step-000001-01.png"], run.failure(0)
        assert read_video_header(run.folder.samples_dir / names[0]).frames == 5
    for name in names:
        first, second = (run.folder.samples_dir / name for run in (alone, two))
        if first.suffix == ".png":
            assert first.read_bytes() == second.read_bytes()
        else:
            one, other = (video_frames(each, lambda times: range(len(times))) for each in (first, second))
            assert [each.tobytes() for each in one] == [each.tobytes() for each in other]
