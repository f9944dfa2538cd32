"""LoRA files of other programs: older layouts of diffusers, PEFT's own folders, LoHa and LoKr of LyCORIS."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from diffusers import StableDiffusionPipeline
from peft import LoHaConfig, LoKrConfig, LoraConfig, get_peft_model, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from peft.tuners.lycoris_utils import LycorisLayer
from safetensors.torch import save_file
from torch import Tensor

from modules.checkpoint.formats import LoraWeights, merged_weight, read_adapter, read_lora, write_lora
from modules.checkpoint.formats.conversion import convert_dtype
from modules.checkpoint.formats.kohya_names import to_kohya
from modules.config import ConfigError
from tests.checkpoint.formats.adapted import ALL, ATTENTION, SD, SDXL, adapted, weights_in

UNET = {"unet": SD["unet"]}
STEM = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
PROCESSOR = STEM.replace("to_q", "processor.to_q")
KOHYA = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"


def processor_name(one: LoraWeights, half: str) -> str:
    """As diffusers' train_dreambooth_lora.py wrote it until 0.21 (loaders.py, LoRAAttnProcessor)."""
    if one.submodule == "text_encoder":
        return f"text_encoder.text_model.{one.module}.lora_linear_layer.{half}.weight"
    attention, _, last = one.module.replace("to_out.0", "to_out").rpartition(".")
    return f"unet.{attention}.processor.{last}_lora.{half}.weight"


def old_text_name(one: LoraWeights, half: str) -> str:
    """The first scripts with a text encoder (utils/state_dict_utils.py, DIFFUSERS_OLD_TO_PEFT), 0.22's for the UNet."""
    names = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}
    if one.submodule == "text_encoder":
        attention, _, last = one.module.rpartition(".")
        return f"text_encoder.text_model.{attention}.{names[last]}_lora.{half}.weight"
    return f"unet.{one.module}.lora.{half}.weight"


@pytest.mark.parametrize("name", [processor_name, old_text_name])
def test_layouts_of_diffusers_old_scripts_are_read_as_diffusers_reads_them(name: Any, sd: Path, tmp_path: Path) -> None:
    pipeline = adapted(sd, StableDiffusionPipeline, SD, ATTENTION, lora_alpha=3)
    written = weights_in(pipeline, SD)
    tensors = {name(one, half): getattr(one, half).detach().clone() for one in written for half in ("down", "up")}
    file = tmp_path / "pytorch_lora_weights.safetensors"
    save_file(tensors, file)
    ours = {(one.submodule, one.module): one for one in read_lora(file, SD)}
    assert ours.keys() == {(one.submodule, one.module) for one in written}

    reader = StableDiffusionPipeline.from_pretrained(sd)
    reader.load_lora_weights(str(file))
    theirs: dict[tuple[str, str], Any] = {
        (part, module): layer
        for part in SD
        for module, layer in getattr(reader, part).named_modules()
        if isinstance(layer, LoraLayer)
    }
    assert ours.keys() == theirs.keys()
    for place, layer in theirs.items():
        assert_close(ours[place].delta(), layer.get_delta_weight("default_0").flatten(1))


def test_the_first_files_of_the_unet_have_no_prefix(tmp_path: Path) -> None:
    """diffusers 0.11, examples/dreambooth/train_dreambooth_lora.py: `unet.save_attn_procs`."""
    inner = "down_blocks.0.attentions.0.transformer_blocks.0.attn1"
    tensors = {f"{inner}.processor.to_out_lora.{half}.weight": torch.ones(2, 2) for half in ("down", "up")}
    save_file(tensors, tmp_path / "old.safetensors")
    (one,) = read_lora(tmp_path / "old.safetensors", SDXL)
    assert (one.submodule, one.module, one.alpha) == ("unet", f"{inner}.to_out.0", 2.0)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
