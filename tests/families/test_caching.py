"""What a real family leaves in the cache: the same for any number of ranks, whatever came between."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from modules.config import TrainConfig, TrainingError
from modules.data.cache.cache import Cache
from modules.data.cache.rounding import round_latents
from modules.data.index.build import build_index
from modules.data.index.index import no_progress
from modules.families._by_name import family_class
from modules.families._family import Family
from modules.training.data.dataset import cache_fingerprint, encode_for_cache, open_cache
from modules.training.device.precision import Precision
from tests.data.helpers import write_image
from tests.families.diffusion_checks import load

AT_ONCE = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(11):
        file = write_image(tmp_path / f"images/{number:02d}.png", 96 if number % 3 else 160, 96, seed=number)
        file.with_suffix(".txt").write_text("a red disc" if number % 2 else f"cat, number {number}")
    return tmp_path / "images"


@pytest.mark.slow
def test_cache_is_equal_for_any_ranks_and_after_interruptions(folder: Path, sd_folder: Path, tmp_path: Path) -> None:
    settings = {"concepts": [{"path": str(folder), "horizontal_flip": True}], "resolution": 64}

    def cache_of(name: str) -> Cache:
        index = build_index(config, config.seed, family.size_step, tmp_path / name)
        texts = family.text_fingerprint()
        return Cache(tmp_path / name, family.fingerprint(), index, config, family.encodes_captions, texts)

    def entries(cache: Cache) -> list[dict[str, Tensor]]:
        cached = cache.load()
        usable = [row for row in range(len(cached.usable)) if cached.usable[row]]
        return [
            *(cached.read(row, view) for row in usable for view in range(2)),
            *(cached.text(text) for text in ("a red disc", *(f"cat, number {n}" for n in range(0, 11, 2)))),
        ]

    def fill(cache: Cache, ranks: int, progress: Any = no_progress) -> None:
        batches = cache.batches(cache.missing(), AT_ONCE)
        captions = cache.missing_captions()
        for rank in range(ranks):
            cache.encode_captions(captions[rank::ranks], AT_ONCE, family.encode_captions, rank)
            cache.encode(batches.for_rank(rank, ranks), family.encode_batch, rank, progress)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    family = load("stable_diffusion", sd_folder, **settings)
    config = TrainConfig.model_validate({"family": "stable_diffusion", **settings})
    whole = cache_of("one")
    fill(whole, 1)
    expected = entries(whole)
    assert len(expected) == 22 + 7

    several = cache_of("three")
    fill(several, 3)
    stopped = cache_of("stopped")
    with pytest.raises(KeyboardInterrupt):
        fill(stopped, 2, stop)
    assert 0 < len(stopped.missing()) < 11
    fill(stopped, 2)
    assert not stopped.missing_captions()

    late = folder / "05.png"
    late.rename(folder / "05.waits")
    fill(cache_of("later"), 1)
    (folder / "05.waits").rename(late)
    later = cache_of("later")
    assert len(later.missing()) == 1
    fill(later, 2)

    for cache in (several, stopped, later):
        for own, other in zip(entries(cache), expected, strict=True):
            assert own.keys() == other.keys()
            assert all(torch.equal(own[name], other[name]) for name in own)


def test_images_encoded_in_tf32_are_not_mixed_with_others(sd_folder: Path) -> None:
    family = load("stable_diffusion", sd_folder, precision="bf16")
    strict, rounded = (Precision("bf16", torch.device("cpu"), tf32=tf32) for tf32 in (False, True))
    assert cache_fingerprint(family, rounded) != cache_fingerprint(family, strict)
    assert cache_fingerprint(family, strict) == family.fingerprint(), "caches that exist stay valid"
    pixels: Family = family_class("pixel_diffusion").load(TrainConfig(resolution=32))
    assert cache_fingerprint(pixels, rounded) == cache_fingerprint(pixels, strict), "nothing is computed for these"


def test_latents_in_half_precision_are_those_of_fp32_rounded(folder: Path, sdxl_folder: Path, tmp_path: Path) -> None:
    settings = {"concepts": [{"path": str(folder)}], "resolution": 64, "masked_training": True}
    family = load("stable_diffusion_xl", sdxl_folder, **settings)
    config = TrainConfig.model_validate({"family": "stable_diffusion_xl", **settings, "cache_dir": str(tmp_path / "c")})
    index = build_index(config, config.seed, family.size_step, Path(config.cache_dir))
    entries, precision = {}, Precision("fp32", torch.device("cpu"), tf32=False)
    for name in ("fp32", "bf16", "fp16"):
        own = config.model_copy(update={"cache_precision": name})
        cache = open_cache(own, index, family, precision)
        missing = cache.missing()
        assert len(missing) == len(index), "each precision has entries of its own"
        cache.encode(cache.batches(missing, 1), partial(encode_for_cache, own, family), 0)
        assert not len(cache.missing())
        entries[name] = cache.load().read(0, 0)
    assert {"mean", "spread", "sizes", "mask"} <= entries["fp32"].keys()
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        for key, tensor in entries["fp32"].items():
            expected = tensor.to(dtype) if key in ("mean", "spread") else tensor
            assert entries[name][key].dtype == expected.dtype
            assert torch.equal(entries[name][key], expected), key
        generators = [torch.Generator().manual_seed(0) for _ in range(2)]
        kept, rounded = entries[name], {key: tensor.to(entries["fp32"][key]) for key, tensor in entries[name].items()}
        samples = [family.sample_transform(dict(e), "", g) for e, g in zip((kept, rounded), generators, strict=True)]
        assert all(torch.equal(samples[0][key], samples[1][key]) for key in samples[1]), "computed with in fp32"
        assert samples[0]["latents"].dtype == torch.float32


def test_latents_beyond_fp16_are_told() -> None:
    with pytest.raises(TrainingError, match=r"cache_precision is fp16, which ends at 65,504, but latents .* 70,000"):
        round_latents([{"mean": torch.tensor([1.0, -7e4])}], ("mean",), "fp16")
