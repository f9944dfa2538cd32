"""Videos as data: which are found, the moments of their clips, buckets of size x frames, views, and exact reading."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from modules.config import ConfigError, DataError, TrainConfig, validate
from modules.data.batch import Example
from modules.data.cache.cache import Cache
from modules.data.index.build import build_index
from modules.data.index.clips import ClipTimes, clip_frames, clip_start, moments
from modules.data.index.concept_summary import summarize_concepts
from modules.data.index.index import Index, load_index
from modules.data.index.near_duplicates import near_duplicates
from modules.data.index.survey import survey
from modules.data.loading.on_the_fly import OnTheFlyExamples
from modules.data.loading.preview import previews
from modules.data.rng import SampleRng
from modules.files.videos import Clip, write_clip
from tests.data.helpers import RecordingEncode, config_for, encode_missing, fill, indexed, prepare, write_image
from tests.data.videos import numbered_frame, write_video

pytest.importorskip("av")
VIDEO = {"family": "wan", "resolution": 32, "frames": 9, "fps": 8.0}


def numbers_of(pixels: Tensor) -> list[int]:
    """Which frames uint8 [3, F, H, W] has, by the brightness of their last rows."""
    return [round(float(frame.float().mean()) / 8) for frame in pixels[:, :, -6:].unbind(1)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A long, a short and a very short video, a still, a damaged video, with captions."""
    folder = tmp_path / "videos"
    write_video(folder / "long.mp4", 25)
    write_video(folder / "short.mp4", 7)
    write_video(folder / "tiny.mp4", 3)
    write_image(folder / "still.png", 64, 48)
    (folder / "broken.mp4").write_bytes(write_video(tmp_path / "whole.mp4", 9).read_bytes()[:900])
    for name in ("long", "short", "tiny", "still"):
        (folder / f"{name}.txt").write_text(f"{name}, moving right")
    return folder


def configured(place: Path, **settings: object) -> TrainConfig:
    return config_for(place, cache=place.parent / "cache", **{**VIDEO, **settings})


def rows_by_name(index: Index) -> dict[str, int]:
    return {os.path.splitext(index.relative_path(row))[0]: row for row in range(len(index))}


def test_moments_are_those_up_to_half_a_frame_after_the_last() -> None:
    assert [moments(frames, 16, 16) for frames in (1, 2, 17)] == [1, 2, 17]
    assert moments(1, 1.0, 16) == 1  # one frame has no rate
    assert [moments(20, 8, 0.0001), ClipTimes(1, 1, 0.0001).times()[0]] == [1, Fraction(1) / Fraction(0.0001)]
    assert [moments(24, 24, 16), moments(20, 8, 16), moments(30, 29.97, 16)] == [16, 40, 16]
    assert [clip_frames(found, 17, 4) for found in (1, 4, 5, 16, 17, 99)] == [1, 1, 5, 13, 17, 17]
    assert [clip_start("uniform", 10, each, 4, 0.0) for each in range(4)] == [0, 3, 6, 10]
    assert [clip_start("random", 10, each, 4, 0.99) for each in range(2)] == [0, 10]
    assert clip_start("start", 10, 3, 4, 0.9) == 0
    assert [float(time) for time in ClipTimes(2, 2, 16).times()] == [0.125, 0.1875]


def test_videos_are_indexed_with_buckets_of_frames_and_what_is_wrong_is_named(place: Path) -> None:
    index = indexed(configured(place))
    rows = rows_by_name(index)
    assert sorted(rows) == ["long", "short", "still", "tiny"]
    frames = {name: index.buckets[index.bucket[row]].frames for name, row in rows.items()}
    assert frames == {"long": 9, "short": 5, "still": 1, "tiny": 1}
    assert str(index.buckets[index.bucket[rows["long"]]]) == "32x24x9"
    assert index.captions(rows["long"]) == ("long, moving right",)
    said = {os.path.basename(problem.path): problem.what for problem in index.problems()}
    assert "broken.mp4" in said
    assert "is incomplete" in said["broken.mp4"]
    assert said["tiny.mp4"].startswith("too short for a clip (3 frames, 0.38 s)")
    (summary,) = summarize_concepts(configured(place).concepts, index, uses_masks=False)
    assert "1 image, 3 videos of 4.38 s in all (1 too short for a clip)" in summary.lines()[0]
    # what is known is not opened again, and an index of another family is of use, too
    for file in (place / "long.mp4", place / "short.mp4"):
        before = file.stat()
        file.write_bytes(bytes(before.st_size))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    again = indexed(configured(place, frames=5))
    found = rows_by_name(again)
    assert [again.buckets[again.bucket[found[name]]].frames for name in ("long", "short")] == [5, 5]