@pytest.mark.parametrize("part", ["unet", "text_encoder"])
@pytest.mark.parametrize("more", [{}, {"use_rslora": True}, {"use_dora": True}])
def test_a_folder_that_peft_saved_is_read_with_its_alpha(
    part: str, more: dict[str, Any], sd: Path, tmp_path: Path
) -> None:
    targets = ["to_q", "to_k", "conv1"] if part == "unet" else ["q_proj", "fc1"]
    settings = LoraConfig(r=3, lora_alpha=6, target_modules=targets, alpha_pattern={targets[1]: 2}, **more)
    torch.manual_seed(1)
    model: Any = get_peft_model(getattr(StableDiffusionPipeline.from_pretrained(sd), part), settings)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    model.save_pretrained(tmp_path)
    read = {one.module: one for one in read_lora(tmp_path / "adapter_model.safetensors", SD)}
    layers: dict[str, Any] = {
        name.removeprefix("base_model.model."): layer
        for name, layer in model.named_modules()
        if isinstance(layer, LoraLayer)
    }
    assert read.keys() == layers.keys()
    for name, layer in layers.items():
        assert read[name].submodule == part
        assert_close(read[name].delta(), layer.get_delta_weight("default").flatten(1))
        assert (read[name].magnitude is not None) is bool(more.get("use_dora"))


