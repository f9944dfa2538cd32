"""ai-toolkit's jobs, against its sources.

ostris/ai-toolkit at 27a03a9: toolkit/config_modules.py (defaults; GenerateImageConfig for flags in prompts),
toolkit/scheduler.py, toolkit/optimizer.py, toolkit/lora_special.py (layers), toolkit/prompt_utils.py
(inject_trigger_into_prompt), toolkit/job.py (kinds of jobs), jobs/process/BaseSDTrainProcess.py (steps, accumulation,
triggers).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from modules.config import ConfigError, Interval, dump
from modules.importers import ImportResult, import_file


def imported(folder: Path, train: dict[str, object] | None = None, **process: object) -> ImportResult:
    base = {"type": "sd_trainer", "network": {"type": "lora", "linear": 16}, "train": {"lr": 1e-4, **(train or {})}}
    model = {"name_or_path": "a/b", "is_xl": True}
    return _job(folder, {"job": "extension", "config": {"name": "a", "process": [{**base, "model": model, **process}]}})


def _job(folder: Path, job: dict[str, object]) -> ImportResult:
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    return import_file(folder / "job.json")


def reasons(found: ImportResult) -> dict[str, str]:
    entries = (*found.report.not_imported, *found.report.changed)
    return {entry.source.removeprefix("config.process.0."): entry.why for entry in entries}


def test_alpha_is_1_by_default(tmp_path: Path) -> None:
    """linear_alpha defaults to alpha, alpha to 1.0; conv_alpha to conv."""
    assert imported(tmp_path).config.lora_alpha == 1.0
    network = {"type": "lora", "linear": 16, "alpha": 4}
    assert imported(tmp_path, network=network).config.lora_alpha == 4
    network = {"type": "lora", "linear": 16, "linear_alpha": 8, "alpha": 4}
    assert imported(tmp_path, network=network).config.lora_alpha == 8


def test_convolutions_have_their_own_rank_and_alpha(tmp_path: Path) -> None:
    config = imported(tmp_path, network={"type": "locon", "linear": 16, "conv": 8}).config
    assert (config.lora_rank, config.lora_alpha) == (16, 1.0)
    assert (config.lora_conv_rank, config.lora_conv_alpha) == (8, 8)
    config = imported(tmp_path, network={"linear": 16, "conv": 8, "conv_alpha": 2}).config
    assert (config.method, config.lora_conv_rank, config.lora_conv_alpha) == ("lora", 8, 2)  # type is lora by default


def test_latents_are_cached_as_the_first_dataset_says(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()

    def caches(**dataset: object) -> bool:
        return imported(tmp_path, datasets=[{"folder_path": "pictures", **dataset}]).config.cache_latents

    assert caches()
    assert not caches(cache_latents=False)
    assert not caches(cache_latents_to_disk=False)
    assert caches(cache_latents_to_disk=True, cache_latents=False)


def test_text_encoders_are_frozen_by_default(tmp_path: Path) -> None:
    assert [part.train for part in imported(tmp_path).config.parts] == [True, False, False]
    train: dict[str, object] = {"train_text_encoder": True, "unet_lr": 3e-4, "text_encoder_lr": 2e-5}
    parts = imported(tmp_path, train).config.parts
    assert [(part.train, part.learning_rate) for part in parts] == [(True, 3e-4), (True, 2e-5), (True, 2e-5)]


def test_defaults_of_a_job(tmp_path: Path) -> None:
    config = imported(tmp_path).config
    assert (config.max_steps, config.batch_size, config.precision, config.max_grad_norm) == (1000, 1, "fp32", 1.0)
    assert (config.ema, config.save_dtype, config.scheduler, config.lr_scaling) == (False, "fp16", "constant", "none")
    assert (config.save_every, config.saves_kept) == (Interval(1000, "steps"), 5)
    assert config.gradient_checkpointing
    found = imported(tmp_path, {"min_snr_gamma": 5.0, "noise_offset": 0.03, "ema_config": {"use_ema": True}}).config
    assert (found.ema, found.ema_decay) == (True, 0.999)
    assert found.family_options == {"loss_weighting": "min_snr", "min_snr_gamma": 5.0, "offset_noise": 0.03}


@pytest.mark.parametrize(
    ("name", "eps", "weight_decay"),
    [("adamw", 1e-6, 0.01), ("adamw8bit", 1e-6, 0.01), ("adam", 1e-6, 0.0), ("prodigy", 1e-6, 0.0)],
)
def test_optimizers(tmp_path: Path, name: str, eps: float, weight_decay: float) -> None:
    """get_optimizer passes eps=1e-6; torch, bitsandbytes and prodigyopt have the rest."""
    found = imported(tmp_path, {"optimizer": name}).config.optimizer.model_dump()
    assert (found["eps"], found["weight_decay"]) == (eps, weight_decay)
    config = imported(tmp_path, {"optimizer": name, "optimizer_params": {"weight_decay": 0.2}}).config
    assert config.optimizer.model_dump()["weight_decay"] == 0.2


@pytest.mark.parametrize(("name", "state"), [("prodigyopt", ""), ("prodigy8bit", "8-bit")])
def test_all_that_begins_with_prodigy_is_prodigy(name: str, state: str, tmp_path: Path) -> None:
    """toolkit/optimizer.py."""
    found = imported(tmp_path, {"optimizer": name, "lr": 1, "optimizer_params": {"d_coef": 2}})
    config: Any = dump(found.config)
    assert (config["optimizer"]["name"], config["optimizer"]["d_coef"]) == ("prodigy", 2)
    assert state in reasons(found).get("train.optimizer", "")


def test_folders_are_read_with_their_subfolders(tmp_path: Path) -> None:
    """toolkit/data_loader.py, AiToolkitDataset: os.walk of dataset_path, or folder_path without one."""
    datasets = [{"folder_path": "a"}, {"dataset_path": "b", "folder_path": "c"}, {"dataset_path": "d.json"}]
    found = imported(tmp_path, datasets=datasets)
    assert [Path(concept.path).name for concept in found.config.concepts] == ["a", "b"]
    assert all(concept.include_subfolders for concept in found.config.concepts)
    assert "takes precedence" in reasons(found)["datasets.1.folder_path"]
    assert "reads folders" in reasons(found)["datasets.2"]


def test_other_loras_are_told_by_what_to_do(tmp_path: Path) -> None:
    model = {"name_or_path": "a/b", "is_xl": True, "lora_path": "c"}
    found = reasons(imported(tmp_path, network={"type": "lora", "pretrained_lora_path": "x"}, model=model))
    assert ("lora_from" in found["network.pretrained_lora_path"], "--merge" in found["model.lora_path"]) == (True, True)


def test_prodigys_rate_is_1_if_it_is_below_a_tenth(tmp_path: Path) -> None:
    """get_optimizer: a rate below 0.1 becomes 1.0."""
    assert imported(tmp_path, {"optimizer": "prodigy", "lr": 1e-4}).config.learning_rate == 1
    assert imported(tmp_path, {"optimizer": "prodigy", "lr": 0.5}).config.learning_rate == 0.5


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ({"lr_scheduler": "constant_with_warmup"}, ("constant", 1000, 0)),  # get_lr_scheduler's own default
        (
            {"lr_scheduler": "constant_with_warmup", "lr_scheduler_params": {"num_warmup_steps": 50}},
            ("constant", 50, 0),
        ),
        ({"lr_scheduler": "cosine", "lr_scheduler_params": {"num_warmup_steps": 50}}, ("cosine", 50, 0)),
        ({"lr_scheduler": "cosine", "lr_scheduler_params": {"eta_min": 1e-5}}, ("cosine", 0, 0.1)),
    ],
)
def test_schedules(tmp_path: Path, train: dict[str, object], expected: tuple[object, ...]) -> None:
    config = imported(tmp_path, train).config
    assert (config.scheduler, config.warmup_steps, pytest.approx(config.min_learning_rate_factor)) == expected


def test_a_warm_up_below_one_step_is_no_share_of_the_run(tmp_path: Path) -> None:
    """diffusers' get_constant_schedule_with_warmup, which it uses: `if current_step < num_warmup_steps`."""
    found = imported(
        tmp_path, {"lr_scheduler": "constant_with_warmup", "lr_scheduler_params": {"num_warmup_steps": 0.1}}
    )
    assert (found.config.warmup_steps, found.config.warmup_fraction) == (1, 0)
    assert "not during a fraction of the run" in next(e.why for e in found.report.changed if e.target == "warmup_steps")


