"""How the window describes a base model without loading it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UNet2DModel
from safetensors.torch import save_file

from app.base_model import inspect_base_model, other_family
from app.curves.noise_card import whole_path
from app.generate.run_models import inspect_model
from app.generate.settings import GenerateSettings, arguments
from app.runs.start_check import missing_for_training
from app.widgets import theme
from app.windows.chooser import _existing
from modules.config import TrainConfig
from modules.facts import all_facts
from tests.app.driver import Driver


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A folder as saved by diffusers."""
    folder = tmp_path / "model"
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    unet: Any = UNet2DModel(sample_size=8, block_out_channels=(32, 32), layers_per_block=1, **blocks)
    unet.save_pretrained(folder / "unet")
    scheduler: Any = FlowMatchEulerDiscreteScheduler()
    scheduler.save_pretrained(folder / "scheduler")
    index = {
        "_class_name": "SomePipeline",
        "_diffusers_version": "0.1",
        "unet": ["diffusers", "UNet2DModel"],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "safety_checker": [None, None],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def test_diffusers_folder_is_known_with_its_parts(pipeline: Path) -> None:
    assert inspect_base_model(str(pipeline)).description == "SomePipeline, with scheduler, unet."


def test_folder_of_another_family_is_named(tmp_path: Path, pipeline: Path) -> None:
    (pipeline / "model_index.json").write_text('{"_class_name": "StableDiffusionXLInpaintPipeline"}')
    wrong = other_family(inspect_base_model(str(pipeline)), "stable_diffusion")
    assert wrong.endswith("Stable Diffusion 1 and 2 does not train it: choose Stable Diffusion XL as the family.")
    config = TrainConfig.model_validate({"family": "stable_diffusion", "base_model": str(pipeline)})
    assert [fault.path for fault in missing_for_training(config, None, "").faults] == ["concepts", "base_model"]


def test_images_are_missed_before_anything_is_loaded(tmp_path: Path) -> None:
    for name in ("empty/below", "full"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "full" / "a.png").touch()

    def missing(*concepts: tuple[str, str]) -> list[tuple[str, str]]:
        given = [{"path": str(tmp_path / name), "kind": kind} for name, kind in concepts]
        config = TrainConfig.model_validate({"concepts": given})
        return [(fault.path, fault.sentence) for fault in missing_for_training(config, None, "").faults]

    none = "There are no images to train on: no folder for training has any."
    assert missing(("empty", "train")) == [("concepts.0.path", none)]
    assert missing(("full", "validation"), ("empty", "train")) == [("concepts.1.path", none)]
    assert missing(("empty", "train"), ("full", "train")) == []
    (tmp_path / "empty" / "below" / "a.PNG").touch()
    assert missing(("empty", "train")) == []
    (found,) = missing(("full", "train"), ("absent", "train"))
    assert found[0] == "concepts.1.path"
    assert "does not exist" in found[1]
    config = TrainConfig.model_validate({"concepts": [{"path": "s3://b/cats"}]})
    assert missing_for_training(config, None, "").faults == (), "the run downloads them"


def test_pipelines_are_those_of_the_families(tmp_path: Path) -> None:
    for family in all_facts():
        for name in all_facts()[family].pipelines:
            kind, _, mark = name.partition(" with ")
            (tmp_path / "model_index.json").write_text(
                json.dumps({"_class_name": kind} | ({mark: True} if mark else {}))
            )
            assert inspect_base_model(str(tmp_path)).family == family


def test_missing_parts_are_named(pipeline: Path) -> None:
    (pipeline / "scheduler" / "scheduler_config.json").unlink()
    for weights in (pipeline / "unet").glob("*.safetensors"):
        weights.unlink()
    assert inspect_base_model(str(pipeline)).error.endswith("incomplete: scheduler, unet.")


def test_damaged_index_and_an_empty_folder(pipeline: Path, tmp_path: Path) -> None:
    (pipeline / "model_index.json").write_text("{")
    assert "cannot be read" in inspect_base_model(str(pipeline)).error
    assert "no model_index.json" in inspect_base_model(str(tmp_path)).error


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cond_stage_model.transformer.text_model.x", "Stable Diffusion 1"),
        ("cond_stage_model.model.transformer.x", "Stable Diffusion 2"),
        ("conditioner.embedders.1.model.x", "Stable Diffusion XL"),
        ("double_blocks.0.img_mod.lin.x", "Transformer of FLUX.1 dev and schnell (family flux)"),
        (
            "layers.0.attention.qkv.x",
            "the other components come from Tongyi-MAI/Z-Image, unless others are chosen (Advanced).",
        ),
        ("something.else", "Unknown model type"),
    ],
)
def test_single_files_are_identified_by_tensor_names(tmp_path: Path, name: str, kind: str) -> None:
    save_file({name: torch.zeros(2)}, tmp_path / "model.safetensors")
    info = inspect_base_model(str(tmp_path / "model.safetensors"))
    assert kind in info.description
    assert other_family(info, info.family) == ""
    wrong = other_family(info, "chroma")
    assert ("Chroma does not train it: choose" in wrong) == bool(info.family)