def test_a_peft_file_without_its_config_or_for_either_encoder_is_explained(tmp_path: Path) -> None:
    stem = "base_model.model.text_model.encoder.layers.0.self_attn.q_proj"
    tensors = {f"{stem}.lora_A.weight": torch.ones(2, 4), f"{stem}.lora_B.weight": torch.ones(4, 2)}
    file = tmp_path / "text_encoder_2" / "adapter_model.safetensors"
    file.parent.mkdir()
    for where in (file, tmp_path / "adapter_model.safetensors"):
        save_file(tensors, where)
        where.with_name("adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 8}')
    (one,) = read_lora(file, SDXL)
    assert (one.submodule, one.alpha) == ("text_encoder_2", 8.0)
    with pytest.raises(ConfigError, match=r"text encoder, and does not say of which.*text_encoder or text_encoder_2"):
        read_lora(tmp_path / "adapter_model.safetensors", SDXL)
    file.with_name("adapter_config.json").write_text('{"peft_type": "IA3"}')
    with pytest.raises(ConfigError, match=r"peft_type is 'IA3', which Tandem does not read"):
        read_lora(file, SDXL)
    file.with_name("adapter_config.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"adapter_config\.json' is"):
        read_lora(file, SDXL)
    file.with_name("adapter_config.json").unlink()
    with pytest.raises(ConfigError, match=r"no adapter_config\.json beside it, which has its alpha"):
        read_lora(file, SDXL)


@pytest.mark.filterwarnings("ignore:.*changes the base weights:UserWarning")  # peft's, which is the point
@pytest.mark.parametrize("init", ["pissa", "olora", "gaussian"])
def test_a_peft_adapter_of_a_changed_base_is_refused(init: Any, tmp_path: Path) -> None:
    """peft subtracts the first values of PiSSA and OLoRA from the base model; its file does not have them."""
    base: Any = torch.nn.ModuleDict({"down_blocks": torch.nn.ModuleList([torch.nn.Linear(8, 8)])})
    before = base["down_blocks"][0].weight.detach().clone()
    model: Any = get_peft_model(base, LoraConfig(r=2, lora_alpha=4, target_modules=["0"], init_lora_weights=init))
    model.save_pretrained(tmp_path)
    layer = model.base_model.model["down_blocks"][0]
    whole = layer.base_layer.weight + layer.get_delta_weight("default")
    assert_close(whole, before)  # before training, the sum is the base model
    assert torch.equal(layer.base_layer.weight, before) is (init == "gaussian")
    if init == "gaussian":
        (one,) = read_lora(tmp_path, UNET)
        assert_close(before + one.delta().float(), whole)
        return
    with pytest.raises(ConfigError, match=rf"init_lora_weights is '{init}'.*path_initial_model_for_weight_conversion"):
        read_lora(tmp_path, UNET)
    with pytest.raises(ConfigError, match="init_lora_weights is 'pissa_niter_4'"):
        read_lora(lora_file(tmp_path, {"unet.init_lora_weights": "pissa_niter_4"}), SD)


LYCORIS: dict[str, Any] = {
    "LoHa": LoHaConfig(r=2, alpha=3, target_modules=ALL),
    "LoHa, convolutions decomposed": LoHaConfig(r=2, alpha=3, target_modules=ALL, use_effective_conv2d=True),
    "LoKr": LoKrConfig(r=2, alpha=3, target_modules=ALL),
    "LoKr, both decomposed": LoKrConfig(r=1, alpha=3, target_modules=ALL, decompose_both=True),
    "LoKr, convolutions decomposed": LoKrConfig(r=1, alpha=3, target_modules=ALL, use_effective_conv2d=True),
}


@pytest.mark.parametrize("case", LYCORIS)
def test_loha_and_lokr_change_weights_as_pefts_do(case: str, sd: Path, tmp_path: Path) -> None:
    """Names as in LyCORIS' files, which are also those of peft's parameters."""
    unet = StableDiffusionPipeline.from_pretrained(sd).unet
    torch.manual_seed(2)
    inject_adapter_in_model(LYCORIS[case], unet, "default")
    layers = {name: layer for name, layer in unet.named_modules() if isinstance(layer, LycorisLayer)}
    tensors: dict[str, Tensor] = {}
    for name, layer in layers.items():
        stem = f"lora_unet_{to_kohya(name)}"
        for kind in layer.adapter_layer_names:
            if "default" in getattr(layer, kind):
                weight = getattr(layer, kind)["default"]
                tensors[f"{stem}.{kind}"] = torch.nn.init.normal_(weight).detach().clone()
        whole = f"{stem}.lokr_w1" in tensors and f"{stem}.lokr_w2" in tensors
        # without a rank LyCORIS sets alpha to the rank, so that it does not count (lokr.py), and peft has no such rule
        layer.scaling["default"] = 1.0 if whole else layer.scaling["default"]
        tensors[f"{stem}.alpha"] = torch.tensor(3.0)
    save_file(tensors, tmp_path / "lycoris.safetensors")
    read = {one.module: one for one in read_adapter(tmp_path / "lycoris.safetensors", SD)}
    assert read.keys() == layers.keys()
    for name, layer in layers.items():
        delta = layer.get_delta_weight("default")
        assert read[name].matrix_shape == delta.flatten(1).shape
        assert_close(read[name].delta(), delta.flatten(1))
    with pytest.raises(ConfigError, match=r"is a (LoHa|LoKr), which cannot become a LoRA without loss"):
        read_lora(tmp_path / "lycoris.safetensors", SD)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def lora_file(folder: Path, header: dict[str, object] | None = None, **changed: Tensor) -> Path:
    """A LoRA of one layer in diffusers' layout, with another tensor in place of `A` or `B`."""
    tensors = {"A": torch.ones(2, 8), "B": torch.ones(8, 2)} | changed
    file = folder / "lora.safetensors"
    metadata = None if header is None else {"lora_adapter_metadata": json.dumps(header)}
    save_file({f"{STEM}.lora_{half}.weight": tensor for half, tensor in tensors.items()}, file, metadata)
    return file


@pytest.mark.parametrize(
    ("header", "alpha"),
    [
        ({"unet.lora_alpha": 5}, 5.0),
        ({"unet.lora_alpha": 5, "unet.alpha_pattern": {"attn1.to_q": 3}}, 3.0),
        ({"unet.lora_alpha": 5, "unet.alpha_pattern": {"^" + STEM.removeprefix("unet."): 3}}, 3.0),
        # As a regular expression the dot would be any character, and the end of a name need not be a whole word.
        ({"unet.lora_alpha": 5, "unet.alpha_pattern": {"a.tn1.to_q": 3, "ttn1.to_q": 4}}, 5.0),
        ({"unet.lora_alpha": 2, "unet.use_rslora": True}, 2 * 2**0.5),
        ({}, 2.0),
    ],
)
def test_alpha_of_a_layer_is_found_by_its_name(header: dict[str, object], alpha: float, tmp_path: Path) -> None:
    assert read_lora(lora_file(tmp_path, header), SD)[0].alpha == pytest.approx(alpha)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"unet.alpha_pattern": {"(.*a)*$": 3}}, "a regular expression; Tandem reads names of layers"),
        ({"unet.alpha_pattern": [1]}, "alpha_pattern is not an object"),
        ({"unet.lora_alpha": -1}, "is -1, not a number above 0"),
        ({"unet.lora_alpha": "16"}, "is 16, not a number above 0"),
        ({"unet.lora_alpha": 10**400}, "is 1000.*, not a number above 0 and at most a million"),
    ],
)
def test_settings_in_a_header_that_are_none_are_refused(header: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        read_lora(lora_file(tmp_path, header), SD)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"A": torch.full((2, 8), torch.nan)}, "no finite numbers"),
        ({"A": torch.ones(2, 8, dtype=torch.int32)}, "numbers of the format int32"),
        ({"A": torch.ones(0, 8), "B": torch.ones(8, 0)}, r"has the shape \[0, 8\]|has the shape \[8, 0\]"),
        ({"B": torch.ones(8, 3)}, "incompatible shapes"),
    ],
)
def test_tensors_that_are_no_lora_are_refused(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        read_lora(lora_file(tmp_path, **changed), SD)


@pytest.mark.parametrize(
    ("names", "shapes", "words"),
    [
        (
            (f"{STEM}.lora.down", f"{PROCESSOR}_lora.down", f"{STEM}.lora.up", f"{PROCESSOR}_lora.up"),
            ((2, 8), (2, 8), (8, 2), (8, 2)),
            "two adapters of 'unet.down_blocks",
        ),
        ((f"{STEM}.lora.down", f"{STEM}.lora.up"), ((2, 8), (8,)), r"lora_B.weight' has the shape \[8\]"),
        ((f"{STEM}.lora.down", f"{STEM}.lora.up"), ((8,), (8, 2)), r"lora_A.weight' has the shape \[8\]"),
        (
            (
                f"lora_unet_input_blocks_{'9' * 5000}_0_op.lora_down",
                f"lora_unet_input_blocks_{'9' * 5000}_0_op.lora_up",
            ),
            ((2, 8), (8, 2)),
            "",  # a name that no model has
        ),
    ],
)
def test_names_of_other_layouts_are_checked_after_translation(
    names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], words: str, tmp_path: Path
) -> None:
    tensors = {f"{name}.weight": torch.ones(shape) for name, shape in zip(names, shapes, strict=True)}
    save_file(tensors, tmp_path / "x.safetensors")
    if words:
        with pytest.raises(ConfigError, match=words):
            read_lora(tmp_path / "x.safetensors", SD)
    else:
        assert len(read_lora(tmp_path / "x.safetensors", SDXL)) == 1


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_lora_of_8_bits_is_read_as_numbers(dtype: torch.dtype, tmp_path: Path) -> None:
    down = torch.tensor([[0.5, -2.0, 1.5, 0.25]])
    (one,) = read_lora(lora_file(tmp_path, A=down.to(dtype), B=torch.ones(3, 1).to(dtype)), SD)
    assert torch.equal(one.delta(), down.double().expand(3, 4))  # numbers that both formats have exactly


