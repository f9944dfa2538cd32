"""LoRA, LoHa, LoKr and OFT under the names of ai-toolkit, LyCORIS, kohya's scripts, OneTrainer, peft and DiffSynth."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from modules.checkpoint.formats import merged_weight, read_adapter, read_lora
from modules.config import ConfigError, TrainConfig
from modules.training.device.precision import Precision
from modules.training.memory.model_setup import load_family, prepare_model
from scripts.convert import main
from tests.adapted_models import CPU
from tests.checkpoint.formats.adapted import SD, SDXL

FLOW = {"transformer": ("transformer", "")}
LAYER = "layers.0.attention.to_q"
CONTAINERS = (
    *("diffusion_model.", "model.diffusion_model.", "pipe.dit.", "transformer.", "base_model.model.", ""),
    *("lora_unet_", "lora_unet__", "lora_transformer_", "lycoris_", "base_model.model.diffusion_model."),
)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(math.prod(shape))) / 4


def lora(rows: int = 16, columns: int = 16) -> tuple[dict[str, Tensor], Tensor]:
    down, up = random(4, columns), random(rows, 4)
    return {"lora_down.weight": down, "lora_up.weight": up, "alpha": torch.tensor(2.0)}, up @ down / 2


def peft_lora() -> tuple[dict[str, Tensor], Tensor]:
    """As peft's modules have it; its alpha is the rank."""
    down, up = random(4, 16), random(16, 4)
    return {"lora_A.default.weight": down, "lora_B.default.weight": up}, up @ down


