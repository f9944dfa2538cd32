"""The classifier from class folders to a saved model: equal on 1, 2 and 3 ranks, resumed exactly, and able to learn."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import cast

import pytest
import torch
from PIL import Image

from modules.config import ConfigError, TandemError, TrainConfig
from modules.data.index.survey import survey
from modules.families.classifier import Classifier
from modules.training.checks import startup_problems
from modules.training.parity import loss_difference, weight_difference
from tests.classes import CLASSES, classifier_config, write_classes
from tests.data.cifar_archives import NAMES, pack, python_files
from tests.data.helpers import write_image
from tests.runs import Job, Run, group_settings, same_state, same_tensors, train_alone, train_group

VALIDATION_IMAGES = 101
AUGMENTED: dict[str, object] = {
    "crop_padding": 2, "rand_augment": 1, "random_erasing": 0.3, "mixup": 0.4, "cutmix": 1.0, "label_smoothing": 0.1,
}  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("classes") / "train", 23)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("held_out") / "images", VALIDATION_IMAGES)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


def full(images: Path, held_out: Path, place: Path, name: str, **settings: object) -> TrainConfig:
    concepts = [
        {"path": str(images), "horizontal_flip": True, "color_jitter": 0.2},
        {"path": str(held_out), "kind": "validation"},
    ]
    options = {"family_options": AUGMENTED, "validate_every": "3 steps", "run_name": name, "max_steps": 3}
    return classifier_config(images, place, **{"concepts": concepts, "resolution": 16, **options, **settings})


@pytest.fixture(scope="module")
def alone(images: Path, held_out: Path, place: Path) -> Run:
    code, run = train_alone(full(images, held_out, place, "one", backup_every="1 step", backups_kept=9))
    assert code == 0, run.failure(0)
    return run


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, images: Path, held_out: Path, place: Path) -> Run:
    config = full(images, held_out, place, f"ranks-{request.param}", **group_settings(request.param))
    return train_group(request.param, {"x": Job(config)})["x"]


@pytest.mark.slow
def test_ranks_train_and_validate_as_one_does(alone: Run, ranks: Run) -> None:
    assert ranks.exit_code == 0, ranks.failure(0)
    assert loss_difference(alone.losses, ranks.losses) < 1e-9
    assert weight_difference(alone.state, ranks.state) < 1e-9
    (one,), (several,) = alone.events("validation"), ranks.events("validation")
    assert several["loss"] == pytest.approx(one["loss"], rel=1e-9)
    assert several["metrics"] == one["metrics"]
    assert several["classes"] == one["classes"]


@pytest.mark.slow
def test_the_validation_counts_every_image_once(alone: Run) -> None:
    (event,) = alone.events("validation")
    metrics, classes = (cast("dict[str, float]", event[name]) for name in ("metrics", "classes"))
    assert set(classes) == set(CLASSES)
    of_class = {name: len(range(number, VALIDATION_IMAGES, 3)) for number, name in enumerate(CLASSES)}
    right = sum(classes[name] * count for name, count in of_class.items())
    assert right == pytest.approx(metrics["accuracy"] * VALIDATION_IMAGES)
    (sample,) = alone.events("sample")
    assert sample["prompt"] == "confusion matrix (validation)"
    with Image.open(str(sample["file"])) as matrix:
        assert matrix.width == matrix.height > 100


@pytest.mark.slow
def test_a_resumed_run_augments_and_mixes_as_before(alone: Run, images: Path, held_out: Path, place: Path) -> None:
    backup = min(alone.folder.backup_dir.iterdir())
    code, resumed = train_alone(full(images, held_out, place, "again"), resume=str(backup))
    assert code == 0, resumed.failure(0)
    assert resumed.losses == alone.losses[1:]
    assert same_state(resumed.state, alone.state)


@pytest.mark.slow
def test_a_run_is_not_resumed_with_other_classes(alone: Run, images: Path, held_out: Path, tmp_path: Path) -> None:
    for folder in (images, held_out):
        shutil.copytree(folder, tmp_path / folder.name)
        (tmp_path / folder.name / "cat").rename(tmp_path / folder.name / "aardvark")
    config = full(tmp_path / images.name, tmp_path / held_out.name, tmp_path, "others")
    code, run = train_alone(config, resume=str(min(alone.folder.backup_dir.iterdir())))
    assert code == 2
    assert "the images now have 3 classes, which are not those" in run.failure(0)


@pytest.mark.slow
def test_a_saved_model_is_loaded_and_gets_a_new_head_for_other_classes(alone: Run, place: Path) -> None:
    saved = alone.folder.model_dir
    assert json.loads((saved / "config.json").read_text())["classes"] == list(CLASSES)
    settings = {"family": "classifier", "base_model": str(saved), "resolution": 16}
    same = Classifier.load(TrainConfig.model_validate({**settings, "family_options": {"classes": "\n".join(CLASSES)}}))
    trained = {name: weight.float() for name, weight in alone.state.weights.items()}
    loaded = dict(same.model.state_dict())
    assert same_tensors({name: weight.float() for name, weight in loaded.items()}, trained)
    assert Classifier.load(TrainConfig.model_validate(settings)).classes == CLASSES
    other = Classifier.load(TrainConfig.model_validate({**settings, "family_options": {"classes": "x\ny"}}))
    assert other.model.state_dict()["fc.weight"].shape == (2, 16)
    assert torch.equal(other.model.state_dict()["conv.weight"], loaded["conv.weight"])
    with pytest.raises(ConfigError, match=r"width is 8, but the model in base_model has 4"):
        Classifier.load(TrainConfig.model_validate({**settings, "family_options": {"width": 8, "classes": "x\ny"}}))
    shutil.copytree(saved, place / "pipe")
    (place / "pipe" / "model.safetensors").unlink()
    os.mkfifo(place / "pipe" / "model.safetensors")
    with pytest.raises(ConfigError, match=r"is damaged .is a named pipe"):
        Classifier.load(TrainConfig.model_validate({**settings, "base_model": str(place / "pipe")}))
    (place / "empty").mkdir()
    with pytest.raises(ConfigError, match="is not a saved classifier"):
        Classifier.load(TrainConfig.model_validate({**settings, "base_model": str(place / "empty")}))


def test_it_learns_from_a_metadata_file(tmp_path: Path) -> None:
    lines = ["file_name,label"]
    for number in range(24):
        name = f"{number}.png"
        Image.new("RGB", (16, 16), ("red", "blue")[number % 2]).save(tmp_path / name)
        lines.append(f"{name},{number % 2}")
    (tmp_path / "metadata.csv").write_text("\n".join(lines))
    config = classifier_config(
        tmp_path, tmp_path / "place", validation_split=0.3, validate_every="10 steps", max_steps=10
    )
    code, run = train_alone(config)
    assert code == 0, run.failure(0)
    assert run.events("validation")[-1]["metrics"] == {"accuracy": 1.0}


def test_a_cifar_archive_is_trained_on_as_it_was_downloaded(tmp_path: Path) -> None:
    archive = str(pack(tmp_path / "cifar-10-python.tar.gz", python_files()))
    concepts = [{"path": archive}, {"path": archive, "kind": "test"}]
    config = classifier_config(tmp_path, tmp_path / "place", concepts=concepts, resolution=32, max_steps=2)
    assert not startup_problems(config)
    code, run = train_alone(config)
    assert code == 0, run.failure(0)
    assert json.loads((run.folder.model_dir / "config.json").read_text())["classes"] == NAMES
    (test,) = run.events("validation")
    assert test["set"] == "test"
    (listed,) = (record for record in survey(config) if record["type"] == "concept" and record["concept"] == 1)
    assert listed["pictures"] == 2


@pytest.mark.parametrize(
    ("names", "settings", "part"),
    [
        (["a/1", "a/2"], {}, "only one class, 'a'"),
        (["a/1", "b/2", "c/3"], {}, "a class of its own"),
        (["a/1", "a/2", "b/3", "b/4"], {"family_options": {"classes": "a\nc"}}, "1?2 images of classes.*'b'"),
        (["a/1", "a/2", "b/3", "b/4"], {"concepts.0.caption_source": "none"}, "4 images without exactly one class"),
    ],
)
def test_labels_that_cannot_be_learned_are_one_sentence(
    tmp_path: Path, names: list[str], settings: dict[str, object], part: str
) -> None:
    for number, name in enumerate(names):
        write_image(tmp_path / "d" / f"{name}.png", 16, 16, seed=number)
    source = settings.pop("concepts.0.caption_source", "auto")
    config = classifier_config(
        tmp_path, tmp_path / "place", concepts=[{"path": str(tmp_path / "d"), "caption_source": source}], **settings
    )
    code, run = train_alone(config)
    assert code == 4
    assert re.search(part, run.failure(0)), run.failure(0)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"caption_dropout": 0.1}, "caption_dropout is 0.1"),
        ({"masked_training": True}, "masked_training is true"),
        ({"samples": [{"prompt": "a cat"}]}, "generates no images"),
        ({"concepts": [{"path": ".", "prompt_prefix": "x"}]}, "concepts.0.prompt_prefix"),
        ({"family_options": {"network": "cifar_resnet19"}}, "6n + 2"),
        ({"cache_only": True}, "caches no images"),
    ],
)
def test_settings_without_a_use_are_refused_before_anything_starts(settings: dict[str, object], part: str) -> None:
    config = TrainConfig.model_validate({"family": "classifier", "concepts": [{"path": "."}], **settings})
    found: list[TandemError] = startup_problems(config)
    assert any(part in str(error) for error in found), found
