"""What a data set lacks of what the settings expect is said before training; each was silent."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modules.config import Concept, ConfigError, TrainConfig
from modules.config.captions import CaptionPlace
from modules.data.index.build import build_index
from modules.data.index.doubtful import doubtful_images
from modules.data.index.expand import expand_concepts
from modules.data.index.index import Index
from modules.data.missing import check_not_empty, missing_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "images"
    place.mkdir()
    for number in range(6):
        Image.new("RGB", (64, 64), (number * 40, 0, 0)).save(place / f"DSC_{number}.png")
    return place


def said(tmp_path: Path, *concepts: dict[str, Any], **settings: object) -> tuple[list[str], Index]:
    config = expand_concepts(TrainConfig.model_validate({"concepts": concepts, "resolution": 64, **settings}))
    index = build_index(config, 42, 8, tmp_path / "cache")
    check_not_empty(config, index)
    return missing_data(config, index, is_cached=True), index


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("DSC_0.tags", "1 .tags"),
        (
            "train.parquet",
            "1 .parquet. metadata.parquet is read, with pyarrow; other .parquet files only if they hold the images",
        ),
        ("DSC_0.json", "1 .json"),
        ("metadata.json", "1 .json"),
        ("metadata.json1", "1 .json1"),
        ("../captions/DSC_0.txt", "the folder captions beside it (give the concept the folder that holds both)"),
    ],
)
def test_captions_that_are_not_read(tmp_path: Path, folder: Path, file: str, named: str) -> None:
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text("a red square")
    (sentence,) = said(tmp_path, {"path": str(folder)})[0]
    assert "file names are the captions, such as 'DSC 0'" in sentence
    assert f"not used: {named}." in sentence
    assert said(tmp_path, {"path": str(folder), "caption_source": "file_name"})[0] == []
    (folder / "DSC_1.txt").write_text("a red square")
    assert said(tmp_path, {"path": str(folder)})[0] == []


@pytest.mark.parametrize(
    ("concept", "is_cached", "part"),
    [
        ({"crop_jitter": True, "image_variations": 1}, True, "concepts.0.image_variations is 1, so the cache has only"),
        ({"crop_jitter": True, "image_variations": 1}, False, ""),
        ({"random_hue": 0.1}, True, ""),
        ({"image_variations": 3}, True, "no crop, rotation or colour of it is random"),
        ({"random_hue": 0.1, "image_variations": 3}, False, "its images are not cached"),
        ({"random_hue": 0.1, "image_variations": 3}, True, ""),
    ],
)
def test_variations_that_do_nothing(
    tmp_path: Path, folder: Path, concept: dict[str, object], is_cached: bool, part: str
) -> None:
    config = TrainConfig.model_validate({"concepts": [{"path": str(folder), **concept}], "resolution": 64})
    found = missing_data(config, build_index(config, 42, 8, tmp_path / "cache"), is_cached=is_cached)
    assert (part in " ".join(found), len(found)) == (True, bool(part))


def test_masks_that_are_not_found(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"none of the 6 images has a mask: NAME-masklabel.png or NAME_mask.png beside"
    ):
        said(tmp_path, {"path": str(folder)}, masked_training=True)
    Image.new("RGBA", (64, 64)).save(folder / "see through.png")
    with pytest.raises(ConfigError, match=r"set alpha_mask for the transparency that 1 of them have"):
        said(tmp_path, {"path": str(folder)}, masked_training=True)
    assert said(tmp_path, {"path": str(folder), "alpha_mask": True}, masked_training=True)[0] == []
    (folder / "see through.png").unlink()
    Image.new("L", (64, 64)).save(folder / "DSC_0-masklabel.png")
    assert said(tmp_path, {"path": str(folder)}, masked_training=True)[0] == []


def test_nothing_is_held_out(tmp_path: Path, folder: Path) -> None:
    few: dict[str, Any] = {"path": str(folder)}
    (sentence,) = said(tmp_path, few, validation_split=0.01)[0]
    assert sentence.startswith(
        "validation_split 0.01 holds out none of 6 images: its share of each concept is rounded."
    )
    Image.new("RGB", (64, 64)).save(tmp_path / "test.png")
    test = {"path": str(tmp_path), "include_subfolders": False, "kind": "test"}
    for concepts, settings in (([few], {"validation_split": 0.01}), ([few], {}), ([few, test], {})):
        with pytest.raises(ConfigError, match=r"validate_every is 1 epoch, but none of the [67] images is held out"):
            said(tmp_path, *concepts, validate_every="1 epoch", **settings)


def test_images_that_are_trained_on_and_held_out(tmp_path: Path, folder: Path) -> None:
    (folder / "sub").mkdir()
    Image.new("RGB", (64, 64), (5, 5, 5)).save(folder / "sub" / "other.png")
    (tmp_path / "link").symlink_to(folder)
    train, every = {"path": str(folder)}, {"validate_every": "1 epoch"}
    for path, count in ((folder, 7), (tmp_path / "link", 7), (folder / "sub", 1)):
        (sentence,) = said(tmp_path, train, {"path": str(path), "kind": "validation"}, **every)[0]
        assert sentence.startswith("1 image is" if count == 1 else f"{count} images are")
    (sentence,) = said(tmp_path, train, {"path": str(folder / "sub")})[0]
    assert sentence == f"1 image is in two concepts and trained on with both, such as {folder / 'sub/other.png'}."


def test_files_with_the_same_bytes_on_both_sides(tmp_path: Path, folder: Path) -> None:
    Image.effect_noise((64, 64), 90).save(folder / "noise.png")
    (tmp_path / "another").mkdir()
    shutil.copy(folder / "noise.png", tmp_path / "another" / "copy.png")
    Image.new("RGB", (64, 64), (1, 2, 3)).save(tmp_path / "another" / "new.png")
    concepts: list[dict[str, Any]] = [{"path": str(folder)}, {"path": str(tmp_path / "another"), "kind": "validation"}]
    (sentence,) = said(tmp_path, *concepts, validate_every="1 epoch")[0]
    assert sentence.startswith("1 image held out is also among those that are trained on, as another file with the")
    assert sentence.endswith(f"{tmp_path / 'another/copy.png'} and {folder / 'noise.png'}.")


def test_images_that_look_alike_on_both_sides(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = Image.effect_mandelbrot((96, 96), (-2, -1.5, 1, 1.5), 50)
    photo.save(folder / "photo.png")
    (tmp_path / "another").mkdir()
    photo.resize((64, 64)).save(tmp_path / "another" / "smaller.jpg", quality=60)
    concepts: list[dict[str, Any]] = [{"path": str(folder)}, {"path": str(tmp_path / "another"), "kind": "validation"}]
    (sentence,) = said(tmp_path, *concepts)[0]
    assert sentence.startswith("1 image held out looks nearly like one that is trained on, such as")
    assert sentence.endswith(f"{tmp_path / 'another/smaller.jpg'} and {folder / 'photo.png'}.")
    monkeypatch.setattr("modules.data.missing._MOST_PIXELS", 10_000)
    assert said(tmp_path, *concepts)[0] == []


def test_numbered_folders_beside_other_images(tmp_path: Path, folder: Path) -> None:
    (folder / "30_cat").mkdir()
    Image.new("RGB", (64, 64)).save(folder / "30_cat/a.png")
    (sentence,) = said(tmp_path, {"path": str(folder)})[0]
    assert "has folders such as 30_cat" in sentence
    assert sentence.endswith("unless folder_repeats is on.")
    (sentence,) = said(tmp_path, {"path": str(folder), "folder_repeats": True})[0]
    assert sentence.endswith("give it the folder that holds them alone.")
    assert said(tmp_path, {"path": str(folder), "caption_source": "folder_name"})[0] == []


def test_the_regularization_images_of_a_folder_of_kohyas_gui(tmp_path: Path) -> None:
    for name in ("img/5_sks dress", "reg/1_dress"):
        (tmp_path / "set" / name).mkdir(parents=True)
        Image.new("RGB", (64, 64)).save(tmp_path / "set" / name / "a.png")
    (sentence,) = said(tmp_path, {"path": str(tmp_path / "set")})[0]
    assert "has images in reg, where kohya's scripts have those of the class in general" in sentence


@pytest.mark.parametrize(
    ("files", "part"),
    [
        # datasets 5021, and data/train-00000-of-00002.parquet of the hub
        (("train/a.png", "test/b.png"), "has images in folders called train and test"),
        (("train2017/cat/a.png", "val2017/cat/b.png"), "has images in folders called train2017 and val2017"),
        (("train/a.png", "car/b.png"), ""),
        # diffusers' train_dreambooth.py; XavierXiao/Dreambooth-Stable-Diffusion 34
        (("instance_images/a.png", "class_images/b.png"), "has images in class_images, where scripts for DreamBooth"),
        (("train/a.png", "train_masks/a_mask.png"), "1 image that is trained on, such as train_masks/a_mask.png, has"),
        (("a.png", "a_mask_0.png", "a_mask_1.png"), "2 images that are trained on, such as a_mask_0.png, have the"),
        (("a.png", "b_mask.png"), ""),  # of no image: one of somebody with a mask
        (("train/a.png", "train_masks/a.png"), "1 image that is trained on, such as train_masks/a.png, has the name"),
        (("with_mask/1.png", "without_mask/1.png", "incorrect/1.png"), ""),
        (("venetian mask/1.png", "helmet/1.png"), ""),
    ],
)
def test_folders_and_names_that_say_what_images_are_for(tmp_path: Path, files: tuple[str, ...], part: str) -> None:
    for name in files:
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64)).save(tmp_path / "set" / name)
    found = said(tmp_path, {"path": str(tmp_path / "set")})[0]
    assert (part in " ".join(found), len(found)) == (True, bool(part)), found


def test_folders_of_frames_are_no_videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.data.index.doubtful._MOST_LOOKED_AT", 18)
    for folder, first, count in (("set/clip", 100, 16), ("set/other", 0, 15)):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(first, first + count):
            Image.new("RGB", (64, 64)).save(tmp_path / folder / f"f{number:05d}.png")
    concept = {"path": str(tmp_path / "set"), "resolutions": "64 128"}
    settings: dict[str, Any] = {"family": "wan", "base_model": "x", "method": "lora", "frames": 9}
    assert said(tmp_path, concept)[0] == []
    (sentence,) = said(tmp_path, concept, **settings)[0]
    assert "has 1 folder of numbered images, such as clip/f%05d.png: they are trained on as images" in sentence
    assert sentence.endswith("ffmpeg -framerate FPS -start_number 100 -i 'clip/f%05d.png' 'clip.mp4'.")
    (sentence,) = said(tmp_path, {"path": str(tmp_path / "set/clip")}, **settings)[0]
    assert sentence.endswith("-start_number 100 -i 'f%05d.png' 'video.mp4'.")
    videos, names = [b"%04d.MP4" % number for number in range(16)], np.full(16, CaptionPlace.FILE_NAME)
    assert not list(doubtful_images(Concept(path="set"), "set", names, videos, lambda _: (), clips=True))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("0 0.512 0.43 0.21 0.33\n2 0.1 0.2 0.05 0.07\n", "boxes of objects (YOLO)"),
        ("{\\rtf1\\ansi\\ansicpg1252\n\\f0\\fs24 a fox}", "rich text (RTF)"),
        ("a fox\nNegative prompt: blurry\nSteps: 20, Sampler: Euler a, CFG scale: 7", "settings of an image generator"),
        ("1girl, 0.5\na fox", ""),
    ],
)
def test_texts_that_are_no_captions(tmp_path: Path, folder: Path, text: str, what: str) -> None:
    for number in range(6):
        (folder / f"DSC_{number}.txt").write_text(text if number else "a fox")
    found = said(tmp_path, {"path": str(folder)})[0]
    assert [f"The captions of 5 images in {folder}, such as DSC_1.png, are {what}:" in each for each in found] == [
        True for _ in [what] if what
    ], found


def test_a_list_above_the_folder_of_the_images(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "images/DSC_0.png", "text": "a fox"}')
    (sentence,) = said(tmp_path, {"path": str(folder)})[0]
    assert "not used: metadata.jsonl in the folder above (give the concept that folder)." in sentence
    (tmp_path / "metadata.jsonl").rename(tmp_path / "results.csv")  # of anything
    assert said(tmp_path, {"path": str(folder)})[0] == []
    (folder / "results.csv").write_text("filename,label\nDSC_0.png,7")
    (sentence,) = said(tmp_path, {"path": str(folder)})[0]
    assert "not used: 1 .csv." in sentence


def test_jpegs_as_browsers_name_them_are_read(tmp_path: Path, folder: Path) -> None:
    for suffix in ("jfif", "jpe", "JFIF", "jpg_large"):
        Image.new("RGB", (64, 64)).save(folder / f"of {suffix}.{suffix}", "JPEG")
    for name in ("of jpe.dng", "alone.dng"):
        Image.new("RGB", (64, 64)).save(folder / name, "JPEG")
    (folder / "raw.nef").write_bytes(b"x")
    index = said(tmp_path, {"path": str(folder)})[1]
    assert [index.relative_path(row) for row in range(len(index)) if ".dng" in index.relative_path(row)] == [
        "alone.dng"
    ]
    assert len(index) == 11
    assert index.header.other_files == ({".dng": 1, ".nef": 1},)
    assert any("an image of the same name is beside it" in each.what for each in index.problems())


def test_a_list_without_a_column_of_captions(tmp_path: Path, folder: Path) -> None:
    name = next(folder.glob("*.png")).name
    (folder / "metadata.jsonl").write_text(f'{{"file_name": "{name}", "additional_feature": "a cat"}}\n')
    warnings, _ = said(tmp_path, {"path": str(folder)})
    assert any("metadata.jsonl is not used" in each and "it has additional_feature" in each for each in warnings)