def lokr(rows: int = 16, columns: int = 16, outer: int = 2) -> tuple[dict[str, Tensor], Tensor]:
    w1, a, b = random(outer, 2), random(rows // outer, 3), random(3, columns // 2)
    return {"lokr_w1": w1, "lokr_w2_a": a, "lokr_w2_b": b, "alpha": torch.tensor(2.0)}, torch.kron(w1, a @ b) * 2 / 3


def loha(rows: int = 16, columns: int = 16) -> tuple[dict[str, Tensor], Tensor]:
    factors = [random(rows, 3), random(3, columns), random(rows, 3) + 1, random(3, columns) - 1]
    names = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
    product = (factors[0] @ factors[1]) * (factors[2] @ factors[3])
    return dict(zip(names, factors, strict=True)) | {"alpha": torch.tensor(2.0)}, product * 2 / 3


def dora(kind: Any, name: str, shape: tuple[int, ...]) -> Any:
    """The same as a DoRA, whose magnitudes have this name; the change of a weight that is 0 is then theirs alone."""

    def decomposed(rows: int = 16, columns: int = 16) -> tuple[dict[str, Tensor], Tensor]:
        tensors, delta = kind() if kind is peft_lora else kind(rows, columns)
        lengths = random(rows, 1) + 2
        return tensors | {name: lengths.reshape(shape)}, delta / delta.norm(dim=1, keepdim=True) * lengths

    return decomposed


KINDS = {
    "LoRA": lora,
    "LoRA of peft": peft_lora,
    "LoKr": lokr,
    "LoHa": loha,
    "DoRA": dora(lora, "dora_scale", (-1, 1)),
    "DoRA of peft": dora(peft_lora, "lora_magnitude_vector.default.weight", (-1,)),
    "DoRA of ai-toolkit": dora(peft_lora, "magnitude", (-1,)),
    "DoRA of a LoKr": dora(lokr, "dora_scale", (-1, 1)),
    "DoRA of a LoHa": dora(loha, "dora_scale", (-1, 1)),
}
OF_UNETS = ("unet.", "diffusion_model.", "model.diffusion_model.", "base_model.model.", "", "lora_unet_", "lora_unet__",
            "lycoris_")  # fmt: skip
UNET_LAYER = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_out.0"
UNET_LAYERS = {UNET_LAYER: UNET_LAYER, "input_blocks.1.1.transformer_blocks.0.attn1.to_out.0": UNET_LAYER}


def written(folder: Path, layers: dict[str, dict[str, Tensor]], metadata: dict[str, str] | None = None) -> Path:
    """A file of these layers, whose names are joined to those of their tensors."""
    tensors = {f"{stem}.{end}": tensor for stem, layer in layers.items() for end, tensor in layer.items()}
    save_file(
        {name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "x.safetensors", metadata
    )
    return folder / "x.safetensors"


def named(container: str, layer: str) -> str:
    return container + (layer.replace(".", "_") if container.endswith("_") else layer)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_before_the_layers_names_is_no_matter(container: str, kind: str, tmp_path: Path) -> None:
    tensors, delta = KINDS[kind]()
    file = written(tmp_path, {named(container, LAYER): tensors})
    (one,) = read_adapter(file, FLOW)
    assert (one.submodule, one.module) == ("transformer", LAYER)
    assert (merged_weight(torch.zeros(delta.shape), one) - delta).abs().max() <= 1e-6


@pytest.mark.parametrize("container", OF_UNETS)
@pytest.mark.parametrize("layer", UNET_LAYERS)
@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_of_unets(container: str, layer: str, kind: str, tmp_path: Path) -> None:
    tensors, delta = KINDS[kind]()
    (one,) = read_adapter(written(tmp_path, {named(container, layer): tensors}), SD)
    assert (one.submodule, one.module) == ("unet", UNET_LAYERS[layer])
    assert (merged_weight(torch.zeros(delta.shape), one) - delta).abs().max() <= 1e-6


@pytest.mark.parametrize(
    ("container", "layer", "prefixes"),
    [*((container, LAYER, FLOW) for container in CONTAINERS), *((each, UNET_LAYER, SD) for each in OF_UNETS)],
)
def test_so_it_is_of_both_kinds_of_oft(container: str, layer: str, prefixes: Any, tmp_path: Path) -> None:
    weight, vector, blocks = random(16, 16), random(4, 6) / 4, random(4, 4, 4) / 4
    skew = torch.zeros(4, 4, 4)
    skew[:, *torch.triu_indices(4, 4, 1)] = vector
    skew = skew - skew.transpose(1, 2)
    series = sum((torch.linalg.matrix_power(skew, power) * 2 for power in (1, 2, 3)), torch.eye(4))
    inputs = torch.block_diag(*(series + torch.linalg.matrix_power(skew, 4)))
    skew = blocks - blocks.transpose(1, 2)
    outputs = torch.block_diag(*((torch.eye(4) + skew) @ torch.linalg.inv(torch.eye(4) - skew)))
    for tensors, wanted in (
        ({"oft_R.weight": vector}, weight @ inputs.T),
        ({"oft_R.default.weight": vector}, weight @ inputs.T),
        ({"oft_blocks": blocks, "alpha": torch.tensor(0.0)}, outputs.T @ weight),
    ):
        (one,) = read_adapter(written(tmp_path, {named(container, layer): tensors}), prefixes)
        assert one.module == layer
        assert (merged_weight(weight, one) - wanted).abs().max() <= 1e-6


def test_stability_ais_names_after_comfyuis_prefix_are_read(tmp_path: Path) -> None:
    """OneTrainer's COMFY format of Stable Diffusion (LoRASaverMixin.py, 23df383)."""
    down, up = random(4, 16), random(16, 4)
    tensors = {"lora_A.weight": down, "lora_B.weight": up, "alpha": torch.tensor(2.0)}
    file = written(tmp_path, {"diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q": tensors})
    (one,) = read_lora(file, SD)
    assert one.module == "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    assert one.alpha == 2


@pytest.mark.parametrize("outer", [2, 3, 6])
def test_an_adapter_of_a_fused_layer_is_one_for_each_of_its_parts(outer: int, tmp_path: Path) -> None:
    """With six blocks of rows the thirds of a LoKr are LoKrs again, with two a part goes through the middle of one."""
    (loha_tensors, loha_delta), (lokr_tensors, lokr_delta) = loha(48), lokr(48, outer=outer)
    layers = {"lora_unet_double_blocks_0_img_attn_qkv": loha_tensors}
    layers |= {"lora_unet_double_blocks_0_txt_attn_qkv": lokr_tensors}
    found = {one.module: one for one in read_adapter(written(tmp_path, layers), FLOW)}
    assert len(found) == 6
    for names, delta in ((("to_q", "to_k", "to_v"), loha_delta), (tuple(f"add_{x}_proj" for x in "qkv"), lokr_delta)):
        parts = [found[f"transformer_blocks.0.attn.{name}"] for name in names]
        assert all(one.matrix_shape == (16, 16) for one in parts)
        assert (torch.cat([one.delta() for one in parts]) - delta).abs().max() <= 1e-6
    is_lokr = {type(one).__name__ == "LokrWeights" for one in found.values() if "add_" in one.module}
    assert is_lokr == {outer % 3 == 0}


def test_scale_and_shift_of_the_last_layer_change_places_in_a_lokr_too(tmp_path: Path) -> None:
    tensors, delta = lokr(32)
    (one,) = read_adapter(written(tmp_path, {"lora_unet_final_layer_adaLN_modulation_1": tensors,
                                             }), FLOW)  # fmt: skip
    assert one.module == "norm_out.linear"
    assert (one.delta() - torch.cat([delta[16:], delta[:16]])).abs().max() <= 1e-6


def test_one_file_may_hold_several_kinds(tmp_path: Path) -> None:
    """LyCORIS' name_algo_map gives some layers another algorithm."""
    layers = {named("lycoris_", LAYER): lokr()[0], named("lycoris_", LAYER.replace("to_q", "to_k")): lora()[0]}
    found = {one.module: type(one).__name__ for one in read_adapter(written(tmp_path, layers), FLOW)}
    assert found == {LAYER: "LokrWeights", LAYER.replace("to_q", "to_k"): "LoraWeights"}


@pytest.mark.parametrize("scaled", [False, True])
def test_onetrainers_oft_with_shared_or_scaled_blocks(scaled: bool, tmp_path: Path) -> None:
    """`oft_block_share` has one block for all, `oft_scaled` divides by 2 sqrt(b - 1) (oft_utils.py, 23df383)."""
    vector, weight = random(1, 6), random(8, 16)
    marks = {"oft_R.scaled_oft": torch.tensor(True)} if scaled else {}
    (one,) = read_adapter(
        written(tmp_path, {named("lora_transformer_", LAYER): {"oft_R.weight": vector, **marks}}), FLOW
    )
    skew = torch.zeros(4, 4)
    skew[tuple(torch.triu_indices(4, 4, 1))] = vector[0] / (2 * math.sqrt(3) if scaled else 1)
    skew -= skew.T.clone()
    rotation = torch.eye(4) + 2 * skew + 2 * skew @ skew + 2 * skew @ skew @ skew + skew @ skew @ skew @ skew
    wanted = (weight.unflatten(1, (4, 4)) @ rotation.T).flatten(1)
    assert (merged_weight(weight, one) - wanted).abs().max() <= 1e-6
    of_convolution = (weight.unflatten(1, (4, 4)) @ rotation).view(8, 4, 2, 2)  # LoRAModule.py, OFTModule.forward
    assert (merged_weight(weight.view(8, 4, 2, 2), one) - of_convolution).abs().max() <= 1e-6


@pytest.mark.parametrize("prefix", ["lycoris_", "oft_unet_", "lora_unet_"])
def test_an_oft_of_outputs_is_that_of_lycoris_and_sd_scripts(prefix: str, tmp_path: Path) -> None:
    """functional/diag_oft.py (f49d30d), which networks/oft.py (48d368f) agrees with."""
    blocks, rescale, weight = random(4, 3, 3), random(12, 1) + 1, random(12, 8)
    tensors = {"oft_blocks": blocks, "rescale": rescale, "alpha": torch.tensor(0.1)}
    layer = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    (one,) = read_adapter(written(tmp_path, {named(prefix, layer): tensors}), SD)
    skew = blocks - blocks.transpose(1, 2)
    assert skew.norm() > 0.1 * 12, "or the constraint is not tried"
    skew = skew * 0.1 * 12 / skew.norm()
    rotation = (torch.eye(3) + skew) @ (torch.eye(3) - skew).inverse()
    wanted = torch.einsum("knm,knp->kmp", rotation, weight.view(4, 3, 8)).reshape(12, 8) * rescale
    assert (merged_weight(weight, one) - wanted).abs().max() <= 1e-6


def test_a_kernel_between_the_matrices_is_taken_into_the_first(tmp_path: Path) -> None:
    """LyCORIS' use_tucker (functional/general.py, tucker_weight_from_conv, f49d30d)."""
    down, mid, up = random(4, 8, 1, 1), random(4, 4, 3, 3), random(6, 4, 1, 1)
    tensors = {"lora_down.weight": down, "lora_mid.weight": mid, "lora_up.weight": up, "alpha": torch.tensor(2.0)}
    (one,) = read_lora(written(tmp_path, {"lora_unet_down_blocks_0_resnets_0_conv1": tensors}), SD)
    wanted = torch.einsum("mnkl,im,nj->ijkl", mid, up.flatten(1), down.flatten(1)) / 2
    assert (one.delta() - wanted.flatten(1)).abs().max() <= 1e-6


@pytest.mark.parametrize(
    ("layer", "model"),
    [
        ("lora_unet_blocks_0_adaln_modulation_mlp_1", "Anima"),
        ("lora_unet_double_blocks_0_img_mlp_fc1", "HunyuanVideo"),
        ("lora_unet_transformer_blocks_1_attn1_to_q", "LTX-Video"),
        ("lora_unet_foo_bar_0_qux", ""),
        ("lora_unet_down_blocks_0_attentions_0_add_k_proj", ""),  # of another UNet, as DeepFloyd's
    ],
)
@pytest.mark.parametrize("task", [["--to", "kohya"], ["--to", "diffusers"], ["--resize", "--rank", "2"]])
def test_a_lora_of_a_model_that_is_not_known_is_not_converted(
    layer: str, model: str, task: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, {layer: lora()[0]})
    assert main([str(file), str(tmp_path / "out.safetensors"), *task]) == 2
    printed = capsys.readouterr().err
    assert f"(it looks like {model}" in printed if model else "looks like" not in printed
    assert f"'{layer}.alpha' is of no layer" in printed
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize(
    ("layer", "model"),
    [
        ("diffusion_model.joint_transformer_blocks.0.attn.to_q", "AuraFlow"),
        ("transformer.context_embedder.token_refiner.refiner_blocks.0.attn.to_q", "HunyuanVideo"),
        ("diffusion_model.ref_image_refiner.0.attn.to_q", "OmniGen2"), ("transformer.blocks.0.attn1.qux", ""),
    ],
)  # fmt: skip
def test_the_model_of_names_with_dots_is_told_as_well(
    layer: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, {layer: peft_lora()[0]})
    assert main([str(file), str(tmp_path / "out.safetensors"), "--to", "kohya"]) == 2
    printed = capsys.readouterr().err
    assert f"(it looks like {model}" in printed if model else "looks like" not in printed
    assert "belongs to the family" not in printed


def test_what_is_no_adapter_is_left_out_if_one_asks_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layers = {f"diffusion_model.{LAYER}": lora()[0] | {"diff_b": random(16)}}
    layers |= {"lora_te1_text_model_encoder_layers_0_mlp_fc1": lora()[0]}
    file, out = written(tmp_path, layers), tmp_path / "out.safetensors"
    arguments = [str(file), str(out), "--to", "diffusers"]
    assert main(arguments) == 2
    assert main([*arguments, "--skip_unread"]) == 0
    assert "4 tensors are left out: " in capsys.readouterr().err
    assert set(load_file(out)) == {f"transformer.{LAYER}.lora_{half}.weight" for half in "AB"}


def test_nothing_is_written_of_a_file_of_which_nothing_is_left(tmp_path: Path) -> None:
    file = written(tmp_path, {f"lora_unet_{LAYER.replace('.', '_')}": {"lora_up.weight": random(16, 2)}})
    assert main([str(file), str(tmp_path / "out.safetensors"), "--to", "diffusers", "--skip_unread"]) == 2
    assert not (tmp_path / "out.safetensors").exists()


def test_text_encoders_have_comfyuis_names_in_onetrainers_files(tmp_path: Path) -> None:
    """23df383: ModelFormat.COMFY_LORA in modules/model/*.py, with Stability AI's names of the UNet."""
    inner = "text_model.encoder.layers.0.mlp.fc1"
    tensors, delta = peft_lora()
    unet, both = f"diffusion_model.{list(UNET_LAYERS)[1]}", {"alpha": torch.tensor(1.0)}
    encoders = {f"text_encoders.clip_{letter}.transformer.{inner}": tensors | both for letter in "lg"}
    file, out = written(tmp_path, {unet: tensors | both, **encoders}), tmp_path / "out.safetensors"
    found = {(one.submodule, one.module): one.delta() for one in read_lora(file, SDXL)}
    assert {submodule for submodule, _ in found} == {"unet", "text_encoder", "text_encoder_2"}
    assert all((each * 4 - delta).abs().max() <= 1e-5 for each in found.values())
    assert main([str(file), str(out), "--to", "kohya"]) == 0
    assert {name.partition("_text_model_")[0] for name in load_file(out) if "text_model" in name} == {
        "lora_te1", "lora_te2",
    }  # fmt: skip
    (one,) = read_lora(written(tmp_path, {f"text_encoders.clip_h.transformer.{inner}": tensors}), SD)
    assert (one.submodule, one.module) == ("text_encoder", "encoder.layers.0.mlp.fc1")


def test_a_second_matrix_that_is_not_used_is_named(tmp_path: Path) -> None:
    layer = {"lokr_w1": random(2, 2), "lokr_w1_a": random(2, 1), "lokr_w1_b": random(1, 2), "lokr_w2": random(8, 8)}
    with pytest.raises(ConfigError, match=r"lokr_w1_a' and 1 more tensors do not belong"):
        read_adapter(written(tmp_path, {f"lora_unet_{UNET_LAYER.replace('.', '_')}": layer}), SD)


def test_alpha_of_peft_names_is_that_beside_the_file_or_the_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, {f"base_model.model.{LAYER}": peft_lora()[0]})
    assert main([str(file), str(tmp_path / "out.safetensors"), "--to", "kohya"]) == 0
    assert "alpha is taken to be the rank" in capsys.readouterr().err
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 12}))
    assert read_lora(file, FLOW)[0].alpha == 12
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(ConfigError, match=r"there is no adapter_config\.json beside it"):
        read_lora(file.rename(tmp_path / "adapter_model.safetensors"), FLOW)


