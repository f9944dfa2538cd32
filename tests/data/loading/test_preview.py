"""A preview of training images shows what training gets: the same pixels and captions from the same seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from modules.data.index.build import build_index
from modules.data.loading.loader import make_loader
from modules.data.loading.on_the_fly import OnTheFlyExamples
from modules.data.loading.order import make_order
from modules.data.loading.preview import previews
from tests.data.helpers import config_for, fill, write_image


def words(cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
    return {"pixels": cached["pixels"], "caption": torch.tensor(list(caption.encode().ljust(60)))}


@pytest.mark.parametrize("cached", [True, False])
def test_pixels_and_captions_are_those_of_the_loader(cached: bool, tmp_path: Path) -> None:
    for number in range(8):
        write_image(tmp_path / "images" / f"{number}.png", 60 + number, 40, number)
        (tmp_path / "images" / f"{number}.txt").write_text(f"cat {number}, a, b, c, d")
    varied = {"horizontal_flip": True, "crop_jitter": True, "tag_shuffle": True, "tag_dropout": 0.3}
    varied |= {"random_rotate": 20, "random_contrast": 0.4}
    more = {"prompt_prefix": "pre ", "batch_size": 4, "cache_latents": cached}
    config = config_for(tmp_path / "images", cache=tmp_path / "cache", **varied, **more)
    index = build_index(config, config.seed, 8, tmp_path / "cache")
    examples = fill(config, index)[0] if cached else OnTheFlyExamples(index, config, lambda one: {"pixels": one.pixels})
    order = make_order(index, config, config.seed, examples.usable, 4)
    loader = make_loader(config, index, examples, order, words, batch_size=4)
    expected = {}
    for batch in loader.epoch(1):
        for pixels, caption in zip(batch.tensors["pixels"], batch.tensors["caption"], strict=True):
            expected[bytes(caption.tolist()).decode().strip()] = pixels.permute(1, 2, 0).numpy()
    loader.close()
    (tmp_path / "out").mkdir()
    found = list(previews(config, tmp_path / "out", 8, 1, 50, cached=cached))
    assert len(found) == 8
    for one in found:
        with Image.open(one.file) as image:
            np.testing.assert_array_equal(np.asarray(image), expected[one.caption.strip()])
        assert one.size == image.size
        assert one.caption.startswith("pre ")
    assert {one.flipped for one in found} == {True, False}
