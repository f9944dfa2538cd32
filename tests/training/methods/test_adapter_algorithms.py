"""LoHa, LoKr and OFT beside LoRA, and ranks, alphas and learning rates of their own for some weights."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor

from modules.config import ConfigError, TrainConfig, explain
from modules.distributed import Weights
from modules.training.memory.model_setup import check_available, load_family
from modules.training.methods.adapter_layers import layer_sizes
from modules.training.methods.lora_files import file_limits
from modules.training.methods.method import apply_adapter, export_of, method_summary
from modules.training.methods.submodules import submodule_groups
from modules.training.optim.parameter_groups import parameter_groups
from tests.adapted_models import BOTH, LORA, PARTS, assert_close, batch_of, ready, state_of, train_a_little
from tests.families.tiny_flow_pipelines import TINY
from tests.runs import same_tensors

# Names as LyCORIS writes them (lycoris/modules/loha.py and lokr.py, custom_state_dict) and as ComfyUI reads them
# (comfy/weight_adapter/loha.py and lokr.py, `load`); OFT as OneTrainer has it (modules/module/LoRAModule.py).
HADA = {"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "alpha"}
ALGORITHMS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "loha": ({}, HADA),
    "lokr": ({"lora_rank": 1}, {"lokr_w1", "lokr_w2_a", "lokr_w2_b", "alpha"}),
    "lokr whole": ({"lora_rank": 64, "lokr_factor": 2}, {"lokr_w1", "lokr_w2", "alpha"}),
    "oft": ({"oft_block_size": 3}, {"oft_R.weight"}),
}
FILE = "lora_kohya.safetensors"


def settings_of(case: str) -> dict[str, Any]:
    return {**LORA, "parts": BOTH, "seed": 9, "lora_algorithm": case.partition(" ")[0], **ALGORITHMS[case][0]}


@pytest.mark.parametrize("case", ALGORITHMS)
def test_training_files_and_continuing(case: str, tmp_path: Path) -> None:
    settings = settings_of(case)
    family, config = ready(**settings, learning_rate=0.05)
    family.model.train()
    base, drawn = batch_of(3, ready(seed=9)[0]), torch.get_rng_state()
    assert_close(batch_of(3, family), base)
    assert torch.equal(torch.get_rng_state(), drawn), "adapters draw nothing"
    before = state_of(family.model)
    weights = train_a_little(family, config)
    for name, tensor in family.model.state_dict().items():
        assert torch.equal(tensor, before[name]) is (name not in weights.local), name
    trained = batch_of(3, family)
    assert (trained - base).abs() > 1e-3, "the adapter says something"

    export_of(family, weights, config, {})(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE], "diffusers reads none of them"
    names = {name.partition(".") for name in load_file(tmp_path / FILE)}
    assert {name for stem, _, name in names if stem == "lora_unet_to_q"} == ALGORITHMS[case][1]
    assert "lora_te_fc1" in {stem for stem, _, _ in names}

    merged = load_family(config)
    apply_adapter(merged, config, tmp_path)
    assert_close(batch_of(3, merged), trained)

    # what the file decides is set otherwise here
    again, config = ready(
        **{**settings, "lora_rank": 2, "lora_targets": "attention", "lokr_factor": None, "oft_block_size": 2},
        lora_from=str(tmp_path / FILE),
    )
    assert_close(batch_of(3, again), trained)
    (tmp_path / "again").mkdir()
    export_of(again, Weights(again.model), config, {})(tmp_path / "again")
    assert same_tensors(load_file(tmp_path / FILE), load_file(tmp_path / "again" / FILE))
    train_a_little(again, config)


def test_a_file_of_several_kinds_is_not_continued(tmp_path: Path) -> None:
    """Such as LyCORIS' name_algo_map makes."""
    file = tmp_path / "both.safetensors"
    pair = {f"lora_unet_to_k.lora_{half}.weight": torch.eye(6) for half in ("down", "up")}
    save_file({"lora_unet_to_q.lokr_w1": torch.ones(1, 1), "lora_unet_to_q.lokr_w2": torch.eye(6), **pair}, file)
    with pytest.raises(ConfigError, match=r"is a LoKr in some layers and another kind .* such as 'unet\.to_k'"):
        ready(**{**settings_of("lokr"), "parts": BOTH[:1], "lora_from": str(file)})


def test_first_values_follow_from_the_seed_and_the_name_alone() -> None:
    def first(**more: object) -> dict[str, Tensor]:
        return {
            n: w.detach().clone() for n, w in Weights(ready(**{**settings_of("loha"), **more})[0].model).local.items()
        }

    few = first(lora_targets="unet.to_q, fc1")
    torch.manual_seed(5)
    every = first()
    assert same_tensors(few, {name: every[name] for name in few})
    assert not same_tensors(few, first(lora_targets="unet.to_q, fc1", seed=43))
    assert float(every["unet.to_q.hada_w2_a.default"].abs().max()) == 0


def test_a_rank_stabilized_lora_is_pefts() -> None:
    family, config = ready(**{**LORA, "lora_targets": "to_q"}, lora_rank_stabilized=True)
    train_a_little(family, config)
    (size,) = layer_sizes(family.model)[:1]
    assert size.alpha == pytest.approx(2.0 * math.sqrt(3))
    peft = load_family(config.model_copy(update={"method": "fine_tune"}))
    inject_adapter_in_model(LoraConfig(r=3, lora_alpha=2, use_rslora=True, target_modules=".*to_q"), peft.model)
    peft.model.load_state_dict(family.model.state_dict())
    assert_close(batch_of(3, peft), batch_of(3, family))


