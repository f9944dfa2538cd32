"""A finished run leads to its result, and a running one draws what is asked for: in a real window, with real runs."""

from __future__ import annotations

import json
import tkinter as tk
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from app.runs.control import create_run, launch
from app.runs.written import what_was_written
from app.widgets.button import Button
from app.windows.custom_sample import CustomSampleDialog
from app.windows.result import ResultWindow
from modules.config import Sample, TrainConfig
from modules.run import RunFolder
from tests.app.driver import write
from tests.app.run_driver import Driven, tiny
from tests.families.tiny_pipelines import tiny_sd
from tests.runs import train_alone

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_leftovers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    for process in psutil.process_iter():
        try:
            if any(str(tmp_path) in word for word in process.cmdline()):
                process.kill()
        except psutil.Error:
            continue


@pytest.fixture
def lora_run(images: Path, tmp_path: Path) -> RunFolder:
    """A LoRA of two steps that has been saved in both layouts."""
    config = tiny_lora(images, tmp_path)
    code, run = train_alone(config)
    assert code == 0
    return run.folder


def tiny_lora(images: Path, place: Path) -> TrainConfig:
    tiny_sd(place / "sd")
    return TrainConfig.model_validate(
        {
            "family": "stable_diffusion",
            "base_model": str(place / "sd"),
            "method": "lora",
            "lora_layouts": "both",
            "concepts": [{"path": str(images)}],
            "resolution": 64,
            "cache_dir": str(place / "cache"),
            "runs_dir": str(place / "runs"),
            "run_name": "cats",
            "loader_workers": 0,
            "max_steps": 2,
            "batch_size": 2,
            "tensorboard": False,
            "samples": [{"prompt": "a red disc", "steps": 2, "guidance_scale": 3.5, "width": 64, "height": 64}],
            "sample_every": "2 steps",
        }
    )


def test_the_result_of_a_lora_leads_to_an_image(home: Path, preferences: Path, lora_run: RunFolder) -> None:
    driven = Driven(run_folder=lora_run.path)
    window = driven.window
    try:
        driven.until(lambda: driven.status() == "finished", "the run")
        monitor = driven.monitor("samples")
        driven.until(lambda: window.sections["monitor"].result.card.winfo_ismapped(), "the card")
        driven.until(lambda: monitor.custom.cget("state") == "disabled", "no custom samples any more")
        assert window.run_bar.buttons.result.winfo_ismapped()
        driven.click(window.run_bar.buttons.result)
        (dialog,) = toplevels(window)
        for words in ("LoRA in kohya's layout", "LoRA in diffusers' layout", "1 sample image", "Backup of step 2"):
            driven.until(lambda words=words: words in all_text(dialog), words)  # type: ignore[misc]
        dialog.destroy()
        driven.click(window.sections["monitor"].result.generate)
        assert window.section == "generate"
        page = window.sections["generate"]
        values = page.form.values()
        assert values["model"] == str((home / "sd").resolve())
        assert values["lora"] == str(lora_run.model_dir / "pytorch_lora_weights.safetensors")
        assert (values["prompt"], values["steps"], values["guidance_scale"]) == ("a red disc", "2", "3.5")
        assert (values["random_seed"], values["seed"]) == (False, "42"), "comparable with the run's sample"
        driven.click(page.start_button)
        driven.until(lambda: page.job.files and not page.job.is_running, "the image")
        assert page.job.status.tone == "good"
    finally:
        driven.close()


def test_what_a_lora_run_has_written(lora_run: RunFolder) -> None:
    found = {written.path.name: written for written in what_was_written(lora_run)}
    assert set(found) >= {"lora_kohya.safetensors", "pytorch_lora_weights.safetensors", "samples", "step-000002"}
    assert [each.path.name for each in found.values() if each.is_model] == [
        "lora_kohya.safetensors",
        "pytorch_lora_weights.safetensors",
    ]
    assert all(each.path.exists() and each.size > 0 and each.opens for each in found.values())
    (lora_run.model_dir / "tandem.json").write_text("[" * 100)
    assert [each.title for each in what_was_written(lora_run) if each.is_model] == ["Model"]
    (lora_run.model_dir / "tandem.json").write_text('{"family": "classifier"}')
    assert what_was_written(lora_run)[0].opens == "Tandem: scripts/classify.py"
    assert what_was_written(RunFolder(lora_run.path / "gone")) == []


