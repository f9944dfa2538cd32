"""SimpleTuner's config.json, against its sources.

bghira/SimpleTuner at bc8e6ab: server/services/field_registry/sections (defaults), helpers/training/optimizer_param.py
(optimizers), helpers/training/custom_schedule.py (schedules), helpers/models/*/model.py (LoRA layers and the model of
each flavour).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from modules.config import Interval
from modules.importers import ImportResult, import_file
from tests.importers.rates import rates

LORA: dict[str, object] = {
    "--model_type": "lora", "--model_family": "sdxl", "--optimizer": "adamw_bf16", "--data_backend_config": "data.json",
    "--pretrained_model_name_or_path": "a/b",
}  # fmt: skip


def imported(folder: Path, without: str = "", backends: Sequence[object] = (), **changed: object) -> ImportResult:
    (folder / "data.json").write_text(json.dumps(backends), encoding="utf-8")
    data = {name: value for name, value in LORA.items() if name != without}
    data |= {f"--{name}": value for name, value in changed.items()}
    (folder / "config.json").write_text(json.dumps(data), encoding="utf-8")
    return import_file(folder / "config.json")


def reasons(found: ImportResult) -> dict[str, str]:
    entries = (*found.report.not_imported, *found.report.changed)
    return {name: entry.why for entry in entries for name in entry.source.split(", ")}


def test_defaults(tmp_path: Path) -> None:
    found = imported(tmp_path, validation_prompt="a cat")
    config = found.config
    assert (config.lora_rank, config.lora_alpha, config.lora_dropout) == (16, 16, 0.1)
    assert config.lora_targets == "attention"  # to_k, to_q, to_v, to_out.0
    assert (config.learning_rate, config.warmup_steps, config.batch_size) == (4e-7, 0, 4)
    assert (config.precision, config.resolution, config.max_grad_norm) == ("bf16", 1024, 2.0)
    assert (config.epochs, config.max_steps, config.caption_dropout) == (1, None, 0.1)
    assert (config.ema, config.lr_scaling, config.gradient_checkpointing) == (False, "none", True)
    assert (config.backup_every, config.sample_every) == (Interval(500, "steps"), Interval(100, "steps"))
    assert (config.backups_kept, config.scheduler) == (5, "constant")
    assert not config.parts, "the UNet only"
    assert config.family_options.get("offset_noise", 0) == 0  # noise_offset 0.1 needs --offset_noise
    assert imported(tmp_path, use_ema=True).config.ema_decay == 0.995


def test_samples_can_be_off(tmp_path: Path) -> None:
    assert imported(tmp_path, validation_step_interval=20).config.sample_every == Interval(20, "steps")
    assert imported(tmp_path, validation_step_interval=20, validation_disable=True).config.sample_every.unit == "never"


def test_epochs_of_0_are_no_loss(tmp_path: Path) -> None:
    """Its max_train_steps requires num_train_epochs to be 0."""
    found = imported(tmp_path, max_train_steps=100, num_train_epochs=0)
    assert found.config.max_steps == 100
    assert "--num_train_epochs" not in {entry.source for entry in found.report.not_imported}


def test_alpha_is_the_rank_by_default(tmp_path: Path) -> None:
    config = imported(tmp_path, lora_rank=64).config
    assert (config.lora_rank, config.lora_alpha) == (64, 64)


def test_offset_noise_needs_its_switch(tmp_path: Path) -> None:
    found = imported(tmp_path, noise_offset=0.05)
    assert "offset_noise" not in found.config.family_options
    assert "--offset_noise" in reasons(found)["--noise_offset"]
    found = imported(tmp_path, offset_noise=True, noise_offset=0.05)
    assert found.config.family_options["offset_noise"] == 0.05
    assert "25%" in reasons(found)["--noise_offset"]
    found = imported(tmp_path, offset_noise=True, noise_offset=0.05, noise_offset_probability=1.0)
    assert "--noise_offset" not in reasons(found)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("adamw_bf16", ("adamw", [0.9, 0.999], 1e-6, 0.01)),
        ("bnb-adamw8bit", ("adamw", [0.9, 0.999], 1e-6, 0.01)),
        ("bnb-adamw8bit-paged", ("adamw", [0.9, 0.999], 1e-6, 0.01)),
        ("ao-adamw8bit", ("adamw", [0.9, 0.999], 1e-6, 0.01)),
        ("optimi-adamw", ("adamw", [0.9, 0.99], 1e-6, 0.0)),
        ("adamw_schedulefree", ("schedule_free_adamw", [0.9, 0.999], 1e-8, 0.01)),
        ("bnb-lion8bit", ("lion", [0.9, 0.99], None, 0.0)),
        ("optimi-lion", ("lion", [0.9, 0.99], None, 0.0)),
        ("prodigy", ("prodigy", [0.9, 0.99], 1e-8, 0.0)),
        ("torch-adamw", ("adamw", [0.9, 0.999], 1e-8, 0.01)),
        ("torch-adam", ("adam", [0.9, 0.999], 1e-8, 0.0)),
        ("optimi-stableadamw", ("adamw", [0.9, 0.99], 1e-6, 0.01)),
        ("adamw_schedulefree+aggressive", ("schedule_free_adamw", [0.9, 0.999], 1e-6, 0.001)),
    ],
)
def test_optimizers(tmp_path: Path, name: str, expected: tuple[object, ...]) -> None:
    """optimizer_choices, default_settings."""
    found = imported(tmp_path, optimizer=name)
    optimizer = found.config.optimizer.model_dump(mode="json")
    values = (optimizer["name"], list(optimizer["betas"]), optimizer.get("eps"), optimizer["weight_decay"])
    assert values == expected
    assert "no optimizer" not in reasons(found).get("--optimizer", "")
    optimizer = imported(tmp_path, optimizer=name, optimizer_config="weight_decay=0.2").config.optimizer.model_dump()
    assert (optimizer["name"], optimizer["weight_decay"]) == (expected[0], 0.2)
    config = imported(tmp_path, optimizer=name, optimizer_beta1=0.8, optimizer_beta2=0.95).config
    assert list(config.optimizer.model_dump()["betas"]) == [0.8, 0.95]


def test_a_missing_base_model_is_that_of_the_family(tmp_path: Path) -> None:
    """HUGGINGFACE_PATHS and DEFAULT_MODEL_FLAVOUR of helpers/models/sdxl/model.py."""
    found = imported(tmp_path, without="--pretrained_model_name_or_path")
    assert found.config.base_model == "stabilityai/stable-diffusion-xl-base-1.0"
    assert "has no base model" in "\n".join(found.report.lines())
    found = imported(tmp_path, without="--pretrained_model_name_or_path", model_flavour="base-0.9")
    assert found.config.base_model == "stabilityai/stable-diffusion-xl-base-0.9"
    found = imported(tmp_path, without="--pretrained_model_name_or_path", model_family="sd1x")
    assert not found.config.base_model
    assert "set base_model" in "\n".join(found.report.lines())


def test_rates_that_it_scales(tmp_path: Path) -> None:
    """--lr_scale: times GPUs, accumulation and batch size; --lr_scale_sqrt: their square root."""
    shared: dict[str, Any] = {
        "learning_rate": 1e-5, "train_batch_size": 4, "gradient_accumulation_steps": 9, "lr_scale": True,
    }  # fmt: skip
    config = imported(tmp_path, **shared).config
    assert config.learning_rate == pytest.approx(36e-5)
    assert config.lr_scaling == "linear"
    config = imported(tmp_path, **shared, lr_scale_sqrt=True).config
    assert config.learning_rate == pytest.approx(6e-5)
    assert config.lr_scaling == "sqrt"
    config = imported(tmp_path, **{**shared, "lr_scale": False}).config
    assert (config.learning_rate, config.lr_scaling) == (1e-5, "none")


def cosine_there(step: int, fall: int, floor: float) -> float:
    """custom_schedule.py, Cosine.get_lr; its T_cur is the negated number of the step."""
    return floor + (1 - floor) * (1 + math.cos(math.pi * -step / fall)) / 2


def test_a_flavour_may_be_of_a_sibling_of_the_family(tmp_path: Path) -> None:
    flavour = {"model_family": "wan", "model_flavour": "ti2v-5b-2.2"}
    found = imported(tmp_path, without="--pretrained_model_name_or_path", **flavour)
    assert (found.config.family, found.config.base_model) == ("wan22_5b", "Wan-AI/Wan2.2-TI2V-5B-Diffusers")
    assert found.config.family_options["first_frame_conditioning"] == 1
    assert "the first frame of every clip" in "\n".join(found.report.lines())
    assert "first_frame_conditioning" not in imported(tmp_path, model_family="wan").config.family_options


@pytest.mark.parametrize(
    ("given", "factors"),
    [
        ({"lr_scheduler": "constant"}, [1] * 5),
        ({}, [1] * 5),
        ({"lr_scheduler": "constant", "lr_warmup_steps": 50}, [0, 0.5, 1, 1, 1]),  # becomes constant_with_warmup
        ({"lr_scheduler": "constant_with_warmup", "lr_warmup_steps": 100}, [0, 0.25, 0.5, 0.75, 1]),
        ({"lr_scheduler": "linear", "lr_warmup_steps": 50}, [0, 0.5, 1, 0.5, 0]),
        ({"lr_scheduler": "polynomial", "lr_power": 1}, [1, 0.753, 0.505, 0.258, 0.01]),
        ({"lr_scheduler": "cosine", "lr_warmup_steps": 100}, [cosine_there(n, 100, 0.01) for n in range(0, 101, 25)]),
        ({"lr_scheduler": "cosine_with_warmup", "lr_warmup_steps": 400_000}, [1] * 5),
        ({"lr_scheduler": "cosine_with_restarts", "lr_warmup_steps": 20}, [1] * 5),
        ({"lr_scheduler": "cosine", "lr_warmup_steps": 50, "optimizer": "adamw_schedulefree"}, [0, 0.5, 1, 1, 1]),
    ],
)
def test_rates_are_those_of_its_schedules(tmp_path: Path, given: dict[str, Any], factors: list[float]) -> None:
    """At the quarters of 100 steps."""
    shared = {"learning_rate": 4e-5, "lr_end": 4e-7, "max_train_steps": 100}
    config = imported(tmp_path, **{**shared, **given}).config
    ours = [rate / config.learning_rate for rate in rates(config, 101)[::25]]
    assert ours == pytest.approx(factors, abs=0.02)  # the warm-up there starts at 0, here one step later


def test_a_cosine_that_does_not_end_with_the_run_is_told(tmp_path: Path) -> None:
    """Its lr_warmup_steps is half of the wave's length, whatever the run's, and no warm-up."""
    shared: dict[str, Any] = {"lr_scheduler": "cosine", "learning_rate": 4e-5, "max_train_steps": 200}
    found = imported(tmp_path, **shared, lr_warmup_steps=50)
    assert (found.config.scheduler_arguments, found.config.warmup_steps) == ("T_max = 50, eta_min = 4e-07", 0)
    assert any("rises again" in why for why in reasons(found).values())
    found = imported(tmp_path, **shared)  # 1000 there without the setting
    assert found.config.scheduler_arguments == "T_max = 1000, eta_min = 4e-07"
    assert any("1,000 steps" in why for why in reasons(found).values())


def test_a_sine_is_not_imported(tmp_path: Path) -> None:
    found = imported(tmp_path, lr_scheduler="sine", lr_warmup_steps=50)
    assert (found.config.scheduler, found.config.warmup_steps) == ("constant", 0)
    assert "sine" in reasons(found)["--lr_scheduler"]
    assert "not a warm-up" in reasons(found)["--lr_warmup_steps"]


def test_clipping_of_single_values_is_told(tmp_path: Path) -> None:
    """--grad_clip_method is value by default: single values are clipped at max_grad_norm."""
    found = imported(tmp_path, max_grad_norm=1.5)
    assert found.config.max_grad_norm == 1.5
    assert "single values" in reasons(found)["--max_grad_norm"]
    assert "--max_grad_norm" not in reasons(imported(tmp_path, max_grad_norm=1.5, grad_clip_method="norm"))
    assert imported(tmp_path, max_grad_norm=0.0).config.max_grad_norm is None
    assert imported(tmp_path, optimizer="prodigy").config.max_grad_norm is None


def test_settings_at_their_defaults_are_not_reported(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "attention_mechanism": "diffusers", "torch_num_threads": 8, "timestep_bias_strategy": "none",
        "vae_dtype": "bf16",
        "training_scheduler_timestep_spacing": "trailing", "inference_scheduler_timestep_spacing": "trailing",
        "aspect_bucket_alignment": 64, "write_batch_size": 128, "max_workers": 32, "read_batch_size": 25,
        "lora_init_type": "default", "base_model_default_dtype": "bf16", "validation_noise_scheduler": None,
        "num_validation_images": 1, "flow_schedule_shift": 3, "flux_lora_target": "all",
        "pretrained_vae_model_name_or_path": "madebyollin/sdxl-vae-fp16-fix", "metadata_update_interval": 3600,
        "validation_torch_compile": "false", "quantize_via": "accelerator", "user_prompt_library": None,
        "text_encoder_1_precision": "no_change", "validation_guidance_rescale": "0.0", "snr_gamma": None,
    }  # fmt: skip
    found = imported(tmp_path, **given)
    assert not {f"--{name}" for name in given} & {entry.source for entry in found.report.not_imported}
    assert "--timestep_bias_strategy" in reasons(imported(tmp_path, timestep_bias_strategy="later"))


def test_one_sample_has_its_defaults(tmp_path: Path) -> None:
    (sample,) = imported(tmp_path, validation_prompt="a cat", seed=5).config.samples
    assert (sample.negative_prompt, sample.width, sample.height) == ("blurry, cropped, ugly", 256, 256)
    assert (sample.steps, sample.guidance_scale, sample.seed) == (30, 7.5, 5)


def test_datasets_have_a_resolution_and_a_crop(tmp_path: Path) -> None:
    """documentation/DATALOADER.md: a dataset's resolution precedes the global one; crop_aspect is square by default."""
    (tmp_path / "a").mkdir()
    backend = {"id": "x", "type": "local", "instance_data_dir": "a", "caption_strategy": "textfile"}
    small = {**backend, "resolution": 512, "resolution_type": "pixel_area", "crop": True, "crop_aspect": "square"}
    found = imported(tmp_path, backends=[small, small], resolution=1024)
    assert (found.config.resolution, found.config.aspect_ratio_bucketing) == (512, False)
    assert "dataset" in reasons(found)["--resolution"]
    assert not [name for name in reasons(found) if "data_backend_config.1.resolution" in name or name.endswith(".crop")]
    assert found.config.concepts[0].crop_jitter  # which is random by default
    centred = imported(tmp_path, backends=[{**small, "crop_style": "center"}, {**small, "crop_style": "face"}])
    assert not centred.config.concepts[0].crop_jitter
    assert "at random with crop_jitter" in reasons(centred)["data_backend_config.1.crop_style"]
    found = imported(tmp_path, backends=[{**backend, "crop": True, "crop_aspect": "preserve"}, small])
    assert (found.config.resolution, found.config.aspect_ratio_bucketing) == (1024, True)
    assert [concept.resolutions for concept in found.config.concepts] == ["", "512"]
    found = imported(tmp_path, backends=[small, {**small, "crop": False}])
    assert "aspect_ratio_bucketing" in reasons(found)["data_backend_config.1.crop"]
    found = imported(tmp_path, backends=[{**small, "resolution_type": "pixel", "crop": False}])
    assert "shorter side" in reasons(found)["data_backend_config.0.resolution"]


