"""What flow-matching families say of models, LoRAs and captions that do not suit them, and what they keep in memory."""

from __future__ import annotations

import json
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from modules.checkpoint.formats import read_lora
from modules.config import ConfigError, TrainConfig, TrainingError
from modules.data.index.build import build_index
from modules.diffusion.quantized import QuantizedLinear
from modules.families._by_name import family_class
from modules.families._family import SampleRequest
from modules.families._find_family import find_family
from modules.training.data.dataset import check_sizes
from modules.training.methods.lora import adapter_names
from modules.training.step.finite_weights import encode_finite
from scripts.sample import main as generate_images
from tests.families.flow_checks import CAPTIONS, REQUEST, batch, example, load
from tests.families.stills import still
from tests.families.tiny_flow_pipelines import TINY
from tests.families.tiny_pipelines import tiny_sd
from tests.runs import tiny_config, train_alone


@pytest.fixture(scope="module")
def z_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TINY["z_image"](tmp_path_factory.mktemp("bad") / "z_image")


def test_a_base_of_another_family_names_the_right_one(z_image: Path, tmp_path: Path) -> None:
    assert find_family(str(z_image)) == "z_image"
    with pytest.raises(ConfigError, match=r"ZImagePipeline.*'flux'.*\s*Set family to z_image"):
        load("flux", z_image)
    with pytest.raises(ConfigError, match="Set family to stable_diffusion,"):
        load("z_image", tiny_sd(tmp_path / "sd"))


@pytest.mark.parametrize("entry", [["os", "system"], ["transformers", "pipeline"], ["diffusers", "UNet2DModel"], None])
def test_a_class_that_the_pipeline_cannot_use_is_refused(entry: object, z_image: Path, tmp_path: Path) -> None:
    shutil.copytree(z_image, tmp_path / "model")
    index = json.loads((tmp_path / "model" / "model_index.json").read_text())
    index["text_encoder"] = entry
    (tmp_path / "model" / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match="as its text_encoder"):
        load("z_image", tmp_path / "model")


def test_a_lora_of_another_model_is_refused(z_image: Path, tmp_path: Path) -> None:
    family = load("z_image", z_image)
    file = tmp_path / "sdxl.safetensors"
    matrices = {f"unet.mid_block.to_q.lora_{side}.weight": torch.zeros(2, 2) for side in "AB"}
    save_file(matrices, file)
    with pytest.raises(ConfigError, match="LoRA of another model"):
        read_lora(file, adapter_names(family))


def test_captions_that_are_too_long_are_counted(z_image: Path) -> None:
    family = load("z_image", z_image, family_options={"max_caption_tokens": 64})
    warnings = family.prompt_warnings([*CAPTIONS, "a long one " * 20, "another long one " * 20])
    assert len(warnings) == 1
    assert warnings[0].startswith("2 texts are longer than 64 tokens and truncated, for example 'a long one")


def test_text_encoders_leave_memory_once_captions_are_cached(z_image: Path) -> None:
    family = load("z_image", z_image)
    family.expected_requests = [replace(REQUEST, prompt=CAPTIONS[0])]
    short, long = family.encode_captions(["cat", CAPTIONS[0]], 2)
    assert len(short["prompt.states"]) < len(long["prompt.states"])  # nothing is padded
    assert family._text_pipeline is not None
    encoder = weakref.ref(family._text_pipeline.text_encoder)
    family.offload_frozen()
    assert family._text_pipeline is None
    assert encoder() is None, "something else keeps it in memory"
    with torch.autocast("cpu", torch.bfloat16):  # as samples are drawn
        family._prompts(family.expected_requests[0], torch.device("cpu"))  # known
    assert family._text_pipeline is None
    half = load("z_image", z_image, precision="bf16")
    assert half.encode_captions(["cat"], 1)[0]["prompt.states"].dtype == torch.bfloat16
    assert batch(half, "z_image").tensors["prompt.states"].dtype == torch.bfloat16


def test_a_quantised_text_encoder_encodes_nearly_the_same(z_image: Path) -> None:
    states, kept = {}, {}
    for weights in ("run", "int8", "nf4"):
        family = load("z_image", z_image, family_options={"text_encoder_weights": weights})
        states[weights] = family.encode_captions(CAPTIONS[:1], 1)[0]["prompt.states"]
        kept[weights] = family.text_fingerprint()
        layers = family._text_pipeline.text_encoder.modules()
        assert any(isinstance(layer, QuantizedLinear) for layer in layers) is (weights != "run")
    assert len(set(kept.values())) == 3, "captions are encoded anew"
    scale = states["run"].abs().mean()
    distance = {weights: ((own - states["run"]).abs().mean() / scale).item() for weights, own in states.items()}
    assert 0 < distance["int8"] < 0.03
    assert distance["int8"] < distance["nf4"] < 0.4


