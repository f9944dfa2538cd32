"""What older states wrote still opens, resumes to the same bits and is not encoded anew.

In tests/fixtures, version_0_1, version_0_2 and version_0_3 are of those releases, before_0_2 of commit c98b09e5.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from app.monitor.run_list import RunList, read_view
from modules.config import load_config, load_preset, preset_names
from modules.run import RunFolder
from modules.run.queue.folder import RunQueue
from scripts import backup, convert, sample
from tests.runs import LATER_VERSIONS, ROOT, Run, copy_of_version, train_alone

pytestmark = pytest.mark.end_to_end

FIRST = ROOT / "tests" / "fixtures" / "version_0_1"
DRAWN_WITH = ["--prompt", "a red square", "--steps", "3", "--guidance_scale", "2", "--seed", "5"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the files of 0.1.0 as the working directory, with the paths and file times that its cache knows."""
    folder = tmp_path / "version_0_1"
    shutil.copytree(FIRST, folder)
    for manifest in (folder / "cache").glob("rank-*/index.jsonl"):
        manifest.write_text(manifest.read_text().replace('"images/', f'"{folder}/images/'))
    yield from working_directory(folder, monkeypatch)


@pytest.fixture(params=LATER_VERSIONS)
def later(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same of the files of later ones, which used the images and the base model of the first."""
    folder = tmp_path / request.param
    copy_of_version(request.param, folder)
    yield from working_directory(folder, monkeypatch)


def working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for run in (folder / "runs").glob("[!.]*"):
        for empty in ("commands", "samples"):  # git keeps no empty folders
            (run / empty).mkdir(exist_ok=True)
    for manifest in (folder / "cache").glob("rank-*/index.jsonl"):
        for line in manifest.read_text().splitlines():
            for path, _, mtime_ns, _ in json.loads(line)["files"]:
                os.utime(path, ns=(mtime_ns, mtime_ns))
    monkeypatch.chdir(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield folder
    torch.set_num_threads(threads)


def same_machine(folder: Path) -> bool:
    """Whether results must be equal to the last bit: the same torch on the same CPU."""
    made_with = json.loads((folder / "made_with.json").read_text())
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    here = {"torch": torch.__version__, "cpu": model, "capability": torch.backends.cpu.get_cpu_capability()}
    return bool(here.items() <= made_with.items())


def hashes(backup: Path) -> dict[str, str]:
    """SHA-256 of the tensors in a backup, from its manifest, without its record of the data (more columns now)."""
    files = json.loads((backup / "manifest.json").read_text())["files"]
    return {
        name: files[name]["sha256"] for name in files if name.endswith(".safetensors") and name != "data.safetensors"
    }


def assert_same_tensors(first: Path, second: Path) -> None:
    one, other = load_file(first), load_file(second)
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        if same_machine(Path()):
            assert torch.equal(tensor, other[name]), name
        else:
            # another CPU rounds otherwise, and Adam turns that into a share of its rate where a gradient is almost 0
            torch.testing.assert_close(tensor, other[name], rtol=1e-3, atol=1e-3)


def assert_same_image(first: Path, second: Path) -> None:
    with Image.open(first) as one, Image.open(second) as other:
        difference = np.abs(np.asarray(one, np.int16) - np.asarray(other, np.int16))
    assert difference.max() <= (0 if same_machine(Path()) else 1)


def resumed(name: str, end: Path) -> Run:
    """Resume a run of the fixture; its end, its losses and the whole cache must be those of the uninterrupted run."""
    cached = {file: file.read_bytes() for file in Path("cache").glob("rank-*/*.*")}
    before = Run(RunFolder(Path("runs") / name)).events()
    knows_data = any(Path(f"runs/{name}/backup").glob("*/data.safetensors"))  # since 0.3.0
    config = load_config(f"runs/{name}/config.json").model_copy(update={"rescan": "epoch"})
    code, run = train_alone(config, "latest")
    assert code == 0, run.failure(0)
    assert ("rescan=epoch has no effect" in run.warnings) != knows_data
    assert {file: file.read_bytes() for file in Path("cache").glob("rank-*/*.*")} == cached
    later = run.events()[len(before) :]
    assert [event for event in later if event["type"] == "phase" and event["phase"] == "caching"] == []
    stored = [json.loads(line) for line in (end / "events.jsonl").read_text().splitlines()]
    losses = {event["step"]: event["loss"] for event in stored if event["type"] == "step"}
    steps = [event for event in later if event["type"] == "step"]
    assert [event["step"] for event in steps] == list(losses)[-len(steps) :]
    for event in steps:
        assert event["loss"] == (
            losses[event["step"]] if same_machine(Path()) else pytest.approx(losses[event["step"]], rel=1e-4)
        )
    last = max(run.folder.backup_dir.glob("step-*"))
    assert last.name == f"step-{len(losses):06}"
    if same_machine(Path()):
        assert hashes(last) == hashes(end / "backup")
    return run


@pytest.mark.usefixtures("place")
def test_configs_of_yaml_json_and_run_are_the_same() -> None:
    by_hand, by_run = load_config("pixel.yaml"), load_config("runs/pixel/config.json")
    assert load_config("pixel.json") == by_run
    assert by_hand.model_copy(update={"run_name": "pixel"}) == by_run
    by_hand, by_run = load_config("lora.yaml"), load_config("runs/lora/config.json")
    assert by_hand.model_copy(update={"run_name": "lora"}) == by_run


def test_a_fine_tune_resumes_to_the_same_end(place: Path) -> None:
    run = resumed("pixel", place / "end")
    for file in ("unet", "text_embedding"):
        weights = Path(file) / "diffusion_pytorch_model.safetensors"
        assert_same_tensors(run.folder.model_dir / weights, place / "end" / "model" / weights)


def test_a_lora_resumes_to_the_same_end(place: Path) -> None:
    run = resumed("lora", place / "end_lora")
    assert "0.1.0" not in run.warnings, "its config means what it meant"
    for file in ("pytorch_lora_weights.safetensors", "lora_kohya.safetensors"):
        assert_same_tensors(run.folder.model_dir / file, place / "end_lora" / "model" / file)


@pytest.mark.parametrize(
    ("model", "size", "image"), [("end", "16", "sample-00.png"), ("end_lora", "64", "sample-01.png")]
)
def test_a_saved_model_generates_the_same_image(model: str, size: str, image: str, place: Path) -> None:
    assert_draws(f"{model}/model", size, place / "drawn" / image)


def assert_draws(model: str, size: str, image: Path) -> None:
    arguments = ["--model", model, "--width", size, "--height", size, "--out", f"{model}-again", *DRAWN_WITH]
    assert sample.main(arguments) == 0
    assert_same_image(Path(f"{model}-again", "sample-00.png"), image)


def test_a_lora_of_either_layout_becomes_the_other(place: Path) -> None:
    layouts = {"diffusers": "pytorch_lora_weights.safetensors", "kohya": "lora_kohya.safetensors"}
    model = place / "end_lora" / "model"
    for to, file in layouts.items():
        source = next(model / other for other in layouts.values() if other != file)
        assert convert.main([str(source), f"{to}.safetensors", "--to", to]) == 0
        assert_same_tensors(place / f"{to}.safetensors", model / file)


def test_later_configs_mean_what_they_did(later: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved, edited = load_config("saved.yaml"), load_config("edited.yaml")
    assert (saved.masked_training, saved.normalize_masked_area_loss) == (True, False)
    same = {"run_name": None, "masked_training": False, "optimizer": edited.optimizer}
    assert saved.model_copy(update=same) == edited
    assert load_config("runs/pixel/config.json") == saved
    queue = RunQueue("runs")
    [entry] = queue.read().waiting
    of_queue = {"run_name": "waiting", "max_steps": 5}
    of_queue |= {name: str(later / folder) for name, folder in (("runs_dir", "runs"), ("cache_dir", "cache"))}
    concepts = tuple(concept.model_copy(update={"path": str(later / concept.path)}) for concept in saved.concepts)
    assert queue.load(entry) == saved.model_copy(update={**of_queue, "concepts": concepts})
    assert preset_names(later / "presets") == ["mine/small LoRA"]
    preset = load_preset("mine/small LoRA", later / "presets")
    assert preset.model_copy(update={"run_name": "lora"}) == load_config("runs/lora/config.json")
    assert caplog.messages == [], "nothing of them is ambiguous"


def test_later_runs_are_listed_and_viewed(later: Path) -> None:
    # c98b09e5 wrote the event of a backup's last step only after the backup
    last = 1 if later.name == "before_0_2" else 2
    found = {run.name: run for run in RunList().scan(Path("runs"))}
    assert {name: (run.status.kind, run.step, run.total_steps) for name, run in found.items()} == {
        "pixel": ("finished", 8, 8),
        "lora": ("killed", last, 4),
    }
    view = read_view(RunFolder(Path("runs/pixel")))
    assert (view.position, view.last_loss) == (8, found["pixel"].loss)


def test_a_later_run_resumes_to_the_same_end(later: Path) -> None:
    assert backup.main(["verify", "runs/lora"]) == 0
    run = resumed("lora", later / "end_lora")
    assert "0.1.0" not in run.warnings
    for file in ("pytorch_lora_weights.safetensors", "lora_kohya.safetensors"):
        assert_same_tensors(run.folder.model_dir / file, later / "end_lora" / "model" / file)


def test_later_models_generate_the_same_images(later: Path) -> None:
    assert_draws("runs/pixel/model", "16", later / "drawn" / "sample-00.png")
    assert_draws("end_lora/model", "64", later / "drawn" / "sample-01.png")