def test_number_formats_that_cannot_be_read_are_explained(tmp_path: Path) -> None:
    """safetensors has the names of formats of 4 and 6 bits, and torch cannot calculate with them."""
    file = tmp_path / "x.safetensors"
    for dtype, size in (("F4", 32), ("F6_E2M3", 48), ("F8_E8M0", 64)):
        names = (f"{KOHYA}.lora_down.weight", f"{KOHYA}.lora_up.weight")
        entries = {
            name: {"dtype": dtype, "shape": [8, 8], "data_offsets": [place * size, (place + 1) * size]}
            for place, name in enumerate(names)
        }
        text = json.dumps(entries).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + b"\x3c" * (2 * size))
        with pytest.raises(ConfigError, match="number format"):
            read_lora(file, SD)
        with pytest.raises(ConfigError, match="number format"):
            convert_dtype(file, tmp_path / "out.safetensors", torch.float16)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"hada_w1_a": (8, 2), "hada_w1_b": (2, 8), "hada_w2_a": (8, 2)}, "is incomplete.*hada_w2_b"),
        ({"hada_w1_a": (8, 2), "hada_w1_b": (2, 8), "hada_w2_a": (8, 2), "hada_w2_b": (2, 9)}, "incompatible shapes"),
        ({"hada_w1_a": (8, 2), "hada_w1_b": (3, 8), "hada_w2_a": (8, 2), "hada_w2_b": (2, 8)}, "incompatible shapes"),
        ({"lokr_w1": (2, 2), "lokr_w2_a": (4, 2), "lokr_w2_b": (3, 4)}, "incompatible shapes"),
        (
            {"lokr_w1": (2, 2), "lokr_w2": (4, 4), "lokr_t2": (2, 2, 3, 3), "lokr_x": (2, 2)},
            "lokr_t2' and 1 more tensors do not belong",
        ),
    ],
)
def test_a_lycoris_file_that_does_not_fit_together_is_refused(
    tensors: dict[str, tuple[int, ...]], words: str, tmp_path: Path
) -> None:
    save_file({f"{KOHYA}.{name}": torch.ones(shape) for name, shape in tensors.items()}, tmp_path / "x.safetensors")
    with pytest.raises(ConfigError, match=words):
        read_adapter(tmp_path / "x.safetensors", SD)


