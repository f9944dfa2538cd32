"""What a base model says of its prediction type and its noise schedule is what is trained, sampled and saved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from modules.checkpoint.formats import write_single_file
from modules.config import ConfigError, TrainConfig
from modules.diffusion.declared_schedule import declared_schedule, measured_schedule
from modules.families._by_name import family_class
from scripts.train import dry_run
from scripts.train_options import parser
from tests.families.diffusion_checks import REQUEST, batch, load
from tests.families.stills import still

XL, SD = "stable_diffusion_xl", "stable_diffusion"
ZERO_SNR = {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}


def changed(folder: Path, copy: Path, **scheduler: object) -> Path:
    """A copy of a model's folder with these changes to its scheduler."""
    shutil.copytree(folder, copy)
    file = copy / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | scheduler))
    return copy


def notes(family: str, base: Path, layout: Path | str = "", **options: object) -> list[str]:
    given = {"layout": str(layout), **options}
    config = TrainConfig.model_validate({"family": family, "base_model": str(base), "family_options": given})
    return list(family_class(family).base_model_notes(config))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheduler", "metadata", "drop", "expected", "source"),
    [
        ({}, {}, (), ("v_prediction", False), "its key v_pred"),
        (ZERO_SNR, {}, (), ("v_prediction", True), "its keys v_pred and ztsnr"),
        (ZERO_SNR, {"modelspec.prediction_type": "epsilon"}, (), ("v_prediction", True), "its keys v_pred and ztsnr"),
        ({}, {"modelspec.prediction_type": "v"}, ("v_pred",), ("v_prediction", False), "modelspec.prediction_type"),
        ({}, {"modelspec.prediction_type": "epsilon"}, ("v_pred",), ("epsilon", False), "modelspec.prediction_type"),
        ({}, {}, ("v_pred",), ("epsilon", False), "family_options.layout"),
    ],
)
def test_a_single_file_is_trained_as_it_says(
    sdxl_folder: Path,
    tmp_path: Path,
    scheduler: dict[str, object],
    metadata: dict[str, str],
    drop: tuple[str, ...],
    expected: tuple[str, bool],
    source: str,
) -> None:
    """With the keys of NoobAI-XL, which ComfyUI reads (comfy/supported_models.py, SDXL.model_type)."""
    model = changed(sdxl_folder, tmp_path / "v", prediction_type="v_prediction", **scheduler)
    file = tmp_path / "v.safetensors"
    write_single_file(model, file, torch.float32, metadata)
    if drop:
        save_file({name: tensor for name, tensor in load_file(file).items() if name not in drop}, file, metadata)
    loaded = load(XL, file, family_options={"layout": str(sdxl_folder)})
    assert (loaded.prediction, loaded.zero_terminal_snr) == expected
    assert (loaded.sample_transform.alphas_cumprod[-1] == 0) == expected[1]
    (note,) = notes(XL, file, sdxl_folder)
    assert source in note
    assert ("v (velocity)" in note, "zero terminal SNR" in note) == (expected[0] == "v_prediction", expected[1])
    if not drop:  # as the folder that the file was made of
        original = load(XL, model)
        torch.testing.assert_close(loaded.loss(batch(loaded)), original.loss(batch(original)), rtol=0, atol=0)
        assert still(loaded, REQUEST).tobytes() == still(original, REQUEST).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "folder"), [(SD, "sd_folder"), (XL, "sdxl_folder")])
