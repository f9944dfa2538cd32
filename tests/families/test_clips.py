"""Families that train on clips against diffusers: latents, losses, samples and their files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import WanImageToVideoPipeline
from PIL import Image
from torch import Tensor

from modules.config import ConfigError, TrainConfig
from modules.config.io.files import validate
from modules.data.batch import Example
from modules.families._by_name import family_class
from modules.families._family import ReferenceImage
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
ANIMATING = "wan22_5b"
SIZE = (64, 96)  # of its clips


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TINY["wan"](tmp_path_factory.mktemp("clips") / "wan")


@pytest.fixture(scope="module")
def animating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that continues an image."""
    return TINY[ANIMATING](tmp_path_factory.mktemp("clips") / ANIMATING)


def clip(number: int, mask: Tensor | None = None, size: tuple[int, int] = (48, 64)) -> Example:
    """A clip of noise."""
    generator = torch.Generator().manual_seed(number)
    pixels = torch.randint(0, 256, (3, FRAMES, *reversed(size)), generator=generator, dtype=torch.uint8)
    return Example(pixels, mask, (CAPTIONS[number],), (100, 80), (0, 0), flipped=False)


def samples(family: Any, masks: Sequence[Tensor | None] = (None, None), **given: Any) -> list[dict[str, Tensor]]:
    """One with each mask, as the loader makes them."""
    transform, encode = family.sample_transform, family.example_transform or family.encode
    return [
        transform(
            {**encode(clip(number, mask, **given)), **encoded_text(family, CAPTIONS[number])},
            CAPTIONS[number],
            torch.Generator().manual_seed(number),
        )
        for number, mask in enumerate(masks)
    ]


def latents(pipe: Any, pixels: Tensor) -> Tensor:
    """Normalised, of a clip uint8 [3, F, H, W], by diffusers alone."""
    config = pipe.vae.config
    mean, std = (torch.tensor(each).view(1, -1, 1, 1, 1) for each in (config.latents_mean, config.latents_std))
    encoded: Tensor = pipe.vae.encode(pixels[None].float() / 127.5 - 1).latent_dist.mode()
    return (encoded - mean) / std


@torch.no_grad()
def direct_loss(folder: Path, given: dict[str, Tensor], number: int) -> Tensor:
    """The squared errors of a clip's latents, by diffusers alone."""
    pipe = pipeline(folder)
    x_0 = latents(pipe, clip(number).pixels)
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


@torch.no_grad()
def animated_loss(folder: Path, given: dict[str, Tensor], number: int) -> Tensor:
    """The squared errors of the latents behind the first, which is that of the first frame alone, as the loop of
    WanImageToVideoPipeline has it at the noise level of the sample."""
    pipe = pipeline(folder)
    pixels = clip(number, size=SIZE).pixels
    x_0, condition = latents(pipe, pixels), latents(pipe, pixels[:, :1])
    noise, sigma = given["noise"][None], given["sigma"].max()
    mask = torch.ones(1, 1, *x_0.shape[2:])
    mask[:, :, 0] = 0
    x_t = (1 - mask) * condition + mask * ((1 - sigma) * x_0 + sigma * noise)
    timestep = (mask[0][0][:, ::2, ::2] * 1000 * sigma).flatten()[None]
    states, _ = pipe.encode_prompt(CAPTIONS[number], do_classifier_free_guidance=False, max_sequence_length=512)
    out = pipe.transformer(x_t, timestep, states).sample
    return (out - (noise - x_0)).square()[:, :, 1:]


@pytest.mark.slow
@pytest.mark.parametrize("cached", [True, False])
def test_the_loss_with_a_given_first_frame_is_that_of_diffusers(animating: Path, cached: bool) -> None:
    """Of all clips, of none, and of some, beside a mask of its upper half; the draws are the same."""
    mask = torch.zeros(1, 96, 64, dtype=torch.uint8)
    mask[:, :64] = 255
    masked = {"masked_training": True, "unmasked_weight": 0.0, "normalize_masked_area_loss": False}
    found = {}
    for share, masks in ((1.0, (None, None)), (0.0, (None, None)), (0.75, (mask,) * 3)):
        options = {"latents": "mode", "first_frame_conditioning": share}
        family = load(ANIMATING, animating, cache_latents=cached, family_options=options, **masked)
        given = samples(family, masks, size=SIZE)
        with torch.no_grad():
            found[share] = family.loss(batch_of(given, family.sample_transform)), given
    losses, given = found[1.0]
    direct = torch.stack([animated_loss(animating, one, number).mean() for number, one in enumerate(given)])
    torch.testing.assert_close(losses, direct, atol=1e-6, rtol=1e-6)
    plain, of_text = found[0.0]
    assert [one["sigma"].ndim for one in of_text] == [0, 0]
    assert all(torch.equal(one["noise"], other["noise"]) for one, other in zip(given, of_text, strict=True))
    assert (plain - losses).abs().min() > 1e-4
    mixed, of_both = found[0.75]
    shown = [bool(one["sigma"][0] == 0) for one in of_both]
    assert len(set(shown)) == 2
    place = shown.index(True)
    upper = animated_loss(animating, of_both[place], place)
    torch.testing.assert_close(mixed[place], upper[..., :4, :].sum() / upper.numel(), atol=1e-6, rtol=1e-6)


