"""The demo's images and the checker that looks at them."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.config import load_preset
from modules.families._pixel_unet import PixelOptions
from modules.families.pixel_diffusion import PixelDiffusion, token_ids
from scripts.check_demo import Result, evaluate, grid, main, passed, recognise, sample_size
from scripts.demo_shapes import COLOURS, HELD_OUT, OUTLINES, SIZES, Scene, draw_image, scenes
from scripts.make_demo_data import STAMP, make_demo_data
from scripts.make_demo_data import main as draw_demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "demo"
    assert make_demo_data(folder, count=120, seed=3)
    return folder


def scene_of(file: Path) -> Scene:
    words = file.with_suffix(".txt").read_text(encoding="utf-8").split()
    return Scene(shape=words[2], colour=words[1], background=words[5])


def opened(file: Path) -> Image.Image:
    with Image.open(file) as image:
        return image.convert("RGB")


def test_every_image_has_a_caption_and_no_held_out_scene(demo: Path) -> None:
    files = sorted(demo.glob("*.png"))
    shown = [scene_of(file) for file in files]
    assert len(files) == 120
    assert not set(shown) & set(HELD_OUT)
    assert set(shown) | set(HELD_OUT) == set(scenes())
    assert {opened(file).size for file in files} == set(SIZES.values())


def test_equal_arguments_give_equal_files(demo: Path, tmp_path: Path) -> None:
    assert not make_demo_data(demo, count=120, seed=3)
    make_demo_data(tmp_path / "again", count=20, seed=3)
    make_demo_data(tmp_path / "other", count=20, seed=4)
    for file in (tmp_path / "again").glob("*.png"):
        assert file.read_bytes() == (demo / file.name).read_bytes()
        assert file.read_bytes() != (tmp_path / "other" / file.name).read_bytes()


def test_interrupted_or_damaged_folders_are_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    (tmp_path / ".partial-2147483647-x").mkdir()
    (tmp_path / ".partial-2147483647-x" / "00000.png").write_bytes(b"half")
    assert make_demo_data(folder, count=5)
    (folder / "00003.png").unlink()
    assert make_demo_data(folder, count=5)
    assert len(list(folder.glob("*.png"))) == 5
    assert make_demo_data(folder, count=6)
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_nothing_of_a_user_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "holiday.png").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        make_demo_data(tmp_path, count=5)
    folder = tmp_path / "demo"
    make_demo_data(folder, count=5)
    (folder / "holiday.png").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        make_demo_data(folder, count=6)
    assert (folder / "holiday.png").read_bytes() == b"precious"
    assert (folder / STAMP).is_file()


@pytest.mark.skipif(os.name == "nt", reason="named pipes of POSIX")
def test_a_foreign_folder_is_neither_waited_for_nor_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "\x1b[2Jdemo"
    (tmp_path / f".{folder.name}.unfinished").mkdir()  # somebody's own
    make_demo_data(folder, count=5)
    for prepare in (os.mkfifo, lambda stamp: stamp.write_bytes(b"\xff")):
        (folder / STAMP).unlink()
        prepare(folder / STAMP)
        assert make_demo_data(folder, count=5)
    assert (tmp_path / f".{folder.name}.unfinished").is_dir()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for name in (".", str(folder)):
        draw_demo([name, "--count", "5"])
    said = capsys.readouterr()
    assert (
        said.err == ".: the demo images cannot be written (it is the current folder, or holds it; name another one).\n"
    )
    assert said.out.endswith("\\x1b[2Jdemo: 5 images (already there)\n")


def test_the_preset_asks_for_what_there_is() -> None:
    config = load_preset("demo")
    asked = {sample.prompt for sample in config.samples}
    assert asked <= {scene.caption for scene in scenes()}
    assert asked & {scene.caption for scene in HELD_OUT}
    assert {(sample.width, sample.height) for sample in config.samples} == {
        sample_size(size, config.resolution) for size in SIZES.values()
    }
    assert config.global_batch_size is not None, "the result must not depend on the number of GPUs"
    PixelDiffusion.load(config)


def test_the_captions_words_are_told_apart() -> None:
    words = {word for scene in scenes() for word in scene.caption.split()}
    numbers = {int(token_ids(word, PixelOptions())[0]) for word in words}
    assert len(numbers) == len(words)


@pytest.mark.parametrize("resolution", [None, 32])
def test_the_checker_reads_the_real_pictures(demo: Path, resolution: int | None) -> None:
    files = sorted(demo.glob("*.png"))[::2]
    assert len(files) == 60
    for file in files:
        image = opened(file)
        if resolution is not None:
            image = image.resize(sample_size(image.size, resolution), Image.Resampling.LANCZOS)
        assert recognise(image) == scene_of(file), file.name


def real(scene: Scene, width: int, height: int) -> Image.Image:
    return draw_image(scene, width, height, (width / 2, height / 2), 0.5 * min(width, height))


def test_the_checker_says_yes_to_pictures_of_their_captions() -> None:
    by_caption = {scene.caption: scene for scene in scenes()}
    results = evaluate(lambda caption, width, height, seed: real(by_caption[caption], width, height), 48, 32, seed=1)
    assert passed(results)
    assert len({result.expected for result in results}) == 48
    assert {result.expected.shape for result in results} == set(OUTLINES)
    assert {result.expected.colour for result in results} == set(COLOURS)
    assert {result.image.size for result in results} == {(32, 32), (40, 24), (24, 40)}


def test_the_checker_says_no_to_noise() -> None:
    def noise(caption: str, width: int, height: int, seed: int) -> Image.Image:
        levels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        return Image.fromarray(levels, mode="RGB")

    assert not passed(evaluate(noise, 48, 32, seed=1))


def test_the_checker_says_no_to_empty_pictures() -> None:
    assert not passed(evaluate(lambda caption, width, height, seed: Image.new("RGB", (width, height)), 48, 32, seed=1))


@pytest.mark.parametrize("part", ["shape", "colour"])
def test_the_checker_says_no_to_wrong_captions(part: str) -> None:
    following = {
        word: next_word
        for words in (list(OUTLINES), list(COLOURS))
        for word, next_word in itertools.pairwise([*words, words[0]])
    }

    def wrong(scene: Scene) -> Result:
        shown = Scene(**{**vars(scene), part: following[getattr(scene, part)]})
        image = real(shown, 32, 32)
        return Result(scene, recognise(image), image)

    assert not passed([wrong(scene) for scene in random.Random(0).sample(scenes(), 48)])


def test_the_grid_shows_every_picture() -> None:
    scene = scenes()[0]
    image = real(scene, 40, 24)
    sheet = grid([Result(scene, recognise(image), image)] * 9, columns=4, cell=100)
    assert sheet.size == (400, 3 * 124)


def test_a_missing_model_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing")]) == 2
    assert "is not a model folder" in capsys.readouterr().err
