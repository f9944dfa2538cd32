"""What a run has made: its samples side by side, the best of them, and its files for ComfyUI."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from app.monitor.run_list import read_view
from app.monitor.run_samples import best_validation, read_samples
from app.runs.comfyui import files_for_comfyui, free_name, models_folder, put
from app.windows.result import FILES, SAMPLES, ResultWindow
from modules.config import load_config
from modules.run import RunFolder
from modules.run.view.run_view import RunView
from tests.app.driver import Driver
from tests.app.fake_runs import PROMPTS, line, make_fake_run


def with_lora(run: RunFolder) -> RunFolder:
    """The files of a LoRA, and of one of an earlier step."""
    for folder in (run.model_dir, run.saved_dir(40)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tandem.json").write_text(json.dumps({"family": "stable_diffusion", "adapter": {"method": "lora"}}))
        for name in ("lora_kohya.safetensors", "pytorch_lora_weights.safetensors"):
            (folder / name).write_bytes(b"weights")
    return run


def validated(run: RunFolder, *losses: tuple[int, float]) -> RunFolder:
    with run.events_file.open("a") as file:
        for step, loss in losses:
            file.write(line({"type": "validation", "set": "validation", "step": step, "loss": loss, "t": 1.0}))
    return run


@pytest.fixture
def comfyui(tmp_path: Path) -> Path:
    models = tmp_path / "portable" / "ComfyUI" / "models"
    (models / "checkpoints").mkdir(parents=True)
    return models


def test_files_for_comfyui_are_put_where_they_belong(tmp_path: Path, comfyui: Path) -> None:
    """As links, which stay as they are when the run saves anew; whatever of the folder was chosen."""
    run = with_lora(make_fake_run(tmp_path / "cats", steps=3))
    (run.saved_dir(20) / "lora_kohya.safetensors").mkdir(parents=True)  # or a named pipe, on which ComfyUI would wait
    shutil.copy(run.model_dir / "tandem.json", run.saved_dir(20))
    found = files_for_comfyui(run)
    assert [(each.folder, each.name) for each in found] == [
        ("loras", "cats.safetensors"),
        ("loras", "cats-step-40.safetensors"),
    ]
    for chosen in (comfyui, comfyui.parent, comfyui.parent.parent):
        assert models_folder(chosen) == comfyui
    assert models_folder(tmp_path) is None
    target = comfyui / "loras" / "cats.safetensors"
    assert put(found[0].file, target) == "linked"
    assert os.path.samefile(found[0].file, target)
    assert free_name(target).name == "cats-2.safetensors"
    (comfyui / "loras" / "cats-2.safetensors").touch()
    assert free_name(target).name == "cats-3.safetensors"


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS, errno.EINVAL])
def test_files_are_copied_where_they_cannot_be_linked(
    number: int, tmp_path: Path, comfyui: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed window had begun is removed, and never has the ending of a model."""

    def refuse(file: Path, partial: Path) -> None:
        assert partial.suffix == ".part"
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    (comfyui / "loras").mkdir()
    (comfyui / "loras" / ".partial-99999999-cats.safetensors").touch()
    run = with_lora(make_fake_run(tmp_path / "cats", steps=3))
    target = comfyui / "loras" / "cats.safetensors"
    assert put(files_for_comfyui(run)[0].file, target) == "copied"
    assert target.read_bytes() == b"weights"
    assert os.listdir(target.parent) == ["cats.safetensors"]


@pytest.mark.parametrize(
    ("family", "folder"),
    [("stable_diffusion_xl", "checkpoints"), ("flux", "diffusion_models"), ("unknown", "checkpoints")],
)
def test_a_single_file_of_a_transformer_is_no_checkpoint(tmp_path: Path, family: str, folder: str) -> None:
    run = make_fake_run(tmp_path / "cats", steps=3)
    run.model_dir.mkdir()
    (run.model_dir / "tandem.json").write_text(json.dumps({"family": family}))
    run.model_file.write_bytes(b"weights")
    assert [(each.folder, each.name) for each in files_for_comfyui(run)] == [(folder, "cats.safetensors")]