def test_a_tucker_decomposed_lokr_is_read(tmp_path: Path) -> None:
    """A product of its factors that is no whole block of memory was an error of torch.kron's."""
    core, out, inside, w1 = torch.randn(2, 2, 3, 3), torch.randn(2, 4), torch.randn(2, 5), torch.randn(3, 2)
    tensors = {"lokr_w1": w1, "lokr_t2": core, "lokr_w2_a": out, "lokr_w2_b": inside}
    save_file({f"{KOHYA}.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "x.safetensors")
    (one,) = read_adapter(tmp_path / "x.safetensors", SD)
    inner = torch.einsum("abhw,ao,bi->oihw", core, out, inside)
    assert (one.delta() - torch.kron(w1, inner.flatten(1))).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("alpha", "words"),
    [(torch.tensor(1j), "complex numbers"), (torch.ones([1] * 65), "has 65 dimensions")],
)
def test_what_torch_does_not_calculate_with_is_refused(alpha: torch.Tensor, words: str, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    stem = f"{KOHYA}.lora_"
    save_file(
        {f"{stem}down.weight": torch.ones(1, 4), f"{stem}up.weight": torch.ones(3, 1), f"{KOHYA}.alpha": alpha}, file
    )
    with pytest.raises(ConfigError, match=words):
        read_lora(file, SD)


def test_a_small_file_cannot_ask_for_a_huge_product(tmp_path: Path) -> None:
    """The Kronecker product of two files of 1 MB would have 10^11 numbers; its shape is known before."""
    tensors = {f"{KOHYA}.{name}": torch.ones(600, 600) for name in ("lokr_w1", "lokr_w2")}
    save_file(tensors, tmp_path / "x.safetensors")
    assert read_adapter(tmp_path / "x.safetensors", SD)[0].matrix_shape == (360_000, 360_000)


def test_the_strength_of_dora_goes_from_the_base_model_to_what_was_trained() -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 6)
    lora = LoraWeights("unet", "x", torch.randn(2, 6), torch.randn(4, 2), 2.0, None)
    magnitude = torch.rand(4) + 1
    dora = replace(lora, magnitude=magnitude)
    assert torch.equal(merged_weight(weight, dora, 0.0), weight.double())
    whole = weight + lora.up @ lora.down
    expected = magnitude[:, None] * whole / whole.norm(dim=1, keepdim=True)
    assert_close(merged_weight(weight, dora), expected)
    assert_close(merged_weight(weight, dora, 0.5), (weight + expected) / 2)


def test_a_lora_that_was_joined_for_a_fused_layer_has_its_rank_again(tmp_path: Path) -> None:
    made = [
        LoraWeights(
            "transformer", f"layers.0.attention.to_{letter}", torch.randn(rank, 8), torch.randn(8, rank), 3.0, None
        )
        for letter, rank in (("q", 2), ("k", 2), ("v", 4))
    ]
    file = tmp_path / "kohya.safetensors"
    write_lora(file, made, "kohya", {"transformer": ("transformer", "")}, {}, torch.float64, "z-image/lora")
    found = {one.module: one for one in read_lora(file, {"transformer": ("transformer", "")})}
    for one in made:
        assert found[one.module].rank == one.rank
        torch.testing.assert_close(found[one.module].delta(), one.delta(), rtol=1e-5, atol=1e-6)


# A layer of SDXL's UNet by its name in diffusers and in Stability AI's code, of each kind
SDXL_LAYERS: Final = {
    "time_embedding.linear_1": "time_embed.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0",
    "down_blocks.1.resnets.0.conv1": "input_blocks.4.0.in_layers.2",
    "down_blocks.2.attentions.1.transformer_blocks.9.attn2.to_out.0": (
        "input_blocks.8.1.transformer_blocks.9.attn2.to_out.0"
    ),
    "mid_block.attentions.0.proj_in": "middle_block.1.proj_in",
    "up_blocks.0.attentions.2.transformer_blocks.0.attn1.to_q": "output_blocks.2.1.transformer_blocks.0.attn1.to_q",
}
PEFTS: Final = {"lora_down.weight": "lora_A.weight", "lora_up.weight": "lora_B.weight"}
SLOTS: Final = {"lora_down.weight": "lora_A.default.weight", "lora_up.weight": "lora_B.default.weight"}


def flat(name: str) -> str:
    return name.replace(".", "_")


# The name of a layer, and of its matrices, as files have them; the layers of text encoders are as in kohya's
SDXL_LAYOUTS: Final[dict[str, tuple[Callable[[str], str], dict[str, str]]]] = {
    "LyCORIS": (lambda name: f"lycoris_{flat(name)}", {}),
    "kohya": (lambda name: f"lora_unet_{flat(SDXL_LAYERS[name])}", {}),
    "kohya, diffusers' names": (lambda name: f"lora_unet_{flat(name)}", {}),
    "OneTrainer for ComfyUI": (lambda name: f"diffusion_model.{SDXL_LAYERS[name]}", {}),
    "a whole model's": (lambda name: f"model.diffusion_model.{SDXL_LAYERS[name]}", PEFTS),
    "ai-toolkit": (lambda name: f"unet.{name}", PEFTS),
    "PEFT without its config": (lambda name: f"base_model.model.{name}", PEFTS),
    "PEFT's modules": (lambda name: f"base_model.model.{name}", SLOTS),
    "no prefix": (lambda name: name, SLOTS),
}


def products(kind: str) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of a layer of 8 x 8, and what LyCORIS (functional/loha.py, lokr.py, locon.py) makes of them."""
    matrices = [torch.randn(shape) for shape in ((8, 2), (2, 8), (8, 2), (2, 8))]
    if kind == "lora":
        up, down = matrices[:2]
        return {"lora_up.weight": up, "lora_down.weight": down, "alpha": torch.tensor(3.0)}, 1.5 * (up @ down)
    if kind == "loha":
        tensors = dict(zip(("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"), matrices, strict=True))
        product = (matrices[0] @ matrices[1]) * (matrices[2] @ matrices[3])
        return {**tensors, "alpha": torch.tensor(3.0)}, 1.5 * product
    small, a, b = torch.randn(2, 2), torch.randn(4, 2), torch.randn(2, 4)
    tensors = {"lokr_w1": small, "lokr_w2_a": a, "lokr_w2_b": b, "alpha": torch.tensor(3.0)}
    return tensors, 1.5 * torch.kron(small, a @ b)


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
@pytest.mark.parametrize("layout", SDXL_LAYOUTS)
def test_every_layout_of_sdxl_is_read(layout: str, kind: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    name_of, ends = SDXL_LAYOUTS[layout]
    stems = {("unet", name): name_of(name) for name in SDXL_LAYERS}
    if layout.startswith(("LyCORIS", "kohya")):
        layer = "text_model.encoder.layers.0.self_attn.q_proj"
        stems["text_encoder", layer.removeprefix("text_model.")] = f"lora_te1_{flat(layer)}"  # transformers' name
        stems["text_encoder_2", layer] = f"lora_te2_{flat(layer)}"
    tensors: dict[str, Tensor] = {}
    expected: dict[tuple[str, str], Tensor] = {}
    for place, stem in stems.items():
        own, expected[place] = products(kind)
        tensors |= {f"{stem}.{ends.get(end, end)}": tensor for end, tensor in own.items()}
    save_file(tensors, tmp_path / "x.safetensors")
    read = {(one.submodule, one.module): one.delta() for one in read_adapter(tmp_path / "x.safetensors", SDXL)}
    assert read.keys() == expected.keys()
    for place, delta in expected.items():
        assert_close(read[place], delta)