def test_restarts_need_a_period(tmp_path: Path) -> None:
    """CosineAnnealingWarmRestarts with T_0 = total_iters, the number of steps: it never restarts."""
    for given in ({}, {"lr_scheduler_params": {"T_0": 250}}):  # which total_iters replaces
        found = imported(tmp_path, {"lr_scheduler": "cosine_with_restarts", **given})
        assert (found.config.scheduler, found.config.scheduler_cycles) == ("cosine_with_restarts", 1)
        assert bool(given) == ("train.lr_scheduler_params" in reasons(found))


def test_weights_of_a_dataset_and_the_average(tmp_path: Path) -> None:
    """toolkit/ema.py: use_num_updates is off, so the decay is constant."""
    dataset = {"folder_path": str(tmp_path), "network_weight": 0.8, "loss_multiplier": 0.5}
    found = imported(tmp_path, {"ema_config": {"use_ema": True, "ema_decay": 0.99}}, datasets=[dataset])
    assert (found.config.concepts[0].loss_weight, found.config.ema_decay) == (0.4, 0.99)
    assert "from the first step" in reasons(found)["train.ema_config.ema_decay"]


def test_schedules_that_mean_something_else(tmp_path: Path) -> None:
    """LinearLR rises from start_factor 1/3 to 1; StepLR and diffusers' polynomial get total_iters, which they do not
    take, and CosineAnnealingLR no num_warmup_steps."""
    for name in ("step", "polynomial"):
        found = imported(tmp_path, {"lr_scheduler": name})
        assert found.config.scheduler == "constant"
        assert "ai-toolkit" in reasons(found)["train.lr_scheduler"]
    rising = imported(tmp_path, {"lr_scheduler": "linear", "steps": 300}).config
    assert rising.scheduler_target == "torch.optim.lr_scheduler.LinearLR"
    assert rising.scheduler_arguments == f"start_factor = {1 / 3}, end_factor = 1.0, total_iters = 300"
    warmed = imported(tmp_path, {"lr_scheduler": "cosine", "lr_scheduler_params": {"num_warmup_steps": 50}})
    assert (warmed.config.scheduler, warmed.config.warmup_steps) == ("cosine", 50)
    assert "ends with an error for num_warmup_steps" in reasons(warmed)["train.lr_scheduler_params"]
    falling: dict[str, object] = {
        "lr_scheduler": "linear",
        "lr_scheduler_params": {"start_factor": 1.0, "end_factor": 0.1},
    }
    config = imported(tmp_path, falling).config
    assert (config.scheduler, config.min_learning_rate_factor) == ("linear", 0.1)