@pytest.mark.parametrize(
    ("container", "kind", "algorithm"),
    [
        *((container, "LoKr", "lokr") for container in ("diffusion_model.", "lycoris_")),
        *((container, "LoHa", "loha") for container in ("diffusion_model.", "lycoris_")),
        *((container, "LoRA of peft", "lora") for container in ("base_model.model.", "pipe.dit.")),
        *((container, "DoRA", "lora") for container in ("lora_transformer_", "model.diffusion_model.")),
        *(("lora_unet__", "LoRA", "lora"), ("", "DoRA of peft", "lora"), ("lycoris_", "DoRA of ai-toolkit", "lora")),
    ],
)  # fmt: skip
def test_training_goes_on_from_the_model_with_the_adapter(
    container: str, kind: str, algorithm: str, flow: Any, tmp_path: Path
) -> None:
    base = flow("z_image")
    settings: dict[str, Any] = {"family": "z_image", "base_model": str(base), "method": "lora"}
    if algorithm == "lora":
        settings["lora_layouts"] = "diffusers"  # kohya's has no DoRA of a third of a fused layer
    tensors, _ = KINDS[kind]()
    file = written(tmp_path, {named(container, LAYER): tensors})
    (one,) = read_adapter(file, FLOW)
    config = TrainConfig.model_validate({**settings, "lora_algorithm": algorithm, "lora_from": str(file)})
    family = load_family(config)
    model: Any = family.model
    weight = merged_weight(model.get_submodule(f"transformer.{LAYER}").weight.detach(), one)
    prepare_model(family, config, Precision(config.precision, CPU))
    layer: Any = family.model.get_submodule(f"transformer.{LAYER}")
    found = random(5, 16)
    bias = layer.get_base_layer().bias
    wanted = found.double() @ weight.T + (0 if bias is None else bias)
    assert (layer(found) - wanted).abs().max() <= 1e-6 * wanted.abs().max()