def test_an_average_that_is_updated_every_few_steps(tmp_path: Path) -> None:
    """helpers/training/ema.py, EMAModel.step: the decay rises with the global step, not with the updates; the averaged
    weights lie back s / (1 + 9 / 4) steps there until the decay is reached, s / 10 steps here.
    """
    found = imported(tmp_path, use_ema=True, ema_decay=0.99, ema_update_interval=4)
    assert found.config.ema_decay**4 == pytest.approx(0.99)
    assert "SimpleTuner's average reaches back up to 3.1 times" in reasons(found)["--ema_decay"]


def test_a_usual_file(other_trainers: Path) -> None:
    found = import_file(other_trainers / "simple_tuner.json")
    config = found.config
    assert (config.family, config.method, config.lora_rank, config.lora_alpha) == (
        "stable_diffusion_xl",
        "lora",
        64,
        64,
    )
    assert (config.max_steps, config.batch_size, config.learning_rate, config.scheduler) == (
        3000,
        2,
        1e-4,
        "polynomial",
    )
    assert (config.warmup_steps, config.resolution, config.caption_dropout) == (100, 1024, 0.1)
    assert (config.backup_every, config.backups_kept, config.sample_every) == (
        Interval(500, "steps"), 5, Interval(250, "steps"),
    )  # fmt: skip
    (sample,) = config.samples
    assert (sample.width, sample.height, sample.steps, sample.guidance_scale, sample.seed) == (896, 1152, 28, 4.5, 7)
    first, second = config.concepts
    assert (first.repeats, first.caption_source, first.prompt_prefix) == (5, "txt", "sks cat ")
    assert (second.caption_source, second.prompt_prefix, second.enabled) == ("none", "a dog", False)
    assert {entry.source for entry in found.report.not_imported} >= {
        "--push_to_hub",
        "--hub_model_id",
        "data_backend_config.2",
        "data_backend_config.3",
    }
    assert "do-not-show" not in "\n".join(found.report.lines())