@pytest.mark.parametrize("name", ["automagic", "automagic2", "automagic3", "AutomagicEXPERIMENT"])
def test_automagic_becomes_prodigy_with_the_rate_1(tmp_path: Path, name: str) -> None:
    """toolkit/optimizers/automagic*.py: lr, 1e-6 by default, is where they start; min_lr and max_lr bound it."""
    params = {"min_lr": 1e-7, "max_lr": 1e-3, "lr_bump": 1e-6, "beta2": 0.99, "weight_decay": 0.01}
    found = imported(tmp_path, {"optimizer": name, "lr": 1e-6, "optimizer_params": params})
    optimizer = found.config.optimizer.model_dump()
    assert (optimizer["name"], optimizer["weight_decay"], optimizer["betas"]) == ("prodigy", 0.01, (0.9, 0.99))
    assert found.config.learning_rate == 1
    assert "automagic starts there" in reasons(found)["train.lr"]
    assert "prodigy has no such setting" in reasons(found)["train.optimizer_params"]


def test_adagrad_is_that_of_torch(tmp_path: Path) -> None:
    found = imported(tmp_path, {"optimizer": "adagrad", "optimizer_params": {"lr_decay": 0.1}}).config.optimizer
    assert (found.class_path(), found.keywords()) == ("torch.optim:Adagrad", {"lr_decay": 0.1})


