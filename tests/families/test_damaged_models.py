"""Malformed files of a model's folder: one sentence that names the file, and exit code 2, whatever reads it.

`torture.py folders` feeds mutants of every such file; these are the ones that once ended otherwise, or would be read
from elsewhere.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPTextModel, Qwen3Model

from modules.annotators import caption
from modules.annotators.caption import Captioner
from modules.annotators.model_folder import model_folder
from modules.checkpoint.formats.conversion import folder_to_single_file
from modules.config import ConfigError, TandemError, TrainConfig
from modules.diffusion.base_model_files import check_small_files
from modules.diffusion.component_files import load_network
from modules.diffusion.components import load_components
from modules.diffusion.library_errors import damage_refused
from modules.families._by_name import family_class
from modules.training.loop.checks import startup_problems
from tests.annotators.tiny_models import tiny_blip
from tests.families.tiny_flow_pipelines import tiny_qwen_image_edit, tiny_z_image

ENCODERS = {"stable_diffusion": CLIPTextModel, "z_image": Qwen3Model}
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def z_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_z_image(tmp_path_factory.mktemp("damaged") / "z_image")


@pytest.fixture(scope="module")
def blip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_blip(tmp_path_factory.mktemp("damaged") / "blip")


def edited(folder: Path, copy: Path, name: str, change: Change) -> Path:
    """A copy of a model with one of its JSON files changed."""
    shutil.copytree(folder, copy)
    content = json.loads((copy / name).read_text())
    change(content)
    (copy / name).write_text(json.dumps(content))
    return copy


def with_unknown_key(folder: Path, copy: Path, name: str = "tokenizer/tokenizer.json") -> Path:
    return edited(folder, copy, name, lambda content: content.update(auto_map={}))


def training(family: str, folder: Path) -> TrainConfig:
    return TrainConfig.model_validate({"family": family, "base_model": str(folder), "method": "lora", "resolution": 64})


@pytest.mark.parametrize("family", ["stable_diffusion", "z_image"])
def test_a_tokenizer_that_no_library_reads_is_named(
    family: str, sd_folder: Path, z_image: Path, tmp_path: Path
) -> None:
    """Also before the start: the tokenizers are small enough to be loaded by `--dry_run`."""
    base = with_unknown_key(sd_folder if family == "stable_diffusion" else z_image, tmp_path / "model")
    sentence = r"base_model: tokenizer of the model in '.*' cannot be loaded \(tokenizer\.json\): .*Copy or download"
    config = training(family, base)
    with pytest.raises(ConfigError, match=sentence):
        family_class(family).load(config)
    (problem, *_) = startup_problems(config)
    assert problem.exit_code == 2
    assert "(tokenizer.json)" in str(problem)


def test_the_size_that_a_base_models_images_are_enlarged_to_is_limited(tmp_path: Path) -> None:
    """Before the start, and where a program skips what comes before."""
    tiny_qwen_image_edit(tmp_path / "model")
    config = training("qwen_image_edit", tmp_path / "model")
    family: Any = family_class("qwen_image_edit").load(config)
    file = tmp_path / "model" / "processor" / "preprocessor_config.json"
    large = {"size": {"shortest_edge": 4_000_000, "longest_edge": 12_845_056}}
    file.write_text(json.dumps(json.loads(file.read_text()) | large))
    sentence = r"base_model: '.*' asks for images of 4,000,000 pixels \(size.shortest_edge of its image processor\)"
    with pytest.raises(ConfigError, match=sentence):
        family.text_states("a disc", torch.device("cpu"), [Image.new("RGB", (32, 32))])
    (problem, *_) = startup_problems(config)
    assert "4,000,000 pixels" in str(problem)


def test_a_captioners_tokenizer_is_named(blip: Path, tmp_path: Path) -> None:
    folder = with_unknown_key(blip, tmp_path / "model", "tokenizer.json")
    found = model_folder(str(folder), "transformers", caption.MODEL_TYPES)
    with pytest.raises(
        ConfigError, match=r"--model: 'tiny' cannot be loaded \(tokenizer\.json\): Exception: .*Copy or"
    ):
        Captioner(found, torch.device("cpu"), torch.float32, prompt="", max_tokens=5, name="tiny")


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("vae/config.json", lambda config: config.update(scaling_factor={}), "vae/config.json of .* cannot be used"),
        ("transformer/config.json", lambda config: config.update(axes_lens=[1, "x", 64]), "transformer/config.json of"),
        ("scheduler/scheduler_config.json", lambda config: config.update(shift="x"), "scheduler"),
        ("scheduler/scheduler_config.json", lambda config: config.update(use_beta_sigmas=True), "scheduler_config"),
    ],
)
def test_values_that_cannot_be_used_name_their_file(
    name: str, change: Change, sentence: str, z_image: Path, tmp_path: Path
) -> None:
    base = edited(z_image, tmp_path / "model", name, change)
    kind, config = family_class("z_image"), training("z_image", base)
    first = kind.base_model_notes if name.startswith("transformer") else kind.load
    with pytest.raises(ConfigError, match=sentence):
        first(config)


@pytest.mark.parametrize(
    "chosen",
    [
        {"init_inputs": ["/etc/vocab.json"]},
        {"vocab": "/etc/vocab.json"},
        {"merges_file": "../merges.txt"},
        {"fast_tokenizer_files": ["../tokenizer.4.0.json"]},
        {"configuration_files": ["config.4.0/../../config.1.json"]},
        {"image_processor": {"repo_path": "owner/name", "class_info_file": "x.json"}},
        {"backbone_config": {"backbone": "owner/name"}},
        {"vision_config": {"architecture": "hf-hub:owner/name", "model_args": {}}},
        {"vision_config": {"model_args": {"checkpoint_path": "/etc/x.pth"}}},
        {"attn_implementation": "owner/kernel"},
    ],
)
def test_what_would_be_read_from_elsewhere_is_refused(chosen: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(chosen))
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json chooses (code|files) from elsewhere \("):
        check_small_files(tmp_path, [tmp_path], "base_model")


@pytest.mark.parametrize(
    "config",
    [
        {"extra_ids": 9007199254740993},
        {"text_config": {"num_hidden_layers": 10**9}},
        {"vision_config": {"depth": 9999}},
    ],
)
def test_what_would_be_built_for_ever_is_refused(config: dict[str, object], tmp_path: Path) -> None:
    """T5's tokenizer makes a text for each of its extra_ids."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json has \w+ \d+; the most is 1000"):
        check_small_files(tmp_path, [tmp_path], "base_model")