def test_a_family_of_images_passes_videos_over_and_says_so(place: Path) -> None:
    index = indexed(config_for(place, cache=place.parent / "cache"))
    assert sorted(rows_by_name(index)) == ["still"]
    (summary,) = summarize_concepts(configured(place).concepts, index, uses_masks=False)
    assert any("4 videos passed over: this family trains on images" in line for line in summary.lines())
    (place / "still.png").unlink()
    with pytest.raises(DataError, match=r"these train on videos: .*wan"):
        indexed(config_for(place, cache=place.parent / "cache"))


def test_an_index_of_stills_is_stored_as_before(tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "a.png")
    index = indexed(config_for(tmp_path / "images", cache=tmp_path / "cache"))
    assert not {"frames", "fps", "is_steady"} & set(index.stored_columns)
    assert load_index(index.path).digest == index.digest
    assert index.frames.tolist() == [1]


def test_clips_have_the_nearest_frames_and_are_the_same_cached_and_uncached(place: Path) -> None:
    config = configured(place)
    index = indexed(config)
    rows, encode = rows_by_name(index), RecordingEncode()
    encode_missing(Cache(Path(config.cache_dir), "f", index, config), encode, size=4)
    pixels = {each.captions[0].split(",")[0]: each.pixels for each in encode.examples}
    assert {name: list(each.shape) for name, each in pixels.items()} == {
        "long": [3, 9, 24, 32],
        "short": [3, 5, 24, 32],
        "tiny": [3, 24, 32],
        "still": [3, 24, 32],
    }
    assert numbers_of(pixels["long"]) == list(range(9))
    uncached = OnTheFlyExamples(index, config, lambda example: {"pixels": example.pixels})
    for name, row in rows.items():
        assert torch.equal(uncached.sample(row, None)["pixels"], pixels[name])
    half = configured(place, fps=4.0)
    found = OnTheFlyExamples(indexed(half), half, lambda example: {"pixels": example.pixels})
    assert numbers_of(found.sample(rows["long"], None)["pixels"]) == list(range(0, 18, 2))
    double = configured(place, fps=16.0)
    found = OnTheFlyExamples(indexed(double), double, lambda example: {"pixels": example.pixels})
    assert numbers_of(found.sample(rows["long"], None)["pixels"]) == [0, 0, 1, 1, 2, 2, 3, 3, 4]


def test_views_are_clips_from_the_beginning_to_the_end(place: Path) -> None:
    config = configured(place, clips="uniform", horizontal_flip=True, color_jitter=0.4, image_variations=3)
    index = indexed(config)
    rows = rows_by_name(index)
    seen = dict[str, list[Example]]()
    encode = RecordingEncode()
    encode_missing(Cache(Path(config.cache_dir), "f", index, config), encode)
    for each in encode.examples:
        seen.setdefault(each.captions[0].split(",")[0], []).append(each)
    assert len(seen["long"]) == 6
    plain = configured(place, clips="uniform", image_variations=3)
    known = RecordingEncode()
    encode_missing(Cache(place.parent / "other", "f", indexed(plain), plain), known)
    firsts = [numbers_of(each.pixels)[0] for each in known.examples if each.captions[0].startswith("long")]
    assert firsts == [0, 8, 16]
    assert sum(each.captions[0].startswith("still") for each in known.examples) == 1
    # mirrored and coloured alike in all frames
    view, flipped = seen["long"][0], seen["long"][1]
    assert torch.equal(view.pixels.flip(-1), flipped.pixels)
    assert flipped.flipped
    # without the cache, the clips of visits differ, and a visit is the same anywhere
    random = configured(place, clips="random")
    found = OnTheFlyExamples(indexed(random), random, lambda example: {"pixels": example.pixels})
    starts = [numbers_of(found.sample(rows["long"], SampleRng(seed))["pixels"])[0] for seed in range(8)]
    assert len(set(starts)) > 3
    assert starts == [numbers_of(found.sample(rows["long"], SampleRng(seed))["pixels"])[0] for seed in range(8)]
    assert max(starts) <= 16