def test_accumulation_of_the_older_kind_counts_batches_as_steps(tmp_path: Path) -> None:
    """The loop runs `steps` times; gradient_accumulation takes its batches within one of them."""
    shared = {"sample": {"sample_every": 400, "prompts": ["a cat"]}, "save": {"save_every": 200}}
    config = imported(tmp_path, {"steps": 2000, "gradient_accumulation": 4}, **shared).config
    assert (config.gradient_accumulation_steps, config.max_steps) == (4, 2000)
    assert (config.sample_every, config.save_every) == (Interval(400, "steps"), Interval(200, "steps"))
    found = imported(tmp_path, {"steps": 2000, "gradient_accumulation_steps": 4}, **shared)
    assert (found.config.gradient_accumulation_steps, found.config.max_steps) == (4, 500)
    assert (found.config.sample_every, found.config.save_every) == (Interval(100, "steps"), Interval(50, "steps"))
    assert "batches" in reasons(found)["sample.sample_every"]


def test_the_trigger_word_is_for_images_that_are_not_regularisation(tmp_path: Path) -> None:
    """add_if_not_present=not is_reg; the word and a space are put before the caption."""
    (tmp_path / "a").mkdir()
    datasets = [{"folder_path": "a"}, {"folder_path": "a", "is_reg": True}, {"folder_path": "a", "trigger_word": "xyz"}]
    found = imported(tmp_path, trigger_word="sks", datasets=datasets)
    assert [concept.prompt_prefix for concept in found.config.concepts] == ["sks ", "", "sks "]
    assert [concept.prior for concept in found.config.concepts] == [False, True, False]