def test_what_a_run_writes_is_read_back(
    family: str, folder: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    base: Path = request.getfixturevalue(folder)
    options = {"prediction_type": "v_prediction", "zero_terminal_snr": True}
    trained = load(family, base, family_options=options)
    trained.export(trained.model.state_dict(), tmp_path / "model")
    write_single_file(tmp_path / "model", tmp_path / "model.safetensors", torch.float32, {})
    for again in (
        load(family, tmp_path / "model"),
        load(family, tmp_path / "model.safetensors", family_options={"layout": str(base)}),
    ):
        assert (again.prediction, again.zero_terminal_snr) == ("v_prediction", True)
        assert still(again, REQUEST).tobytes() == still(trained, REQUEST).tobytes()


@pytest.mark.slow
def test_a_saved_scheduler_keeps_zero_terminal_snr(sd_folder: Path, tmp_path: Path) -> None:
    """PNDM, the scheduler of Stable Diffusion 1, knows no such setting and would drop it."""
    base = changed(sd_folder, tmp_path / "base", _class_name="PNDMScheduler", skip_prk_steps=True)
    options = {"prediction_type": "v_prediction", "zero_terminal_snr": True, "sample_scheduler": "ddim"}
    trained = load(SD, base, family_options=options)
    trained.export(trained.model.state_dict(), tmp_path / "model")
    again = load(SD, tmp_path / "model")
    assert (again.prediction, again.zero_terminal_snr) == ("v_prediction", True)
    assert again.components.scheduler["_class_name"] == "DDIMScheduler"


def test_samples_need_a_scheduler_for_the_models_schedule(sd_folder: Path, tmp_path: Path) -> None:
    model = changed(sd_folder, tmp_path / "v", prediction_type="v_prediction", **ZERO_SNR)
    with pytest.raises(ConfigError, match=r"sample_scheduler is 'pndm'.*zero terminal SNR.*Choose ddim"):
        load(SD, model, family_options={"sample_scheduler": "pndm"})
    with pytest.raises(ConfigError, match=r"prediction_type is epsilon.*pure noise.*auto or v_prediction"):
        load(SD, model, family_options={"prediction_type": "epsilon"})


def test_a_model_of_other_noise_levels_is_refused(sdxl_folder: Path, tmp_path: Path) -> None:
    """CosXL: comfy/supported_models.py takes edm_vpred.sigma_max for ModelType.V_PREDICTION_EDM."""
    file = tmp_path / "cosxl.safetensors"
    write_single_file(sdxl_folder, file, torch.float32, {})
    save_file(load_file(file) | {"edm_vpred.sigma_max": torch.tensor(120.0)}, file)
    with pytest.raises(ConfigError, match=r"EDM's noise levels.*not supported"):
        load(XL, file, family_options={"layout": str(sdxl_folder)})


@pytest.mark.parametrize(
    ("names", "metadata", "expected"),
    [
        ((), {}, None),
        ((), {"modelspec.architecture": "stable-diffusion-v2-768-v"}, ("v_prediction", False)),
        ((), {"modelspec.architecture": "stable-diffusion-v2-512/lora"}, ("epsilon", False)),
        ((), {"modelspec.architecture": "stable-diffusion-xl-v1-base"}, None),
        (("ztsnr",), {"modelspec.prediction_type": "v"}, ("v_prediction", True)),
        (("ztsnr",), {}, None),
    ],
)
def test_names_and_headers(names: tuple[str, ...], metadata: dict[str, str], expected: tuple[str, bool] | None) -> None:
    found = declared_schedule(names, metadata)
    assert (None if found is None else (found.prediction, found.zero_terminal_snr)) == expected


@pytest.mark.parametrize(
    ("spread", "channels", "expected"), [(0.0901, 4, "v_prediction"), (0.0899, 4, "epsilon"), (0.0901, 9, "epsilon")]
)
def test_the_variants_of_stable_diffusion_2(spread: float, channels: int, expected: str) -> None:
    """The sign and the threshold of ComfyUI: comfy/supported_models.py, SD20.model_type."""
    unet = "model.diffusion_model."
    tensors: dict[str, Any] = {
        "cond_stage_model.model.ln_final.bias": torch.zeros(1),
        unet + "input_blocks.0.0.weight": torch.zeros(2, channels, 3, 3),
        unet + "output_blocks.11.1.transformer_blocks.0.norm1.bias": torch.tensor([spread, -spread]),
    }
    found = measured_schedule(tensors, tensors.__getitem__)
    assert found is not None
    assert (found.prediction, found.zero_terminal_snr) == (expected, False)
    del tensors["cond_stage_model.model.ln_final.bias"]  # Stable Diffusion 1
    assert measured_schedule(tensors, tensors.__getitem__) is None


def test_notes_say_what_is_found_and_where(sd_folder: Path, tmp_path: Path) -> None:
    assert notes(SD, sd_folder) == [
        "The base model predicts epsilon (the noise), according to its scheduler_config.json."
    ]
    model = changed(sd_folder, tmp_path / "v", prediction_type="v_prediction", **ZERO_SNR)
    assert notes(SD, model) == [
        "The base model predicts v (velocity), with zero terminal SNR, according to its scheduler_config.json."
    ]
    assert notes(SD, sd_folder, prediction_type="v_prediction") == [
        "The base model predicts v (velocity), according to family_options.prediction_type."
    ]
    assert family_class("pixel_diffusion").base_model_notes(TrainConfig()) == []


def test_the_dry_run_shows_them(
    sd_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (64, 64)).save(tmp_path / "cat.png")
    given = {"family": SD, "base_model": str(sd_folder), "resolution": 64, "concepts": [{"path": str(tmp_path)}]}
    (tmp_path / "config.json").write_text(json.dumps(given))
    options = parser().parse_args(["--config", "config.json", "--dry_run"])
    assert dry_run(TrainConfig.model_validate(given), options) == 0
    assert "Note: The base model predicts epsilon (the noise), according to its" in capsys.readouterr().out


def test_a_format_that_a_frozen_text_encoder_does_not_have_is_noted(sd_folder: Path) -> None:
    given = {"family": SD, "base_model": str(sd_folder), "method": "lora"}
    for weights, train, noted in (("int8", False, True), ("bf16", False, False), ("int8", True, False)):
        parts = [{"part": "unet"}, {"part": "text_encoder", "train": train, "weights": weights}]
        config = TrainConfig.model_validate({**given, "precision": "bf16", "parts": parts})
        said = [note for note in family_class(SD).base_model_notes(config) if "has no effect" in note]
        assert bool(said) is noted
