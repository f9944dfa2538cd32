"""`lora_from`: training continues a LoRA file of any layout, and resumes as every run does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from modules.checkpoint import read_model_config
from modules.checkpoint.formats import read_lora, write_single_file
from modules.config import ConfigError, TrainConfig
from modules.training.device.precision import Precision
from modules.training.memory.model_setup import check_available, load_family, prepare_model
from modules.training.methods.lora import adapter_names
from modules.training.methods.lora_files import expected_file_limits, file_limits
from modules.training.methods.method import export_of, method_summary
from scripts.sample import main as generate_images
from tests.adapted_models import BOTH, LORA, batch_of, ready, train_a_little
from tests.families.tiny_pipelines import tiny_sd
from tests.runs import same_state, tiny_config, train_alone

# What the file decides is set otherwise here.
OTHER = {**LORA, "parts": BOTH, "lora_rank": 7, "lora_alpha": 1.0, "lora_targets": "attention"}


def trained_file(folder: Path, **settings: object) -> tuple[Path, torch.Tensor]:
    """The folder of a LoRA after a few steps, and the loss of the model with it."""
    family, config = ready(**{**LORA, "parts": BOTH, "learning_rate": 0.05, **settings})
    weights = train_a_little(family, config)
    folder.mkdir(exist_ok=True)
    export_of(family, weights, config, {})(folder)
    return folder / "pytorch_lora_weights.safetensors", batch_of(3, family)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lora_weight_decompose": True},
        {"lora_conv_rank": 1, "lora_conv_alpha": 5.0, "lora_alpha": 0.5},
    ],
)
def test_training_starts_from_the_model_with_the_lora(settings: dict[str, object], tmp_path: Path) -> None:
    file, loss = trained_file(tmp_path / "first", **settings)
    family, config = ready(**OTHER, lora_from=str(file), learning_rate=0.05)
    assert (batch_of(3, family) - loss).abs() <= 1e-7
    (tmp_path / "again").mkdir()
    weights = train_a_little(family, config, steps=0)
    export_of(family, weights, config, {})(tmp_path / "again")
    before, after = load_file(file), load_file(tmp_path / "again" / file.name)
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    names = adapter_names(family)
    assert [one.alpha for one in read_lora(file, names)] == [one.alpha for one in read_lora(tmp_path / "again", names)]
    expected = "DoRA" if settings.get("lora_weight_decompose") else "LoRA"
    summary = method_summary(family, config, weights)
    assert summary.startswith(f"{expected} of rank 3 and alpha {settings.get('lora_alpha', 2.0):g} in 8 layers")
    assert "which decides rank, alpha, layers and DoRA" in summary


@pytest.mark.slow
def test_a_resumed_run_ends_in_the_same_bits(images: Path, tmp_path: Path) -> None:
    file, _ = trained_file(tmp_path / "first")
    settings = {**OTHER, "lora_from": str(file), "max_steps": 4, "batch_size": 8, "backup_every": "2 steps"}
    settings |= {"backups_kept": 9}
    code, whole = train_alone(tiny_config(images, tmp_path / "whole", **settings))
    assert code == 0, whole.failure(0)
    backup = str(whole.folder.backup_dir / "step-000002")
    moved = file.rename(tmp_path / "moved.safetensors")
    code, again = train_alone(tiny_config(images, tmp_path / "again", **{**settings, "lora_from": str(moved)}), backup)
    assert code == 0, again.failure(0)
    assert same_state(again.state, whole.state)
    # tandem.json needs no path of the file to apply the result
    assert read_model_config(whole.folder.model_dir).lora_from is None

    other, _ = trained_file(tmp_path / "other", lora_alpha=1.0)
    for changed in (str(other), None):
        code, refused = train_alone(tiny_config(images, tmp_path / "no", **{**settings, "lora_from": changed}), backup)
        assert code == 2
        assert "resume: lora_from is" in refused.failure(0)


def test_what_no_lora_holds_is_left_out_and_named_if_one_asks_for_it(tmp_path: Path) -> None:
    file, _ = trained_file(tmp_path / "both")
    more = tmp_path / "more.safetensors"
    save_file({**load_file(file), "unet.first.norm_bias": torch.ones(2)}, more)
    with pytest.raises(ConfigError, match=r"norm_bias.*does not belong to a LoRA.*") as error:
        ready(**{**OTHER, "lora_from": str(more)})
    assert "lora_from_skip_unread" in str(error.value)
    family, config = ready(**{**OTHER, "lora_from": str(more), "lora_from_skip_unread": True})
    summary = method_summary(family, config, train_a_little(family, config))
    assert summary.endswith("One tensor is left out: unet.first.norm_bias.")


def test_a_file_that_cannot_be_continued_is_refused(tmp_path: Path) -> None:
    file, _ = trained_file(tmp_path / "both")
    one, _ = trained_file(tmp_path / "one", parts=[{"part": "unet"}])
    wide, _ = trained_file(tmp_path / "wide", family_options={"width": 8})
    pickled, loha = tmp_path / "lora.pt", tmp_path / "loha.safetensors"
    pickled.write_bytes(b"PK\x03\x04" + bytes(99))
    save_file({"lora_unet_first.hada_w1_a": torch.ones(2, 2)}, loha)
    cases = {
        (file, "unet"): "has layers of text_encoder, which parts does not train. Add text_encoder to parts",
        (one, "both"): "has no layers of text_encoder, which parts trains. Remove text_encoder from parts",
        (wide, "both"): "but the base model has one of the shape [6",
        (pickled, "both"): "is a pickle",
        (loha, "both"): "is a LoHa, but lora_algorithm is 'lora'",
        (tmp_path / "none.safetensors", "both"): "There is no file",
        (tmp_path, "both"): "is a folder without a LoRA",
    }
    for (given, parts), words in cases.items():
        chosen = {"parts": BOTH if parts == "both" else [{"part": "unet"}]}
        with pytest.raises(ConfigError, match=r"^lora_from: ") as error:
            ready(**{**OTHER, **chosen, "lora_from": str(given)})
        assert words in str(error.value)


def test_a_dry_run_finds_a_missing_file_and_another_method(tmp_path: Path) -> None:
    _, config = ready(**LORA)
    with pytest.raises(ConfigError, match=r"lora_from: There is no file"):
        check_available(config.model_copy(update={"lora_from": str(tmp_path / "x.safetensors")}))
    with pytest.raises(ConfigError, match=r"method is 'fine_tune'; only method lora continues a LoRA"):
        check_available(config.model_copy(update={"lora_from": "x", "method": "fine_tune"}))


def test_sample_draws_with_any_base_model_and_any_lora(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The image is that of the base model at strength 0, and another at 1; text encoders count."""
    base, lora = tiny_sd(tmp_path / "sd"), tmp_path / "lora.safetensors"
    stem = "text_encoder.text_model.encoder.layers.0.self_attn.to_q_lora"  # of an old script of diffusers
    save_file({f"{stem}.{half}.weight": torch.randn(16, 16) for half in ("up", "down")}, lora)
    images = {}
    for scale in ("0", "1"):
        out = tmp_path / scale
        command = ["--model", str(base), "--prompt", "red disc", "--steps", "2", "--width", "64", "--height", "64"]
        assert generate_images([*command, "--out", str(out), "--lora", str(lora), "--lora_scale", scale]) == 0
        images[scale] = (out / "sample-00.png").read_bytes()
    assert images["0"] != images["1"]
    assert b"lora.safetensors:1" in images["1"]
    assert str(tmp_path / "lora").encode() not in images["1"]
    # without a LoRA, the same image from the folder and from the single file
    write_single_file(base, tmp_path / "sd.safetensors", torch.float32, {})
    for model, more in ((base, []), (tmp_path / "sd.safetensors", ["--layout", str(base)])):
        command[1] = str(model)
        assert generate_images([*command, *more, "--out", str(tmp_path / f"of-{model.name}")]) == 0, (
            capsys.readouterr().err
        )
        drawn = Image.open(tmp_path / f"of-{model.name}" / "sample-00.png").tobytes()
        assert drawn == Image.open(tmp_path / "0" / "sample-00.png").tobytes()
    assert generate_images(["--model", str(lora), "--prompt", "x"]) == 2
    assert "is a LoRA" in capsys.readouterr().err
    assert generate_images(["--model", str(tmp_path / "sd" / "unet"), "--prompt", "x", "--lora", str(lora)]) != 0
    assert "it has no model_index.json" in capsys.readouterr().err
    assert generate_images(["--model", "owner/model", "--prompt", "x", "--lora", str(lora)]) != 0
    assert "Give --family" in capsys.readouterr().err