def test_an_embedding_job_trains_its_trigger(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    embedding = {"trigger": "sks", "tokens": 6}
    sample = {"prompts": ["a photo of [name]"]}
    found = imported(tmp_path, network=None, embedding=embedding, datasets=[{"folder_path": "a"}], sample=sample)
    config = found.config
    assert (config.method, config.embedding_token, config.embedding_vectors, config.embedding_init) == (
        "embedding", "sks", 6, "*",
    )  # fmt: skip
    assert (config.concepts[0].prompt_prefix, config.samples[0].prompt) == ("sks ", "a photo of sks")


def test_prompts(tmp_path: Path) -> None:
    """GenerateImageConfig._process_prompt_string; [trigger] and [name] are replaced."""
    prompts = [
        "a [trigger] cat, [name] --w 768 --h 1024 --d 3 --n bad, ugly --s 9 --l 4.5",
        "a dog --seed 8 --cfg 3 --steps 12 --m 0.5",
        "a plain one",
    ]
    sample = {"prompts": prompts, "width": 512, "height": 640, "seed": 42, "walk_seed": True, "neg": "blurry"}
    found = imported(tmp_path, trigger_word="sks", sample=sample)
    first, second, third = found.config.samples
    assert (first.prompt, first.negative_prompt) == ("a sks cat, sks", "bad, ugly")
    assert (first.width, first.height, first.seed, first.steps, first.guidance_scale) == (768, 1024, 3, 9, 4.5)
    assert (second.prompt, second.seed, second.steps, second.guidance_scale) == ("a dog", 8, 12, 3)
    assert (third.prompt, third.negative_prompt, third.width, third.height, third.seed) == (
        "a plain one", "blurry", 512, 640, 44,
    )  # fmt: skip
    assert any(source.endswith("network_multiplier") for source in reasons(found))
    found = imported(tmp_path, sample={**sample, "sampler": "euler", "prompts": ["a", "b"]})
    assert sum(entry.source.endswith("sampler") for entry in found.report.not_imported) == 1


@pytest.mark.parametrize("kind", ["extract", "generate", "mod"])
def test_jobs_that_do_not_train_are_refused(tmp_path: Path, kind: str) -> None:
    job: dict[str, object] = {"job": kind, "config": {"name": "a", "process": [{"type": "locon", "rank": 4}]}}
    with pytest.raises(ConfigError, match=f'"{kind}"') as caught:
        _job(tmp_path, job)
    assert "train" in str(caught.value)


def test_both_limits_of_denoising_steps(tmp_path: Path) -> None:
    """min_denoising_steps is 0 and max_denoising_steps 999 by default, of 1000 timesteps."""
    found = imported(tmp_path, {"min_denoising_steps": 0, "max_denoising_steps": 1000})
    assert not {"train.min_denoising_steps", "train.max_denoising_steps"} & set(reasons(found))
    options = imported(tmp_path, {"min_denoising_steps": 200, "max_denoising_steps": 800}).config.family_options
    assert options == {"min_timestep": 0.2, "max_timestep": 0.8}


def test_a_usual_file(ai_toolkit: Path) -> None:
    found = import_file(ai_toolkit)
    config = found.config
    assert (config.family, config.method, config.run_name) == ("stable_diffusion_xl", "lora", "my_first_lora_v1")
    assert (config.max_steps, config.learning_rate, config.precision) == (2000, 1e-4, "bf16")
    assert (config.ema, config.ema_decay, config.saves_kept) == (True, 0.99, 4)
    assert (config.lora_rank, config.lora_alpha) == (16, 8.0)
    (concept,) = config.concepts
    assert (concept.path, concept.prompt_prefix) == (str(ai_toolkit.parent / "pictures"), "p3r5on ")
    assert [sample.seed for sample in config.samples] == [42, 43]
    assert config.resolution == 1024
    assert [(part.part, part.weights) for part in config.parts][:1] == [("unet", "run")], "it quantises no UNet"


def test_min_snr_ignores_v_prediction_there(tmp_path: Path) -> None:
    """toolkit/train_tools.py, apply_snr_weight: min(gamma / snr, 1), whatever the model predicts."""
    for is_v, is_told in ((True, True), (False, False)):
        model = {"name_or_path": "a/b", "is_v_pred": is_v}
        found = imported(tmp_path, {"min_snr_gamma": 5.0}, model=model)
        assert found.config.family_options["loss_weighting"] == "min_snr"
        why = [item.why for item in found.report.changed if item.target == "family_options.loss_weighting"]
        assert ["min(gamma / snr, 1)" in each for each in why] == [True] * is_told


@pytest.mark.parametrize("network", [{"type": "lora"}, {"type": "lora", "alpha": 4}, {"conv": 8}])
def test_the_rank_is_4_by_default(tmp_path: Path, network: dict[str, object]) -> None:
    """toolkit/config_modules.py, NetworkConfig: without rank and linear both are 4, and its type is lora."""
    config = imported(tmp_path, network=network).config
    assert (config.method, config.lora_rank) == ("lora", 4)


def test_a_lokr(tmp_path: Path) -> None:
    network = {"type": "lokr", "linear": 16, "lokr_full_rank": True, "lokr_factor": 8, "dropout": 0.1}
    config = imported(tmp_path, network=network).config
    assert (config.lora_algorithm, config.lora_rank, config.lokr_factor, config.lora_dropout) == ("lokr", 4096, 8, 0)


def of_model(folder: Path, arch: str, network: dict[str, object], **more: Any) -> ImportResult:
    return imported(folder, model={"name_or_path": "a/b", "arch": arch}, network={"type": "lora", **network}, **more)


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("flux", "blocks"), ("flex1", "blocks"), ("qwen_image:2512", "blocks"), ("flux2_klein_4b", "blocks"),
        ("zimage:turbo", r"(^|\.)layers\.\d+\."),
    ],
)  # fmt: skip
def test_the_window_writes_convolutions_for_transformers_too(tmp_path: Path, arch: str, expected: str) -> None:
    """jobConfig.ts has conv 16; a transformer has none, and toolkit/lora_special.py takes the rank as its alpha."""
    found = of_model(tmp_path, arch, {"linear": 32, "linear_alpha": 8, "conv": 16, "conv_alpha": 16})
    config = found.config
    assert (config.lora_targets, config.lora_rank, config.lora_alpha) == (expected, 32, 32)
    assert (config.lora_conv_rank, config.lora_conv_alpha) == (None, None)
    assert "no convolutions" in reasons(found)["network.conv, config.process.0.network.conv_alpha"]
    assert "the rank as alpha" in reasons(found)["network.linear_alpha"]
    assert of_model(tmp_path, arch, {"transformer_only": False}).config.lora_targets == "all_linear"


