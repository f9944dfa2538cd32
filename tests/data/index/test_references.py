"""Reference images: which belong to an image, what is missing, their sizes, and what is cached anew."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import calculate_dimensions
from PIL import Image
from torch import Tensor

from modules.config import ConfigError, DataError, TrainConfig, validate
from modules.data.batch import DROPPED_REFERENCES, Example
from modules.data.cache.cache import Cache
from modules.data.index.concept_rows import index_concept
from modules.data.index.concept_summary import summarize_concepts
from modules.data.index.index import load_index, no_progress
from modules.data.index.references import unpack_references
from modules.data.index.scan import scan_concept
from modules.data.loading.loader import MicroBatchDataset
from modules.data.loading.on_the_fly import OnTheFlyExamples
from tests.data.helpers import RecordingEncode, config_for, damage, encode_missing, fill, indexed, write_image

KONTEXT = {"family": "flux_kontext", "resolution": 64}


def edits(place: Path, **settings: object) -> TrainConfig:
    """A config for images in `place`/images with references in `place`/refs."""
    given = {"references": str(place / "refs"), **KONTEXT, **settings}
    return config_for(place / "images", cache=place / "cache", **given)


def names_of(config: TrainConfig, most: int) -> tuple[dict[str, list[str]], list[str]]:
    """The references of each image of the first concept by their names, and what is wrong with the others."""
    (concept,) = config.concepts
    rows = index_concept(0, scan_concept(concept, with_masks=False), concept, None, no_progress, most)
    found = {
        os.fsdecode(path): [os.path.relpath(each.path, concept.path) for each in unpack_references(packed)]
        for path, packed in zip(rows.paths, rows.references, strict=True)
    }
    return found, [f"{os.path.basename(each.path)}: {each.what}" for each in rows.problems]


def test_references_have_the_name_of_their_image(tmp_path: Path) -> None:
    for name in ("cat.png", "dog.png", "sub/cat.png", "bird.png", "fish.png", "refs/none.png"):
        write_image(tmp_path / "images" / name)
    folder = tmp_path / "images" / "refs"  # in which no images to train on are
    (folder / "none.png").unlink()
    for name in ("cat.jpg", "dog_1.png", "dog_2.webp", "sub/cat.bmp", "fish.png"):
        write_image(folder / name)
    (folder / "fish.png").write_bytes(b"no image")
    found, problems = names_of(edits(tmp_path, references=str(folder)), most=2)
    assert found == {
        "cat.png": ["refs/cat.jpg"],
        "dog.png": ["refs/dog_1.png", "refs/dog_2.webp"],
        "sub/cat.png": ["refs/sub/cat.bmp"],
    }
    bird, fish = sorted(problems)
    assert bird == f"bird.png: skipped: no reference image bird.* or bird_1.* in {folder}"
    assert fish.startswith(f"fish.png: skipped: its reference image {folder}/fish.png: no image of a format")
    _, problems = names_of(edits(tmp_path, references=str(folder)), most=1)
    assert any("2 reference images (dog_1.png, dog_2.webp), and the model takes 1" in each for each in problems)


def test_numbers_may_begin_at_0_and_have_leading_zeros(tmp_path: Path) -> None:
    """As musubi-tuner numbers them (dataset/datasources.py)."""
    for name in ("images/cat.png", "images/dog.png", "images/fox.png"):
        write_image(tmp_path / name)
    for name in ("cat_0.png", "cat_1.png", "dog_0001.png", "dog_0002.png", "fox_1.png", "fox_01.png", "fox_3.png"):
        write_image(tmp_path / "refs" / name)
    found, problems = names_of(edits(tmp_path), most=2)
    assert {name: [os.path.basename(each) for each in files] for name, files in found.items()} == {
        "cat.png": ["cat_0.png", "cat_1.png"],
        "dog.png": ["dog_0001.png", "dog_0002.png"],
        "fox.png": ["fox_1.png"],
    }
    assert not problems


def test_each_of_several_folders_has_one_reference(tmp_path: Path) -> None:
    for name in ("images/a.png", "images/b.png", "one/a.png", "one/b.png", "two/a.png"):
        write_image(tmp_path / name)
    config = edits(tmp_path)
    both = config.concepts[0].model_copy(update={"references": f"{tmp_path / 'one'}; {tmp_path / 'two'}"})
    found, problems = names_of(config.model_copy(update={"concepts": (both,)}), most=2)
    assert found == {"a.png": ["../one/a.png", "../two/a.png"]}
    assert problems == [f"b.png: skipped: no reference image b.* or b_1.* in {tmp_path / 'two'}"]


def test_what_cannot_be_a_folder_of_references_is_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "a.png")
    with pytest.raises(DataError, match=r"reference images .*refs' cannot be opened: No such file"):
        indexed(edits(tmp_path))
    with pytest.raises(DataError, match="the folder of the images and that of their references"):
        indexed(edits(tmp_path, references=str(tmp_path / "images")))
    concept = {"path": "images", "references": ["a", "b"]}
    with pytest.raises(ConfigError, match=r"concepts\.0\.references names 2; flux_kontext takes 1 for each image"):
        validate({"family": "flux_kontext", "concepts": [concept]}, "try.yaml")
    with pytest.raises(ConfigError, match="reference_resolution is 1040; flux2 takes at most 1024"):
        validate({"family": "flux2", "reference_resolution": 1040, "concepts": [concept]}, "try.yaml")
    with pytest.raises(ConfigError, match=r"reference_dropout is 0\.1, but qwen_image_edit always sees references"):
        validate({"family": "qwen_image_edit", "reference_dropout": 0.1, "concepts": [concept]}, "try.yaml")
    sample = {"prompt": "", "reference": "a.png"}
    with pytest.raises(ConfigError) as refused:
        validate({"family": "flux", "concepts": [concept], "samples": [sample]}, "try.yaml")
    for name in ("concepts.0.references", "samples.0.reference"):
        assert f"{name} is given, but flux takes no reference images" in str(refused.value)


def test_images_are_batched_by_their_size_and_that_of_their_references(tmp_path: Path) -> None:
    for number, (width, height) in enumerate(((64, 64), (64, 64), (64, 64), (64, 20))):
        write_image(tmp_path / "images" / f"{number}.png", 80, 80, seed=number)
        write_image(tmp_path / "refs" / f"{number}.png", width, height, seed=9 + number)
    write_image(tmp_path / "images" / "lone.png")
    config = edits(tmp_path)
    index = load_index(indexed(config).path)
    assert [str(index.buckets[each]) for each in index.bucket] == ["64x64+64x64"] * 3 + ["64x64+96x40"]
    (summary,) = summarize_concepts(config.concepts, index, uses_masks=False)
    lines = "\n".join(summary.lines())
    assert f"reference images: of 4 images, such as {tmp_path}/refs/0.png of 0.png" in lines
    assert "1 image left out without a reference image, such as lone.png" in lines
    larger = edits(tmp_path, reference_resolution=128)
    assert {str(each) for each in indexed(larger).buckets} == {"64x64+128x128", "64x64+192x80"}


def test_a_reference_that_changes_is_encoded_anew(tmp_path: Path) -> None:
    for number in range(3):
        write_image(tmp_path / "images" / f"{number}.png", seed=number)
        write_image(tmp_path / "refs" / f"{number}.png", seed=9 + number)
    config = edits(tmp_path)
    _, encoded = fill(config, indexed(config))
    assert encoded == 3
    assert fill(config, indexed(config))[1] == 0
    before = fill(config, indexed(config))[0].contents
    write_image(tmp_path / "refs" / "1.png", 44, 40, seed=50)
    cached, encoded = fill(config, indexed(config))
    assert encoded == 1
    assert (before == cached.contents).tolist() == [True, False, True]
    damage(tmp_path / "refs" / "2.png")
    (problem,) = fill(config, indexed(config))[0].problems
    assert problem.path == str(tmp_path / "images" / "2.png")
    assert f"its reference image {tmp_path}/refs/2.png: damaged" in problem.what


def test_references_are_whole_and_mirrored_with_their_image(tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "a.png", 80, 40)
    left = np.zeros((40, 80, 4), dtype=np.uint8)
    left[:, :40] = (255, 0, 0, 255)  # the rest is transparent, and so white
    (tmp_path / "refs").mkdir()
    Image.fromarray(left).save(tmp_path / "refs" / "a.png")
    config = edits(tmp_path, horizontal_flip=True, reference_dropout=0.5)
    index, encode = indexed(config), RecordingEncode()
    encode_missing(Cache(tmp_path / "cache", "f", index, config), encode)
    plain, mirrored = (example.references[0].float() for example in encode.examples)
    height, width = index.reference_sizes(0)[0]
    assert plain.shape == (3, height, width)
    assert plain[:, 1, 1].tolist() == mirrored[:, 1, -2].tolist() == [255, 0, 0]
    assert plain[:, 1, -2].tolist() == mirrored[:, 1, 1].tolist() == [255, 255, 255]

    seen: list[Example] = []

    def keep(example: Example) -> dict[str, Tensor]:
        seen.append(example)
        return {}

    OnTheFlyExamples(index, config, keep).sample(0, None)
    assert torch.equal(seen[0].references[0], encode.examples[0].references[0])


def test_text_encoders_see_references_as_the_pipeline_scales_the_originals(tmp_path: Path) -> None:
    """Of 4:3, of which those that are scaled and rounded for the transformer have another shape; cached or not."""
    size = 80, 60
    write_image(tmp_path / "images" / "a.png")
    write_image(tmp_path / "refs" / "a.png", *size)
    config = edits(tmp_path, family="qwen_image_edit", resolution=512)
    index, encode = indexed(config), RecordingEncode()
    encode_missing(Cache(tmp_path / "cache", "f", index, config), encode)
    (encoded,) = encode.examples
    across, down = calculate_dimensions(384 * 384, size[0] / size[1])
    assert index.reference_sizes(0) == ((448, 576),)
    assert (down, across) != calculate_dimensions(384 * 384, 576 / 448)[::-1]
    with Image.open(tmp_path / "refs" / "a.png") as original:
        wanted = VaeImageProcessor().resize(original.convert("RGB"), down, across)
    assert np.array_equal(encoded.pictures[0].permute(1, 2, 0).numpy(), np.array(wanted))

    seen: list[Example] = []

    def keep(example: Example) -> dict[str, Tensor]:
        seen.append(example)
        return {}

    OnTheFlyExamples(index, config, keep).sample(0, None)
    assert torch.equal(seen[0].pictures[0], encoded.pictures[0])


def test_references_are_dropped_by_the_seed_of_the_sample(tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "a.png")
    write_image(tmp_path / "refs" / "a.png")
    config = edits(tmp_path)
    index = indexed(config)

    def dropped(share: float, seeds: range) -> list[bool]:
        found: list[bool] = []

        def transform(cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
            found.append(DROPPED_REFERENCES in cached)
            return {}

        examples = OnTheFlyExamples(index, config, lambda example: {})
        data = MicroBatchDataset(config.concepts, 0.0, index, examples, transform, reference_dropout=share)
        for seed in seeds:
            data._sample(0, seed, torch.Generator(), {})
        return found

    many = dropped(0.3, range(150))
    assert 30 <= sum(many) <= 60
    assert many[100:] == dropped(0.3, range(100, 150))
    assert not any(dropped(0.0, range(20)))
    assert all(dropped(1.0, range(20)))
