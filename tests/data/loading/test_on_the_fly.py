"""Images that are not cached: decoded and augmented at each visit, and still a pure function of the sample's seed."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from modules.config import Concept, DataError
from modules.data.batch import Batch, Example
from modules.data.cache.augmentation import augmentation, change_colours
from modules.data.loading.loader import Loader, make_loader
from modules.data.loading.on_the_fly import OnTheFlyExamples
from modules.data.loading.order import Order, make_order, validation_steps
from modules.data.rng import SampleRng
from tests.data.helpers import config_for, fill, index_of, prepare, transform, write_image

AUGMENTED: dict[str, object] = {"crop_jitter": True, "horizontal_flip": True, "color_jitter": 0.3}
TURNED: dict[str, object] = {**AUGMENTED, "random_rotate": 20, "random_hue": 0.3}


def pixels_and_mask(example: Example) -> dict[str, Tensor]:
    return {"pixels": example.pixels, **({} if example.mask is None else {"mask": example.mask})}


@dataclass
class Fresh:
    config: object
    order: Order
    examples: OnTheFlyExamples

    def loader(self, rank: int = 0, world: int = 1, batch_size: int = 8, workers: int = 0) -> Loader:
        config = self.config.model_copy(update={"loader_workers": workers})  # type: ignore[attr-defined]
        index = self.examples._index
        return make_loader(
            config, index, self.examples, self.order, transform, batch_size=batch_size, rank=rank, world_size=world
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images") / "d"
    for n in range(31):
        write_image(folder / f"{n}.{'png' if n % 2 else 'jpg'}", 40 + 30 * (n % 3), 44, seed=n)
    return folder


def fresh(folder: Path, cache: Path, **settings: object) -> Fresh:
    config = config_for(folder, cache=cache, cache_latents=False, **settings)
    index = index_of(config, cache)
    examples = OnTheFlyExamples(index, config, pixels_and_mask)
    return Fresh(config, make_order(index, config, config.seed, examples.usable, 8), examples)


def by_seed(batches: Iterable[Batch]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for batch in batches:
        for n, seed in enumerate(batch.seeds.tolist()):
            if batch.weights[n] > 0:
                found[seed] = [tensor[n].numpy().tobytes() for tensor in batch.tensors.values()]
    return found


def test_the_batches_of_one_rank_of_three_and_of_workers_are_the_same(folder: Path, tmp_path: Path) -> None:
    data = fresh(folder, tmp_path / "c", **TURNED)
    alone = by_seed(data.loader().epoch(1))
    assert len(alone) == 31
    assert by_seed(batch for rank in range(3) for batch in data.loader(rank, 3, batch_size=2).epoch(1)) == alone
    loader = data.loader(batch_size=3, workers=2)
    assert by_seed(loader.epoch(1)) == alone
    loader.close()
    rest = by_seed(data.loader().epoch(1, first_step=2))
    assert len(rest) == 31 - 16
    assert all(alone[seed] == sample for seed, sample in rest.items())


def test_each_visit_is_another_view_and_validation_always_the_same(folder: Path, tmp_path: Path) -> None:
    data = fresh(folder, tmp_path / "c", validation_split=0.3, **AUGMENTED)
    index, loader = data.examples._index, data.loader()
    row = int((~index.validation & (index.width > 60)).nonzero()[0][0])
    visits = {
        batch.tensors["pixels"][n].numpy().tobytes()
        for epoch in range(12)
        for batch in loader.epoch(epoch)
        for n, found in enumerate(batch.ids.tolist())
        if found == row
    }
    assert len(visits) == 12
    steps = validation_steps(index, data.config.concepts, 0, data.examples.usable, 8)  # type: ignore[attr-defined]
    assert by_seed(loader.validation(steps)) == by_seed(loader.validation(steps))


def test_without_augmentation_the_pixels_are_those_of_the_cache(folder: Path, tmp_path: Path) -> None:
    data = fresh(folder, tmp_path / "c")
    cached = prepare(config_for(folder, cache=tmp_path / "c2"))
    assert by_seed(data.loader().epoch(0)) == by_seed(cached.loader(batch_size=8).epoch(0))


def test_masks_are_cropped_and_mirrored_with_their_image(tmp_path: Path) -> None:
    for n in range(6):
        image = write_image(tmp_path / f"d/{n}.png", 90, 40, seed=n)
        image.with_name(f"{n}-masklabel.png").write_bytes(image.read_bytes())  # the mask shows what the image shows
    settings = {
        "masked_training": True,
        "aspect_ratio_bucketing": False,
        **TURNED,
        "color_jitter": 0.0,
        "random_hue": 0.0,
    }
    data = fresh(tmp_path / "d", tmp_path / "c", **settings)
    for batch in data.loader().epoch(0):
        pixels, masks = batch.tensors["pixels"].float(), batch.tensors["mask"].float()
        grey = 0.299 * pixels[:, :1] + 0.587 * pixels[:, 1:2] + 0.114 * pixels[:, 2:]
        assert (grey - masks).abs().max() < 3


def with_transparency(folder: Path) -> dict[str, Image.Image]:
    """Images with transparency of several kinds, and their masks: of a.png turned by its orientation."""
    rgb = Image.open(write_image(folder.parent / "rgb.png", 60, 40))
    alpha = Image.linear_gradient("L").resize(rgb.size)
    rgb.putalpha(alpha)
    folder.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    rgb.save(folder / "a.png", exif=exif)
    rgb.save(folder / "b.webp", lossless=True)
    colours = Image.new("P", (60, 40), 1)
    colours.putpalette([255, 0, 0, 0, 255, 0])
    colours.paste(0, (0, 0, 30, 40))
    colours.save(folder / "c.png", transparency=1)
    half = Image.new("L", (60, 40))
    half.paste(255, (0, 0, 30, 40))
    return {"a.png": alpha.transpose(Image.Transpose.ROTATE_270), "b.webp": alpha, "c.png": half}


@pytest.mark.parametrize("is_cached", [True, False])
def test_the_transparency_of_an_image_is_its_mask_if_it_has_no_file(tmp_path: Path, is_cached: bool) -> None:
    masks = with_transparency(tmp_path / "alpha")
    (tmp_path / "files").mkdir()
    for name, mask in masks.items():
        (tmp_path / "files" / name).write_bytes((tmp_path / "alpha" / name).read_bytes())
        mask.save(tmp_path / "files" / f"{Path(name).stem}-masklabel.png")
    for folder in (tmp_path / "alpha", tmp_path / "files"):
        write_image(folder / "d.jpg", 60, 40)
        write_image(folder / "e.png", 60, 40, mode="RGBA")
        write_image(folder / "e-masklabel.png", 60, 40, seed=1, mode="L")

    def read(folder: str, *, alpha_mask: bool) -> list[dict[str, Tensor]]:
        config = config_for(tmp_path / folder, cache=tmp_path / "c", masked_training=True, alpha_mask=alpha_mask)
        index = index_of(config, tmp_path / "c")
        assert [index.is_alpha_mask(row) for row in range(5)] == [alpha_mask and folder == "alpha"] * 3 + [False] * 2
        if is_cached:
            cached, _ = fill(config, index)
            return [dict(cached.read(row, 0)) for row in range(5)]
        return [OnTheFlyExamples(index, config, pixels_and_mask).sample(row, None) for row in range(5)]

    expected = read("files", alpha_mask=False)
    for _ in range(2):  # from a stored index, the second time
        for found, one in zip(read("alpha", alpha_mask=True), expected, strict=True):
            assert found.keys() == one.keys()
            assert all(torch.equal(found[name], one[name]) for name in one)
    assert all(bool((each["mask"] == 255).all()) for each in read("alpha", alpha_mask=False)[:4])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_cannot_be_read_any_more_has_weight_0_and_is_named(tmp_path: Path, workers: int) -> None:
    for n in range(4):
        write_image(tmp_path / f"d/{n}.png", seed=n)
    data = fresh(tmp_path / "d", tmp_path / "c")
    whole = by_seed(data.loader().epoch(0))
    file = tmp_path / "d/2.png"
    good = file.read_bytes()
    for bad, reason in (
        (good[:100] + bytes(20) + good[120:], "skipped: damaged"),
        (good + b"x", "it has changed since"),
        (None, "skipped: cannot be read (No such file"),
    ):
        if bad is None:
            file.unlink()
        else:
            file.write_bytes(bad)
        loader = data.loader(workers=workers)
        (batch,) = loader.epoch(0)
        loader.close()
        assert sorted(batch.weights.tolist()) == [0, 1, 1, 1]
        assert batch.step_samples == 4
        (problem,) = batch.problems
        assert (problem.path, reason in problem.what) == (str(file), True), problem.what
        rest = by_seed([batch])
        assert len(rest) == 3
        assert all(whole[seed] == sample for seed, sample in rest.items())


def test_a_folder_that_disappears_ends_the_run(tmp_path: Path) -> None:
    for n in range(4):
        write_image(tmp_path / f"d/{n}.png", seed=n)
    data = fresh(tmp_path / "d", tmp_path / "c")
    (tmp_path / "d").rename(tmp_path / "moved")
    with pytest.raises(DataError, match=r"The folder '.*/d' with the images has disappeared"):
        list(data.loader().epoch(0))


def test_colours_change_by_at_most_the_given_factor() -> None:
    grey = torch.full((3, 4, 4), 100, dtype=torch.uint8)

    def level(strength: float, seed: int) -> float:
        drawn = augmentation(Concept(path="x", color_jitter=strength), SampleRng(seed))
        return float(change_colours(grey, drawn).float().mean())

    levels = [level(0.2, seed) for seed in range(200)]
    assert 79 <= min(levels) < 85
    assert 115 < max(levels) <= 121
    assert level(0.0, 1) == 100


def test_the_examples_can_be_sent_to_a_worker(folder: Path, tmp_path: Path) -> None:
    data = fresh(folder, tmp_path / "c", **TURNED)
    before = data.examples.sample(3, SampleRng(5))
    again = pickle.loads(pickle.dumps(data.examples)).sample(3, SampleRng(5))
    assert torch.equal(before["pixels"], again["pixels"])