def test_prodigy_is_schedule_free_there(tmp_path: Path) -> None:
    """optimizer_param.py: "prodigy" is the class ProdigyPlusScheduleFree."""
    found = imported(tmp_path, optimizer="prodigy")
    assert found.config.optimizer.name == "prodigy"
    assert "schedule-free" in reasons(found)["--optimizer"]


def test_sgd_has_no_momentum_by_default(tmp_path: Path) -> None:
    """optimizer_param.py, optimi-sgd: momentum 0."""
    assert imported(tmp_path, optimizer="optimi-sgd").config.optimizer.model_dump()["momentum"] == 0


@pytest.mark.parametrize("name", ["huber", "smooth_l1"])
def test_huber_losses_have_a_schedule_there(tmp_path: Path, name: str) -> None:
    """cmd_args.py: huber_c is 0.1, huber_schedule snr; the losses are those of diffusers' training scripts."""
    found = imported(tmp_path, loss_type=name)
    assert found.config.family_options == {"loss": name, "huber_delta": 0.1}
    told = {item.target: item.why for item in found.report.changed}["family_options.huber_delta"]
    assert "half as large" in told
    assert "noise levels" in told
    found = imported(tmp_path, loss_type=name, huber_c=0.3, huber_schedule="constant")
    assert found.config.family_options["huber_delta"] == 0.3
    assert "noise levels" not in reasons(found)["--huber_c"]
    assert "loss" not in imported(tmp_path).config.family_options


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"model_family": "z-image"}, "set training_adapter"),  # its default flavour has one
        ({"model_family": "flux", "model_flavour": "schnell"}, "set training_adapter"),
        ({"model_family": "flux", "model_flavour": "kontext"}, "pairs of images"),  # which it does not name
        ({"model_family": "qwen_image", "model_flavour": "edit-v2"}, "pairs of images"),
        ({"model_family": "qwen_image", "model_flavour": "edit-v2+"}, "pairs of images"),  # 2509 with 2511's input
        ({"controlnet": True}, "a ControlNet"),
        ({"slider_lora_target": True}, "a slider"),
        ({"distillation_method": "anyflow"}, "a distillation"),
    ],
)
def test_what_is_no_ordinary_lora_does_not_start(tmp_path: Path, given: dict[str, Any], named: str) -> None:
    found = imported(tmp_path, **given)
    assert not found.config.base_model
    (problem,) = found.report.problems
    assert named in problem
    assert named in found.with_problems(["no images"]).report.lines()[3]