def test_zimages_refiners_are_left_out(tmp_path: Path) -> None:
    pattern = of_model(tmp_path, "zimage", {}).config.lora_targets
    assert re.search(pattern, "transformer.layers.3.attention.to_q")
    assert not re.search(pattern, "transformer.noise_refiner.0.attention.to_q")


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ({"arch": "sd15"}, "stable_diffusion"),
        ({"arch": "ssd"}, "stable_diffusion_xl"),
        ({"is_vega": True}, "stable_diffusion_xl"),
        ({"arch": "flex1"}, "flux"),
    ],
)
def test_architectures(tmp_path: Path, model: dict[str, object], family: str) -> None:
    assert imported(tmp_path, model={"name_or_path": "a/b", **model}).config.family == family


def test_clips_of_a_model_of_videos(tmp_path: Path) -> None:
    model, dataset = {"name_or_path": "a/b", "arch": "wan21"}, {"folder_path": str(tmp_path)}
    found = imported(tmp_path, model=model, datasets=[{**dataset, "num_frames": 40, "fps": 24}])
    assert (found.config.family, found.config.frames, found.config.fps) == ("wan", 37, 24.0)
    assert "spread over the whole video" in reasons(found)["datasets.0.num_frames"]
    second = {"num_frames": 81, "fps": 24, "do_i2v": True}
    found = imported(
        tmp_path, model={**model, "arch": "wan22_5b"}, datasets=[{**dataset, "num_frames": 41}, {**dataset, **second}]
    )
    assert (found.config.frames, found.config.fps) == (41, 24.0)
    why = {name: text for name, text in reasons(found).items() if name.startswith("datasets.1.")}
    assert why == dict.fromkeys(
        ("datasets.1.num_frames", "datasets.1.do_i2v"), "all concepts share it: the first one is used"
    )
    stills = imported(
        tmp_path, model={"name_or_path": "a/b", "arch": "wan21"}, datasets=[{"folder_path": str(tmp_path)}]
    )
    assert stills.config.frames == 1


