"""scripts/sample.py with every family that generates images, from tiny models in the form of real ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.checkpoint import save_model
from modules.config import ConfigError, TrainConfig
from modules.facts import family_names
from modules.families._by_name import family_class
from scripts import sample
from scripts.sample_lora import model_config
from tests.families.tiny_flow_pipelines import TINY
from tests.families.tiny_pipelines import tiny_sd, tiny_sdxl
from tests.runs import ROOT, environment, tiny_config, train_alone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.FluxPosEmbed:FutureWarning"),  # of diffusers' Chroma
    pytest.mark.filterwarnings("ignore:Mismatch dtype:UserWarning"),  # of torch's norms on the CPU
]

MAKERS: dict[str, Callable[[Path], object]] = {
    "stable_diffusion": tiny_sd,
    "stable_diffusion_xl": tiny_sdxl,
    **{name: tiny for name, tiny in TINY.items() if name != "flux2_dev"},
}
SMALL = ["--steps", "2", "--width", "64", "--height", "128"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("models")

    def made(name: str) -> Path:
        if not (folder / name).exists():
            MAKERS[name](folder / name)
        return folder / name

    return made


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def generated(*arguments: object) -> list[Path]:
    """The images of one call."""
    before = set(Path("out").glob("*.png"))
    assert sample.main([*map(str, arguments), *SMALL, "--out", "out", "--prompt", "a red disc", "--no_grid"]) == 0
    return sorted(set(Path("out").glob("*.png")) - before)


def pixels(file: Path) -> bytes:
    with Image.open(file) as image:
        return image.tobytes()


def events_of(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_family_is_here() -> None:
    generating = {name for name in family_names() if family_class(name).draws_samples}
    assert generating == {*MAKERS, "pixel_diffusion"}


@pytest.mark.parametrize("name", MAKERS)
def test_a_family_generates_and_reports_its_steps(models: Callable[[str], Path], name: str) -> None:
    first, second = generated("--model", models(name), "--count", 2, "--events", "events")
    (again,) = generated("--model", models(name), "--seed", 43)
    assert pixels(first) != pixels(second) == pixels(again)
    with Image.open(first) as image:
        assert image.size == (64, 128)
    events = events_of(Path("events"))
    assert [event["event"] for event in events if event["event"] != "sampling"] == [
        "loading", "image", "image", "finished",
    ]  # fmt: skip
    assert {event["image"] for event in events if event["event"] == "sampling"} == {1, 2}
    assert {event["steps"] for event in events if event["event"] == "sampling"} <= {2, 3}
    (half,) = generated("--model", models(name), "--precision", "bf16", "--seed", 43)
    assert pixels(half) != pixels(second)


def test_the_strength_of_a_lora_and_the_options_it_was_trained_with(
    models: Callable[[str], Path], images: Path, tmp_path: Path
) -> None:
    config = TrainConfig.model_validate(
        {
            "family": "stable_diffusion", "base_model": str(models("stable_diffusion")), "method": "lora",
            "lora_layouts": "both", "concepts": [{"path": str(images)}], "resolution": 64, "run_name": "cats",
            "cache_dir": str(tmp_path / "cache"), "runs_dir": str(tmp_path / "runs"), "loader_workers": 0,
            "max_steps": 2, "batch_size": 2, "learning_rate": 0.1, "tensorboard": False,
            "family_options": {"sample_scheduler": "euler"},
        }
    )  # fmt: skip
    code, run = train_alone(config)
    assert code == 0
    base = ["--model", models("stable_diffusion")]
    lora = [*base, "--lora", run.folder.model_dir / "pytorch_lora_weights.safetensors"]
    (saved,) = generated("--model", run.folder.model_dir)
    none, half, whole = generated(*lora, "--lora_scales", "0,0.5,1")
    assert pixels(whole) == pixels(saved), "the base model with the LoRA is what the run saved"
    assert len({pixels(none), pixels(half), pixels(whole)}) == 3
    (alone,) = generated(*lora, "--lora_scale", "0.5")
    assert pixels(half) == pixels(alone), "as if it had been loaded with this strength"
    with Image.open(half) as image:
        settings = json.loads(image.info["tandem"])
    assert settings["sampler"] == "euler"
    assert settings["lora"] == "cats/pytorch_lora_weights.safetensors:0.5"
    assert (settings["batch"], settings["row_length"]) == (int(none.stem.rpartition("-")[2]), 3)


MANY = ["--prompt", "a", "--count", "5000", *SMALL, "--out", "out", "--events", "events", "--no_grid"]


def test_a_file_stops_it_after_the_present_image(
    models: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Image.Image.save

    def save_and_ask(image: Image.Image, *arguments: Any, **options: Any) -> None:
        save(image, *arguments, **options)
        Path("events.stop").touch()

    monkeypatch.setattr(Image.Image, "save", save_and_ask)
    assert sample.main(["--model", str(models("stable_diffusion")), *MANY]) == 0
    assert events_of(Path("events"))[-1] == {"event": "finished", "images": 1, "stopped": True}
    assert len(list(Path("out").iterdir())) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process there")
def test_ctrl_c_stops_it_after_the_present_image(models: Callable[[str], Path]) -> None:
    argv = [sys.executable, str(ROOT / "scripts" / "sample.py"), "--model", str(models("stable_diffusion")), *MANY]
    process = subprocess.Popen(argv, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(Path("out").glob("sample-*.png")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors
    last = events_of(Path("events"))[-1]
    files = list(Path("out").iterdir())
    assert last == {"event": "finished", "images": len(files), "stopped": True}
    assert all(pixels(file) for file in files)


def test_out_of_memory_is_one_sentence(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"faults": ["fits_sample:0:700"]}
    code, run = train_alone(tiny_config(images, tmp_path, max_steps=1, family_options=options))
    assert code == 0
    size = ["--width", "32", "--height", "24"]
    capsys.readouterr()
    assert sample.main(["--model", str(run.folder.model_dir), "--prompt", "a", *size, "--events", "events"]) == 3
    assert "Traceback" not in capsys.readouterr().err
    failed = events_of(Path("events"))[-1]
    assert failed["event"] == "failed"
    assert failed["message"] == "Out of memory while generating 32x24 pixels."
    assert "smaller" in str(failed["advice"])
    assert not list(Path("samples").glob("*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "gone", "--prompt", "x"], "there is no folder"),
        (["--model", "owner/name", "--prompt", "x"], "the family has to be chosen"),
        (["--model", "empty", "--prompt", "x"], "is no model"),
        (["--model", "gone", "--prompt", "x", "--device", "cuda:9"], "--device is 'cuda:9'"),
        (["--model", "gone", "--prompt", "x", "--count", "1000000000"], "use 1 to 10000"),
        (["--model", "gone", "--family", "classifier", "--prompt", "x"], "generates no images"),
    ],
)
def test_what_is_wrong_is_an_event_too(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert sample.main([*arguments, "--events", "events"]) == 2
    assert message in capsys.readouterr().err
    (failed,) = [event for event in events_of(Path("events")) if event["event"] == "failed"]
    assert message in str(failed["message"])


def test_the_family_of_a_published_model_is_known_by_its_name() -> None:
    options = sample.parser().parse_args(["--model", "Qwen/Qwen-Image", "--prompt", "x"])
    folder, config = model_config(options)
    assert folder is None
    assert (config.family, config.base_model) == ("qwen_image", "Qwen/Qwen-Image")


def test_the_layout_that_completes_the_base_model_of_a_lora_may_have_moved(tmp_path: Path) -> None:
    (tmp_path / "flux.safetensors").touch()
    given: dict[str, Any] = {
        "family": "flux",
        "base_model": str(tmp_path / "flux.safetensors"),
        "family_options": {"layout": "gone"},
    }
    for method in ("lora", "fine_tune"):
        save_model(lambda _: None, tmp_path / method, TrainConfig(method=method, **given), step=1)
    (tmp_path / "lora" / "pytorch_lora_weights.safetensors").touch()
    options = sample.parser().parse_args(["--model", str(tmp_path / "lora"), "--layout", "here", "--prompt", "x"])
    config = model_config(options)[1]
    assert (config.base_model, config.family_options) == (given["base_model"], {"layout": "here"})
    gone = ConfigError("family_options.layout: there is no 'here'.", "Give a diffusers folder.")
    assert str(sample.base_model_error(gone, config, options)).startswith("--layout: there is no 'here'.")
    options.model = str(tmp_path / "fine_tune")
    with pytest.raises(ConfigError, match="--layout: a model folder that Tandem wrote is complete"):
        model_config(options)