def test_two_ranks_fill_one_cache_and_a_changed_rate_encodes_anew(place: Path) -> None:
    config = configured(place)
    prepared = prepare(config, global_batch_size=1)
    assert fill(config, prepared.index, world=2)[1] == 0
    again = configured(place, fps=4.0)
    assert fill(again, indexed(again))[1] == 3  # the still is known; of the shortest, one moment is another file's
    batches = [batch for rank in range(2) for batch in prepared.loader(rank, 2).epoch(0)]
    assert {tuple(batch.tensors["pixels"].shape[1:]) for batch in batches} >= {(3, 9, 24, 32), (3, 5, 24, 32)}


def test_a_mask_is_that_of_all_frames(place: Path) -> None:
    write_image(place / "long-masklabel.png", 64, 48)
    config = configured(place, masked_training=True)
    encode = RecordingEncode()
    encode_missing(Cache(Path(config.cache_dir), "f", indexed(config), config), encode)
    masks = {each.captions[0].split(",")[0]: each.mask for each in encode.examples}
    assert masks["long"] is not None
    assert masks["short"] is not None
    assert list(masks["long"].shape) == [1, 24, 32]
    assert masks["long"].min() < 255 == masks["short"].min()


def test_an_animation_is_a_clip_and_a_still_webp_an_image(tmp_path: Path) -> None:
    frames = [numbered_frame(number) for number in range(9)]
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("moving.webp", "moving.gif"):
        frames[0].save(folder / name, save_all=True, append_images=frames[1:], duration=125, lossless=True)
    frames[0].save(folder / "still.webp", lossless=True)
    index = indexed(configured(folder))
    found = [(index.relative_path(row), index.buckets[index.bucket[row]].frames) for row in range(len(index))]
    assert found == [("moving.gif", 9), ("moving.webp", 9), ("still.webp", 1)]
    stills = build_index(config_for(folder, cache=tmp_path / "cache"), 0, 8, tmp_path / "cache")
    assert [stills.relative_path(row) for row in range(len(stills))] == ["moving.webp", "still.webp"]
    assert np.array_equal(stills.frames, [1, 1])


def test_the_number_of_frames_is_one_the_family_takes(place: Path) -> None:
    config = configured(place).model_dump(mode="json")
    with pytest.raises(ConfigError, match=r"frames is 12; wan takes 1 \+ a multiple of 4, such as 9 or 13"):
        validate({**config, "frames": 12}, "a.yaml")


def test_the_window_shows_first_frames_and_how_long_videos_last(place: Path, tmp_path: Path) -> None:
    write_clip(place / "slower.mp4", Clip(tuple(numbered_frame(number) for number in range(9)), 4.0))
    records = list(survey(configured(place)))
    rows = {row[0]: (row[3], row[-1]) for record in records if record["type"] == "pictures" for row in record["rows"]}  # type: ignore[attr-defined]
    assert rows["long.mp4"] == ("32x24x9", 3.125)
    assert rows["still.png"] == ("32x24", 0)
    (buckets,) = (record["buckets"] for record in records if record["type"] == "buckets")
    assert ["32x24x9", 2, 2] in buckets  # type: ignore[operator]
    problems = {Path(str(each["path"])).name: each["kind"] for each in records if each["type"] == "problem"}
    assert (problems["tiny.mp4"], problems["broken.mp4"]) == ("video", "broken")
    single = [each for each in survey(configured(place, frames=1)) if each["type"] == "problem"]
    assert all(each["kind"] != "video" for each in single), "one frame is what was asked for"
    groups, unreadable = near_duplicates(place, 4)
    assert {Path(image.file).name for group in groups for image in group} >= {"long.mp4", "slower.mp4"}
    assert unreadable == 1
    folder = tmp_path / "preview"
    folder.mkdir()
    shown = {Path(each.source).name: each for each in previews(configured(place), folder, 8, 0, 9, cached=True)}
    assert (shown["long.mp4"].frames, shown["still.png"].frames) == (9, 1)
    assert shown["long.mp4"].size == (32, 24)