def test_best_validation_and_the_samples_nearest_to_it(tmp_path: Path) -> None:
    run = make_fake_run(tmp_path / "cats", steps=60, samples_every=20)
    assert best_validation(RunView()) is None
    found = read_samples(validated(run, (10, 0.4), (30, 0.2), (60, 0.3)))
    assert found.best is not None
    assert (found.best.step, found.best.metric, found.best.value) == (30, "loss", 0.2)
    assert found.best_step in (20, 40)
    prompt = PROMPTS[0]
    assert [[each.step for each in found.of(title)] for title in (prompt, f"{prompt} (2)")] == [[20, 40, 60], []]
    with run.events_file.open("a") as file:
        for name in ("09", "10"):  # with other seeds
            sample = {"type": "sample", "t": 1.0, "file": f"samples/step-000040-{name}.png", "prompt": prompt}
            file.write(line({**sample, "step": 40}))
    again = read_samples(run)
    assert [[each.step for each in again.of(title)] for title in again.of_prompts] == [[20, 40, 60], [40], [40]] + [
        [20, 40, 60] for _ in PROMPTS[1:]
    ]
    higher = make_fake_run(tmp_path / "dogs", steps=3, early_stopping_metric="accuracy")
    with higher.events_file.open("a") as file:
        for step, accuracy in ((1, 0.5), (2, 0.9), (3, 0.7)):
            event = {"type": "validation", "set": "validation", "step": step, "t": 1.0}
            file.write(line({**event, "metrics": {"accuracy": accuracy}}))
    best = best_validation(read_view(higher))
    assert best is not None
    assert best.step == 2


@pytest.mark.slow
def test_result_of_a_run_is_seen_compared_and_used(driver: Driver, home: Path, comfyui: Path) -> None:
    made = make_fake_run(home / "runs" / "cats", steps=60, samples_every=20, runs_dir="former/place")
    run = with_lora(validated(made, (20, 0.2), (60, 0.3)))
    make_fake_run(home / "runs" / "dogs", steps=20, samples_every=20)
    shown = ResultWindow(driver.window, driver.window.state_, run)
    window = shown.show()
    driver.wait(shown.grid.winfo_ismapped, SAMPLES)
    assert "Best validation: step 20, loss 0.2" in driver.text(window)
    assert {Path(file).name[:11] for file in shown.grid.best} == {"step-000020"}
    driver.click_really(shown.tabs)  # its middle
    compare = shown.compare
    assert compare.winfo_ismapped()
    assert (compare.left.value(), compare.right.value()) == ("step 20, best", "step 60")
    driver.wait(lambda: compare.picture.find_withtag("all"), "the pictures")
    driver.click_really(compare.picture)
    driver.press("Right", "Right")
    assert compare.picture.at == pytest.approx(0.6, abs=0.01)
    shown.other.choose("dogs")
    driver.wait(lambda: compare.right.value().startswith("dogs, step 20"), "the other run")
    assert compare.left.value() == "cats, step 60"
    shown.turn_to(FILES)
    driver.wait(lambda: "LoRA in kohya's layout" in driver.text(window), "the files")
    driver.window.preferences.comfyui = str(comfyui)
    target = comfyui / "loras" / "cats.safetensors"
    target.parent.mkdir()
    target.write_bytes(b"another")
    driver.click_button("Use in ComfyUI…")
    driver.press("Down", "Return")
    assert "is in" in driver.text(driver.dialogs()[-1]), "nothing is replaced unasked"
    driver.press("Return")
    driver.wait(lambda: "as loras/cats-2.safetensors" in driver.text(window), "the link")
    assert target.read_bytes() == b"another"
    pruned = next(each for each in shown.comfyui._files if each.name == "cats-step-40.safetensors")
    (target.parent / pruned.name).touch()
    pruned.file.unlink()
    shown.comfyui._use(pruned)
    assert "Not copied: " in driver.text(window)
    driver.click_button("Continue training")
    driver.settle()
    assert (driver.draft.get("run_name"), driver.draft.get("runs_dir")) == ("cats", str(home / "runs"))
    assert driver.draft.get("max_steps") == load_config(run.config_file).max_steps
