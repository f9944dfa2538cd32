"""Importing realistic files of each trainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.config import ConfigError, Interval, TrainConfig, dump, load_config, save_config
from modules.importers import ImportEntry, ImportResult, import_file
from scripts.common import resolved_config
from tests.importers.conftest import FILES


def write_json(file: Path, data: object) -> Path:
    """Write the data as a JSON file."""
    file.write_text(json.dumps(data), encoding="utf-8")
    return file


def entry(found: ImportResult, source: str, target: str = "") -> ImportEntry:
    """The one entry of a setting, and of its target if given."""
    report = found.report
    entries = [
        item for item in (*report.imported, *report.changed, *report.not_imported) if source in item.source.split(", ")
    ]
    (item,) = [item for item in entries if item.target == target] if target or len(entries) > 1 else entries
    return item


def not_imported(found: ImportResult) -> set[str]:
    return {name for item in found.report.not_imported for name in item.source.split(", ")}


def test_onetrainer(onetrainer: Path) -> None:
    found = import_file(onetrainer)
    config, root = found.config, onetrainer.parents[2]

    assert (config.family, config.method) == ("stable_diffusion_xl", "lora")
    assert config.base_model == "stabilityai/stable-diffusion-xl-base-1.0"
    assert (config.epochs, config.batch_size, config.warmup_steps, config.resolution) == (40, 4, 100, 1024)
    assert config.learning_rate == pytest.approx(6e-4)  # times the square root of 4 x 1
    assert (config.scheduler, config.scheduler_cycles, config.lr_scaling) == ("cosine_with_restarts", 3, "none")
    assert config.ema
    assert config.ema_decay == pytest.approx(0.998**0.25)
    assert (config.precision, config.gradient_checkpointing, config.max_grad_norm) == ("bf16", True, 1.0)
    assert dump(config)["optimizer"] == {
        "name": "adamw", "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.02, "fused": True, "foreach": True,
    }  # fmt: skip
    assert (config.enable_multi_gpu, config.device_ids) == (True, (0, 1))
    assert (config.masked_training, config.unmasked_weight, config.caption_dropout) == (True, 0.2, 0.1)
    assert not config.normalize_masked_area_loss
    assert (config.sample_every, config.backup_every) == (Interval(5, "epochs"), Interval(15, "minutes"))
    assert (config.backups_kept, config.run_name) == (2, "cat")

    cat, validation = config.concepts
    assert (cat.path, cat.name, cat.repeats, cat.loss_weight) == (str(root / "pictures/cat"), "cat", 3, 1.5)
    assert (cat.image_variations, cat.crop_jitter, cat.horizontal_flip) == (2, False, False)
    assert (cat.random_rotate, cat.fixed_rotate, cat.random_hue, cat.fixed_brightness) == (5, 0, 0.3, -0.2)
    assert (cat.tag_shuffle, cat.keep_tags, cat.tag_dropout, cat.caption_source) == (True, 2, 0.2, "txt")
    assert (validation.kind, validation.path) == ("validation", "/elsewhere/validation")
    assert (validation.crop_jitter, validation.horizontal_flip, validation.include_subfolders) == (True, True, False)
    assert validation.image_variations is None  # one view at a random place there

    first, second = config.samples
    assert (first.width, first.height, first.steps, first.guidance_scale, first.seed) == (896, 1152, 28, 5.5, 7)
    assert (second.prompt, second.guidance_scale, second.width) == ("a drawing of a cat", 7.0, 512)


def test_onetrainer_adapters_and_family_options(onetrainer: Path) -> None:
    config = import_file(onetrainer).config
    assert (config.lora_rank, config.lora_alpha, config.lora_weight_decompose) == (32, 16.0, True)
    assert config.lora_targets == "onetrainer"
    unet, first, second = config.parts
    assert (unet.part, unet.train, unet.weights) == ("unet", True, "bf16")
    assert unet.learning_rate == pytest.approx(2e-4)
    assert (first.part, first.stop_after, first.learning_rate) == ("text_encoder", Interval(10, "epochs"), None)
    assert (second.part, second.train, second.weights) == ("text_encoder_2", False, "fp8")
    assert config.family_options == {
        "offset_noise": 0.05, "min_timestep": 0.1, "timestep_distribution": "logit_normal",
        "loss_weighting": "min_snr", "min_snr_gamma": 5.0, "clip_skip": 1, "sample_scheduler": "euler_a",
    }  # fmt: skip
    assert (config.save_dtype, config.lora_layouts) == ("bf16", "kohya")


def test_unsupported_onetrainer_settings_are_reported(onetrainer: Path) -> None:
    found = import_file(onetrainer)
    assert not_imported(found) >= {
        "unet.offload_fraction", "attention_mechanism", "unmasked_probability",
        "workspace_dir", "cache_dir", "optimizer.block_wise", "optimizer_defaults",
        "concepts.0.seed", "concepts.2", "samples.0.random_seed", "secrets",
    }  # fmt: skip
    assert "8-bit" in entry(found, "optimizer.optimizer").why
    assert "no such file or folder" in entry(found, "concepts.1.path").why
    assert "learning_rate_scaler BOTH" in entry(found, "learning_rate").why
    text = "\n".join(found.report.lines())
    assert "do_not_show" not in text
    assert "do-not-show" not in text
    assert [file.name for file in found.report.files] == ["my.json", "concepts.json", "samples.json"]


def test_old_onetrainer_names(tmp_path: Path) -> None:
    old = {
        "training_method": "FINE_TUNE", "model_type": "STABLE_DIFFUSION_15", "base_model_name": "a/b",
        "weight_dtype": "FLOAT_32", "unet_weight_dtype": "NONE", "optimizer": "LION", "weight_decay": 0.3,
        "train_text_encoder": False, "train_unet_epochs": 7, "latent_caching": False, "concepts": [], "samples": [],
        "gradient_checkpointing": False,
    }  # fmt: skip
    found = import_file(write_json(tmp_path / "old.json", old))
    assert found.config.family == "stable_diffusion"
    assert dump(found.config)["optimizer"] == {"name": "lion", "betas": [0.9, 0.99], "weight_decay": 0.3}
    assert not found.config.gradient_checkpointing
    assert entry(found, "optimizer").new_value == "lion"
    assert entry(found, "train_text_encoder").new_value is False
    assert found.config.parts[0].stop_after == Interval(7, "epochs")
    assert entry(found, "latent_caching").target == "cache_latents"
    assert not found.config.cache_latents


def test_unknown_model_families_are_kept_and_reported(tmp_path: Path) -> None:
    data = {"training_method": "LORA", "model_type": "HUNYUAN_VIDEO", "base_model_name": "x/y", "concepts": []}
    found = import_file(write_json(tmp_path / "flux.json", data))
    assert found.config.family == "hunyuan_video"
    assert "does not have this model family" in entry(found, "model_type").why


def test_sd_scripts(kohya: Path) -> None:
    config = import_file(kohya).config
    assert (config.family, config.method) == ("stable_diffusion_xl", "lora")
    assert config.base_model == "/models/sd_xl_base_1.0.safetensors"
    assert (config.max_steps, config.epochs, config.warmup_fraction) == (2000, 10_000, 0.05)
    assert (config.batch_size, config.gradient_accumulation_steps, config.learning_rate) == (2, 2, 2e-4)
    assert (config.scheduler, config.scheduler_cycles, config.seed) == ("cosine_with_restarts", 3, 31337)
    assert (config.precision, config.resolution, config.aspect_ratio_bucketing) == ("bf16", 1024, True)
    assert dump(config)["optimizer"] == {
        "name": "adamw", "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.1, "fused": True, "foreach": True,
    }  # fmt: skip
    assert (config.sample_every, config.save_every) == (Interval(100, "steps"), Interval(1, "epochs"))
    assert (config.runs_dir, config.run_name) == (str(kohya.parent / "output"), "cat")

    cat, dog, reg = config.concepts
    assert (cat.path, cat.repeats) == (str(kohya.parent / "img/10_sks cat"), 10)
    assert (cat.caption_source, cat.prompt_prefix, cat.include_subfolders) == ("none", "sks cat", False)
    assert (dog.repeats, dog.caption_source, dog.prompt_prefix) == (2, "txt", "")
    assert (reg.path, reg.repeats, reg.loss_weight) == (str(kohya.parent / "reg/1_cat"), 1, 0.5)
    assert all(concept.tag_shuffle and concept.keep_tags == 1 for concept in config.concepts)

    first, second = config.samples
    assert first.prompt == "masterpiece, a cat in a garden"
    assert first.negative_prompt == "blurry, bad anatomy"
    assert (first.width, first.height, first.seed) == (832, 1216, 7)
    assert (first.guidance_scale, first.steps) == (6.5, 28)
    assert (second.prompt, second.width, second.steps, second.guidance_scale) == ("a dog on a sofa", 512, 30, 7.5)


def test_sd_scripts_adapters_and_family_options(kohya: Path) -> None:
    config = import_file(kohya).config
    assert (config.lora_rank, config.lora_alpha, config.lora_targets) == (32, 16.0, "kohya_conv")
    assert [(part.part, part.train) for part in config.parts] == [
        ("unet", True), ("text_encoder", False), ("text_encoder_2", False),
    ]  # fmt: skip
    assert config.parts[0].learning_rate == 1e-4
    assert config.family_options == {
        "offset_noise": 0.0357, "loss_weighting": "min_snr", "min_snr_gamma": 5.0,
        "sample_scheduler": "euler_a",
    }  # fmt: skip
    assert (config.save_dtype, config.lora_layouts) == ("fp16", "kohya")
    assert [concept.prior for concept in config.concepts] == [False, False, True]


def test_unsupported_sd_scripts_settings_are_reported(kohya: Path) -> None:
    found = import_file(kohya)
    assert not_imported(found) >= {"xformers", "logging_dir", "wandb_api_key"}
    assert "clip_skip" in not_imported(found), "kohya's scripts ignore it for SDXL"
    assert "guessed" in entry(found, "pretrained_model_name_or_path", "family").why
    assert found.config.warmup_fraction == 0.05
    assert "do-not-show" not in "\n".join(found.report.lines())


def test_a_dataset_file_alone(kohya: Path) -> None:
    found = import_file(kohya.parent / "kohya_dataset.toml")
    config = found.config
    assert (config.resolution, config.batch_size, config.aspect_ratio_bucketing) == (768, 4, True)
    first, second, third = config.concepts
    assert (first.repeats, first.prompt_prefix, first.horizontal_flip, first.keep_tags) == (5, "sks ", True, 2)
    assert (second.caption_source, second.prompt_prefix, second.keep_tags) == ("none", "a dog", 0)
    assert (third.path, third.repeats, third.tag_shuffle) == (first.path, 1, True)
    assert (third.resolutions, entry(found, "datasets.1.resolution").why) == ("512", "")


def test_dataset_config_takes_precedence(kohya: Path) -> None:
    text = 'pretrained_model_name_or_path = "a/b"\nnetwork_module = "networks.lora"\nmax_train_epochs = 3\n'
    text += 'dataset_config = "kohya_dataset.toml"\ntrain_data_dir = "img"\nflip_aug = true\n'
    kohya.write_text(text, encoding="utf-8")
    found = import_file(kohya)
    assert len(found.config.concepts) == 3
    assert all(concept.horizontal_flip for concept in found.config.concepts)
    assert found.config.epochs == 3
    assert "train_data_dir" in not_imported(found)


def test_kohya_gui(kohya: Path) -> None:
    found = import_file(kohya.parent / "kohya_gui.json")
    config = found.config
    assert found.report.trainer == "kohya_ss"
    assert (config.family, config.method, config.epochs, config.max_steps) == ("stable_diffusion", "lora", 4, None)
    assert (config.resolution, config.batch_size, config.precision) == (
        640,
        4,
        "fp16",
    )  # about as many pixels as 512x768
    optimizer = dump(config)["optimizer"]
    assert isinstance(optimizer, dict)
    assert (optimizer["name"], optimizer["d0"], optimizer["bias_correction"]) == ("prodigy", 1e-4, True)
    assert (config.enable_multi_gpu, config.world_size, config.lr_scaling) == (True, 2, "none")
    assert (config.seed, config.loader_workers) == (1234, 0)
    assert [(sample.prompt, sample.width) for sample in config.samples] == [
        ("a painting of a cat", 640),
        ("a dog", 512),
    ]
    assert not_imported(found) >= {"sample_sampler", "scale_weight_norms"}
    assert [part.learning_rate for part in config.parts] == [1e-4, 5e-5]
    assert (config.family_options["long_prompts"], config.family_options["clip_skip"]) == ("chunk", 1)
    assert config.lora_targets == "kohya"


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"network_module": "networks.lora"}, [True, True]),
        ({"network_module": "networks.lora", "network_train_unet_only": True}, [True, False]),
        ({"network_module": "networks.lora", "network_train_text_encoder_only": True}, [False, True]),
        ({"LoRA_type": "Standard", "unet_lr": 1e-4, "text_encoder_lr": 0}, [True, False]),
        ({"LoRA_type": "Standard", "unet_lr": 0, "text_encoder_lr": 1e-5}, [False, True]),
        ({"LoRA_type": "Standard", "unet_lr": 0, "text_encoder_lr": 0}, [True, True]),
        ({"train_text_encoder": False}, [True, False]),
        ({"train_text_encoder": True, "learning_rate_te": 1e-6}, [True, True]),
        ({"stop_text_encoder_training": -1}, [True, False]),
        ({"stop_text_encoder_training": 500}, [True, True]),
    ],
)
def test_submodules_that_sd_scripts_trains(tmp_path: Path, settings: dict[str, object], parts: list[bool]) -> None:
    data = {"pretrained_model_name_or_path": "runwayml/stable-diffusion-v1-5", "max_train_epochs": 1, **settings}
    config = import_file(write_json(tmp_path / "a.json", data)).config
    assert [part.train for part in config.parts] == parts
    if settings.get("stop_text_encoder_training") == 500:
        assert config.parts[1].stop_after == Interval(500, "steps")


def test_diffusion_pipe(other_trainers: Path) -> None:
    found = import_file(other_trainers / "diffusion_pipe.toml")
    config = found.config
    assert (config.family, config.method) == ("stable_diffusion_xl", "lora")
    assert (config.epochs, config.batch_size, config.gradient_accumulation_steps) == (50, 2, 4)
    assert (config.max_grad_norm, config.warmup_steps, config.learning_rate) == (0.5, 20, 2e-5)
    assert (config.precision, config.gradient_checkpointing, config.save_dtype) == ("bf16", True, "bf16")
    assert (config.lora_rank, config.lora_alpha) == (32, 32.0)
    assert [(part.train, part.learning_rate) for part in config.parts] == [(True, 4e-5), (True, 2e-5), (True, None)]
    assert (config.backup_every, config.resolution) == (Interval(120, "minutes"), 768)
    first, second = config.concepts
    assert (first.path, first.repeats) == (str(other_trainers / "pictures"), 3)
    assert second.path == "/elsewhere/more"
    assert not_imported(found) >= {"dataset.directory.1.mask_path", "partition_method", "monitoring.enable_wandb"}
    assert "do-not-show" not in "\n".join(found.report.lines())


def test_the_result_can_be_saved_and_loaded(onetrainer: Path, tmp_path: Path) -> None:
    config = import_file(onetrainer).config
    save_config(config, tmp_path / "out.yaml")
    assert load_config(tmp_path / "out.yaml") == config
    assert isinstance(config, TrainConfig)


def test_an_average_of_an_optimizer_that_averages_is_left_out(tmp_path: Path) -> None:
    data = {
        "training_method": "LORA",
        "model_type": "STABLE_DIFFUSION_15",
        "ema": "GPU",
        "optimizer": {"optimizer": "SCHEDULE_FREE_ADAMW"},
    }
    found = import_file(write_json(tmp_path / "free.json", {**data, "base_model_name": "x/y", "concepts": []}))
    assert (found.config.optimizer.name, found.config.ema) == ("schedule_free_adamw", False)
    assert "averages the weights itself" in " ".join(e.why for e in found.report.not_imported)


@pytest.mark.parametrize(
    ("name", "trainer"),
    [
        ("training_script.yaml", "a PyTorch training script"),
        ("ai_toolkit.yaml", "ai-toolkit"),
        ("kohya.toml", "kohya's sd-scripts"),
        ("simple_tuner.json", "SimpleTuner"),
    ],
)
def test_a_foreign_file_given_as_a_config_is_named_with_the_way_to_import_it(name: str, trainer: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved_config(str(FILES / name), [])
    assert f"{name} has the settings of {trainer}; it is no Tandem config. Import it: python" in str(caught.value)


def test_a_config_with_errors_is_not_taken_for_a_foreign_file(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("family: classifier\ntraining: {epochs: 3}\ndata: {batch_size: 2}\n")
    with pytest.raises(ConfigError, match=r"training .* is not a known setting"):
        resolved_config(str(tmp_path / "own.yaml"), [])