def test_training_images_beyond_the_positions_of_the_model_are_refused(tmp_path: Path) -> None:
    """Before anything is loaded, and of wide images before they are encoded."""
    base = TINY["stable_diffusion_3"](tmp_path / "model")
    Image.new("RGB", (400, 100)).save(tmp_path / "wide.png")
    Image.new("RGB", (100, 100)).save(tmp_path / "square.png")
    config = TrainConfig.model_validate(
        {
            "family": "stable_diffusion_3",
            "base_model": str(base),
            "resolution": 272,
            "concepts": [{"path": str(tmp_path)}],
        }
    )
    kind = family_class("stable_diffusion_3")
    with pytest.raises(ConfigError, match=r"resolution is 272, but the positions of .* cover 256 pixels"):
        kind.base_model_notes(config)
    config = config.model_copy(update={"resolution": 192})
    assert kind.base_model_notes(config) == []
    index = build_index(config, 0, 16, tmp_path / "cache")
    with pytest.raises(ConfigError, match=r"1 of 2 images .* such as 384x96 pixels.*\s*.*at most 128"):
        check_sizes(config, 256, index)
    check_sizes(config, 384, index)


@pytest.mark.parametrize("name", ["z_image", "stable_diffusion_3"])
def test_a_sample_beyond_the_positions_of_the_model_is_refused(name: str, tmp_path: Path) -> None:
    family = load(name, TINY[name](tmp_path / "model"))
    longest = family.longest_side()
    assert longest is not None
    with pytest.raises(ConfigError, match=f"{longest + 16}x16.* use width and height of at most {longest}"):
        family.sample(SampleRequest("a disc", "", longest + 16, 16, 1, 1.0, 0))
    assert still(family, SampleRequest("a disc", "", longest, 16, 1, 1.0, 0)).size == (longest, 16)


def test_weights_that_are_not_finite_are_named(
    z_image: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, folder = "layers.0.attention.to_q.weight", shutil.copytree(z_image, tmp_path / "model")
    (file,) = (folder / "transformer").glob("*.safetensors")
    tensors = load_file(file)
    tensors[name].view(-1)[-1] = float("inf")
    save_file(tensors, file, metadata={"format": "pt"})
    settings: dict[str, object] = {"family": "z_image", "base_model": str(folder), "method": "lora", "max_steps": 1}
    (tmp_path / "images").mkdir()
    for each in sorted(images.iterdir())[:4]:
        shutil.copy(each, tmp_path / "images")
    settings |= {"resolution": 64, "parts": [{"part": "transformer", "weights": "int8"}]}
    code, run = train_alone(tiny_config(tmp_path / "images", tmp_path, **settings))
    assert code == 3
    sentence = f"not finite (NaN or infinity) in 'transformer.{name}', so nothing can be computed"
    assert sentence in run.failure(0)
    assert generate_images(["--model", str(folder), "--prompt", "x", "--out", str(tmp_path / "samples")]) != 0
    assert sentence in capsys.readouterr().err


def test_what_cannot_be_encoded_is_not_cached(z_image: Path) -> None:
    family = load("z_image", z_image)
    config = TrainConfig.model_validate({"family": "z_image", "base_model": str(z_image)})
    assert encode_finite(config, family, family.encode_batch, [example("z_image", 0)], 1)
    family.components.vae.encoder.conv_in.bias.data[0] = float("nan")
    with pytest.raises(TrainingError, match=r"not finite .* in 'vae.encoder.conv_in.bias', so nothing"):
        encode_finite(config, family, family.encode_batch, [example("z_image", 0)], 1)


def test_a_text_encoder_that_is_not_finite_is_named_before_it_reads_captions(z_image: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(z_image, tmp_path / "model")
    (file,) = (folder / "text_encoder").glob("*.safetensors")
    tensors = load_file(file)
    tensors["embed_tokens.weight"][0, 0] = torch.nan  # of a token that no caption has
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"weights of text_encoder of .* not finite .* in 'embed_tokens\.weight'"):
        load("z_image", folder).encode_captions(["cat"], 1)


@pytest.mark.parametrize(
    ("name", "original"), [("Tongyi-MAI/Z-Image-Turbo@main", "Tongyi-MAI/Z-Image"), ("Tongyi-MAI/Z-Image", None)]
)
def test_a_model_for_few_steps_is_told_from_the_one_to_train(name: str, original: str | None) -> None:
    config = TrainConfig.model_validate({"family": "z_image", "base_model": name, "method": "lora"})
    notes = family_class("z_image").base_model_notes(config)
    assert [f"Train {original} instead" in note for note in notes] == ([True] if original else [])
