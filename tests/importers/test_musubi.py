"""musubi-tuner at 30c658c: arguments and dataset files as its docs have them, against what its code does.

dataset/config_utils.py (names, levels and defaults), dataset/bucket.py, dataset/datasources.py (captions, pairs),
training/parser_common.py (defaults), training/trainer_base.py (noise levels, weights), networks/lora_*.py (layers),
*_train_network.py (versions, text encoders, guidance of 1).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from modules.facts import all_facts
from modules.importers import ImportResult, common, import_file

DATASETS = """
[general]
resolution = [1024, 768]
caption_extension = ".txt"
batch_size = 2
enable_bucket = true

[[datasets]] # those to be edited
image_directory = "after"
control_directory = "before"
cache_directory = "cache"
num_repeats = 3
qwen_image_edit_control_resolution = [1024, 1024]

[[datasets]]
image_directory = "more"
resolution = 512
batch_size = 1
"""
KONTEXT = """
[model]
dit = "flux1-dev-kontext_fp8.safetensors"
vae = "ae.safetensors"
text_encoder1 = "t5xxl.safetensors"
text_encoder2 = "clip_l.safetensors"
[anything]
dataset_config = "data.toml"
network_module = "networks.lora_flux"
network_dim = 32
network_args = ["loraplus_lr_ratio=4", "exclude_patterns=['.*single.*']"]
mixed_precision = "bf16"
fp8_base = true
fp8_t5 = true
timestep_sampling = "flux_shift"
weighting_scheme = "cosmap"
blocks_to_swap = 20
sample_prompts = "prompts.json"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("after", "before", "more", "clip_l.safetensors", "t5xxl.safetensors"):
        (tmp_path / name).mkdir()
    return tmp_path


def imported(folder: Path, text: str, name: str = "data.toml") -> ImportResult:
    (folder / name).write_text(text, encoding="utf-8-sig", newline="\r\n")
    return import_file(folder / name)


def run(folder: Path, **arguments: object) -> ImportResult:
    (folder / "run.json").write_text(json.dumps({"dit": "a.safetensors", "output_name": "x", **arguments}), "utf-8")
    return import_file(folder / "run.json")


def reasons(found: ImportResult) -> dict[str, str]:
    return {entry.source: entry.why for entry in found.report.not_imported}


def test_datasets(folder: Path) -> None:
    found = imported(folder, DATASETS)
    config = found.config
    assert (found.report.trainer, config.family) == ("musubi-tuner", "flux_kontext")  # the first that edits images
    told = {each.target: each.why for each in found.report.changed}
    assert told["family"] == "guessed: flux2 and qwen_image_edit edit images, too"
    assert "keep one" in told["concepts.0.references"]
    assert (config.resolution, config.batch_size, config.bucket_step) == (896, 2, 16)
    assert (config.reference_resolution, config.aspect_ratio_bucketing, config.no_upscale) == (1024, True, False)
    first, second = config.concepts
    assert (Path(first.path).name, Path(first.references).name, first.repeats) == ("after", "before", 3)
    assert (second.resolutions, second.references, second.repeats) == ("512", "", 1)
    for concept in config.concepts:
        assert (concept.caption_source, concept.caption_extension, concept.caption_lines) == ("txt", ".txt", "whole")
        assert not concept.include_subfolders
    assert set(reasons(found)) == {"datasets.0.cache_directory", "datasets.1.batch_size"}


def test_defaults_of_datasets(folder: Path) -> None:
    config = imported(folder, '[[datasets]]\nimage_directory = "after"\n').config
    assert (config.resolution, config.aspect_ratio_bucketing, config.batch_size) == (720, False, 1)  # of [960, 544]


def test_videos_lists_and_layers_are_named(folder: Path) -> None:
    text = """
[general]
caption_extension = ".txt"
[[datasets]]
video_directory = "clips"
target_frames = [1, 25]
[[datasets]]
image_jsonl_file = "list.jsonl"
[[datasets]]
cache_directory = "x"
"""
    found = reasons(imported(folder, text))
    assert found["datasets.0.video_directory"] == f"{common.IMAGES_ONLY}: the dataset is left out"
    assert "metadata.jsonl" in found["datasets.1.image_jsonl_file"]
    assert found["datasets.2"] == "it has no image_directory"
    assert found["general.caption_extension"] == "no images are named"
    layered = imported(folder, '[[datasets]]\nimage_directory = "after"\nmultiple_target = true\n')
    assert "of layers" in layered.report.problems[0]


def test_kontext(folder: Path) -> None:
    (folder / "data.toml").write_text(DATASETS, "utf-8")
    prompts = ["make it snow --w 512 --g 2.5 --ci before/a.png", {"prompt": "dusk", "cfg_scale": 3}, 5]
    (folder / "prompts.json").write_text(json.dumps(prompts), "utf-8")
    found = imported(folder, KONTEXT, "run.toml")
    config = found.config
    assert (config.family, config.method, config.lora_rank, config.lora_alpha) == ("flux_kontext", "lora", 32, 1)
    assert (config.lora_plus_ratio, config.precision, config.block_offload) == (4, "bf16", 0.53)
    assert [(part.part, part.weights) for part in config.parts] == [("transformer", "fp8")]
    assert Path(config.concepts[0].references).name == "before"
    assert config.lora_layouts == "kohya"
    options = dict(config.family_options)
    files = options.pop("text_encoder_files")
    assert files == f"{folder / 't5xxl.safetensors'}, {folder / 'clip_l.safetensors'}"
    assert options == {
        "text_encoder_weights": "fp8", "timestep_distribution": "logit_normal", "guidance": 1.0,
        "loss_weighting": "cosmap",
    }  # fmt: skip
    first, second = config.samples
    assert (first.prompt, first.width, first.height, first.guidance_scale) == ("make it snow", 512, 256, 2.5)
    assert (Path(first.reference).name, second.prompt) == ("a.png", "dusk")
    why = reasons(found)
    assert "exclude_patterns" in why["network_args"]
    assert why["sample_prompts.2"] == "it has no prompt"
    assert {"vae", "sample_prompts.1.cfg_scale"} <= set(why)


