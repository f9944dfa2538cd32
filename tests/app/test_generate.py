"""The Generate page: a real window generates images with real tiny models, in a process of its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from app.generate.history import History, history_file
from app.generate.job import GenerateJob
from app.generate.results import blocks_of, read_folder, reusable
from app.generate.run_models import models_of_runs, read_run_model
from app.generate.settings import (
    GENERATES_NOTHING,
    MOST_STRENGTHS,
    GenerateSettings,
    arguments,
    check,
    families,
    parse_strengths,
)
from app.monitor.tile_lines import lines_of
from app.monitor.tiles import read_settings
from app.runs.written import what_was_written
from app.widgets.button import Button
from app.widgets.inputs import Menu
from app.windows.result import ResultWindow
from modules.facts import family_names
from modules.families._by_name import family_class
from scripts.common import MOST_LORA_SCALES
from tests.app.driver import Driver, write
from tests.app.fake_runs import active, make_fake_run, write_sample
from tests.families.tiny_pipelines import tiny_sd


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_sd(folder / "sd")
    return folder


@pytest.fixture
def page(driver: Driver) -> Any:
    driver.window.show_section("generate")
    driver.settle()
    return driver.window.sections["generate"]


def fill(page: Any, **values: object) -> None:
    """Type into the fields, and choose in the menus."""
    for name, value in values.items():
        control = page.form.fields[name].control
        if isinstance(control, Menu):
            control.choose(str(value))
        elif isinstance(value, bool):
            if control.get() != value:
                control.toggle()
        else:
            write(control, str(value))


def ended(driver: Driver, page: Any) -> str:
    driver.wait(lambda: not page.job.is_running, "the end of the process")
    driver.wait(lambda: page._added == len(page.job.files), "the images")
    driver.settle()
    return str(page.status.cget("text"))


@pytest.mark.slow
def test_the_page_in_sight_says_whether_a_run_trains(driver: Driver, page: Any, home: Path) -> None:
    folder = make_fake_run(home / "runs" / "cats", steps=3, ended=None)
    with active(folder.path):
        assert page.status.cget("text") == ""
        driver.window.state_.actions.follow(folder.path)
        driver.wait(lambda: page.status.cget("text").startswith("A run is training"), "the note")
    driver.wait(lambda: page.status.cget("text") == "", "no note after the run")


SMALL: dict[str, object] = {"width": 64, "height": 64, "steps": 2}


@pytest.mark.slow
def test_images_appear_side_by_side_and_carry_their_settings(driver: Driver, page: Any, models: Path) -> None:
    fill(page, model=models / "sd", prompt="-a {red|red} disc", negative_prompt="b", random_seed=False, seed=7)
    fill(page, count=2, **SMALL)
    driver.click_button("Generate")
    assert page.job.is_running
    assert ended(driver, page) == "2 images saved in the folder generated."
    files = [Path(sample.file) for sample, _ in page.results.items]
    assert [file.name for file in files] == ["sample-00.png", "sample-01.png"]
    assert sorted(path.name for path in Path("generated").iterdir()) == ["sample-00.png", "sample-01.png"]
    driver.wait(lambda: page.results.grid_view.drawn == 2, "the images to be drawn")
    settings = read_settings(files[0])
    assert {key: settings[key] for key in ("prompt", "seed", "width", "steps", "model")} == {
        "prompt": "-a red disc", "seed": 7, "width": 64, "steps": 2, "model": str(models / "sd"),
    }  # fmt: skip
    assert read_settings(files[1])["seed"] == 8
    assert History.load().prompts[0].prompt == settings["written_prompt"] == "-a {red|red} disc"

    fill(page, random_seed=True, count=1, prompt="")
    page.start_button.invoke()
    assert page.form.values()["seed"] not in ("7", "8"), "a new seed each time"
    assert ended(driver, page) == "1 image saved in the folder generated."

    fill(page, prompt="something else", steps=3, random_seed=False)
    assert read_settings(Path("generated/sample-02.png"))["prompt"] == "", "as for images without captions"
    sample, caption = page.results.items[-1]
    assert caption.endswith("-a red disc")
    page.results._open(sample)
    driver.settle()
    fill(page, random_seed=True)
    viewer = page.results._viewer
    assert viewer.values["written_prompt"].cget("text") == "-a {red|red} disc"
    assert viewer.values["written_prompt"].winfo_ismapped()
    viewer.use.invoke()
    driver.settle()
    values = page.form.values()
    assert values["random_seed"] is False, "the settings of the image, so that it comes again"
    assert (values["prompt"], values["negative_prompt"], values["steps"]) == ("-a red disc", "b", "2")
    assert values["seed"] == str(read_settings(Path(sample.file))["seed"])


@pytest.mark.slow
def test_stop_keeps_the_present_image(driver: Driver, page: Any, models: Path) -> None:
    fill(page, model=models / "sd", prompt="a", count=100, width=64, height=64, steps=40)
    page.start_button.invoke()
    driver.wait(lambda: page.job.files, "the first image")
    driver.settle()
    page.stop_button.invoke()
    assert page.stop_button.cget("text") == "Stop now"
    message = ended(driver, page)
    written = len(list(Path("generated").iterdir()))
    assert message == f"Stopped after {written} image{'s' * (written > 1)}."
    assert 0 < written < 100
    assert len(page.results.items) == written
    for file in Path("generated").iterdir():
        with Image.open(file) as image:
            image.load()


@pytest.mark.slow
def test_errors_are_one_sentence(driver: Driver, page: Any, models: Path, tmp_path: Path) -> None:
    page.start_button.invoke()
    assert not page.job.is_running
    assert page.status.cget("text") == "1 field is not right yet."
    assert "Choose a base model" in driver.text(page.form)
    assert "Empty: no prompt, as for images without captions." in driver.text(page.form)
    fill(page, model=models / "sd", prompt="a", steps="0", width="6x")
    assert "Empty: no prompt" not in driver.text(page.form)
    page.start_button.invoke()
    assert not page.job.is_running
    assert "Must be a whole number from 1 to 1000" in driver.text(page.form)
    fill(page, **SMALL)
    assert "Must be a whole number" not in driver.text(page.form)
    assert page.status.cget("text") == "", "what was wrong is right"
    an_error_moves_no_other_field(driver, page)
    (tmp_path / "empty").mkdir()
    fill(page, model=tmp_path / "empty")
    page.start_button.invoke()
    message = ended(driver, page)
    assert message.startswith("“Base model”: ")
    assert "Traceback" not in message


def an_error_moves_no_other_field(driver: Driver, page: Any) -> None:
    def widths() -> list[int]:
        driver.settle()
        return [page.form.fields[name].control.winfo_width() for name in ("lora", "lora_scale", "width", "height")]

    before = widths()
    fill(page, lora_scale="0, x", lora="cats.safetensors", width="12345678901234567890x")
    page.start_button.invoke()
    assert widths() == before
    assert page.status.cget("text") == "2 fields are not right yet."
    fill(page, lora_scale="1", lora="")
    assert page.status.cget("text") == "1 field is not right yet."
    fill(page, **SMALL)


def test_the_model_of_a_run_says_which(driver: Driver, page: Any, home: Path) -> None:
    """Every LoRA file of a run has the same name, and its image is compared with the run's sample: of the same seed."""
    folder = make_fake_run(home / "runs" / "cats", steps=3, samples=[{"prompt": "a red disc", "seed": 77}])
    base = home / "sd"
    base.mkdir()
    config = json.loads(folder.config_file.read_text())
    folder.config_file.write_text(json.dumps({**config, "method": "lora", "base_model": str(base)}))
    folder.model_dir.mkdir()
    (folder.model_dir / "tandem.json").write_text("{}")
    (folder.model_dir / "pytorch_lora_weights.safetensors").touch()
    page.use_run(folder)
    driver.wait(lambda: page.form.fields["lora"].message.cget("text") == "From the run cats.", "the run's name")
    assert page.form.fields["lora"].message.winfo_ismapped()
    values = page.form.values()
    assert (values["prompt"], values["seed"], values["random_seed"]) == ("a red disc", "77", False)
    fill(page, lora="", model=folder.model_dir)
    driver.wait(lambda: "The model of the run cats." in driver.text(page.form), "the run's name")
    assert "From the run" not in driver.text(page.form)


