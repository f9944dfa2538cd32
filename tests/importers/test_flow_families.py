"""Settings of other trainers for transformers trained by flow matching, written as their own examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.config import TrainConfig
from modules.diffusion.flow_options import GuidedFlowOptions
from modules.importers import import_file
from modules.importers.flow_families import flow_family

KOHYA_FLUX = """
pretrained_model_name_or_path = "/models/flux1-dev.safetensors"
clip_l = "/models/clip_l.safetensors"
t5xxl = "/models/t5xxl_fp16.safetensors"
ae = "/models/ae.safetensors"
network_module = "networks.lora_flux"
network_dim = 16
network_alpha = 8
timestep_sampling = "shift"
discrete_flow_shift = 3.1582
model_prediction_type = "raw"
guidance_scale = 1.0
mixed_precision = "bf16"
max_train_steps = 500
network_train_unet_only = true
learning_rate = 1e-4
"""
KOHYA_SD3 = """
pretrained_model_name_or_path = "stabilityai/stable-diffusion-3.5-medium"
network_module = "networks.lora_sd3"
weighting_scheme = "logit_normal"
logit_mean = 0.5
network_dim = 8
"""
AI_TOOLKIT = """
job: extension
config:
  name: my_lora
  process:
    - type: sd_trainer
      network: {type: lora, linear: 32, linear_alpha: 32}
      train: {steps: 2000, lr: 1e-4, timestep_type: sigmoid, noise_scheduler: flowmatch, dtype: bf16}
      model: {name_or_path: Tongyi-MAI/Z-Image-Turbo, arch: "zimage:turbo", quantize: true}
      datasets: [{folder_path: /pictures}]
