"""base_model is the .safetensors file of a transformer: the same model as its folder, and messages on wrong ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors.torch import load_file, save_file

from app.base_model import inspect_base_model, other_family
from modules.checkpoint.formats import write_single_file
from modules.checkpoint.formats.conversion import convert_dtype, single_file_to_folder
from modules.checkpoint.formats.file_types import require_diffusers_folder
from modules.config import ConfigError, TrainConfig
from modules.diffusion.hub.model import HubModel
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.diffusion.transformer_files.base import base_of_file
from modules.facts import all_facts, family_of_file, hub_model_of, known_models
from modules.families._by_name import family_class
from modules.families._find_family import check_family, find_family
from modules.training.state.resume import weight_digest
from tests.families.flow_checks import REQUEST, load
from tests.families.stills import still
from tests.families.tiny_flow_pipelines import TINY
from tests.families.tiny_pipelines import tiny_sd

FAMILIES = (
    *("z_image", "flux", "flux2", "chroma", "krea2", "qwen_image", "stable_diffusion_3", "lumina2", "ernie_image"),
    "wan",
)
WEIGHTS = Path("transformer", "diffusion_pytorch_model.safetensors")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """The folder of a tiny pipeline, and its transformer as a file in bf16."""
    place = tmp_path_factory.mktemp("bases")

    def both(family: str) -> tuple[Path, Path]:
        folder, file = place / family, place / f"{family}.safetensors"
        if not file.exists():
            with quiet_libraries():
                TINY[family](folder)
            write_single_file(folder, file, torch.bfloat16, {})
        return folder, file

    return both


def config_of(family: str, file: Path, layout: Path | str = "") -> TrainConfig:
    settings = {"base_model": str(file), "family_options": {"layout": str(layout)} if layout else {}}
    return TrainConfig.model_validate({"family": family, "resolution": 64, **settings})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_is_the_model_of_its_folder_in_the_format_of_the_file(family: str, base: Any) -> None:
    folder, file = base(family)
    assert find_family(str(file)) == family
    shapes = {name: list(each.shape) for name, each in load_file(file).items()}
    assert hub_model_of(family, shapes, file.name) in known_models()
    loading: Any = family_class(family).load_for_training(config_of(family, file, folder))
    loaded = loading.components.transformer.state_dict()
    stored = load_file(folder / WEIGHTS)
    assert loaded.keys() == stored.keys()
    assert all(torch.equal(tensor, stored[name].bfloat16().to(tensor.dtype)) for name, tensor in loaded.items())
    wide = {name for name, tensor in loaded.items() if tensor.dtype != torch.bfloat16}
    kept = loading.components.transformer._keep_in_fp32_modules or []
    assert all(any(part in name for part in kept) for name in wide)
    assert not wide or family in ("krea2", "wan")  # whose classes keep norms in fp32


@pytest.mark.slow
def test_samples_export_and_digest_are_those_of_the_folder(base: Any, tmp_path: Path) -> None:
    folder, _ = base("z_image")
    file, settings = tmp_path / "z.safetensors", {"family_options": {"layout": str(folder)}}
    write_single_file(folder, file, None, {})
    ours, whole = load("z_image", file, **settings), load("z_image", folder)
    assert still(ours, REQUEST).tobytes() == still(whole, REQUEST).tobytes()
    assert ours.fingerprint() == whole.fingerprint()
    assert weight_digest(ours.model) == weight_digest(whole.model)  # a run may be resumed with either
    ours.export(ours.model.state_dict(), tmp_path / "model")
    assert {path.relative_to(folder) for path in folder.rglob("*.*")} == {
        path.relative_to(tmp_path / "model") for path in (tmp_path / "model").rglob("*.*")
    }
    exported = DiffusionPipeline.from_pretrained(tmp_path / "model").transformer.state_dict()
    assert all(
        torch.equal(tensor, exported[name]) for name, tensor in whole.components.transformer.state_dict().items()
    )

    shutil.copyfile(folder / WEIGHTS, file)  # diffusers' own names
    assert weight_digest(load("z_image", file, **settings).model) == weight_digest(whole.model)


def test_fp8_becomes_bf16_and_is_said(base: Any, tmp_path: Path) -> None:
    folder, file = base("z_image")
    tensors = load_file(file)
    small = {name: each.to(torch.float8_e4m3fn) if each.dim() > 1 else each for name, each in tensors.items()}
    save_file(small, tmp_path / "fp8.safetensors")
    config = config_of("z_image", tmp_path / "fp8.safetensors", folder)
    notes = family_class("z_image").base_model_notes(config)
    assert [word in note for word, note in zip(("come from", "is in fp8; its weights are"), notes, strict=True)] == [
        True
    ] * 2
    loaded = family_class("z_image").load_for_training(config).model
    assert {weight.dtype for weight in loaded.parameters()} == {torch.bfloat16}
    save_file({**small, "layers.0.feed_forward.w1.SCB": torch.ones(1)}, tmp_path / "scaled.safetensors")
    config = config_of("z_image", tmp_path / "scaled.safetensors", folder)
    for read in (family_class("z_image").base_model_notes, family_class("z_image").load):
        with pytest.raises(ConfigError, match=r"base_model: .*' is quantised.*\s*Use the file in bf16"):
            read(config)


PREFIXED = {
    "z_image": "diffusion_model.",
    "flux": "model.diffusion_model.",
    "qwen_image": "transformer.",
    "stable_diffusion_3": "net.",
    "flux2": "",
}
FORMS = [
    *((family, "whole") for family in PREFIXED),  # by which the model on the hub is found, too
    *(("flux", form) for form in ("shards", "fp8", "gguf")),
    *[("z_image", "fp8"), ("qwen_image", "gguf"), ("stable_diffusion_3", "shards"), ("flux2", "fp8")],
]


def same_as_folder(family: str, file: Path, folder: Path, *, tolerance: float = 0.0) -> None:
    """The file is found, checked and loaded as the transformer of the folder."""
    assert find_family(str(file)) == family
    config = config_of(family, file, folder)
    family_class(family).base_model_notes(config)
    loading: Any = family_class(family).load_for_training(config)
    loaded, stored = loading.components.transformer.state_dict(), load_file(folder / WEIGHTS)
    assert loaded.keys() == stored.keys()
    for name, tensor in loaded.items():
        wanted = stored[name].bfloat16().float()
        torch.testing.assert_close(tensor.float(), wanted, rtol=0, atol=tolerance * float(wanted.abs().max()))
    if family == "flux" and file.is_file():
        single_file_to_folder(file, folder, file.with_name("converted"), None)
        convert_dtype(file, file.with_name("plain.safetensors"), torch.bfloat16)
        for converted in (file.with_name("converted") / WEIGHTS, file.with_name("plain.safetensors")):
            again: Any = family_class(family).load_for_training(config_of(family, converted, folder))
            state = again.components.transformer.state_dict()
            assert all(torch.equal(tensor, loaded[name].to(tensor.dtype)) for name, tensor in state.items())
        shutil.rmtree(file.with_name("converted"))
        file.with_name("plain.safetensors").unlink()


@pytest.mark.parametrize(("family", "form"), FORMS)
def test_a_file_as_published_is_the_model_of_its_folder(family: str, form: str, base: Any, tmp_path: Path) -> None:
    folder, plain = base(family)
    prefix = PREFIXED[family]
    tensors = {
        prefix + name.removeprefix("model.diffusion_model."): tensor for name, tensor in load_file(plain).items()
    }
    if form == "whole":
        save_file(tensors, tmp_path / "x.safetensors")
        same_as_folder(family, tmp_path / "x.safetensors", folder)
        shapes = {name: [*tensor.shape] for name, tensor in tensors.items()}
        assert hub_model_of(family, shapes, "x") == hub_model_of(
            family, {name: [*tensor.shape] for name, tensor in load_file(plain).items()}, "x"
        )
    elif form == "shards":
        names = sorted(tensors)
        halves = {f"x-0000{part + 1}-of-00002.safetensors": names[part::2] for part in (0, 1)}
        for shard, own in halves.items():
            save_file({name: tensors[name] for name in own}, tmp_path / shard)
        places = {name: shard for shard, own in halves.items() for name in own}
        (tmp_path / "x.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        same_as_folder(family, tmp_path / "x.safetensors.index.json", folder)
        same_as_folder(family, tmp_path, folder)  # that it is in
        with pytest.raises(ConfigError, match=r"shards.*\s*Give the index: .*x.safetensors.index.json"):
            require_diffusers_folder(tmp_path)
    elif form == "fp8":
        stored: dict[str, torch.Tensor] = {f"{prefix}scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}
        for name, tensor in tensors.items():
            if tensor.dim() == 2 and name.endswith(".weight"):
                scale = tensor.float().abs().amax() / 448
                stored |= {name: (tensor.float() / scale).to(torch.float8_e4m3fn), name[:-6] + "scale_weight": scale}
            else:
                stored[name] = tensor
        save_file(stored, tmp_path / "x.safetensors")
        same_as_folder(family, tmp_path / "x.safetensors", folder, tolerance=1 / 16)
    else:
        gguf = pytest.importorskip("gguf")
        writer = gguf.GGUFWriter(tmp_path / "x.gguf", "flux")
        for name, tensor in tensors.items():
            is_large = tensor.dim() == 2 and tensor.shape[1] % 32 == 0
            kind = gguf.GGMLQuantizationType.Q8_0 if is_large else gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, gguf.quants.quantize(tensor.float().numpy(), kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        same_as_folder(family, tmp_path / "x.gguf", folder, tolerance=1 / 64)


@pytest.mark.slow
def test_another_family_or_layout_is_named(base: Any, tmp_path: Path) -> None:
    folder, file = base("z_image")
    other_folder, other_file = base("krea2")
    sd = tmp_path / "sd.safetensors"
    write_single_file(tiny_sd(tmp_path / "sd"), sd, torch.float32, {})
    for family, wrong, words in (
        ("flux2", file, r"is a model of Z-Image, which the family 'flux2' does not train.\s*Set family to z_image"),
        ("stable_diffusion", file, r"is a model of Z-Image.*\s*Set family to z_image"),
        ("z_image", sd, r"which the family 'z_image' does not train.\s*Set family to stable_diffusion,"),
    ):
        with pytest.raises(ConfigError, match=words):
            family_class(family).base_model_notes(config_of(family, wrong))
    for layout, words in (
        (other_folder, "family_options.layout: .* contains a Krea2Pipeline"),
        (tmp_path / "none", "family_options.layout: there is no"),
        (other_file, "family_options.layout is .* a file"),
    ):
        with pytest.raises(ConfigError, match=words):
            family_class("z_image").load(config_of("z_image", file, layout))
    bare = shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(ConfigError, match=r"family_options.layout: the model in .*bare' has no vae"):
        family_class("z_image").load(config_of("z_image", file, bare))
    config = json.loads((other_folder / "transformer" / "config.json").read_text())
    wide = shutil.copytree(other_folder, tmp_path / "wide")
    (wide / "transformer" / "config.json").write_text(json.dumps({**config, "intermediate_size": 999}))
    with pytest.raises(ConfigError, match=r"base_model: .*has the shape .* but transformer of the layout .* requires"):
        family_class("krea2").load(config_of("krea2", other_file, wide))


@pytest.mark.parametrize(
    ("shapes", "name", "expected"),
    [
        ({"double_blocks.0.img_mod.lin.weight": [1]}, "flux1-schnell.safetensors", "FLUX.1-schnell"),
        ({"double_blocks.0.img_mod.lin.weight": [1], "guidance_in.in_layer.weight": [1]}, "x", "FLUX.1-dev"),
        ({"double_stream_modulation_img.lin.weight": [1], "img_in.weight": [3072, 128]}, "a-base-4b", "klein-base-4B"),
        ({"double_stream_modulation_img.lin.weight": [1], "img_in.weight": [4096, 128]}, "klein", "FLUX.2-klein-9B"),
        ({"double_stream_modulation_img.lin.weight": [1], "img_in.weight": [6144, 128]}, "flux2", "FLUX.2-dev"),
        ({"layers.0.adaLN_modulation.1.weight": [1]}, "lumina_2_model_bf16.safetensors", "Lumina-Image-2.0"),
        ({"layers.0.attention.qkv.weight": [1]}, "z_image_turbo_bf16.safetensors", "Z-Image-Turbo"),
        ({"joint_blocks.37.x": [1]}, "sd3.5_large_turbo", "stable-diffusion-3.5-large-turbo"),
        ({"joint_blocks.3.x_block.attn2.x": [1]}, "sd3.5_medium", "stable-diffusion-3.5-medium"),
    ],
)
def test_the_model_on_the_hub_is_found_by_tensors_and_name(shapes: Any, name: str, expected: str) -> None:
    found = hub_model_of(family_of_file(shapes, name), shapes, name)
    assert found.endswith(expected)
    assert found in known_models()


def test_comfyuis_mark_tells_qwen_image_edit_2511_apart(base: Any, tmp_path: Path) -> None:
    """Whatever the file's name; the mark is an empty tensor, and no weight."""
    folder, plain = base("qwen_image_edit")
    tensors = {f"model.diffusion_model.{name}": each for name, each in load_file(plain).items()}
    mark = {"model.diffusion_model.__index_timestep_zero__": torch.tensor([])}
    for name in ("my_edit", "qwen_image_edit"):
        file = tmp_path / f"{name}.safetensors"
        save_file(tensors | mark, file)
        same_as_folder("qwen_image_edit", file, folder)
        shapes = {name: [*each.shape] for name, each in load_file(file).items()}
        assert hub_model_of("qwen_image_edit", shapes, name) == "Qwen/Qwen-Image-Edit-2511"
    assert hub_model_of("qwen_image_edit", {}, "x") == "Qwen/Qwen-Image-Edit"


