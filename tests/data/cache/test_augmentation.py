"""Rotation and colours: masks and references go with their image, and whatever is drawn is a function of the seed."""

from __future__ import annotations

import colorsys
from collections import ChainMap
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from modules.config import Concept
from modules.data.cache.augmentation import Augmentation, augmentation, change_colours, resized_and_turned
from modules.data.cache.cache import Cache
from modules.data.cache.crops import Crop, crop_example, with_references
from modules.data.cache.keys import ViewKeys
from modules.data.index.buckets import Bucket
from modules.data.loading.loader import make_loader
from modules.data.loading.on_the_fly import OnTheFlyExamples
from modules.data.loading.order import make_order
from modules.data.rng import SampleRng
from tests.data.helpers import RecordingEncode, config_for, encode_missing, fill, index_of, transform, write_image
from tests.data.loading.test_loader import assert_same, samples
from tests.data.loading.test_on_the_fly import pixels_and_mask

VARIED: dict[str, object] = {
    "crop_jitter": True,
    "horizontal_flip": True,
    "color_jitter": 0.1,
    "random_rotate": 40,
    "fixed_rotate": -10,
    "random_brightness": 0.2,
    "random_contrast": 0.3,
    "random_saturation": 1,
    "random_hue": 0.4,
    "fixed_hue": 0.1,
}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.floats(-400, 400), st.booleans())
def test_no_corner_is_empty_and_the_size_stays(width: int, height: int, angle: float, flip: bool) -> None:
    white = Image.new("L", (50, 70), 255)
    found = resized_and_turned(white, (width, height), None, flip=flip, angle=angle)
    assert found.size == (width, height)
    if min(width, height) * 8 >= max(width, height):
        assert np.asarray(found).min() == 255


@pytest.mark.parametrize(("angle", "place"), [(0, (5, 20)), (90, (43, 5)), (180, (58, 43)), (-90, (20, 58))])
def test_the_angle_is_counter_clockwise(angle: float, place: tuple[int, int]) -> None:
    image = Image.new("L", (64, 64))
    image.putpixel((20, 5), 255)  # across, down
    found = np.asarray(resized_and_turned(image, (64, 64), None, flip=False, angle=angle))
    assert divmod(int(found.argmax()), 64) == place


def test_masks_and_references_are_turned_with_their_image_and_keep_their_colours() -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 255, (8, 12, 3), dtype=np.uint8)).resize((120, 80))
    change = Augmentation(angle=25, brightness=0.5)
    crop = Crop((80, 120), 0, 0, Bucket(80, 120), flipped=True, change=change)
    example = crop_example(image, image.convert("L"), True, ("",), (80, 120), crop)
    example = with_references(example, [image], [image.resize((60, 40))], change)
    assert example.mask is not None
    grey = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    difference = (example.pixels.float() * grey).sum(0) * 2 - example.mask[0]
    assert difference.abs().max() < 8
    (reference,), (picture,) = example.references, example.pictures
    assert torch.equal(reference, example.pixels)
    assert picture.shape == (3, 40, 60)
    smaller = torch.nn.functional.avg_pool2d(example.pixels.float(), 2)
    assert (smaller - picture).abs().mean() < 3


def test_colours_are_those_of_the_formulas() -> None:
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 9, 9), dtype=np.uint8))
    assert change_colours(pixels, Augmentation(angle=9)) is pixels
    assert torch.equal(change_colours(pixels, Augmentation(hue=1.0)), pixels)
    assert torch.equal(
        change_colours(pixels, Augmentation(brightness=0.5)), (pixels.float() * 0.5).round().to(torch.uint8)
    )
    grey = change_colours(pixels, Augmentation(saturation=0.0)).int()
    assert (grey.amax(0) - grey.amin(0)).max() == 0
    flat = change_colours(pixels, Augmentation(contrast=0.0))
    assert int(flat.max()) == int(flat.min())
    turned = change_colours(pixels, Augmentation(hue=0.3))
    for y in range(9):
        for x in range(9):
            hue, saturation, value = colorsys.rgb_to_hsv(*(int(each) / 255 for each in pixels[:, y, x]))
            wanted = [255 * each for each in colorsys.hsv_to_rgb((hue + 0.3) % 1, saturation, value)]
            assert turned[:, y, x].tolist() == pytest.approx(wanted, abs=1)


def test_draws_are_within_their_strength_and_fixed_ones_in_validation_too() -> None:
    concept = Concept.model_validate({"path": "x", "random_rotate": 20, "fixed_rotate": 90, "random_brightness": 0.5})
    drawn = [augmentation(concept, SampleRng(seed)) for seed in range(200)]
    angles, factors = [each.angle for each in drawn], [each.brightness for each in drawn]
    assert 70 <= min(angles) < 73 < 107 < max(angles) <= 110
    assert 0.5 <= min(factors) < 0.55 < 1.45 < max(factors) <= 1.5
    assert abs(np.corrcoef(angles, factors)[0, 1]) < 0.2
    assert augmentation(concept, None) == Augmentation(angle=90)
    assert {(each.contrast, each.saturation, each.hue) for each in drawn} == {(1, 1, 0)}


