"""Going on from a backup while the base model has moved, has come in another form, or is another one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from modules.config import TrainConfig
from scripts import sample
from tests.families.tiny_pipelines import tiny_sd
from tests.runs import Run, tiny_config, train_alone

FAMILY: dict[str, object] = {"family": "stable_diffusion", "resolution": 64, "max_steps": 1, "batch_size": 2}


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of the same kind."""
    return tiny_sd(tmp_path_factory.mktemp("bases") / "other", seed=1)


@pytest.fixture(scope="module")
def begun(images: Path, sd_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainConfig]:
    """A run of one step by method; its base model is a copy of `sd_folder`."""
    place = tmp_path_factory.mktemp("begun")
    shutil.copytree(sd_folder, place / "base")
    base = str(place / "base")
    return {
        method: tiny_config(images, place, **FAMILY, method=method, base_model=base, run_name=method)
        for method in ("lora", "fine_tune")
    }


def trained(config: TrainConfig) -> Path:
    """The run of a config, which is trained the first time."""
    run = Path(config.runs_dir) / str(config.run_name)
    if not run.exists():
        assert train_alone(config)[0] == 0
    return run


def resumed(config: TrainConfig, base_model: Path) -> tuple[int, Run]:
    """A copy of the run, which goes on from another base model for one step."""
    run = trained(config)
    again = run.parent / base_model.name / str(config.run_name)
    shutil.copytree(run, again)
    changed = {"runs_dir": str(again.parent), "base_model": str(base_model), "max_steps": 2}
    return train_alone(config.model_copy(update=changed), "latest")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "fine_tune"])
def test_a_base_model_may_move(method: str, begun: dict[str, TrainConfig], sd_folder: Path) -> None:
    code, run = resumed(begun[method], sd_folder)
    assert (code, run.failure(0)) == (0, "")
    assert run.warnings == ""


@pytest.mark.slow
def test_another_base_model_is_refused(begun: dict[str, TrainConfig], other_folder: Path) -> None:
    code, run = resumed(begun["lora"], other_folder)
    assert code == 2
    said = run.failure(0)
    assert (
        f"base_model is '{other_folder}', and its vae and text_encoder and unet are not what this run started" in said
    )
    assert f"which was '{begun['lora'].base_model}'" in said


@pytest.mark.slow
def test_what_a_backup_holds_may_be_another(
    begun: dict[str, TrainConfig], sd_folder: Path, other_folder: Path, tmp_path: Path
) -> None:
    """A fine-tune brings its own UNet; the encoders beside it have to be the same."""
    mixed = tmp_path / "mixed"
    shutil.copytree(sd_folder, mixed)
    shutil.rmtree(mixed / "unet")
    shutil.copytree(other_folder / "unet", mixed / "unet")
    assert resumed(begun["fine_tune"], mixed)[0] == 0
    assert "its unet is not what this run started" in resumed(begun["lora"], mixed)[1].failure(0)
    assert "its vae and text_encoder are not" in resumed(begun["fine_tune"], other_folder)[1].failure(0)


@pytest.mark.slow
def test_a_base_model_that_predicts_something_else_is_refused(
    begun: dict[str, TrainConfig], sd_folder: Path, tmp_path: Path
) -> None:
    """Which its scheduler's config says; all weights are the same."""
    other = shutil.copytree(sd_folder, tmp_path / "of another schedule")
    file = other / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | {"prediction_type": "v_prediction"}), "utf-8")
    for method in ("lora", "fine_tune"):
        code, run = resumed(begun[method], other)
        assert code == 2
        assert "its prediction type is not what this run started with" in run.failure(0)


@pytest.mark.slow
def test_drawing_without_the_base_model_says_how_to_name_it(
    begun: dict[str, TrainConfig], sdxl_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, before, gone = trained(begun["lora"]) / "model", Path(str(begun["lora"].base_model)), tmp_path / "gone"
    always = [
        "--model",
        str(model),
        "--steps",
        "1",
        "--out",
        str(tmp_path / "out"),
        "--prompt",
        "{a|a} " + "word " * 100,
    ]
    before.rename(gone)
    try:
        for base, said in (
            (None, f"base_model: there is no '{before}'. "),
            ("nowhere", "--base_model: there is no 'nowhere'. "),
            (str(sdxl_folder), "is a StableDiffusionXLPipeline, which"),
        ):
            assert sample.main([*always, *([] if base is None else ["--base_model", base])]) == 2
            output = capsys.readouterr().err
            assert said in output
            assert f"was trained on '{before}': give its current location as --base_model." in output
        assert sample.main([*always, "--base_model", ""]) == 2
        assert "--base_model is empty" in capsys.readouterr().err
        assert sample.main([*always, "--base_model", str(gone)]) == 0
        assert "longer than 75 tokens and truncated, for example 'a word" in capsys.readouterr().err, "as it is drawn"
    finally:
        gone.rename(before)


@pytest.mark.slow
def test_a_model_that_was_replaced_in_its_place_is_refused(begun: dict[str, TrainConfig], other_folder: Path) -> None:
    config = begun["lora"]
    base = Path(str(config.base_model))
    shutil.rmtree(base / "vae")
    shutil.copytree(other_folder / "vae", base / "vae")
    said = resumed(config, base)[1].failure(0)
    assert f"the base model '{base}' has been replaced since this run started: its vae is not what the run" in said