def test_a_training_adapter_is_taken_unless_it_is_switched_off(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model_family": "z-image", "assistant_lora_path": "a/b.safetensors"}
    found = imported(tmp_path, **given)
    assert (found.config.training_adapter, found.report.problems) == (str(tmp_path / "a/b.safetensors"), ())
    assert imported(tmp_path, **given, disable_assistant_lora=True).config.training_adapter is None


def test_images_as_a_condition_are_told(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    backend = {"id": "x", "type": "local", "instance_data_dir": "a", "caption_strategy": "textfile"}
    canny = {**backend, "conditioning": [{"type": "canny", "conditioning_type": "reference_strict"}]}
    assert "x has images as a condition" in imported(tmp_path, backends=[canny]).report.problems[0]
    found = imported(tmp_path, backends=[{"id": "x", "type": "csv", "csv_file": "a.csv"}])
    assert "none of its datasets is of images" in reasons(found)["--data_backend_config"]
    mask = {"id": "y", "dataset_type": "conditioning", "conditioning_type": "mask"}
    assert not imported(tmp_path, backends=[backend, mask]).report.problems


def test_the_lycoris_file_is_read(tmp_path: Path) -> None:
    """create_lycoris' arguments; full_matrix makes both factors of a LoKr whole."""
    lokr = {
        "algo": "lokr", "linear_dim": 10000, "linear_alpha": 1, "factor": 12, "bypass_mode": True, "multiplier": 1.0,
        "apply_preset": {
            "target_module": ["Attention", "FeedForward"], "module_algo_map": {"Attention": {"factor": 8}},
        },
    }  # fmt: skip
    (tmp_path / "lycoris.json").write_text(json.dumps(lokr), encoding="utf-8")
    found = imported(tmp_path, lora_type="lycoris", lycoris_config="lycoris.json", lora_rank=128)
    config = found.config
    assert (config.lora_algorithm, config.lora_rank, config.lora_alpha, config.lokr_factor) == ("lokr", 4096, 1, 8)
    assert (config.lora_targets, config.lora_dropout) == ("attention_mlp", 0)
    assert "no effect" in reasons(found)["--lora_rank"]
    found = imported(tmp_path, lora_type="lycoris")
    assert "set lora_algorithm" in reasons(found)["--lora_type"]


@pytest.mark.parametrize(
    ("given", "expected", "told"),
    [
        ({"dora_wd": True, "rs_lora": True, "dropout": 0.1}, ("lora", 8, 4, True, True), "dropout: set lora_dropout"),
        ({"algo": "lokr", "dora_wd": True}, ("lokr", 8, 4, False, False), "dora_wd: Tandem has it for plain LoRA only"),
        ({"algo": "boft"}, ("lora", 16, 16, False, False), 'algo is "boft": Tandem has loha, lokr, lora'),
        ({"linear_dim": None}, ("lora", 16, 16, False, False), "it has no linear_dim"),
        ({"multiplier": 0.5, "apply_preset": {"module_algo_map": {"A": {"algo": "loha", "dim": 2}}}},
         ("lora", 8, 4, False, False), "algo of module_algo_map, dim of module_algo_map, multiplier: no such setting"),
    ],
)  # fmt: skip
def test_what_a_lycoris_file_says_is_taken_or_told(
    given: dict[str, Any], expected: tuple[object, ...], told: str, tmp_path: Path
) -> None:
    """None of it makes a fine-tune of a LoRA."""
    data = {"algo": "lora", "multiplier": 1.0, "linear_dim": 8, "linear_alpha": 4} | given
    data = {name: value for name, value in data.items() if value is not None}
    (tmp_path / "lycoris.json").write_text(json.dumps(data), encoding="utf-8")
    found = imported(tmp_path, lora_type="lycoris", lycoris_config="lycoris.json")
    config = found.config
    assert config.method == "lora"
    assert (
        config.lora_algorithm, config.lora_rank, config.lora_alpha, config.lora_weight_decompose,
        config.lora_rank_stabilized,
    ) == expected  # fmt: skip
    assert told in " ".join(entry.why for entry in found.report.not_imported)


def test_captions_of_all_datasets(tmp_path: Path) -> None:
    """helpers/data_backend/factory.py, _create_dataset_and_sampler: those of the settings, where a dataset has none."""
    backends = [{"id": name, "type": "local", "instance_data_dir": name} for name in "ab"]
    backends[1]["caption_strategy"] = "filename"
    found = imported(tmp_path, backends=backends, caption_strategy="textfile", instance_prompt="sks",
                     prepend_instance_prompt=True)  # fmt: skip
    captions = [(concept.caption_source, concept.prompt_prefix) for concept in found.config.concepts]
    assert captions == [("txt", "sks "), ("file_name", "sks ")]
    assert "--caption_strategy" in {entry.source for entry in found.report.imported}
    assert not {name for name in reasons(found) if "caption" in name or "prompt" in name}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("checkpoint_epoch_interval", "backup_every"), ("eval_epoch_interval", "validate_every"),
        ("optimizer_release_gradients", "fused_backward"), ("fsdp_enable", "training_mode"),
    ],
)  # fmt: skip
def test_what_tandem_calls_otherwise_is_named(given: str, named: str, tmp_path: Path) -> None:
    changed: dict[str, Any] = {given: 2}
    assert named in reasons(imported(tmp_path, **changed))[f"--{given}"]