def test_views_of_the_cache_differ_and_only_the_first_is_unchanged(tmp_path: Path) -> None:
    for number in range(3):
        write_image(tmp_path / f"d/{number}.png", 40, 40, number)
    config = config_for(tmp_path / "d", cache=tmp_path / "c", random_rotate=40, random_hue=0.5)
    index, encoding = index_of(config, tmp_path / "c"), RecordingEncode()
    encode_missing(Cache(tmp_path / "c", "f", index, config), encoding)
    assert len(encoding.examples) == 3 * 4
    assert len({example.pixels.numpy().tobytes() for example in encoding.examples}) == 12
    plain = config_for(tmp_path / "d", cache=tmp_path / "c")
    # their first views are those of images that are not augmented, and are in the cache already
    assert fill(plain, index_of(plain, tmp_path / "c"))[1] == 0
    # views of another strength are others; a held-out image has one, with what is fixed
    more = config_for(tmp_path / "d", cache=tmp_path / "c", random_rotate=40, random_hue=0.4)
    assert fill(more, index_of(more, tmp_path / "c"))[1] == 9
    held = config_for(tmp_path / "d", cache=tmp_path / "c", validation_split=0.3, fixed_hue=1, random_hue=0.3)
    cached, count = fill(held, index_of(held, tmp_path / "c"))
    assert (sorted(cached.views.tolist()), count) == ([1, 4, 4], 9)


@pytest.mark.parametrize("angles", [{"random_rotate": 30}, {"fixed_rotate": 90, "random_rotate": 5}])
def test_views_are_mirrored_and_then_turned_with_their_references_as_without_a_cache(
    tmp_path: Path, angles: dict[str, float]
) -> None:
    for place in ("d", "r"):
        write_image(tmp_path / place / "0.png", 64, 64)
    write_image(tmp_path / "d/0-masklabel.png", 64, 64, mode="L")
    varied = {"references": str(tmp_path / "r"), "horizontal_flip": True, "image_variations": 3, **angles}
    whole = {"family": "flux_kontext", "resolution": 64, "masked_training": True}
    config = config_for(tmp_path / "d", cache=tmp_path / "c", **varied, **whole)
    encoding, index = RecordingEncode(), index_of(config, tmp_path / "c")
    encode_missing(Cache(tmp_path / "c", "f", index, config), encoding)
    assert [example.flipped for example in encoding.examples] == [False, True] * 3
    keys = ViewKeys(index, config, "f", captions_in_key=False)
    with Image.open(tmp_path / "d/0.png") as image, Image.open(tmp_path / "d/0-masklabel.png") as mask:
        for view, example in enumerate(encoding.examples):
            uncached = crop_example(image, mask, True, ("",), (64, 64), keys.crop(0, view))
            assert torch.equal(example.pixels, uncached.pixels)
            assert example.mask is not None
            assert uncached.mask is not None
            assert torch.equal(example.mask, uncached.mask)
            (reference,) = example.references
            size = reference.shape[-2:]
            smaller = torch.nn.functional.interpolate(example.pixels[None].float(), size, mode="area")[0]
            assert (smaller - reference).abs().mean() < 3, size


@settings(max_examples=8, deadline=None, phases=[Phase.generate])
@given(st.sets(st.sampled_from(sorted(VARIED)), min_size=1), st.booleans(), st.integers(2, 3), st.integers(0, 3))
def test_any_number_of_ranks_draws_the_same_at_any_resume(
    images: Path, chosen: set[str], cached: bool, world: int, first_step: int
) -> None:
    """25 samples in steps of 8, with masks; `first_step` is where a run goes on."""
    varied = {name: VARIED[name] for name in sorted(chosen)}
    place = images.parent / f"cache {sorted(chosen)}"
    config = config_for(images, cache=place, masked_training=True, repeats=25 / 17, cache_latents=cached, **varied)
    index = index_of(config, place)
    examples = fill(config, index)[0] if cached else OnTheFlyExamples(index, config, pixels_and_mask)
    order = make_order(index, config, config.seed, examples.usable, 8)

    def seen(batch_size: int, rank: int = 0, world: int = 1, first_step: int = 0) -> dict[int, dict[str, Tensor]]:
        loader = make_loader(
            config, index, examples, order, transform, batch_size=batch_size, rank=rank, world_size=world
        )
        return samples(loader.epoch(2, first_step=first_step))

    alone = seen(8)
    parts = [seen(2, rank, world) for rank in range(world)]
    assert_same(dict(ChainMap(*parts)), alone)
    rest = seen(3, first_step=first_step)
    assert len(rest) == 25 - 8 * first_step
    assert_same(rest, {seed: alone[seed] for seed in rest})


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images") / "d"
    for n in range(17):
        image = write_image(folder / f"{n}.png", 40 + 30 * (n % 3), 44, seed=n)
        if n % 2:
            write_image(image.with_name(f"{n}-masklabel.png"), 40 + 30 * (n % 3), 44, seed=99 - n, mode="L")
    return folder