def test_shards_and_gguf_are_identified_and_damaged_ones_explained(tmp_path: Path) -> None:
    name = "diffusion_model.layers.0.attention.qkv.weight"
    index, folder = tmp_path / "shards" / "x.safetensors.index.json", tmp_path / "shards"
    folder.mkdir()
    index.write_text(json.dumps({"weight_map": {name: "x-1.safetensors"}}))
    assert "x-1.safetensors cannot be read" in inspect_base_model(str(index)).error
    save_file({name: torch.zeros(2)}, folder / "x-1.safetensors")
    for path in (index, folder):
        assert inspect_base_model(str(path)).family == "z_image"
    head = b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, len(name)) + name.encode()
    head += struct.pack("<IQIQ", 1, 2, 0, 0)
    head += b"\0" * (-len(head) % 32)
    (tmp_path / "x.gguf").write_bytes(head + bytes(8))
    assert inspect_base_model(str(tmp_path / "x.gguf")).family == "z_image"
    (tmp_path / "x.gguf").write_bytes(head)
    assert "is damaged or truncated: " in inspect_base_model(str(tmp_path / "x.gguf")).error


def test_unusable_files_are_explained(tmp_path: Path) -> None:
    save_file({"unet.down.lora_A.weight": torch.zeros(2)}, tmp_path / "lora.safetensors")
    whole = tmp_path / "whole.safetensors"
    save_file({"x": torch.zeros(1000)}, whole)
    (tmp_path / "cut.safetensors").write_bytes(whole.read_bytes()[:-100])
    (tmp_path / "torn.safetensors").write_bytes(struct.pack("<Q", 50) + b"{")
    for name in ("model.ckpt", "notes.txt"):
        (tmp_path / name).touch()
    errors = {file.name: inspect_base_model(str(file)).error for file in tmp_path.iterdir()}
    assert "is a LoRA" in errors["lora.safetensors"]
    assert "truncated" in errors["cut.safetensors"]
    assert "truncated" in errors["torn.safetensors"]
    assert "pickle" in errors["model.ckpt"]
    assert "is not a model" in errors["notes.txt"]
    assert errors["whole.safetensors"] == ""


def test_what_a_foreign_folder_says_stays_short(tmp_path: Path) -> None:
    """A label with megabytes of text, or a header of as many, would stop the window for seconds."""
    names = {f"part-{number}\n": ["diffusers", "UNet2DModel"] for number in range(20_000)}
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "Some\x1bPipeline", **names}))
    error = inspect_base_model(str(tmp_path)).error
    assert error.startswith("Some\\x1bPipeline, but components are missing or incomplete: part-0\\n, ")
    assert len(error) < 1000
    header = b"{" + b" " * (33 << 20) + b"}"
    (tmp_path / "huge.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "damaged" in inspect_base_model(str(tmp_path / "huge.safetensors")).error


@pytest.mark.parametrize("name", ["~nobody-of-this-name/model", "x" * 300, "\0"])
def test_names_that_no_file_can_have(name: str) -> None:
    """A user that does not exist, and a name longer than a file system takes."""
    for inspect in (inspect_base_model, inspect_model):
        assert inspect(name).error
    assert whole_path({"base_model": name}, "base_model") == {}
    assert _existing(Path(name)) in (Path.cwd(), *Path.cwd().parents)
    settings = GenerateSettings(model="~nobody-of-this-name", prompt="x", folder="~nobody-of-this-name/out")
    assert "--out=~nobody-of-this-name/out" in arguments(settings, Path("events"))


def test_hub_ids_and_invalid_names() -> None:
    for name in ("owner/a-model", "owner/a-model@v1.0", "owner/a-model@refs/pr/1"):
        assert "Hugging Face model" in inspect_base_model(name).description
    assert "neither a file or folder" in inspect_base_model("nowhere/at/all").error


@pytest.mark.slow
def test_field_shows_the_model_type(driver: Driver, pipeline: Path) -> None:
    driver.search_and_type("base_model", str(pipeline))
    driver.wait(lambda: "SomePipeline" in driver.text(), "the kind of model")
    message = driver.field("base_model").message
    assert message.cget("fg") == theme.resolve(theme.MUTED), "a usable model is no warning"
    driver.search_and_type("base_model", "nowhere/at/all")
    driver.wait(lambda: "neither a file or folder" in driver.text(), "that it is missing")
    assert message.cget("fg") == theme.resolve(theme.WARN)
    (pipeline / "model_index.json").write_text('{"_class_name": "ZImagePipeline"}')
    driver.search_and_type("base_model", str(pipeline))
    driver.wait(lambda: "Pixel diffusion does not train it" in driver.text(), "another family")
    driver.search_and_type("family", "z_image")
    driver.wait(lambda: message.cget("fg") == theme.resolve(theme.MUTED), "that this family trains it")


def test_names_on_the_hub_that_are_known() -> None:
    said = inspect_base_model("black-forest-labs/FLUX.1-dev").description
    assert said == "FLUX.1 dev and schnell (family flux); it is downloaded when training starts."
    assert "Hugging Face" in inspect_base_model("someone/else").description