@pytest.mark.parametrize(
    ("given", "matched", "passed_over"),
    [
        ({"model_family": "sd3"}, "transformer_blocks.0.attn.to_q", "transformer_blocks.0.attn.add_k_proj"),
        ({"model_family": "flux2"}, "single_transformer_blocks.0.attn.to_qkv_mlp_proj", "x.0.attn.to_add_out"),
        ({"peft_lora_target_modules": '["to_q", "ff.net.2"]'}, "down.0.ff.net.2", "down.0.attn.to_k"),
    ],
)
def test_layers_of_a_lora(tmp_path: Path, given: dict[str, Any], matched: str, passed_over: str) -> None:
    """DEFAULT_LORA_TARGET: peft compares the last words of names."""
    pattern = imported(tmp_path, **given).config.lora_targets
    assert re.search(pattern, matched)
    assert not re.search(pattern, passed_over)


def test_references_of_a_model_that_edits_images(tmp_path: Path) -> None:
    """documentation/quickstart/FLUX_KONTEXT.md; the captions are those of the images that come out."""
    for name in ("after", "before"):
        (tmp_path / name).mkdir()
    after = {"id": "a", "type": "local", "instance_data_dir": "after", "caption_strategy": "textfile"}
    before = {
        "id": "b", "type": "local", "instance_data_dir": "before", "conditioning_type": "reference_strict",
        "resolution": 1024, "caption_strategy": None, "cache_dir_vae": "x",
    }  # fmt: skip
    kontext: dict[str, Any] = {"model_family": "flux", "model_flavour": "kontext"}
    found = imported(
        tmp_path, "--pretrained_model_name_or_path", [{**after, "conditioning_data": ["b"]}, before], **kontext
    )
    assert (found.config.family, found.config.base_model) == ("flux_kontext", "black-forest-labs/FLUX.1-Kontext-dev")
    (concept,) = found.config.concepts
    assert (Path(concept.path), Path(concept.references)) == (tmp_path / "after", tmp_path / "before")
    assert not found.report.problems
    assert reasons(found)["data_backend_config.1.resolution"] == "set reference_resolution"
    linked = imported(
        tmp_path, "", [after, {**before, "dataset_type": "conditioning", "source_dataset_id": "a"}], **kontext
    )
    assert [Path(each.references).name for each in linked.config.concepts] == ["before"]
    several = imported(
        tmp_path, "", [{**after, "conditioning_data": ["b", "c"]}, before, {**before, "id": "c"}], **kontext
    )
    assert "images as a condition" in several.report.problems[0]
    assert [Path(each.path).name for each in several.config.concepts] == ["after"]
    edit: dict[str, Any] = {
        "model_family": "qwen_image", "model_flavour": "edit-v3", "conditioning_multidataset_sampling": "combined",
    }  # fmt: skip
    (tmp_path / "other").mkdir()
    sets = [{**after, "conditioning_data": ["b", "c"]}, before, {**before, "id": "c", "instance_data_dir": "other"}]
    joined = imported(tmp_path, "--pretrained_model_name_or_path", sets, **edit)
    assert (joined.config.family, joined.config.base_model) == ("qwen_image_edit", "Qwen/Qwen-Image-Edit-2511")
    assert [Path(each).name for each in joined.config.concepts[0].reference_folders] == ["before", "other"]
    assert not joined.report.problems