def test_first_frames_of_a_model_that_animates_images(tmp_path: Path) -> None:
    model, dataset = {"name_or_path": "a/b", "arch": "wan22_5b"}, {"folder_path": str(tmp_path), "num_frames": 41}
    for given, share in (({"do_i2v": True}, 1.0), ({"do_i2v": False}, 0.0), ({}, 0.0)):
        samples = [{"prompt": "a --ctrl_img a.png"}]
        found = imported(tmp_path, model=model, datasets=[{**dataset, **given}], sample={"samples": samples})
        assert (found.config.family, found.config.frames) == ("wan22_5b", 41)
        assert found.config.family_options["first_frame_conditioning"] == share
        assert [Path(each).name for each in found.config.samples[0].reference_files] == ["a.png"]
    plain = imported(tmp_path, model={**model, "arch": "wan21"}, datasets=[{**dataset, "do_i2v": True}])
    assert "first_frame_conditioning" not in plain.config.family_options


def test_a_frozen_text_encoder_has_no_layers_in_the_pattern(tmp_path: Path) -> None:
    """With one that matches nothing, SD 1 did not start."""
    assert "text_encoder" not in of_model(tmp_path, "sd15", {}).config.lora_targets
    config = of_model(tmp_path, "sd15", {}, train={"lr": 1e-4, "train_text_encoder": True}).config
    assert "text_encoder" in config.lora_targets


@pytest.mark.parametrize(
    ("address", "base_model"),
    [
        ("https://huggingface.co/owner/model", "owner/model"),
        ("https://huggingface.co/owner/model/tree/main", "owner/model"),
        ("https://huggingface.co/owner/model/blob/main/a.safetensors", None),
        ("https://civitai.com/models/25694?modelVersionId=127742", None),
    ],
)
def test_addresses_of_models(tmp_path: Path, address: str, base_model: str | None) -> None:
    found = imported(tmp_path, model={"name_or_path": address})
    assert found.config.base_model == base_model
    assert ("download the file" in reasons(found).get("model.name_or_path", "")) == (base_model is None)


@pytest.mark.parametrize(
    ("process", "named"),
    [
        (
            {"network": None, "model": {"name_or_path": "a/b", "arch": "zimage:turbo", "assistant_lora_path": "c/d"}},
            "--merge",
        ),
        ({"type": "slider"}, "a slider"),
        ({"type": "concept_slider"}, "a slider"),
        ({"type": "concept_replacer"}, "something else"),
        ({"slider": {"targets": []}}, "a slider"),
        ({"adapter": {"type": "control_net"}}, "of the type control_net"),
        ({"datasets": [{"folder_path": "a", "control_path": "b"}]}, "pairs of images"),
        ({"model": {"name_or_path": "a/b", "arch": "krea2:o_edit"}}, "pairs of images"),
    ],
)
def test_what_is_no_ordinary_lora_does_not_start(tmp_path: Path, process: dict[str, Any], named: str) -> None:
    found = imported(tmp_path, **process)
    assert not found.config.base_model
    (problem,) = found.report.problems
    assert named in problem