@pytest.mark.parametrize(
    ("arguments", "family", "problem"),
    [
        ({"network_module": "networks.lora_flux_2", "model_version": "klein-base-4b"}, "flux2", ""),
        ({"network_module": "networks.lora_qwen_image"}, "qwen_image", ""),
        ({"network_module": "networks.lora_qwen_image", "model_version": "edit-2511"}, "qwen_image_edit", ""),
        ({"network_module": "networks.lokr", "edit_plus": True}, "qwen_image_edit", ""),
        ({"network_module": "networks.lora_qwen_image", "model_version": "layered"}, "qwen_image", "Layered"),
        ({"network_module": "networks.lora_qwen_image", "dataset_config": "data.toml"}, "qwen_image", "pairs"),
        ({"network_module": "networks.lokr", "dit": "z_image_turbo_bf16.safetensors"}, "z_image", ""),
        ({"dit": "flux-2-klein-base-4b.safetensors"}, "flux2", ""),
        ({"network_module": "networks.lora_krea2"}, "krea2", ""),
        ({"network_module": "networks.lora_wan"}, "wan", ""),
        ({"network_module": "networks.lora_flux_2", "dataset_config": "data.toml"}, "flux2", ""),
    ],
)
def test_families(folder: Path, arguments: dict[str, object], family: str, problem: str) -> None:
    (folder / "data.toml").write_text(DATASETS, "utf-8")
    found = run(folder, **arguments)
    assert found.config.family == family
    assert bool(found.report.problems) is bool(problem)
    assert (found.config.base_model is None or found.config.base_model == "") is bool(problem)
    assert problem in " ".join(found.report.problems)


def test_qwen_image_edit_and_its_references(folder: Path) -> None:
    (folder / "prompts.txt").write_text("snow --ci a.png --ci b.png --ci c.png --ci d.png --w 512 --w 256\n", "utf-8")
    found = run(folder, model_version="edit-2509", sample_prompts="prompts.txt")
    assert found.config.family_options["layout"] == "Qwen/Qwen-Image-Edit-2509"
    (sample,) = found.config.samples
    assert ([Path(each).name for each in sample.reference_files], sample.width) == (["a.png", "b.png", "c.png"], 256)
    assert any("takes 3: those after" in each.why for each in found.report.changed)


def test_what_later_datasets_inherit_is_told(folder: Path) -> None:
    text = """
[general]
batch_size = 2
caption_extension = ".txt"
[[datasets]]
image_directory = "after"
batch_size = 1
enable_bucket = true
[[datasets]]
image_directory = "more"
"""
    found = imported(folder, text)
    assert set(reasons(found)) == {"general.batch_size", "datasets.1.enable_bucket"}
    assert any("left out there" in each.why for each in found.report.changed)


def test_defaults_of_noise_levels_and_precision(folder: Path) -> None:
    config = run(folder, network_module="networks.lora_zimage").config
    assert (config.precision, config.learning_rate, config.max_steps, config.lora_rank) == ("bf16", 2e-6, 1600, 4)
    assert config.family_options == {"timestep_distribution": "uniform", "timestep_shift": "static", "shift": 1.0}
    shifted = run(folder, network_module="networks.lora_zimage", timestep_sampling="shift", discrete_flow_shift=2.0)
    assert (shifted.config.family_options["shift"], shifted.config.family_options["timestep_distribution"]) == (
        2.0,
        "logit_normal",
    )
    unknown = run(folder, network_module="networks.lora_flux", timestep_sampling="qinglong_flux", guidance_scale=3)
    assert "timestep_distribution" in reasons(unknown)["timestep_sampling"]
    assert "HunyuanVideo" in reasons(unknown)["guidance_scale"]


@pytest.mark.parametrize(
    ("module", "family", "left_out"),
    [
        ("lora_flux", "flux_kontext", r"norm|^(?!.*blocks)"),
        ("lora_flux_2", "flux2", r"modulation|norm|^(?!.*blocks)"),
        ("lora_zimage", "z_image", r"adaLN|refiner|norm|^(?!.*layers)"),
    ],
)
def test_layers(folder: Path, module: str, family: str, left_out: str) -> None:
    pattern = run(folder, network_module=f"networks.{module}").config.lora_targets
    file = all_facts()[family].file
    assert file is not None
    layers = [name.replace("*", "0") for name in file.names if not name.endswith((".scale_shift_table", "pad_token"))]
    linear = [name for name in layers if "norm_" not in name and not re.search(r"norm[12]?$|norm_[qk]", name)]
    chosen = {name for name in linear if re.search(pattern, name)}
    assert chosen == {name for name in linear if not re.search(left_out, name)}
    assert len(chosen) > 3