def test_a_lora_as_base_model_is_told_where_it_belongs(tmp_path: Path) -> None:
    stem = "unet.conv_in"
    folder = tmp_path / "model"
    folder.mkdir()
    pair = {f"{stem}.lora_A.weight": torch.ones(2, 4), f"{stem}.lora_B.weight": torch.ones(4, 2)}
    save_file(pair, folder / "pytorch_lora_weights.safetensors")
    for base in (folder, folder / "pytorch_lora_weights.safetensors"):
        config = TrainConfig(family="stable_diffusion", base_model=str(base))
        with pytest.raises(ConfigError, match=r"a LoRA.*as lora_from.*as scripts/sample\.py --lora"):
            load_family(config)


def limits(tmp_path: Path, **settings: object) -> list[str]:
    """What a run with these settings warns of, for a tiny Stable Diffusion."""
    base = str(tmp_path if (tmp_path / "unet").is_dir() else tiny_sd(tmp_path))
    config = TrainConfig.model_validate(
        {"family": "stable_diffusion", "base_model": base, "method": "lora", **settings}
    )
    family = load_family(config)
    prepare_model(family, config, Precision("fp32", torch.device("cpu")))
    found = file_limits(family, config)
    assert found == expected_file_limits(type(family), config)  # what --dry_run says
    return found


def test_what_other_programs_do_not_read_is_said_before_training(tmp_path: Path) -> None:
    """ComfyUI comfy/weight_adapter/base.py and lora.py; A1111 extensions-builtin/Lora/network.py."""
    assert limits(tmp_path, lora_rank=4, lora_alpha=4) == []
    assert limits(tmp_path, lora_rank=4, lora_alpha=1, lora_layouts="kohya") == []
    (alpha,) = limits(tmp_path, lora_rank=4, lora_alpha=1)
    assert "pytorch_lora_weights.safetensors has its alpha in the header" in alpha
    assert "set it to 0.25, or use lora_kohya.safetensors, which holds alpha for each layer" in alpha
    (alone,) = limits(tmp_path, lora_rank=4, lora_alpha=1, lora_layouts="diffusers")
    assert "or use lora_kohya.safetensors (lora_layouts both writes it), which" in alone
    (oft,) = limits(tmp_path, lora_algorithm="oft", lora_targets="attention", oft_block_size=2)
    assert "merge it into the model (scripts/convert.py --merge); from the merged model --extract makes" in oft
    (dora,) = limits(tmp_path, lora_rank=4, lora_alpha=4, lora_weight_decompose=True)
    assert dora.startswith("lora_kohya.safetensors is a DoRA")
    assert limits(tmp_path, lora_rank=4, lora_alpha=4, lora_weight_decompose=True, lora_layouts="diffusers") == []