@pytest.mark.parametrize(("name", "value"), [("vocab_size", 10**11), ("intermediate_size", 10**9)])
def test_no_memory_is_taken_for_more_than_the_weights(
    name: str, value: int, sd_folder: Path, z_image: Path, blip: Path, tmp_path: Path
) -> None:
    """transformers fills what files lack: terabytes were asked for, or as much as the machine has."""
    described = r"its config\.json describes [\d,]{13,} numbers, but the weights have [\d,]{3,9} bytes\. Copy"
    for family, base in (("stable_diffusion", sd_folder), ("z_image", z_image)):
        folder = edited(
            base, tmp_path / family, "text_encoder/config.json", lambda config: config.update({name: value})
        )
        with pytest.raises(ConfigError, match=f"base_model: text_encoder of the model in '.*': {described}"):
            load_network(folder, "text_encoder", ENCODERS[family], torch.float32)
    layout = edited(
        sd_folder, tmp_path / "layout", "vae/config.json", lambda config: config.update(latent_channels=10**7)
    )
    folder_to_single_file(sd_folder, single := tmp_path / "a.safetensors", torch.float32)
    with pytest.raises(ConfigError, match=f"family_options.layout: vae of the model in '.*': {described}"):
        load_components(str(single), str(layout), family_class("stable_diffusion").facts)
    folder = edited(blip, tmp_path / "blip", "config.json", lambda config: config["text_config"].update({name: value}))
    with pytest.raises(ConfigError, match=f"--model: 'tiny': {described}"):
        Captioner(folder, torch.device("cpu"), torch.float32, prompt="", max_tokens=5, name="tiny")


def test_what_published_models_name_is_accepted(tmp_path: Path) -> None:
    published = {
        "init_inputs": [],
        "vocab": {"a": 1},
        "tokenizer_file": "/root/.cache/huggingface/tokenizer.json",  # which transformers ignores
        "special_tokens_map_file": "./special_tokens_map.json",
        "name_or_path": "owner/name",
        "auto_map": {"AutoTokenizer": ["tokenization.Own", None]},
        "fast_tokenizer_files": ["tokenizer.4.0.json", "tokenizer.json"],
        "vision_config": {"architecture": "vit_base_patch16_clip_224.openai", "backbone": "resnet50"},
        "attn_implementation": "sdpa",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(published))
    check_small_files(tmp_path, [tmp_path], "base_model")


def test_an_adapter_does_not_lead_to_another_model(sd_folder: Path, tmp_path: Path) -> None:
    """transformers would load the text encoder of the folder that it names."""
    base = shutil.copytree(sd_folder, tmp_path / "model")
    other = shutil.copytree(sd_folder, tmp_path / "other")
    (base / "text_encoder" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(other)}))
    with pytest.raises(ConfigError, match=r"text_encoder/adapter_config\.json makes libraries load the model"):
        family_class("stable_diffusion").load(training("stable_diffusion", base))


def test_only_what_a_library_raises_becomes_a_sentence() -> None:
    class PanicException(BaseException):
        """As Rust's, which cannot be imported."""

    with pytest.raises(ConfigError, match=r"^x: PanicException: overflow"), damage_refused("x"):
        raise PanicException("overflow\nstack")
    with pytest.raises(ConfigError, match=r"^x: ValueError: field 'a': it is no number"), damage_refused("x"):
        raise ValueError("field 'a':\n    it is no number\n")
    for other in (KeyboardInterrupt(), torch.OutOfMemoryError("of the device"), TandemError("ours")):
        with pytest.raises(type(other)), damage_refused("x"):
            raise other


@pytest.mark.parametrize(("family", "fixture"), [("stable_diffusion", "sd_folder"), ("z_image", "z_image")])
def test_an_autoencoder_that_is_not_finite_is_refused_before_anything_is_trained(
    family: str, fixture: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Training needs its encoder alone: with a decoder that is not finite, samples were black without a word."""
    name = "decoder.conv_out.weight"
    folder = shutil.copytree(
        request.getfixturevalue({"stable_diffusion": "sd_folder"}.get(family, family)), tmp_path / "model"
    )
    (file,) = (folder / "vae").glob("*.safetensors")
    tensors = load_file(file)
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    config = TrainConfig.model_validate({"family": family, "base_model": str(folder)})
    with pytest.raises(ConfigError, match=rf"weights of vae of .* not finite .* in '{name}'"):
        family_class(family).load_for_training(config)