def test_the_name_of_a_file_tells_later_models_of_equal_layers_apart() -> None:
    names = ["head.modulation", "blocks.0.self_attn.q.weight"]
    files = {"wan2.1_t2v_14B.safetensors": "wan", "Wan2.2-TI2V-5B-Q8_0.gguf": "wan22_5b"}
    assert {file: family_of_file(names, file) for file in files} == files


def test_a_file_of_flux_is_also_one_of_kontext(base: Any) -> None:
    _, file = base("flux")
    named = Path(shutil.copy(file, file.with_name("flux1-dev-kontext.safetensors")))
    assert (find_family(str(file)), find_family(str(named))) == ("flux", "flux_kontext")
    for each, family in ((each, family) for each in (file, named) for family in ("flux", "flux_kontext")):
        pipelines = all_facts()[family].pipelines
        check_family(config_of(family, each), pipelines)
        found = base_of_file(each, "", pipelines, ()).model
        assert isinstance(found, HubModel)
        assert ("Kontext" in found.name) == (family == "flux_kontext")
        assert not other_family(inspect_base_model(str(each)), family)
    with pytest.raises(ConfigError, match="Set family to flux"):
        check_family(config_of("qwen_image", named), all_facts()["qwen_image"].pipelines)
    named.unlink()


def test_without_a_layout_all_but_the_transformer_comes_from_the_hub(
    base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    folder, file = base("z_image")
    config = config_of("z_image", file)
    model = family_class("z_image").hub_model(config)
    assert model is not None
    with pytest.raises(
        ConfigError, match=r"transformer alone; .* 'Tongyi-MAI/Z-Image' on the hub, which cannot be used: there"
    ):
        model.ensure_cached()
    with pytest.raises(ConfigError, match=r"base_model: .*\[1, 16\], but .* 'Tongyi-MAI/Z-Image' requires \[1, 3840\]"):
        family_class("z_image").base_model_notes(config)  # whose networks are known without a download
    cached = tmp_path / "models--Tongyi-MAI--Z-Image"
    shutil.copytree(folder, cached / "snapshots" / ("0" * 40), ignore=shutil.ignore_patterns("diffusion_pytorch*"))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    assert model.cached_folder() is None  # the autoencoder is missing
    shutil.copytree(folder / "vae", cached / "snapshots" / ("0" * 40) / "vae", dirs_exist_ok=True)
    assert model.cached_folder() is not None
    (note,) = family_class("z_image").base_model_notes(config)
    assert note.endswith("come from Tongyi-MAI/Z-Image (family_options.layout chooses another).")
    loaded: Any = family_class("z_image").load_for_training(config)
    assert loaded.components.folder == model.cached_folder()