def test_ranks_and_alphas_by_layer() -> None:
    chosen = {"lora_rank_pattern": "to_q = 2, to_ = 5", "lora_alpha_pattern": "fc1=0.5"}
    family, config = ready(**{**LORA, "parts": BOTH, "lora_targets": "all_linear", **chosen})
    ranks = {
        name.partition(".lora_A")[0]: weight.shape[0]
        for name, weight in Weights(family.model).local.items()
        if ".lora_A" in name
    }
    assert ranks == {
        "unet.to_q": 2,
        "unet.to_k": 5,
        "unet.to_v": 5,
        "unet.ff": 3,
        "text_encoder.fc1": 3,
        "text_encoder.fc2": 3,
    }
    assert "rank 3, alpha 0.5" in method_summary(family, config, Weights(family.model))
    with pytest.raises(ConfigError, match=r"lora_rank_pattern: 'to_k' matches none of the 3 adapted layers that no"):
        ready(**LORA | {"lora_targets": "attention", "lora_rank_pattern": "to_ = 2, to_k = 5"})


def test_lora_plus_raises_the_rate_of_the_second_matrix() -> None:
    family, config = ready(**LORA, lora_plus_ratio=16, learning_rate_factors="to_q = 0.5")
    weights = Weights(family.model)
    groups = parameter_groups(submodule_groups(family, config, weights.local), weights.shapes, config)
    rates = {name: group.learning_rate_factor for group in groups for name in group.weights}
    assert rates["unet.to_q.lora_B.default.weight"] == 8
    assert rates["unet.to_k.lora_B.default.weight"] == 16
    assert rates["unet.to_q.lora_A.default.weight"] == 0.5
    assert {group.summary(1e-4) for group in groups} >= {"unet, 'lora_B': learning rate 0.0016."}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lora_weight_decompose": True}, "lora_weight_decompose is true, which only lora_algorithm lora has; set it"),
        ({"lora_dropout": 0.1}, "lora_dropout is 0.1, which only lora_algorithm lora has"),
        ({"lora_plus_ratio": 16}, "lora_plus_ratio is 16, which only lora_algorithm lora has"),
        ({"lora_rank_pattern": "to_q = 1.5"}, "no PATTERN = RANK with a whole number above 0 and up to 4096; correct"),
        (
            {"lora_alpha_pattern": "to_q"},
            "lora_alpha_pattern is 'to_q', in which 'to_q' is no PATTERN = ALPHA, such as",
        ),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate({"method": "lora", "lora_algorithm": "lokr", **settings})
    (sentence,) = explain(caught.value)
    assert said in sentence


def test_what_does_not_fit_together_is_said_before_training(tmp_path: Path) -> None:
    loha = {"family": PARTS, "method": "lora", "lora_algorithm": "loha"}
    with pytest.raises(ConfigError, match="lora_layouts is 'diffusers', but diffusers reads no LoHa"):
        check_available(TrainConfig.model_validate({**loha, "lora_layouts": "diffusers"}))
    stem = "lora_unet_to_q.lokr_w"
    save_file({f"{stem}1": torch.ones(2, 2), f"{stem}2": torch.ones(3, 3)}, tmp_path / FILE)
    with pytest.raises(ConfigError, match=r"is a LoKr, but lora_algorithm is 'loha'.*Set lora_algorithm to lokr"):
        check_available(TrainConfig.model_validate({**loha, "lora_from": str(tmp_path / FILE)}))
    magnitude = {"lora_unet_to_q.dora_scale": torch.ones(6, 1)}
    save_file({f"{stem}1": torch.ones(2, 2), f"{stem}2": torch.ones(3, 3), **magnitude}, tmp_path / FILE)
    with pytest.raises(ConfigError, match="is a LoKr with magnitudes"):
        ready(**{**loha, "lora_algorithm": "lokr", "lora_from": str(tmp_path / FILE)})
    with pytest.raises(ConfigError, match=r"oft_block_size is 3, but no number near it divides the 5 inputs of 'unet"):
        ready(**settings_of("oft") | {"family_options": {"width": 5}})
    (limit,) = file_limits(*ready(**settings_of("oft")))
    assert limit.startswith(f"{FILE} is an OFT that rotates the inputs of layers")


def test_a_family_without_prefixes_gets_dotted_names(tmp_path: Path) -> None:
    settings = {"family": "pixel_diffusion", "family_options": {"width": 8}, "method": "lora", "lora_algorithm": "lokr"}
    family, config = ready(**settings, lora_targets="all")
    export_of(family, Weights(family.model), config, {})(tmp_path)
    names = load_file(tmp_path / "pytorch_lora_weights.safetensors")
    assert all(re.fullmatch(r"model\..+\.(lokr_w[12](_[ab])?|alpha)", name) for name in names)
    apply_adapter(load_family(config), config, tmp_path)


@pytest.mark.parametrize("algorithm", ["loha", "lokr", "oft"])
def test_a_transformer_without_names_of_kohya_gets_those_of_diffusers(tmp_path: Path, algorithm: str) -> None:
    base = TINY["z_image"](tmp_path / "base")
    chosen = {"lora_algorithm": algorithm, "lora_rank": 2, "lora_layouts": "both"}
    family, config = ready(family="z_image", base_model=str(base), method="lora", **chosen)
    check_available(config)
    export_of(family, Weights(family.model), config, {})(tmp_path)
    names = load_file(tmp_path / "pytorch_lora_weights.safetensors")
    assert all(re.match(r"transformer\..+\.(hada_|lokr_|oft_R|alpha)", name) for name in names)
    apply_adapter(load_family(config), config, tmp_path)
