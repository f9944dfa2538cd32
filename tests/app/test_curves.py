"""The curves beside the settings: they follow the fields, and are of the code that trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.curves.noise_card import whole_path
from app.curves.run_length import Length
from app.curves.schedule_curve import SETTINGS
from app.curves.sketch import HEIGHT
from app.curves.timeline import lanes
from modules.config import TrainConfig, dump, learning_rate_scale
from modules.config.schedules import learning_rate_factor
from modules.data.loading.progress import Progress
from modules.families._noise_levels import histogram
from modules.training.step.triggers import is_due
from tests.app.driver import Driver
from tests.app.fake_runs import make_fake_run
from tests.data.helpers import write_image

pytestmark = pytest.mark.slow


def test_schedule_follows_its_fields_and_the_number_of_images(driver: Driver, tmp_path: Path) -> None:
    for number in range(10):
        write_image(tmp_path / "cats" / f"{number}.png", seed=number)
    driver.window.show_section("training")
    curve = driver.window.sections["training"].curve
    driver.settle()
    assert "once there are images" in curve.line.cget("text")
    driver.draft.set("concepts", [{"path": "cats"}])  # below the window's working directory
    for path, value in {"epochs": 20, "batch_size": 2, "scheduler": "cosine", "warmup_steps": 10}.items():
        driver.set(path, value)
    driver.wait(lambda: curve.run_length.length.steps == 100, "the count of images")
    driver.settle()
    shown = curve.sketch.curve
    config = TrainConfig(scheduler="cosine", warmup_steps=10)
    assert list(shown.values) == [learning_rate_factor(step, 100, config) for step in range(100)]
    assert (shown.left, shown.middle, shown.right) == ("step 1", "", "step 100")
    assert curve.line.cget("text").startswith("Rises over 10 steps to 1e-4, then falls along a cosine")
    assert "once there are images" not in curve.line.cget("text")
    assert curve.sketch.winfo_viewable()
    assert curve.sketch.winfo_height() >= HEIGHT
    driver.set("learning_rate", "2e-5")
    assert curve.sketch.curve.top == "0 to 2e-5"
    driver.set("warmup_steps", "many")  # an error: the last valid curve stays
    assert curve.sketch.curve.top == "0 to 2e-5"
    driver.set("warmup_steps", "0")
    driver.set("scheduler", "cosine_with_restarts")
    driver.set("scheduler_cycles", "4")
    assert curve.sketch.curve.values[24] < 0.1 < 0.9 < curve.sketch.curve.values[25]


def test_the_peak_knows_all_settings_that_scale_the_learning_rate() -> None:
    config = TrainConfig(enable_multi_gpu=True, num_nodes=2, local_steps=50)
    data = dump(config)
    shown = TrainConfig.model_validate({name: data[name] for name in SETTINGS})
    assert learning_rate_scale(shown, 8) == learning_rate_scale(config, 8) == 2.0


def test_timeline_shows_what_a_run_does_when(driver: Driver, tmp_path: Path) -> None:
    for number in range(10):
        write_image(tmp_path / "cats" / f"{number}.png", seed=number)
    make_fake_run(tmp_path / "runs" / "other", batch_size=3)
    make_fake_run(tmp_path / "runs" / "measured", batch_size=2, epochs=7)
    driver.window.show_section("sampling")
    timeline = driver.window.sections["sampling"].timeline
    driver.wait(lambda: "once there are images" in timeline.line.cget("text"), "why there is none")
    driver.draft.set("concepts", [{"path": "cats"}])
    values = {"epochs": 20, "batch_size": 2, "sample_every": "4 epochs", "backup_every": "30 steps"}
    driver.draft.set_together({**values, "samples": [{"prompt": "a cat"}]})
    driver.wait(lambda: "measured" in timeline.line.cget("text"), "the rate of an earlier run")
    assert timeline.line.cget("text").startswith("100 steps, 5 an epoch: 20 epochs. About 5 s at 4")
    assert [(each.title, each.steps(100)) for each in timeline.lanes] == [
        ("Epochs", list(range(5, 101, 5))),
        ("Samples", [20, 40, 60, 80, 100]),
        ("Backups", [30, 60, 90, 100]),
        ("Models", [100]),
    ]
    canvas = timeline.canvas
    said = [canvas.itemcget(item, "text") for item in canvas.find_all() if canvas.type(item) == "text"]
    assert said == ["Epochs", "20", "Samples", "5", "Backups", "4", "Models", "1", "step 1", "step 100"]
    driver.draft.set("backup_every", "2 seconds")
    assert len(timeline.lanes[2].steps(100)) == 3, "two at 42 to 44 samples/s, and the last"
    driver.draft.set("batch_size", 5)  # no run had it
    driver.wait(lambda: "is known once a run" in timeline.line.cget("text"), "that it is not known")
    assert timeline.lanes[2].said == "every 2 s"


@pytest.mark.parametrize("interval", ["7 steps", "1 epoch", "1.5 epochs", "0.3 epochs"])
def test_timeline_is_that_of_the_training_loop(interval: str) -> None:
    config = TrainConfig.model_validate({"validate_every": interval})
    at = [Progress(4 * step, 20, 4) for step in range(51)]
    due = [step for step in range(1, 51) if is_due(config.validate_every, at[step - 1], at[step])]
    assert list(lanes(config, Length(50, 5), None))[1].steps(50) == due


def test_noise_levels_are_those_of_the_family(driver: Driver) -> None:
    driver.wait(lambda: driver.window.state_.family.declaration is not None, "the family")
    driver.window.show_section("model")
    noise = driver.window.sections["model"].noise

    def counts(**options: object) -> tuple[int, ...]:
        config = TrainConfig(family="pixel_diffusion", family_options=options)  # type: ignore[arg-type]
        return tuple(histogram(config)[0])

    expected, other = counts(), counts(shift=1.0, timesteps="uniform")
    driver.wait(lambda: noise.histogram.counts == expected, "the first histogram")
    assert "shifted by 6" in noise.line.cget("text")
    assert noise.frame.winfo_viewable()
    process = noise._program._process
    driver.set("family_options.shift", "1")
    driver.set("family_options.timesteps", "uniform")
    driver.wait(lambda: noise.histogram.counts == other, "the histogram of other options")
    assert noise._program._process is process, "one process answers all questions"
    assert noise.sketch.curve.bars
    driver.set("family_options.shift", "-4")
    driver.settle()
    assert noise.histogram.counts == other, "the last valid one stays"
    driver.window.destroy()
    assert process.poll() is not None, "it ends with the window"


def test_the_process_of_the_noise_levels_finds_what_a_setting_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("layout").mkdir()
    settings = {"layout": "layout", "base_model": "owner/name", "resolution": 64, "none": ""}
    found = [whole_path(settings, name) for name in (*settings, "more")]
    assert found == [{"layout": str(tmp_path / "layout")}, {}, {}, {}, {}]


def test_family_without_noise_levels_has_no_histogram(driver: Driver) -> None:
    driver.set("family", "classifier")
    driver.wait(lambda: driver.window.state_.family.declaration is not None, "the family")
    driver.settle()
    assert not driver.window.sections["model"].noise.frame.winfo_viewable()