"""
DIFFUSION_PIPE = """
output_dir = "/out"
epochs = 100
micro_batch_size_per_gpu = 1
[model]
type = "qwen_image"
diffusers_path = "Qwen/Qwen-Image"
dtype = "bfloat16"
timestep_sample_method = "logit_normal"
shift = 3
[adapter]
type = "lora"
rank = 32
dtype = "bfloat16"
[optimizer]
type = "adamw_optimi"
lr = 2e-5
"""


def imported(folder: Path, name: str, text: str) -> TrainConfig:
    (folder / name).write_text(text, encoding="utf-8")
    config = import_file(folder / name).config
    GuidedFlowOptions.model_validate(config.family_options)
    return config


def test_kohya_flux(tmp_path: Path) -> None:
    config = imported(tmp_path, "flux.toml", KOHYA_FLUX)
    assert (config.family, config.method, config.lora_rank, config.lora_alpha) == ("flux", "lora", 16, 8)
    assert (config.lora_targets, config.lora_layouts) == ("blocks", "kohya")
    assert [part.part for part in config.parts] in ([], ["transformer"])
    assert config.family_options == {
        "timestep_distribution": "logit_normal", "timestep_shift": "static", "shift": 3.1582, "guidance": 1.0,
        "text_encoder_files": "/models/clip_l.safetensors, /models/t5xxl_fp16.safetensors",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("files", "family"),
    [
        ('clip_l = "c"\nt5xxl = "t"\nae = "a"', "flux"),
        ('clip_l = "c"\nclip_g = "g"\nt5xxl = "t"', "stable_diffusion_3"),
        ('gemma2 = "g"\nae = "a"', "lumina2"),
        ('model_type = "chroma"\nt5xxl = "t"\nae = "a"', "chroma"),
    ],
)
def test_kohya_fine_tunes_are_known_by_their_text_encoders(files: str, family: str, tmp_path: Path) -> None:
    text = f'pretrained_model_name_or_path = "/models/a.safetensors"\nmax_train_steps = 5\n{files}\n'
    config = imported(tmp_path, "a.toml", text)
    assert (config.family, config.method) == (family, "fine_tune")
    assert [part.part for part in config.parts] == ["transformer"]


@pytest.mark.parametrize(
    ("given", "family"),
    [
        ('qwen3 = "q"', "anima"), ('network_module = "networks.lora_anima"', "anima"),
        ('network_module = "networks.lora_hunyuan_image"', "hunyuan_image"),
        ('network_module = "networks.oft_flux"', "flux"), ('network_module = "networks.lora_fa"', "stable_diffusion"),
        ('network_module = "lycoris.kohya"', "stable_diffusion"),
    ],
)  # fmt: skip
def test_kohya_models_are_known_by_their_modules(given: str, family: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f'pretrained_model_name_or_path = "a.safetensors"\n{given}\nae = "b"\n')
    assert import_file(tmp_path / "a.toml").config.family == family


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", ("logit_normal", "static", 6.0)), ('timestep_sampling = "nextdit_shift"', ("uniform", None, None)),
        ("discrete_flow_shift = 3.0", ("logit_normal", "static", 3.0)),
        ('timestep_sampling = "sigma"', ("uniform", "static", 6.0)),
    ],
)  # fmt: skip
def test_noise_levels_of_kohyas_lumina_scripts(given: str, expected: tuple[object, ...], tmp_path: Path) -> None:
    """library/lumina_train_util.py: other defaults than those of FLUX.1."""
    text = f'pretrained_model_name_or_path = "a"\ngemma2 = "g"\nnetwork_module = "networks.lora_lumina"\n{given}\n'
    options = imported(tmp_path, "a.toml", text).family_options
    assert tuple(options.get(name) for name in ("timestep_distribution", "timestep_shift", "shift")) == expected


def test_kohya_sd3(tmp_path: Path) -> None:
    config = imported(tmp_path, "sd3.toml", KOHYA_SD3)
    assert (config.family, config.base_model) == ("stable_diffusion_3", "stabilityai/stable-diffusion-3.5-medium")
    options = config.family_options
    assert (options["timestep_distribution"], options["logit_mean"]) == ("logit_normal", 0.5)
    assert (options["timestep_shift"], options["shift"]) == ("static", 1.0)  # training_shift, not the model's


def test_noise_levels_of_kohyas_flux_scripts_count_from_noise(tmp_path: Path) -> None:
    sigma = 'timestep_sampling = "sigma"\nweighting_scheme = "logit_normal"\nlogit_mean = 0.5'
    config = imported(tmp_path, "flux.toml", KOHYA_FLUX.replace('timestep_sampling = "shift"', sigma))
    options = config.family_options
    assert (options["timestep_distribution"], options["logit_mean"]) == ("logit_normal", -0.5)
    assert (options["timestep_shift"], options["shift"]) == ("static", 3.1582)


def test_ai_toolkit(tmp_path: Path) -> None:
    config = imported(tmp_path, "z.yaml", AI_TOOLKIT)
    assert (config.family, config.base_model, config.lora_rank) == ("z_image", "Tongyi-MAI/Z-Image-Turbo", 32)
    assert config.family_options["timestep_distribution"] == "logit_normal"


def test_blocks_of_ai_toolkit_in_host_memory(tmp_path: Path) -> None:
    offload = "layer_offloading: true, layer_offloading_transformer_percent: 0.5, assistant_lora_path: a/b"
    config = imported(tmp_path, "a.yaml", AI_TOOLKIT.replace("quantize: true", offload))
    assert config.block_offload == 0.5
    assert config.training_adapter == "a/b"


def test_diffusion_pipe(tmp_path: Path) -> None:
    config = imported(tmp_path, "qwen.toml", DIFFUSION_PIPE)
    assert (config.family, config.base_model, config.lora_rank) == ("qwen_image", "Qwen/Qwen-Image", 32)
    assert config.family_options["shift"] == 3


@pytest.mark.parametrize(
    ("place", "family", "options"),
    [("Wan2.2-TI2V-5B", "wan22_5b", {"first_frame_conditioning": 0.0}), ("Wan2.1-T2V-14B", "wan", {})],
)
def test_the_folder_of_a_model_of_videos_of_diffusion_pipe(
    tmp_path: Path, place: str, family: str, options: dict[str, float]
) -> None:
    text = DIFFUSION_PIPE.replace("qwen_image", "wan").replace("diffusers_path", "ckpt_path")
    (tmp_path / "wan.toml").write_text(text.replace("Qwen/Qwen-Image", f"/m/{place}"), encoding="utf-8")
    config = import_file(tmp_path / "wan.toml").config
    assert config.family == family
    found = {name: value for name, value in config.family_options.items() if name.startswith("first_frame")}
    assert found == options


def test_transformer_files_of_diffusion_pipe(tmp_path: Path) -> None:
    z_image = DIFFUSION_PIPE.replace("qwen_image", "z_image").replace(
        'diffusers_path = "Qwen/Qwen-Image"', 'diffusion_model = "/m/z.safetensors"\ndiffusion_model_dtype = "float8"'
    )
    config = imported(tmp_path, "z.toml", z_image)
    assert (config.family, config.base_model) == ("z_image", "/m/z.safetensors")
    assert [(part.part, part.weights) for part in config.parts] == [("transformer", "fp8")]
    both = 'diffusers_path = "Qwen/Qwen-Image"\ntransformer_path = "/m/q.safetensors"'
    config = imported(tmp_path, "q.toml", DIFFUSION_PIPE.replace('diffusers_path = "Qwen/Qwen-Image"', both))
    assert (config.base_model, config.family_options["layout"]) == ("/m/q.safetensors", "Qwen/Qwen-Image")
    chroma = DIFFUSION_PIPE.replace("qwen_image", "chroma").replace("Qwen/Qwen-Image", "black-forest-labs/FLUX.1-dev")
    chroma = chroma.replace("[adapter]", 'transformer_path = "/m/c.safetensors"\n[adapter]')
    config = imported(tmp_path, "c.toml", chroma)
    assert (config.base_model, config.family_options.get("layout", "")) == ("/m/c.safetensors", "")


@pytest.mark.parametrize(
    ("family", "flavour", "base"),
    [
        ("flux2", "klein-4b", "black-forest-labs/FLUX.2-klein-base-4B"),
        ("z-image", "base", "Tongyi-MAI/Z-Image"),
        ("flux", "", "black-forest-labs/FLUX.1-Krea-dev"),
        ("sd3", "", "stabilityai/stable-diffusion-3.5-medium"),
        ("krea2", "", "krea/Krea-2-Raw"),
        ("lumina2", "", "Alpha-VLLM/Lumina-Image-2.0"),
        ("qwen_image", "edit-v2+", None),
    ],
)
def test_base_models_of_simple_tuner(family: str, flavour: str, base: str | None, tmp_path: Path) -> None:
    given = {"model_family": family, "model_type": "lora", "learning_rate": 1e-4, "model_flavour": flavour}
    assert imported(tmp_path, "config.json", json.dumps(given)).base_model == base


@pytest.mark.parametrize(
    ("given", "family"),
    [
        ({"model_family": "flux", "flow_schedule_auto_shift": True, "flow_schedule_shift": 0.0}, "flux"),
        ({"model_family": "flux", "flow_schedule_auto_shift": True, "flow_schedule_shift": 2.0}, "flux"),
        ({"model_family": "z-image", "flow_schedule_shift": 3.0}, "z_image"),
        ({"model_family": "sd3", "flow_use_uniform_schedule": True}, "stable_diffusion_3"),
    ],
)
def test_simple_tuner(given: dict[str, Any], family: str, tmp_path: Path) -> None:
    more = {"model_type": "lora", "lora_rank": 16, "pretrained_model_name_or_path": "x/y", "learning_rate": 1e-4}
    config = imported(tmp_path, "config.json", json.dumps({**more, **given}))
    assert config.family == family
    assert config.family_options.get("timestep_shift", "model") == (
        "static" if given.get("flow_schedule_shift", 3.0) else "model"
    )


@pytest.mark.parametrize(
    ("model_type", "family"),
    [("FLUX_DEV_1", "flux"), ("Z_IMAGE", "z_image"), ("QWEN", "qwen_image"),
     ("STABLE_DIFFUSION_35", "stable_diffusion_3"), ("CHROMA_1", "chroma"), ("FLUX_2", "flux2")],
)  # fmt: skip
def test_onetrainer(model_type: str, family: str, tmp_path: Path) -> None:
    data = {
        "training_method": "LORA", "model_type": model_type, "base_model_name": "x/y", "concepts": [],
        "timestep_distribution": "LOGIT_NORMAL", "dynamic_timestep_shifting": True,
    }  # fmt: skip
    config = imported(tmp_path, "config.json", json.dumps(data))
    assert config.family == family
    assert config.family_options["timestep_distribution"] == "logit_normal"
    is_shifted = model_type not in ("CHROMA_1", "STABLE_DIFFUSION_35")  # by resolution, in its Base*Setup.py
    assert config.family_options["timestep_shift"] == ("model" if is_shifted else "static")


def test_layers_and_blocks_of_onetrainer(tmp_path: Path) -> None:
    data = {
        "training_method": "LORA", "model_type": "Z_IMAGE", "base_model_name": "x/y", "concepts": [], "compile": True,
        "layer_filter_preset": "attn-mlp", "gradient_checkpointing": "CPU_OFFLOADED",
        "transformer": {"train": True, "weight_dtype": "FLOAT_8", "offload_fraction": 0.6},
    }  # fmt: skip
    config = imported(tmp_path, "a.json", json.dumps(data))
    assert (config.lora_targets, config.block_offload, config.compile) == ("attention_mlp", 0.6, False)
    config = imported(tmp_path, "b.json", json.dumps({**data, "layer_filter": "attention,feed_forward"}))
    assert config.lora_targets == "attention,feed_forward", "each model has layers of its own"


def test_names_of_all_trainers() -> None:
    assert flow_family("flux.2-klein") == "flux2"
    assert flow_family("qwen_image:2512") == "qwen_image"
    assert flow_family("hunyuan_video") is None


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("LOGIT_NORMAL", {"timestep_distribution": "logit_normal", "logit_mean": 0.5, "logit_std": 1.25}),
        ("HEAVY_TAIL", {"timestep_distribution": "mode", "mode_scale": 0.25}),
        ("UNIFORM", {"timestep_distribution": "uniform"}),
    ],
)
def test_noise_levels_of_onetrainer(name: str, options: dict[str, object], tmp_path: Path) -> None:
    preset: dict[str, object] = {
        "model_type": "Z_IMAGE",
        "training_method": "LORA",
        "base_model_name": "Tongyi-MAI/Z-Image",
    }
    preset |= {"timestep_distribution": name, "noising_bias": 0.5, "noising_weight": 0.25, "timestep_shift": 2.0}
    config = imported(tmp_path, "z.json", json.dumps(preset))
    assert config.family_options == {**options, "timestep_shift": "static", "shift": 2.0}
    preset |= {"model_type": "STABLE_DIFFUSION_15", "base_model_name": "a/b"}
    (tmp_path / "sd.json").write_text(json.dumps(preset), encoding="utf-8")
    skipped = [each.source for each in import_file(tmp_path / "sd.json").report.not_imported]
    assert "noising_weight" in skipped
