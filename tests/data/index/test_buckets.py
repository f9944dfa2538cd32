"""Buckets lose no more of the images than those of kohya's scripts; runs of before keep theirs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from modules.config import TrainConfig
from modules.data.index.buckets import Bucket, assign_buckets, make_buckets
from modules.data.index.index import index_path

_WIDE = (5 / 4, 4 / 3, 3 / 2, 16 / 9, 21 / 9)
_RNG = np.random.default_rng(0)
SPREADS = {  # width / height
    "cameras and screens": np.array([1.0, *_WIDE, *(1 / each for each in _WIDE)]),
    "any from 1:2 to 2:1": np.exp(_RNG.uniform(-math.log(2), math.log(2), 5000)),
    "cropped by people": np.exp(np.clip(_RNG.normal(0, 0.35, 5000), -math.log(4), math.log(4))),
}


def kohyas(resolution: int) -> list[Bucket]:
    """make_bucket_resolutions of library/model_util.py, with sides from 256 to 2048 in steps of 64."""
    wide = []
    for width in range(256, 2049, 64):
        height = min(2048, resolution**2 // width // 64 * 64)
        wide += [(height, width), (width, height)] if height >= 256 else []
    sizes = {*wide, (resolution // 64 * 64,) * 2}
    return [Bucket(*size) for size in sorted(sizes, key=lambda size: size[1] / size[0])]


def lost(buckets: list[Bucket], chosen: NDArray[np.int64], aspects: NDArray[np.float64]) -> float:
    """The mean share of an image's area that is cropped away."""
    ratio = aspects / np.array([each.width / each.height for each in buckets])[chosen]
    return float((1 - np.minimum(ratio, 1 / ratio)).mean())


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(("resolution", "step"), [(512, 64), (768, 64), (1024, 64), (1024, 32), (1024, 16), (512, 8)])
def test_no_more_is_cropped_away_than_by_kohyas_scripts(resolution: int, step: int, spread: str) -> None:
    """Of the buckets there, an image is in that of the nearest width / height (BucketManager.select_bucket)."""
    aspects = SPREADS[spread]
    theirs, ours = kohyas(resolution), list(make_buckets(resolution, step, True))
    nearest = np.abs(np.array([each.width / each.height for each in theirs])[None] - aspects[:, None]).argmin(axis=1)
    height = np.full(len(aspects), 10_000, dtype=np.int32)
    chosen = assign_buckets(tuple(ours), np.round(aspects * height).astype(np.int32), height)
    loss = lost(ours, chosen.astype(np.int64), aspects)
    assert loss <= lost(theirs, nearest, aspects)
    assert loss < 0.033
    assert len(ours) <= 25


def test_runs_of_before_keep_their_buckets(tmp_path: Path) -> None:
    """The sizes at 1024 and the name of the index are those that version 0.3.0 made."""
    wide = [each for each in make_buckets(1024, 64, True, fewer=True) if each.width >= each.height]
    found = "1024x1024 1152x896 1280x832 1344x768 1472x704 1600x640 1792x576 2048x512"
    assert " ".join(map(str, wide)) == found
    config = TrainConfig.model_validate({"resolution": 1024})
    before = config.model_copy(update={"fewer_buckets": True})
    assert index_path(before, 42, 64, tmp_path).name == "index-3935b40325cdf57a.safetensors"
    assert index_path(config, 42, 64, tmp_path) != index_path(before, 42, 64, tmp_path)
    squares = [each.model_copy(update={"aspect_ratio_bucketing": False}) for each in (config, before)]
    assert len({index_path(each, 42, 64, tmp_path) for each in squares}) == 1


@pytest.mark.parametrize("step", [4, 8, 14, 16, 32, 64])
def test_no_bucket_has_half_the_area(step: int) -> None:
    for resolution in range(step, 6 * step):
        areas = [each.height * each.width for each in make_buckets(resolution, step, bucketing=True)]
        assert 2 * min(areas) > resolution**2, resolution