def test_models_of_earlier_steps_are_listed_and_one_click_from_generate(
    driver: Driver, page: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the run has not saved its last one yet."""
    folder = make_fake_run(home / "runs" / "dogs", steps=3, samples=[{"prompt": "a red disc", "seed": 77}])
    for step in (500, 1000):
        folder.saved_dir(step).mkdir(parents=True)
        (folder.saved_dir(step) / "tandem.json").write_text("{}")
        write_sample(folder.samples_dir / f"step-{step:06d}-00.png", "a red disc", step)
        (folder.samples_dir / f"step-{step:06d}-grid.png").touch()
    event = {"t": time.time(), "type": "saved_model", "path": "x", "step": 500, "loss": 0.0125}
    with folder.events_file.open("a") as file:
        file.write(f"{json.dumps(event)}\n")
    listed = [(run.name, step) for run, step in models_of_runs(home / "runs")]
    assert [each for each in listed if each[0] == "dogs"] == [("dogs", 1000), ("dogs", 500)]
    assert read_run_model(folder).name == "dogs, step 1,000"
    rows = [row for row in what_was_written(folder) if row.step is not None]
    assert [(row.title, row.step) for row in rows] == [("Model of step 1,000", 1000), ("Model of step 500", 500)]
    assert rows[1].sample == folder.samples_dir / "step-000500-00.png"
    monkeypatch.setattr("app.windows.result.can_generate", lambda folder: True)  # it is of a family of the tests
    shown = ResultWindow(driver.window, driver.window.state_, folder)
    window = shown.show()
    driver.wait(lambda: "Model of step 500" in driver.text(window), "the list")
    assert "loss 0.0125" in driver.text(window)
    assert len(shown.files.pictures) == 2
    rows_shown = [
        each for each in shown.files.scroll.inside.winfo_children() if "Model of step 500" in driver.text(each)
    ]
    (generate,) = (
        each for each in rows_shown[0].winfo_children() if isinstance(each, Button) and each.cget("text") == "Generate"
    )
    generate.invoke()
    assert page.form.values()["model"] == str(folder.saved_dir(500))
    driver.wait(lambda: "The model of the run dogs, step 500." in driver.text(page.form), "the run's name")


@pytest.mark.slow
def test_the_window_ends_its_process(home: Path, display: str, models: Path) -> None:
    with Driver.open() as driver:
        driver.window.show_section("generate")
        page = driver.window.sections["generate"]
        fill(page, model=models / "sd", prompt="a", **SMALL)
        page.start_button.invoke()
        process = page.job._child.process
        driver.window.set_scale(110)
        assert process.poll() is None
        assert driver.window.sections["generate"].job.is_running
        driver.window.destroy()
        assert process.poll() is not None


@pytest.mark.slow
def test_the_page_opens_as_it_was_left(home: Path, display: str) -> None:
    with Driver.open() as driver:
        driver.window.show_section("generate")
        page = driver.window.sections["generate"]
        fill(page, model="owner/name", prompt="犬", lora_scale="0,5", random_seed=False, width="wide")
        driver.press("ctrl+plus")
        driver.wait(lambda: driver.window.sections["generate"] is not page, "the page at another scale")
        driver.settle()
        page = driver.window.sections["generate"]
        assert {"model": "owner/name", "width": "wide"}.items() <= page.form.values().items(), "also what is invalid"
        fill(page, width="256")
        driver.window.show_section("model")
    with Driver.open() as driver:
        driver.window.show_section("generate")
        page = driver.window.sections["generate"]
        values = page.form.values()
        driver.settle()
        rows_of_strengths(page, home)
    assert (values["model"], values["prompt"], values["lora_scale"], values["random_seed"]) == (
        "owner/name", "犬", ["0.5"], False,
    )  # fmt: skip
    former = json.loads(history_file().read_text())
    history_file().write_text(json.dumps({"last": {**former["last"], "lora_scale": 0.25}}))
    assert History.load().last.lora_scale == (0.25,), "the file of version 0.1"


def rows_of_strengths(page: Any, home: Path) -> None:
    """Batches stay as they were generated: also when the folder is read, and at every width."""
    folder = home / "rows"
    folder.mkdir()

    def generate(numbers: Sequence[int], row_length: int) -> None:
        page.results.begin()
        for number in numbers:
            batch = {"batch": numbers[0], **({"row_length": row_length} if row_length else {})}
            settings = {"prompt": "a", "seed": number % 2, "lora": f"cats.safetensors:{number // 2}", **batch}
            info = PngInfo()
            info.add_text("tandem", json.dumps(settings))
            file = folder / f"sample-{number:02d}.png"
            Image.new("RGB", (8, 8)).save(file, pnginfo=info)
            os.utime(file, ns=(number, number))
            page.results.add(file)

    for numbers, row_length in (((0,), 0), ((1, 2, 3, 4, 5), 2), ((6, 7, 8), 3), ((9, 10), 0), ((11,), 0)):
        generate(numbers, row_length)
    images = page.results.images
    assert [image.number for image in images] == [11, 9, 10, 6, 7, 8, 1, 2, 3, 4, 5, 0]
    assert page.results.items[7][1] == "strength 1 · seed 0\na"
    assert read_folder(folder) == images
    (folder / "sample-03.png").unlink()
    blocks = blocks_of(read_folder(folder))
    for width, rows in (
        (1000, [[11, 9, 10], [6, 7, 8], [1, 2], [4], [5], [0]]),
        (200, [[11], [9], [10], [6, 7], [8], [1, 2], [4], [5], [0]]),
    ):
        found = [image.number for image in read_folder(folder)]
        lines = lines_of(blocks, width, 100)
        assert [found[line.first : line.first + line.count] for line in lines] == rows


DAMAGED = (
    "", "[]", '{"last": 3, "prompts": {"a": 1}}', '{"prompts": [1, {"prompt": ""}, {"prompt": "\\ud800"}]}',
    '{"last": {"steps": 0}}', "[" * 100, json.dumps({"prompts": [{"prompt": "x" * 5000}]}),
)  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_history_is_an_empty_one(home: Path, content: str) -> None:
    history_file().write_text(content)
    history = History.load()
    assert history.prompts == []
    assert history.last == GenerateSettings()


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    folder = tmp_path / "foreign"
    folder.mkdir()
    for number, content in enumerate(
        ('{"prompt": ["x"], "seed": -1, "steps": 1e99}', "[" * 200, "{", '{"seed": true}')
    ):
        info = PngInfo()
        info.add_itxt("tandem", content)
        Image.new("RGB", (8, 8)).save(folder / f"sample-{number:02d}.png", pnginfo=info)
    (folder / "sample-04.png").write_bytes(b"not an image")
    (folder / "other.png").write_bytes(b"not ours")
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "sample-05.png")
    return folder


def test_foreign_images_are_shown_without_their_settings(foreign: Path) -> None:
    items = read_folder(foreign)
    assert len(items) == 5
    assert all(reusable(read_settings(Path(image.sample.file))) == {} for image in items)
    assert reusable({"prompt": "x", "seed": 3, "width": 64, "steps": 0}) == {"prompt": "x", "seed": 3, "width": 64}
    assert reusable({"prompt": "{a|b}"}) == {"prompt": "{{a|b}}"}, "it was drawn with these words"


def test_an_image_becomes_data_with_its_prompt_as_caption(driver: Driver, page: Any, home: Path) -> None:
    info = PngInfo()
    info.add_itxt("tandem", '{"prompt": "a red disc", "seed": 3}')
    (home / "generated").mkdir()
    Image.new("RGB", (8, 8)).save(home / "generated" / "sample-01.png", pnginfo=info)
    page.look_outside()
    driver.wait(lambda: page.results.items, "the image")
    (sample, _) = page.results.items[0]
    page.results._open(sample)
    driver.settle()
    page.results._viewer.train_on.focus_set()
    driver.press("space")
    chosen = home / "generated" / "chosen"
    driver.wait(lambda: driver.draft.get("concepts"), "the concept")
    assert driver.draft.config is not None
    assert [Path(each.path).absolute() for each in driver.draft.config.concepts] == [chosen]
    assert (chosen / "sample-01.txt").read_text() == "a red disc\n"
    assert "Ctrl+Z" in driver.window.run_bar._message
    page.results._viewer.train_on.invoke()
    assert "already" in driver.window.run_bar._message
    assert sorted(file.name for file in chosen.iterdir()) == ["sample-01.png", "sample-01.txt"], "it is copied once"
    Image.new("RGB", (8, 8), "red").save(home / "generated" / "sample-01.png")
    page.results._viewer.train_on.invoke()
    assert (chosen / "sample-01-1.png").is_file(), "another image of the same name stays"
    driver.window.undo()
    assert driver.draft.get("concepts") == []


def test_the_events_of_the_process_are_checked(home: Path, models: Path, tmp_path: Path) -> None:
    settings, faults = check({"model": str(models / "sd"), "prompt": "x", "folder": str(tmp_path)})
    assert settings is not None
    assert not faults
    job = GenerateJob()
    job.start(settings)
    try:
        lines = ["not json", "[]", '{"event": 3}', '{"event": "image", "file": "/etc/../passwd"}',
                 '{"event": "image", "file": ".."}', '{"event": "sampling", "image": 5, "images": 2, "step": 1e3}',
                 '{"event": "note", "message": "a\\u001b[31m"}']  # fmt: skip
        job._events.write_text("\n".join(lines) + "\n")
        for _ in lines:
            job.poll()
        assert job.files == [tmp_path / "passwd"]
        assert job.note.isprintable()
    finally:
        job.close()


def test_the_families_that_generate_are_offered() -> None:
    assert {name for name in family_names() if not family_class(name).draws_samples} == set(GENERATES_NOTHING)
    assert set(families()) == {"automatic", *family_names()} - set(GENERATES_NOTHING)


def test_values_that_begin_with_a_dash_are_values() -> None:
    settings = GenerateSettings(model="-m", prompt="--help", lora="-l", lora_scale=(-0.5,))
    given = arguments(settings, Path("events"))
    assert "--prompt=--help" in given
    assert {"--lora=-l", "--lora_scale=-0.5"} <= set(given)
    assert all(argument.startswith("--") for argument in given)


@pytest.mark.parametrize(
    ("typed", "strengths"),
    [("0, 0.5, 1", (0, 0.5, 1)), ("0,0.5,1", (0, 0.5, 1)), ("0,5; 1", (0.5, 1)), ("0,5", (0.5,)), ("0,1,2", (0, 1, 2)),
     ("-1", (-1,)), ("", None), ("a, 1", None), ("101", None), ("nan", None), (", ".join("1" * 17), None)],
)  # fmt: skip
def test_strengths_are_numbers_with_commas_between(typed: str, strengths: tuple[float, ...] | None) -> None:
    settings, faults = check({"model": "m", "prompt": "p", "lora": "l", "lora_scale": parse_strengths(typed)})
    assert MOST_STRENGTHS == MOST_LORA_SCALES
    if strengths is None:
        assert set(faults) == {"lora_scale"}
        assert typed != "a, 1" or faults["lora_scale"] == "“a” is no number from -100 to 100."
        return
    assert settings is not None
    assert settings.lora_scale == strengths
    several = len(strengths) > 1
    assert (f"--lora_scales={','.join(f'{s:g}' for s in strengths)}" in arguments(settings, Path("e"))) is several


def test_a_prompt_of_the_history_is_filled_in(home: Path, display: str) -> None:
    history = History()
    for number in range(60):
        history.add(GenerateSettings(model="m", prompt=f"prompt {number}", negative_prompt="blurry"))
    history.add(GenerateSettings(model="m", prompt="prompt 40", negative_prompt="blurry"))
    history.save()
    with Driver.open() as driver:
        driver.window.show_section("generate")
        page = driver.window.sections["generate"]
        assert [prompt.prompt for prompt in page.history.prompts][:2] == ["prompt 40", "prompt 59"]
        assert len(page.history.prompts) == 50
        write(page.form.fields["prompt"].control, "another")
        driver.click_button("History")
        driver.press("Down", "Return")
        values = page.form.values()
        assert (values["prompt"], values["negative_prompt"]) in (("prompt 40", "blurry"), ("prompt 59", "blurry"))
