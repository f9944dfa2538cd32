"""The layers that the presets of `lora_targets` choose in flow-matching transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.checkpoint.formats import LoraWeights, SafetensorsFile, read_lora, write_lora
from modules.config import TARGET_PRESETS, UNET_PRESETS, ConfigError, TrainConfig
from modules.diffusion.flow_pipeline import TransformerModel
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.distributed import Weights
from modules.families._by_name import family_class
from modules.families.flux import Flux
from modules.training.methods.lora import lora_targets
from modules.training.methods.lora_files import expected_file_limits
from modules.training.methods.method import export_of, prepare
from tests.families.flow_checks import load
from tests.families.tiny_flow_pipelines import TINY
from tests.training.methods.comfyui_keys import ENDS, comfyui_keys

with quiet_libraries():
    import diffusers

ONE_OF_EACH = {"num_layers": 1, "num_single_layers": 1}
SIZES: Mapping[str, Mapping[str, Any]] = {
    "ZImageTransformer2DModel": {"n_layers": 1, "n_refiner_layers": 1},
    "FluxTransformer2DModel": ONE_OF_EACH,
    "ChromaTransformer2DModel": ONE_OF_EACH,
    "Flux2Transformer2DModel": ONE_OF_EACH,
    "QwenImageTransformer2DModel": {"num_layers": 1},
    "SD3Transformer2DModel": {"num_layers": 2},
    "Krea2Transformer2DModel": {"num_layers": 1},
    "Lumina2Transformer2DModel": {"num_layers": 1, "num_refiner_layers": 1},
    "ErnieImageTransformer2DModel": {"num_layers": 1},
    "WanTransformer3DModel": {"num_layers": 1},
}
FAMILIES = {
    "ZImageTransformer2DModel": "z_image",
    "FluxTransformer2DModel": "flux",
    "ChromaTransformer2DModel": "chroma",
    "Flux2Transformer2DModel": "flux2",
    "QwenImageTransformer2DModel": "qwen_image",
    "SD3Transformer2DModel": "stable_diffusion_3",
    "Krea2Transformer2DModel": "krea2",
    "Lumina2Transformer2DModel": "lumina2",
    "ErnieImageTransformer2DModel": "ernie_image",
    "WanTransformer3DModel": "wan",
}
# Attention and feed-forward layers of each class, by what is left of a name without the number of its block.
BLOCKS = r"((single_)?transformer_)?blocks|layers|(noise|context)_refiner|text_fusion\.\w+_blocks"
JOINT = {"to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"}
FEED_FORWARD = {
    "ZImageTransformer2DModel": {"feed_forward.w1", "feed_forward.w2", "feed_forward.w3"},
    "FluxTransformer2DModel": {"net.0.proj", "net.2", "proj_mlp", "proj_out"},
    "ChromaTransformer2DModel": {"net.0.proj", "net.2", "proj_mlp", "proj_out"},
    "Flux2Transformer2DModel": {"linear_in", "linear_out"},
    "QwenImageTransformer2DModel": {"net.0.proj", "net.2"},
    "SD3Transformer2DModel": {"net.0.proj", "net.2"},
    "Krea2Transformer2DModel": {"ff.gate", "ff.up", "ff.down"},
    "Lumina2Transformer2DModel": {"feed_forward.linear_1", "feed_forward.linear_2", "feed_forward.linear_3"},
    "ErnieImageTransformer2DModel": {"mlp.gate_proj", "mlp.up_proj", "mlp.linear_fc2"},
    "WanTransformer3DModel": {"net.0.proj", "net.2"},
}


@pytest.mark.parametrize("kind", SIZES)
def test_presets_choose_what_their_names_say(kind: str) -> None:
    with quiet_libraries(), torch.device("meta"):
        model: Any = TransformerModel(getattr(diffusers, kind)(**SIZES[kind]))
    attention = _chosen(model, "attention")
    more = _chosen(model, "attention_mlp") - attention
    fused = {"to_qkv_mlp_proj", "attn.to_out"} if kind == "Flux2Transformer2DModel" else set()
    assert {_last(name, JOINT | fused) for name in attention} <= JOINT | fused
    assert fused <= {_last(name, JOINT | fused) for name in attention}
    assert {_last(name, FEED_FORWARD[kind]) for name in more} == FEED_FORWARD[kind]
    assert all(re.match(rf"transformer\.({BLOCKS})\.\d+\.", name) for name in attention | more)
    linear = _chosen(model, "all_linear")
    assert _chosen(model, "blocks") == {name for name in linear if re.match(rf"transformer\.({BLOCKS})\.\d+\.", name)}
    assert attention | more < linear


@pytest.mark.parametrize("targets", UNET_PRESETS)
def test_presets_of_a_unet_are_refused(targets: str) -> None:
    with torch.device("meta"):
        model: Any = torch.nn.ModuleDict({"transformer": torch.nn.ModuleDict({"mlp": torch.nn.Linear(2, 2)})})
    with pytest.raises(
        ConfigError, match=rf"{targets}.*UNet; the family 'flux' has none[\s\S]*attention_mlp or blocks"
    ):
        _chosen(model, targets)


def _chosen(model: TransformerModel, targets: str) -> set[str]:
    config = TrainConfig.model_validate(
        {"family": "flux", "concepts": [{"path": "x"}], "method": "lora", "lora_targets": targets}
    )
    return set(lora_targets(model, Flux, config))


def _last(name: str, known: set[str]) -> str:
    """Of `known`, the end of `name`; otherwise all of it."""
    return next((end for end in known if name.endswith("." + end)), name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SIZES)
def test_comfyui_knows_every_key_of_diffusers_layout_or_it_is_said(kind: str, tmp_path: Path) -> None:
    with quiet_libraries(), torch.device("meta"):
        model: Any = TransformerModel(getattr(diffusers, kind)(**SIZES[kind]))
    known = comfyui_keys(kind, model.transformer.config)
    family = family_class(FAMILIES[kind])
    with_model = type("WithModel", (family,), {"meta_model": classmethod(lambda *_: model)})
    for targets in TARGET_PRESETS[:5]:  # the others are for UNets
        pairs = {"method": "lora", "lora_targets": targets, "lora_rank": 1, "lora_alpha": 1}
        config = TrainConfig.model_validate({"family": FAMILIES[kind], "concepts": [{"path": "x"}], **pairs})
        layers = {name: model.get_submodule(name).weight for name in _chosen(model, targets)}
        weights = [
            LoraWeights(
                "transformer",
                name.removeprefix("transformer."),
                torch.zeros(1, *weight.shape[1:]),
                torch.zeros(len(weight), 1, *[1] * (weight.dim() - 2)),
                alpha=1.0,
                magnitude=None,
            )
            for name, weight in layers.items()
        ]
        file = tmp_path / f"{targets}.safetensors"
        write_lora(file, weights, "diffusers", family.adapter_prefixes, {}, torch.float32)
        with SafetensorsFile(file) as written:
            assert len(written.names) == 2 * len(layers)
            unknown = {name.removesuffix(end) for name in written.names if name not in known for end in ENDS}
        unknown &= layers.keys()
        said = expected_file_limits(with_model, config)
        assert bool(said) is bool(unknown)
        examples = [re.search(rf"has for {len(unknown)} layers, such as (\S+),", each) for each in said]
        assert all(example is not None and example[1] in unknown for example in examples)
        knows_none = kind in ("Lumina2Transformer2DModel", "WanTransformer3DModel")
        assert not unknown or knows_none or targets in ("all", "all_linear")
    attention = {"lora_weight_decompose": True, "lora_targets": "attention"}
    dora = TrainConfig.model_validate(config.model_dump() | attention)
    assert "pytorch_lora_weights.safetensors is a DoRA" in expected_file_limits(with_model, dora)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("targets", ["to_q", r"to_[kv]"])
def test_some_of_the_layers_that_are_one_in_the_models_own_code(targets: str, tmp_path: Path) -> None:
    folder = TINY["lumina2"](tmp_path / "model")  # whose keys have fewer rows than its queries
    settings = {"method": "lora", "lora_targets": targets, "lora_rank": 2}
    family = load("lumina2", folder, **settings)
    config = TrainConfig.model_validate({"family": "lumina2", "base_model": str(folder), **settings})
    prepare(family, config)
    for number, (_, weight) in enumerate(trained := [*family.model.named_parameters()]):
        weight.data = torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
    assert trained
    export_of(family, Weights(family.model), config, {})(tmp_path)
    ours, theirs = (
        {one.module: one.delta() for one in read_lora(tmp_path / name, family.adapter_prefixes)}
        for name in ("pytorch_lora_weights.safetensors", "lora_kohya.safetensors")
    )
    assert ours.keys() == {name for name in theirs if re.search(targets, name)}
    for name, delta in theirs.items():
        assert torch.allclose(delta, ours.get(name, torch.zeros(1)).to(delta), atol=1e-5), name
