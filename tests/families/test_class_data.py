"""The images of the classifier's demo, and the presets of the family."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from modules.config import load_preset, resolve_config
from modules.config.io.presets import PRESETS
from modules.families.classifier import Classifier
from modules.run.demo_images import DRAWN, draw_missing_images, lacks_images
from scripts.make_class_data import CLASSES, STAMP, main, make_class_data


def test_equal_arguments_give_equal_class_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, again = tmp_path / "classes", tmp_path / "again"
    assert main([str(folder), "--count", "5"]) == 0
    assert not make_class_data(folder, count=5)
    make_class_data(again, count=5)
    names = {f"{colour}_{shape}" for colour, shape in CLASSES}
    assert {each.name for each in (folder / "train").iterdir()} == names
    for part, count in (("train", 5), ("test", 1)):
        files = sorted((folder / part).rglob("*.png"))
        assert len(files) == count * len(names)
        assert all(file.read_bytes() == (again / file.relative_to(folder)).read_bytes() for file in files)
    with Image.open(folder / "test/red_circle/0000.png") as image:
        assert image.size == (36, 36)
    (folder / "test/red_circle/0000.png").unlink()
    make_class_data(folder, count=5, seed=1)
    assert (folder / "test/red_circle/0000.png").exists()


def test_a_folder_of_the_user_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / STAMP).write_text("{}")
    assert main([str(tmp_path)]) == 2
    assert "holds other files" in capsys.readouterr().err
    assert {each.name for each in tmp_path.iterdir()} == {"mine.txt", STAMP}


@pytest.mark.parametrize("name", DRAWN)
def test_a_demo_draws_its_images_where_they_are_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw_missing_images(name, resolve_config(name, ['concepts=[{"path": "mine"}]']))
    assert not list(tmp_path.iterdir()), "somebody else's pictures"
    assert lacks_images(name)
    config = load_preset(name)
    Path(DRAWN[name][0]).mkdir(parents=True)
    draw_missing_images(str(PRESETS / f"{name}.yaml"), config)
    assert not lacks_images(name)
    assert all(next(Path(concept.path).rglob("*.png")) for concept in config.concepts)


@pytest.mark.parametrize("name", ["cifar10", "classifier_demo"])
def test_the_presets_can_be_loaded(name: str) -> None:
    config = load_preset(name)
    classes = {"classes": "\n".join(f"class {number}" for number in range(10))}
    config = config.model_copy(update={"family_options": {**config.family_options, **classes}})
    assert Classifier.base_model_notes(config) == []
    assert Classifier.load(config).model.training
