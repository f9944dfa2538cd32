"""Text encoders in files of their own: the same as in the folder of the model, and messages on wrong ones."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from modules.config import ConfigError, TrainConfig
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.families._by_name import family_class
from tests.families.tiny_flow_pipelines import TINY

CPU = torch.device("cpu")
# family -> its encoders, with the nesting of their tensors in files of ComfyUI
ENCODERS: Mapping[str, Mapping[str, str]] = {
    "flux": {"text_encoder": "text_model.", "text_encoder_2": ""},
    "stable_diffusion_3": {"text_encoder": "text_model.", "text_encoder_2": "text_model.", "text_encoder_3": ""},
    "z_image": {"text_encoder": "model."},
    "qwen_image": {"text_encoder": "model."},
}
NESTED = re.compile(r"^(model\.|language_model\.|text_model\.)+")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny pipeline."""
    place = tmp_path_factory.mktemp("tiny")

    def made(family: str) -> Path:
        if not (place / family).exists():
            with quiet_libraries():
                TINY[family](place / family)
        return place / family

    return made


def encoder_tensors(folder: Path, name: str, nesting: str) -> dict[str, Tensor]:
    """As ComfyUI names them, without what sees images."""
    (file,) = (folder / name).glob("*.safetensors")
    bare = {NESTED.sub("", key): tensor.bfloat16() for key, tensor in load_file(file).items()}
    return {nesting + key: tensor for key, tensor in bare.items() if not key.startswith(("visual.", "lm_head."))}


def bare_model(folder: Path, place: Path, family: str) -> Path:
    """A copy of the model without the weights of its text encoders."""
    bare = shutil.copytree(folder, place)
    for name in ENCODERS[family]:
        for file in (bare / name).glob("*.safetensors"):
            file.unlink()
    return bare


def config_of(family: str, base: Path, files: list[Path]) -> TrainConfig:
    options = {"text_encoder_files": ", ".join(map(str, files))}
    settings = {"base_model": str(base), "resolution": 64, "family_options": options}
    return TrainConfig.model_validate({"family": family, **settings})


def same_encoders(loaded: Any, whole: Any, tolerance: float = 0.0) -> None:
    """Of two models, with bf16 weights."""
    ours, theirs = (each.components.load_encoders(torch.bfloat16, CPU) for each in (loaded, whole))
    for name, encoder in theirs.items():
        found = ours[name].state_dict()
        assert found.keys() == encoder.state_dict().keys()
        for key, tensor in encoder.state_dict().items():
            if "visual" not in key and "lm_head" not in key:
                limit = tolerance * float(tensor.abs().max())
                torch.testing.assert_close(found[key].float(), tensor.bfloat16().float(), rtol=0, atol=limit)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "form"), [*zip(ENCODERS, ("bf16", "fp8", "fp8", "bf16"), strict=True)])
def test_files_are_the_encoders_of_the_folder(family: str, form: str, tiny: Any, tmp_path: Path) -> None:
    folder = tiny(family)
    files = []
    for name, nesting in ENCODERS[family].items():
        tensors: dict[str, Tensor] = {"logit_scale": torch.ones(()), "spiece_model": torch.ones(3, dtype=torch.uint8)}
        for key, tensor in encoder_tensors(folder, name, nesting).items():
            tensors[key] = tensor
            if form == "fp8" and tensor.dim() == 2 and "embed" not in key:
                scale = tensor.float().abs().amax() / 448
                tensors[key] = (tensor.float() / scale).to(torch.float8_e4m3fn)
                tensors[key.removesuffix("weight") + "scale_weight"] = scale
        files.append(tmp_path / f"{name}.safetensors")
        save_file(tensors, files[-1])
    bare = bare_model(folder, tmp_path / "bare", family)
    config = config_of(family, bare, files)
    notes = family_class(family).base_model_notes(config)
    assert notes == [f"base_model: {name} comes from {name}.safetensors." for name in ENCODERS[family]]
    family_class(family).check_small_parts(config)
    assert {each.name for each in family_class(family).frozen_networks(config)} >= ENCODERS[family].keys()
    loaded: Any = family_class(family).load_for_training(config)
    whole: Any = family_class(family).load_for_training(config_of(family, folder, []))
    same_encoders(loaded, whole, 0.07 if form == "fp8" else 0.0)
    assert loaded.components.encoders_fingerprint() != whole.components.encoders_fingerprint()
    if family == "flux" and form == "bf16":
        loaded.export(loaded.model.state_dict(), tmp_path / "model")
        same_encoders(family_class(family).load_for_training(config_of(family, tmp_path / "model", [])), whole)