def test_a_model_that_need_not_edit_images_keeps_its_base_model(tmp_path: Path) -> None:
    """flux2/model.py: conditioning is optional."""
    (tmp_path / "a").mkdir()
    backend = {"id": "a", "type": "local", "instance_data_dir": "a", "caption_strategy": "textfile"}
    given: dict[str, Any] = {"model_family": "flux2", "model_flavour": "klein-4b"}
    found = imported(tmp_path, "--pretrained_model_name_or_path", [backend], **given)
    assert (found.config.base_model, found.report.problems) == ("black-forest-labs/FLUX.2-klein-base-4B", ())


def test_datasets_elsewhere_become_addresses(tmp_path: Path) -> None:
    secrets = {"aws_access_key_id": "AKIA-ours", "aws_secret_access_key": "hush", "aws_endpoint_url": "https://r2"}
    s3 = {"type": "aws", "aws_bucket_name": "b", "aws_data_prefix": "x/cats/", "caption_strategy": "textfile"}
    hub = {"type": "huggingface", "dataset_name": "owner/name", "caption_strategy": "huggingface"}
    hub |= {"caption_column": "long", "revision": "v1", "split": "train", "metadata_backend": "huggingface"}
    others = [{"id": "c", "type": "csv"}, {"id": "e", "type": "aws", "dataset_type": "text_embeds"}]
    found = imported(tmp_path, backends=[{**s3, **secrets}, hub, *others])
    first, second = found.config.concepts
    assert (first.path, first.caption_source) == ("s3://b/x/cats", "txt")
    assert (second.path, second.caption_column) == ("hf://datasets/owner/name@v1", "long")
    named = reasons(found)
    assert named["data_backend_config.0.aws_endpoint_url"].startswith("set AWS_ENDPOINT_URL")
    assert named["data_backend_config.0.aws_secret_access_key"].startswith("set AWS_ACCESS_KEY_ID")
    assert "S3 (aws)" in named["data_backend_config.2"]
    assert "hush" not in repr(found)
    assert "AKIA" not in repr(found)