@pytest.mark.parametrize("control", [{"control_path": "b"}, {"control_path": ["b"]}, {"control_path_1": "b"}])
def test_pairs_of_a_model_that_edits_images_are_imported(tmp_path: Path, control: dict[str, Any]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    model = {"name_or_path": "black-forest-labs/FLUX.1-Kontext-dev", "arch": "flux_kontext"}
    samples = [{"prompt": "snow --ctrl_img b/x.png"}, {"prompt": "rain", "ctrl_img_1": "b/y.png"}, {"prompt": "sun"}]
    found = imported(
        tmp_path,
        model=model,
        datasets=[{"folder_path": "a", **control}],
        sample={"sample_every": 9, "samples": samples},
    )
    assert [Path(each.reference).name for each in found.config.samples] == ["x.png", "y.png", ""]
    assert not any("ctrl" in name or "control" in name for name in reasons(found) if "sample" not in name)
    assert (found.config.family, found.config.base_model) == ("flux_kontext", model["name_or_path"])
    assert [Path(each).name for each in found.config.concepts[0].reference_folders] == ["b"]
    assert found.report.problems == ()


@pytest.mark.parametrize("control", [{"control_path": ["b", "c"]}, {"control_path_1": "b", "control_path_2": "c"}])
def test_several_references(tmp_path: Path, control: dict[str, Any]) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    model = {"name_or_path": "Qwen/Qwen-Image-Edit-2509", "arch": "qwen_image_edit_plus"}
    sample = {"prompts": ["snow"], "ctrl_img": "b/x.png", "ctrl_img_2": "c/x.png"}
    found = imported(tmp_path, model=model, datasets=[{"folder_path": "a", **control}], sample=sample)
    assert (found.config.family, found.config.base_model) == ("qwen_image_edit", model["name_or_path"])
    assert [Path(each).name for each in found.config.concepts[0].reference_folders] == ["b", "c"]
    assert [Path(each).parent.name for each in found.config.samples[0].reference_files] == ["b", "c"]
    assert not found.report.problems


def test_loss_weights_of_noise_levels_are_told(tmp_path: Path) -> None:
    """custom_flowmatch_sampler.py: "weighted" draws as "linear" does, and weighs the loss."""
    found = of_model(tmp_path, "flux", {}, train={"lr": 1e-4, "timestep_type": "weighted"})
    assert found.config.family_options["timestep_distribution"] == "uniform"
    assert "weighs" in reasons(found)["train.timestep_type"]


def test_a_lokr_is_whole_by_default(tmp_path: Path) -> None:
    """lokr_full_rank is true; of a UNet it adapts convolutions, too."""
    config = imported(tmp_path, network={"type": "lokr", "linear": 16}).config
    assert (config.lora_rank, config.lora_alpha, config.lora_targets, config.lora_conv_rank) == (
        4096,
        4096,
        "all",
        4096,
    )
    found = imported(tmp_path, network={"type": "lokr", "linear": 16, "lokr_full_rank": False})
    assert (found.config.lora_rank, found.config.lora_alpha, found.config.lora_conv_rank) == (16, 1, None)
    assert not any("lokr_full_rank" in name for name in reasons(found))


def test_other_components_of_a_file(tmp_path: Path) -> None:
    """ModelConfig: extras_name_or_path, where text encoders and autoencoder are."""
    model = {"arch": "zimage", "extras_name_or_path": "Tongyi-MAI/Z-Image"}
    found = imported(tmp_path, model={**model, "name_or_path": "/m/z_image.safetensors"})
    assert found.config.family_options["layout"] == "Tongyi-MAI/Z-Image"
    found = imported(tmp_path, model={**model, "name_or_path": "a/b"})
    assert "all components" in reasons(found)["model.extras_name_or_path"]


def test_text_encoders_are_quantised_with_the_model(tmp_path: Path) -> None:
    """ModelConfig: quantize_te is quantize unless it is given."""
    model = {"name_or_path": "a/b", "arch": "flux", "quantize": True}
    assert imported(tmp_path, model=model).config.family_options["text_encoder_weights"] == "fp8"
    config = imported(tmp_path, model={**model, "quantize_te": False}).config
    assert "text_encoder_weights" not in config.family_options


def test_a_setting_that_is_two_here_is_left_out_once(tmp_path: Path) -> None:
    found = imported(tmp_path, {"min_snr_gamma": 5.0}, model={"name_or_path": "a/b", "arch": "flux"})
    left_out = [entry.source for entry in found.report.not_imported if entry.source.endswith("min_snr_gamma")]
    assert left_out == ["config.process.0.train.min_snr_gamma"]


def test_alpha_masks_are_divided_by_their_mean(tmp_path: Path) -> None:
    """extensions_built_in/sd_trainer/SDTrainer.py: mask_multiplier / mask_multiplier.mean()."""
    found = imported(tmp_path, datasets=[{"folder_path": "a"}, {"folder_path": "b", "alpha_mask": True}]).config
    assert [each.alpha_mask for each in found.concepts] == [False, True]
    assert (found.masked_training, found.normalize_masked_area_loss, found.unmasked_weight) == (True, True, 0.0)