T5_NAMES = {
    r"encoder\.block\.(\d+)\.layer\.0\.SelfAttention\.([qkvo])\.": r"enc.blk.\1.attn_\2.",
    r"encoder\.block\.(\d+)\.layer\.0\.SelfAttention\.relative_attention_bias\.": r"enc.blk.\1.attn_rel_b.",
    r"encoder\.block\.(\d+)\.layer\.0\.layer_norm\.": r"enc.blk.\1.attn_norm.",
    r"encoder\.block\.(\d+)\.layer\.1\.DenseReluDense\.wi_0\.": r"enc.blk.\1.ffn_gate.",
    r"encoder\.block\.(\d+)\.layer\.1\.DenseReluDense\.wi_1\.": r"enc.blk.\1.ffn_up.",
    r"encoder\.block\.(\d+)\.layer\.1\.DenseReluDense\.wo\.": r"enc.blk.\1.ffn_down.",
    r"encoder\.block\.(\d+)\.layer\.1\.layer_norm\.": r"enc.blk.\1.ffn_norm.",
    r"encoder\.final_layer_norm\.": "enc.output_norm.",
    r"shared\.": "token_embd.",
}
QWEN_NAMES = {
    r"layers\.(\d+)\.self_attn\.([qkv])_proj\.": r"blk.\1.attn_\2.",
    r"layers\.(\d+)\.self_attn\.o_proj\.": r"blk.\1.attn_output.",
    r"layers\.(\d+)\.self_attn\.([qk])_norm\.": r"blk.\1.attn_\2_norm.",
    r"layers\.(\d+)\.mlp\.(gate|up|down)_proj\.": r"blk.\1.ffn_\2.",
    r"layers\.(\d+)\.input_layernorm\.": r"blk.\1.attn_norm.",
    r"layers\.(\d+)\.post_attention_layernorm\.": r"blk.\1.ffn_norm.",
    r"embed_tokens\.": "token_embd.",
    r"^norm\.": "output_norm.",
}


@pytest.mark.parametrize(
    ("family", "name", "names"),
    [
        ("flux", "text_encoder_2", T5_NAMES),
        ("z_image", "text_encoder", QWEN_NAMES),
        ("qwen_image", "text_encoder", QWEN_NAMES),
        ("lumina2", "text_encoder", QWEN_NAMES),
    ],
)
def test_gguf_has_the_names_of_llama_cpp(
    family: str, name: str, names: Mapping[str, str], tiny: Any, tmp_path: Path
) -> None:
    gguf = pytest.importorskip("gguf")
    folder = tiny(family)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "t5")
    for key, tensor in encoder_tensors(folder, name, "").items():
        for ours, theirs in names.items():
            key = re.sub(ours, theirs, key)
        if not key.startswith("encoder.embed_tokens"):  # T5's second name of `shared`
            writer.add_tensor(key, gguf.quants.quantize(tensor.float().numpy(), gguf.GGMLQuantizationType.F32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = config_of(family, folder, [tmp_path / "x.gguf"])
    if family == "lumina2":  # whose Gemma's norms llama.cpp changes
        with pytest.raises(ConfigError, match="reads the text encoders T5 and Qwen, and not gemma2"):
            family_class(family).check_small_parts(config)
        return
    family_class(family).check_small_parts(config)
    loaded: Any = family_class(family).load_for_training(config)
    same_encoders(loaded, family_class(family).load_for_training(config_of(family, folder, [])))


def test_wrong_files_are_named(tiny: Any, tmp_path: Path) -> None:
    folder = tiny("flux")
    t5 = encoder_tensors(folder, "text_encoder_2", "")
    file, other = tmp_path / "t5.safetensors", tmp_path / "other.safetensors"
    save_file(t5, file)
    save_file({"x": torch.ones(1)}, other)

    def refused(files: list[Path], words: str) -> None:
        with pytest.raises(ConfigError, match=f"^family_options.text_encoder_files: .*{words}"):
            family_class("flux").check_small_parts(config_of("flux", folder, files))

    refused([other], "other.safetensors' is none of this family's")
    refused([file, file], "is text_encoder_2, as is .*t5.safetensors'")
    refused([tmp_path / "none.safetensors"], "There is no file")
    first = next(key for key in t5 if key.endswith("wo.weight"))
    save_file({key: tensor for key, tensor in t5.items() if key != first}, file)
    refused([file], f"has no '{first}', which text_encoder_2 of the model .* needs")
    save_file({**t5, first: torch.ones(3, 3)}, file)
    refused([file], rf"'{first}' has the shape \[3, 3\] in float32, but text_encoder_2 .* requires")
    save_file({**t5, first.replace("block.0.", "block.9."): t5[first].clone()}, file)
    refused([file], "has no place")