def test_a_custom_sample_of_a_running_training(home: Path, preferences: Path, images: Path) -> None:
    config = tiny(images, home, run_name="cats", samples=[])
    driven = Driven()
    window = driven.window
    try:
        folder = create_run(config)
        window.run_bar.actions.follow(folder.path, launch(folder))
        page = driven.monitor("samples")
        driven.until(lambda: page.custom.cget("state") == "normal", "the first step")
        driven.click(page.custom)
        (dialog,) = toplevels(window)
        assert "Empty: no prompt, as for images without captions." in all_text(dialog)
        asked = opened(page)
        write(asked.texts["prompt"], "a blue disc\nat night")
        assert not asked.remark.cget("text")
        write(asked.entries["seed"], "-1")
        asked.send()
        assert asked.message.cget("text").startswith("Seed: Must be a whole number from 0")
        write(asked.entries["seed"], "11")
        write(asked.entries["width"], "24")
        driven.click(asked.send_button)
        assert not toplevels(window)
        assert window.run_bar._full_detail() == "Generating your sample after the current step…"
        driven.monitor("log")
        arrived = "Custom sample, step"
        driven.until(lambda: window.run_bar._detail.cget("text").startswith(arrived), "the message")
        driven.click(window.run_bar._detail)
        assert page.winfo_ismapped()
        assert not window.run_bar._detail.cget("text").startswith(arrived)
        (sample,) = page.index.at_step(page.index.steps[0])
        assert Path(sample.file).name.endswith("-custom-00.png")
        with Image.open(sample.file) as image:
            settings = json.loads(image.info["tandem"])
            assert image.size == (24, 16)
        assert (settings["prompt"], settings["seed"]) == ("a blue disc\nat night", 11)
        driven.until(lambda: page.grid_view.drawn == 1, "the image on the page")
        assert page.grid_view._marked == sample.file
        driven.until(lambda: page.custom.cget("state") == "normal", "the end of the request")
        driven.until(lambda: window.run_bar.buttons.sample.cget("state") == "normal", "the button of the run bar")
        driven.click(window.run_bar.buttons.sample)  # the run has no prompts
        second = opened(page)
        assert second.texts["prompt"].get() == "a blue disc\nat night", "what was typed the last time"
        write(second.texts["prompt"], "a green disc")
        window.state_.run.stop()
        driven.until(lambda: not window.state_.run.is_alive, "the end")
        driven.until(lambda: second.send_button.cget("text") == "Open Generate", "the offer")
        assert "has saved no model" in second.message.cget("text"), "it was stopped"
        driven.click(second.send_button)
        assert window.section == "generate"
        values = window.sections["generate"].form.values()
        assert (values["prompt"], values["seed"], values["width"]) == ("a green disc", "11", "24")
        window.state_.run.awaited_sample = Sample(prompt="a late disc")
        said = "The run ended before your custom sample"
        driven.until(lambda: window.run_bar._detail.cget("text").startswith(said), "the message")
        driven.click(window.run_bar._detail)
        assert window.sections["generate"].form.values()["prompt"] == "a late disc"
    finally:
        driven.close()


def toplevels(window: Any) -> list[Any]:
    window.update()
    return [one for one in window.winfo_children() if one.winfo_class() == "Toplevel" and one.winfo_viewable()]


def opened(page: Any) -> CustomSampleDialog:
    """The dialog that the button has opened."""
    found = page.state.views.asked
    assert isinstance(found, CustomSampleDialog)
    return found


def all_text(widget: Any) -> str:
    own = [str(widget.cget("text"))] if isinstance(widget, (tk.Label, Button)) else []
    return "\n".join([*own, *(all_text(child) for child in widget.winfo_children())])


def test_the_result_window_says_so_if_there_is_nothing(home: Path, preferences: Path, tmp_path: Path) -> None:
    driven = Driven()
    try:
        shown = ResultWindow(driven.window, driven.window.state_, RunFolder(tmp_path / "gone"))
        shown.show()
        driven.until(lambda: "Nothing yet" in shown.said.cget("text"), "the list")
        assert shown.generate.cget("state") == "disabled"
        shown.dialog.close()
    finally:
        driven.close()