def test_images_and_the_share_of_clips_whose_first_frame_is_given(animating: Path) -> None:
    family = load(ANIMATING, animating, family_options={"first_frame_conditioning": 0.25})
    transform = family.sample_transform
    text = encoded_text(family, "")
    for frames, share in ((1, 0.0), (3, 0.25)):
        cached = {"mean": torch.zeros(4, frames, 2, 2), **text}
        drawn = [transform(cached, "", torch.Generator().manual_seed(seed)) for seed in range(400)]
        given = [bool(one["sigma"][0] == 0) for one in drawn]
        assert sum(given) / len(given) == pytest.approx(share, abs=0.05)
        weights = torch.stack([one["weights"].flatten() for one in drawn])
        torch.testing.assert_close(weights.mean(1), torch.ones(400))


@torch.no_grad()
def test_a_sample_goes_on_from_its_first_frame_as_the_pipeline_does(animating: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    first = Image.fromarray(torch.randint(0, 256, (96, 64, 3), generator=generator, dtype=torch.uint8).numpy())
    wide = Image.new("RGB", (104, 96), "white")  # whose middle is it
    wide.paste(first, (20, 0))
    request = replace(REQUEST, width=64, height=96, frames=FRAMES)
    family = load(ANIMATING, animating)
    sample = family.sample(replace(request, references=(ReferenceImage("wide.png", wide),)))
    plain = family.sample(request)
    assert isinstance(sample, Clip)
    assert isinstance(plain, Clip)
    assert (len(sample.frames), sample.fps) == (FRAMES, 24.0)
    pipes = {
        "text": pipeline(animating),
        "image": WanImageToVideoPipeline.from_pretrained(animating, image_encoder=None, image_processor=None),
    }
    pipes["image"].set_progress_bar_config(disable=True)
    states, negative = pipes["text"].encode_prompt(REQUEST.prompt, REQUEST.negative_prompt, max_sequence_length=512)
    for kind, found in (("image", sample), ("text", plain)):
        drawn = pipes[kind](
            **({"image": first} if kind == "image" else {}),
            prompt_embeds=states,
            negative_prompt_embeds=negative,
            width=64,
            height=96,
            num_frames=FRAMES,
            num_inference_steps=REQUEST.steps,
            guidance_scale=REQUEST.guidance_scale,
            generator=torch.Generator().manual_seed(REQUEST.seed),
            output_type="pil",
        ).frames[0]
        assert [np.array(each).tobytes() for each in found.frames] == [np.array(each).tobytes() for each in drawn]
    assert sample.frames[-1].tobytes() != plain.frames[-1].tobytes()


def test_a_first_frame_without_more_frames_is_refused() -> None:
    sample = {"prompt": "a", "reference": "a.png", "frames": 1}
    config = TrainConfig.model_validate({"family": ANIMATING, "samples": [sample]})
    said = r"^samples\.0\.reference is the first frame of a video, but .* for example to 17\."
    with pytest.raises(ConfigError, match=said):
        sample_requests(config, 32)


@pytest.mark.parametrize(
    ("family", "given", "said"),
    [(ANIMATING, {"samples": [{"prompt": "a", "reference": "a.png; b.png"}]},
      "samples.0.reference names 2; wan22_5b takes 1, the first frame"),
     ("wan", {"samples": [{"prompt": "a", "reference": "a.png"}]},
      "samples.0.reference is given, but wan takes no reference images"),
     (ANIMATING, {"concepts": [{"path": "x", "references": "y"}]},
      "concepts.0.references is given, but wan22_5b takes no reference")],
)  # fmt: skip
def test_first_frames_that_cannot_be_are_refused(family: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        validate({"family": family, **given}, "try.yaml")


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


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"boundary_ratio": 0.875}, "contains a WanPipeline with boundary_ratio; this family trains WanPipeline"),
     ({"expand_timesteps": True}, "is a WanPipeline with expand_timesteps, .* Set family to wan22_5b")],
)  # fmt: skip
def test_a_later_model_is_refused_before_it_is_loaded(
    changes: dict[str, Any], said: str, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "wan")
    index = tmp_path / "wan" / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | changes))
    config = TrainConfig.model_validate({"family": "wan", "base_model": str(index.parent)})
    for read in (family_class("wan").base_model_notes, family_class("wan").load_for_training):
        with pytest.raises(ConfigError, match=said):
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
