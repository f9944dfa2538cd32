"""The classifier from class folders to a saved model: equal on 1, 2 and 3 ranks, resumed exactly, and able to learn."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from modules.config import ConfigError, TandemError, TrainConfig
from modules.data.index.survey import survey
from modules.families.classifier import Classifier
from modules.training.loop.checks import startup_problems
from modules.training.studies.parity import loss_difference, weight_difference
from scripts import classify
from scripts.predictions import read_example
from tests.classes import CLASSES, TINY_NETWORK, classifier_config, write_classes
from tests.data.cifar_archives import NAMES, pack, python_files
from tests.data.helpers import write_image
from tests.runs import ROOT, Job, Run, group_settings, same_state, same_tensors, train_alone, train_group

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


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    """A saved model with BatchNorm, whose statistics are neither those of a new network nor those of the images."""
    options = {**TINY_NETWORK, "norm": "batch", "classes": "\n".join(CLASSES)}
    model = Classifier.load(TrainConfig.model_validate({"family": "classifier", "family_options": options}))
    generator = torch.Generator().manual_seed(4)
    for name, buffer in model.model.named_buffers():
        if "running" in name:
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    folder = place / "trained"
    folder.mkdir()
    model.export(model.model.state_dict(), folder)
    return folder


def frozen(images: Path, held_out: Path, place: Path, trained: Path, name: str, **settings: object) -> TrainConfig:
    options = {"family_options": {**AUGMENTED, "freeze_batch_norm": True}, "base_model": str(trained)}
    config = full(images, held_out, place, name, **{**options, **settings})
    given = {key: value for key, value in config.family_options.items() if key not in TINY_NETWORK}
    return config.model_copy(update={"family_options": given})


def with_batch_norm(images: Path, held_out: Path, place: Path, name: str, **settings: object) -> TrainConfig:
    """Each rank notes the statistics that it validates with below `place`/`name`."""
    (place / name).mkdir()
    options = {**AUGMENTED, "norm": "batch", "record": str(place / name)}
    return full(
        images, held_out, place, name, family=str(ROOT / "tests/buffer_family.py"), family_options=options, **settings
    )


@pytest.fixture(scope="module")
def damaged(images: Path, place: Path) -> tuple[Path, Path]:
    """Copies of the images: training images, of which two cannot be decoded, and validation images, of which one
    cannot. They were damaged after they were indexed, which neither size nor date shows."""
    train, validation = (shutil.copytree(images, place / name) for name in ("damaged", "damaged-too"))
    code, run = train_alone(full(train, validation, place, "indexed", max_steps=1))
    assert code == 0, run.failure(0)
    for file in (train / "cat/002.png", train / "apple/003.png", validation / "apple/006.png"):
        status, data = file.stat(), file.read_bytes()
        file.write_bytes(data[:60] + bytes(len(data) - 80) + data[-20:])
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    return train, validation


@pytest.fixture(scope="module")
def group(
    images: Path,
    held_out: Path,
    place: Path,
    trained: Path,
    damaged: tuple[Path, Path],
) -> tuple[int, dict[str, Run]]:
    size = 3
    together: dict[str, Any] = group_settings(size)
    jobs = {
        "group norm": full(images, held_out, place, f"ranks-{size}", **together),
        "frozen": frozen(images, held_out, place, trained, f"frozen-{size}", **together),
        "damaged": full(*damaged, place, f"damaged-{size}", **together),
        "shared": with_batch_norm(images, held_out, place, f"shared-{size}", **together),
        "own": with_batch_norm(images, held_out, place, f"own-{size}", broadcast_buffers=False, **together),
    }
    return size, train_group(size, {name: Job(config) for name, config in jobs.items()})


@pytest.fixture(scope="module")
def ranks(group: tuple[int, dict[str, Run]]) -> Run:
    return group[1]["group norm"]


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
def test_frozen_batch_norm_trains_on_ranks_as_on_one(
    images: Path, held_out: Path, place: Path, trained: Path, group: tuple[int, dict[str, Run]]
) -> None:
    size, runs = group
    code, one = train_alone(frozen(images, held_out, place, trained, f"frozen-beside-{size}"))
    assert code == 0, one.failure(0)
    assert runs["frozen"].exit_code == 0, runs["frozen"].failure(0)
    assert loss_difference(one.losses, runs["frozen"].losses) < 1e-9
    assert weight_difference(one.state, runs["frozen"].state) < 1e-9
    before = load_file(trained / "model.safetensors")
    statistics = {name: value for name, value in before.items() if "running" in name}
    assert same_tensors(statistics, {name: runs["frozen"].state.weights[name].float() for name in statistics})
    assert not torch.equal(before["norm.weight"], runs["frozen"].state.weights["norm.weight"].float())


@pytest.mark.slow
def test_unreadable_images_are_left_out_on_ranks_as_on_one(
    place: Path, damaged: tuple[Path, Path], group: tuple[int, dict[str, Run]]
) -> None:
    size, runs = group
    several = runs["damaged"]
    code, one = train_alone(full(*damaged, place, f"damaged-beside-{size}"))
    assert code == 0, one.failure(0)
    assert several.exit_code == 0, several.failure(0)
    assert loss_difference(one.losses, several.losses) < 1e-9
    assert weight_difference(one.state, several.state) < 1e-9
    (alone,), (together,) = one.events("validation"), several.events("validation")
    assert together["metrics"] == alone["metrics"]
    assert cast("dict[str, float]", alone["metrics"])["accuracy"] * 22 == pytest.approx(
        round(cast("dict[str, float]", alone["metrics"])["accuracy"] * 22)
    )
    for run in (one, several):
        listed = (run.folder.path / "log/problems.txt").read_text().splitlines()
        assert sorted(line.split(": ")[0].rsplit("/", 3)[-3:] for line in listed) == [
            ["damaged", "apple", "003.png"],
            ["damaged", "cat", "002.png"],
            ["damaged-too", "apple", "006.png"],
        ]
        assert all("skipped: damaged or incomplete" in line for line in listed)
        assert "cannot be read any more and" in run.warnings


@pytest.mark.slow
def test_a_run_ends_with_a_backup_when_too_many_images_are_unreadable(damaged: tuple[Path, Path], place: Path) -> None:
    train = shutil.copytree(damaged[0], place / "worse", copy_function=shutil.copy2)
    config = full(train, damaged[1], place, "worse", validate_every="never", max_steps=60)
    code, run = train_alone(config.model_copy(update={"max_steps": 1}))
    assert code == 0, run.failure(0)
    for file in sorted(train.rglob("*.png"))[:14]:
        status = file.stat()
        file.write_bytes(bytes(status.st_size))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    code, run = train_alone(config, resume="latest")
    assert code == 4
    assert "of 46 images cannot be read any more, for example" in run.failure(0)
    assert 1 < run.state.position.step < 60, "a backup is made before it ends"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shared", "own"])
def test_all_ranks_validate_with_the_statistics_that_are_saved(
    place: Path, group: tuple[int, dict[str, Run]], name: str
) -> None:
    size, runs = group
    assert runs[name].exit_code == 0, runs[name].failure(0)
    folder = place / f"{name}-{size}"
    used = {line for rank in range(size) for line in (folder / f"rank-{rank}").read_text().splitlines()}
    saved = load_file(runs[name].folder.model_dir / "model.safetensors")
    sums = [float(value.double().sum()) for key, value in saved.items() if "running" in key]
    assert len(used) == 1
    assert sorted(json.loads(used.pop())) == pytest.approx(sorted(sums), abs=1e-6)
    assert saved["norm.running_mean"].abs().max() > 1e-3


def test_the_statistics_of_a_new_network_cannot_be_frozen() -> None:
    options = {**TINY_NETWORK, "freeze_batch_norm": True, "classes": "a\nb"}
    with pytest.raises(ConfigError, match="freeze_batch_norm is true, but this network starts from scratch"):
        Classifier.load(TrainConfig.model_validate({"family": "classifier", "family_options": options}))


@pytest.mark.slow
def test_the_validation_counts_every_image_once(alone: Run) -> None:
    (event,) = alone.events("validation")
    metrics, classes = (cast("dict[str, float]", event[name]) for name in ("metrics", "classes"))
    assert set(classes) == set(CLASSES)
    of_class = {name: len(range(number, VALIDATION_IMAGES, 3)) for number, name in enumerate(CLASSES)}
    right = sum(classes[name] * count for name, count in of_class.items())
    assert right == pytest.approx(metrics["accuracy"] * VALIDATION_IMAGES)
    matrix = cast("list[list[int]]", event["confusion"])
    assert [sum(row) for row in matrix] == [of_class[name] for name in CLASSES]
    assert sum(row[number] for number, row in enumerate(matrix)) == round(right)
    (sample,) = alone.events("sample")
    assert sample["prompt"] == "confusion matrix (validation)"
    with Image.open(str(sample["file"])) as drawn:
        assert drawn.width == drawn.height > 100


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
    with pytest.raises(ConfigError, match="is a named pipe"):
        Classifier.load(TrainConfig.model_validate({**settings, "base_model": str(place / "pipe")}))
    huge = Path(shutil.copytree(saved, place / "huge"))
    described = json.loads((huge / "config.json").read_text())
    described["options"] |= {"width": 1024, "network": "cifar_resnet44"}
    (huge / "config.json").write_text(json.dumps(described))
    refused = r"for 'conv.weight' its weights have the shape \[4, .* describes the shape \[1024,"
    with pytest.raises(ConfigError, match=refused):  # 10 GB, if it were built
        Classifier.base_model_notes(TrainConfig.model_validate({**settings, "base_model": str(huge)}))
    (place / "empty").mkdir()
    with pytest.raises(ConfigError, match="is not a saved classifier"):
        Classifier.load(TrainConfig.model_validate({**settings, "base_model": str(place / "empty")}))


@pytest.mark.slow
def test_classify_says_of_files_what_the_validation_counted(
    alone: Run, held_out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "classes.csv"
    command = [str(alone.folder.path), str(held_out), "--format", "csv", "--top", "2", "--batch_size", "20"]
    assert classify.main([*command, "--out", str(out)]) == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [str(file) for file in sorted(held_out.rglob("*.png"))]
    right = sum(Path(row["file"]).parent.name.replace("_", " ") == row["class"] for row in rows)
    (event,) = alone.events("validation")
    accuracy = cast("dict[str, float]", event["metrics"])["accuracy"]
    assert right / VALIDATION_IMAGES == pytest.approx(accuracy, abs=1.5 / VALIDATION_IMAGES)  # it is fp32 here
    assert all(1 >= float(row["probability"]) >= float(row["probability_2"]) > 0 for row in rows)
    assert not capsys.readouterr().err


def test_classify_scales_an_image_as_training_does(tmp_path: Path) -> None:
    write_image(tmp_path / "small.png", 24, 16)
    config = TrainConfig(family="classifier", resolution=64)
    assert read_example(str(tmp_path / "small.png"), config, 8).pixels.shape == (3, 48, 72)
    config = config.model_copy(update={"no_upscale": True})
    assert read_example(str(tmp_path / "small.png"), config, 8).pixels.shape == (3, 16, 24)


@pytest.mark.slow
def test_classify_names_what_cannot_be_read_and_classifies_the_rest(
    alone: Run, held_out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = held_out / "cat/002.png"
    shutil.copy(good, tmp_path / "b.png")
    (tmp_path / "a.png").write_bytes(good.read_bytes()[:90])
    (tmp_path / "c.png").write_text("no image")
    write_image(tmp_path / "wide.jpg", 90, 20)
    assert classify.main([str(alone.folder.model_dir), str(tmp_path), "--format", "json", "--top", "9"]) == 4
    printed = capsys.readouterr()
    found = {Path(each["file"]).name: each for each in json.loads(printed.out)}
    assert list(found) == ["a.png", "b.png", "c.png", "wide.jpg"]
    assert sum(each["probability"] for each in found["b.png"]["classes"]) == pytest.approx(1, abs=1e-4)
    assert {each["class"] for each in found["wide.jpg"]["classes"]} == set(CLASSES)
    assert found["c.png"]["error"] == "no image of a format that Tandem reads, despite its name"
    assert len(printed.err.splitlines()) == 2
    assert classify.main([str(alone.folder.model_dir), str(good)]) == 0
    assert re.fullmatch(r"\S+/cat/002\.png: (apple|big bear|cat) \d+\.\d %\n", capsys.readouterr().out)
    assert classify.main([str(alone.folder.path), str(good), "--out", str(tmp_path / "none/x.csv")]) == 3
    assert "The result cannot be written" in capsys.readouterr().err


@pytest.mark.slow
def test_classify_names_a_weight_that_is_not_finite(
    alone: Run, held_out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(alone.folder.model_dir, tmp_path / "model")
    (file,) = (tmp_path / "model").rglob("*.safetensors")
    tensors = load_file(file)
    name = next(iter(tensors))
    tensors[name].view(-1)[0] = torch.nan
    save_file(tensors, file)
    assert classify.main([str(tmp_path / "model"), str(held_out / "cat/002.png")]) == 3
    printed = capsys.readouterr()
    assert f"The weights of the model are not finite (NaN or infinity) in {name!r}" in printed.err
    assert not printed.out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nowhere", "a.png"], "There is no image 'a.png'"),
        (["nowhere", "."], "holds no images"),
        (["nowhere", "real.png"], "there is no folder 'nowhere'"),
        ([".", "real.png"], "has no tandem.json"),
        (["other", "real.png"], "of the family 'pixel_diffusion', which does not classify"),
        (["nowhere", "real.png", "--top", "0"], "--top is 0"),
        (["unfinished", "real.png"], "has not saved a model yet"),
    ],
)
def test_classify_refuses_in_one_sentence(
    arguments: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if "real.png" in arguments:
        write_image(tmp_path / "real.png", 20, 20)
    for name in ("other", "unfinished"):
        (tmp_path / name).mkdir()
    (tmp_path / "unfinished/config.json").write_text("{}")
    info = {"family": "pixel_diffusion", "family_options": {}, "resolution": 32}
    (tmp_path / "other/tandem.json").write_text(json.dumps(info))
    assert classify.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("No image was classified: ")
    assert part in line


@pytest.mark.slow
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
