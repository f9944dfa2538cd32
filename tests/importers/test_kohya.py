"""kohya_ss and sd-scripts: files of each kind, against what their sources say.

kohya_ss: kohya_gui/{lora,finetune,dreambooth,textual_inversion}_gui.py (what each tab passes on), presets/lora and
presets/finetune (neither a model nor images). sd-scripts: networks/lora.py (`create_modules`, rates of 0 are skipped),
train_network.py, train_db.py, fine_tune.py and sdxl_train.py (`lr_te1 != 0`), library/config_util.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.config import TrainConfig, dump
from modules.importers import ImportResult, import_file

# As its LoRA tab saves settings, or presets without the fields of a user.
GUI_LORA: dict[str, object] = {
    "LoRA_type": "Standard", "LyCORIS_preset": "full", "adaptive_noise_scale": 0, "additional_parameters": "",
    "block_alphas": "", "block_dims": "", "block_lr_zero_threshold": "", "bucket_no_upscale": True,
    "bucket_reso_steps": 64, "bypass_mode": False, "cache_latents": True, "caption_dropout_every_n_epochs": 0,
    "caption_dropout_rate": 0.05, "caption_extension": ".txt", "clip_skip": 1, "color_aug": False, "constrain": 0,
    "conv_alpha": 16, "conv_dim": 32, "debiased_estimation_loss": False, "decompose_both": False,
    "dim_from_weights": False, "dora_wd": False, "down_lr_weight": "", "dynamo_backend": "no", "enable_bucket": True,
    "epoch": 12, "factor": -1, "flip_aug": False, "fp8_base": False, "full_bf16": False, "gpu_ids": "",
    "gradient_accumulation_steps": 2, "gradient_checkpointing": True, "highvram": False, "huber_c": 0.1,
    "huber_schedule": "snr", "ip_noise_gamma": 0, "keep_tokens": "0", "learning_rate": 1e-4,
    "loraplus_lr_ratio": 0, "loraplus_text_encoder_lr_ratio": 0, "loraplus_unet_lr_ratio": 0, "loss_type": "l2",
    "lowvram": False, "lr_scheduler": "cosine_with_restarts", "lr_scheduler_args": "", "lr_scheduler_num_cycles": "",
    "lr_scheduler_power": "", "lr_scheduler_type": "", "lr_warmup": 0, "main_process_port": 0, "masked_loss": False,
    "max_bucket_reso": 2048, "max_data_loader_n_workers": 0, "max_grad_norm": 1, "max_resolution": "1024,1024",
    "max_timestep": 1000, "max_token_length": 75, "max_train_epochs": "", "max_train_steps": "", "min_bucket_reso": 256,
    "min_snr_gamma": 5, "min_timestep": 0, "mixed_precision": "bf16", "module_dropout": 0, "multi_gpu": False,
    "multires_noise_discount": 0.3, "multires_noise_iterations": 0, "network_alpha": 16, "network_dim": 32,
    "network_dropout": 0, "network_weights": "", "noise_offset": 0.05, "noise_offset_type": "Original",
    "num_cpu_threads_per_process": 2, "num_machines": 1, "num_processes": 1, "optimizer": "AdamW8bit",
    "optimizer_args": "", "persistent_data_loader_workers": False, "prior_loss_weight": 1, "random_crop": False,
    "rank_dropout": 0, "rank_dropout_scale": False, "rescaled": False, "save_every_n_epochs": 1,
    "save_every_n_steps": 0, "save_last_n_steps": 0, "save_precision": "fp16", "scale_weight_norms": 0, "sdxl": True,
    "sdxl_cache_text_encoder_outputs": False, "sdxl_no_half_vae": True, "seed": "", "shuffle_caption": True,
    "split_mode": False, "stop_text_encoder_training": 0, "text_encoder_lr": 5e-5, "train_batch_size": 3,
    "train_norm": False, "train_on_input": True, "unet_lr": 1e-4, "unit": 1, "use_cp": False, "use_scalar": False,
    "use_tucker": False, "v2": False, "v_parameterization": False, "vae_batch_size": 0, "xformers": "xformers",
}  # fmt: skip
# As its fine-tuning tab saves settings.
GUI_FINE_TUNE: dict[str, object] = {
    "batch_size": "1", "block_lr": "", "bucket_no_upscale": True, "caption_dropout_rate": 0.1,
    "caption_extension": ".txt", "caption_metadata_filename": "meta_cap.json", "clip_skip": 1, "create_buckets": True,
    "create_caption": True, "dataset_repeats": "10", "epoch": 2, "full_path": True, "gradient_accumulation_steps": 1,
    "latent_metadata_filename": "meta_lat.json", "learning_rate": 1e-5, "learning_rate_te": 3e-6,
    "learning_rate_te1": 1e-6, "learning_rate_te2": 0, "lr_scheduler": "constant", "lr_warmup": 0,
    "max_resolution": "512,512", "max_train_epochs": "", "mixed_precision": "bf16", "optimizer": "AdamW",
    "sdxl_cache_text_encoder_outputs": False, "sdxl_no_half_vae": True, "sdxl_checkbox": False, "train_batch_size": 4,
    "train_dir": "configs", "train_text_encoder": True, "use_latent_files": "No", "v2": False,
}  # fmt: skip


def imported(folder: Path, data: object, name: str = "theirs.json") -> ImportResult:
    (folder / name).write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return import_file(folder / name)


def trained(config: TrainConfig) -> dict[str, object]:
    """Each submodule's rate: 0 if it is not trained, None for the rate of the run."""
    return {part.part: part.learning_rate if part.train else 0 for part in config.parts}


def reasons(found: ImportResult) -> dict[str, str]:
    """Why each setting was not imported."""
    return {name: item.why for item in found.report.not_imported for name in item.source.split(", ")}


def test_a_preset_without_model_and_images_is_imported(tmp_path: Path) -> None:
    found = imported(tmp_path, GUI_LORA)
    config = found.config
    assert found.report.trainer == "kohya_ss"
    assert (config.family, config.method, config.lora_targets) == ("stable_diffusion_xl", "lora", "kohya")
    assert (config.resolution, config.batch_size, config.caption_dropout) == (1024, 3, 0.05)
    assert (config.epochs, config.scheduler, config.scheduler_cycles) == (12, "cosine_with_restarts", 12)
    assert (config.lora_rank, config.lora_alpha, config.lora_dropout) == (32, 16, 0)
    assert (config.base_model, config.concepts) == (None, ())
    assert "set tag_shuffle of your concepts" in reasons(found)["shuffle_caption"]
    assert trained(config) == {"unet": 1e-4, "text_encoder": 5e-5, "text_encoder_2": 5e-5}
    options = {"offset_noise": 0.05, "loss_weighting": "min_snr", "min_snr_gamma": 5.0}
    assert {name: config.family_options[name] for name in options} == options


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"cache_latents": False}, False),
        ({"cache_latents": False, "cache_latents_to_disk": False}, False),
        ({"cache_latents": False, "cache_latents_to_disk": True}, True),
        ({"cache_latents": True}, True),
    ],
)
def test_latents_are_cached_as_the_file_says(tmp_path: Path, settings: dict[str, bool], expected: bool) -> None:
    assert imported(tmp_path, {**GUI_LORA, **settings}).config.cache_latents is expected


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"save_every_n_epochs": 1, "save_last_n_epochs": 3}, 3),
        ({"save_every_n_epochs": 1, "save_last_n_steps": 900}, 0),
        ({"save_every_n_epochs": 0, "save_every_n_steps": 300, "save_last_n_steps": 700}, 3),  # 600, 900 and 1,200
        ({"save_every_n_epochs": 0, "save_every_n_steps": 300}, 0),
    ],
)
def test_as_many_models_are_kept_as_kohya_leaves(tmp_path: Path, settings: dict[str, int], kept: int) -> None:
    config = imported(tmp_path, {**GUI_LORA, **settings}).config
    assert str(config.save_every) == ("1 epoch" if settings["save_every_n_epochs"] else "300 steps")
    assert config.saves_kept == kept
    assert str(config.backup_every) == "30 minutes"


def test_a_report_has_no_line_about_what_is_not_set(tmp_path: Path) -> None:
    found = imported(tmp_path, GUI_LORA)
    why = reasons(found)
    for item in (*found.report.imported, *found.report.changed, *found.report.not_imported):
        assert len(set(item.source.split(", "))) == len(item.source.split(", ")), item
    assert set(why) == {
        "shuffle_caption", "conv_dim", "conv_alpha", "sdxl_no_half_vae",
        "xformers", "max_bucket_reso", "caption_extension",
    }  # fmt: skip
    assert not [line for line in why.values() if "does not know" in line or "invalid" in line]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"LoRA_type": "Kohya LoCon"}, ("kohya_conv", 32, 16)),
        ({"LoRA_type": "LyCORIS/LoCon"}, ("all", 32, 16)),
        ({"LoRA_type": "LyCORIS/LoCon", "LyCORIS_preset": "attn-mlp"}, ("kohya", None, None)),
        ({"LoRA_type": "LoRA-FA"}, ("kohya", None, None)),
    ],
)
def test_layers_of_the_guis_kinds_of_lora(
    tmp_path: Path, settings: dict[str, object], expected: tuple[object, ...]
) -> None:
    config = imported(tmp_path, {**GUI_LORA, **settings}).config
    assert (config.lora_targets, config.lora_conv_rank, config.lora_conv_alpha) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('network_module = "networks.lora"', ("kohya", None, None)),
        # create_network: conv_alpha is 1.0 if it is not given
        ('network_module = "networks.lora"\nnetwork_args = ["conv_dim=8"]', ("kohya_conv", 8, 1)),
        ('network_module = "networks.lora"\nnetwork_args = ["conv_dim=8", "conv_alpha=4"]', ("kohya_conv", 8, 4)),
        # lycoris/kohya.py: conv_dim and conv_alpha are network_dim and network_alpha if they are not given
        ('network_module = "lycoris.kohya"\nnetwork_args = ["algo=locon"]', ("all", None, None)),
        ('network_module = "lycoris.kohya"\nnetwork_args = ["preset=attn-mlp"]', ("kohya", None, None)),
    ],
)
def test_layers_of_network_arguments(tmp_path: Path, text: str, expected: tuple[object, ...]) -> None:
    settings = f'pretrained_model_name_or_path = "a/b"\nnetwork_dim = 16\n{text}\n'
    config = imported(tmp_path, settings, "theirs.toml").config
    assert (config.lora_targets, config.lora_conv_rank, config.lora_conv_alpha) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # prepare_optimizer_params_with_multiple_te_lrs: one rate is for both, groups with a rate of 0 are skipped
        ({"text_encoder_lr": [1e-5, 2e-5]}, {"unet": None, "text_encoder": 1e-5, "text_encoder_2": 2e-5}),
        ({"text_encoder_lr": [1e-5, 0]}, {"unet": None, "text_encoder": 1e-5, "text_encoder_2": 0}),
        ({"text_encoder_lr": 0}, {"unet": None, "text_encoder": 0, "text_encoder_2": 0}),
        ({}, {"unet": None, "text_encoder": None, "text_encoder_2": None}),
        ({"network_train_unet_only": True}, {"unet": None, "text_encoder": 0, "text_encoder_2": 0}),
        ({"unet_lr": 0, "text_encoder_lr": 1e-5}, {"unet": 0, "text_encoder": 1e-5, "text_encoder_2": 1e-5}),
    ],
)
def test_rates_of_a_lora(tmp_path: Path, settings: dict[str, object], expected: dict[str, object]) -> None:
    base = {"pretrained_model_name_or_path": "x/sdxl", "network_module": "networks.lora", "max_train_epochs": 1}
    assert trained(imported(tmp_path, {**base, **settings}).config) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # fine_tune.py: learning_rate_te or learning_rate; the fields of SDXL are not passed on
        ({}, ("stable_diffusion", {"unet": None, "text_encoder": 3e-6})),
        ({"learning_rate_te": 0}, ("stable_diffusion", {"unet": None, "text_encoder": None})),
        ({"train_text_encoder": False}, ("stable_diffusion", {"unet": None, "text_encoder": 0})),
        # sdxl_train.py: 0 means not trained, and learning_rate_te is of the others
        (
            {"sdxl_checkbox": True},
            ("stable_diffusion_xl", {"unet": None, "text_encoder": 1e-6, "text_encoder_2": 0}),
        ),
        (
            {"sdxl_checkbox": True, "train_text_encoder": False},
            ("stable_diffusion_xl", {"unet": None, "text_encoder": 0, "text_encoder_2": 0}),
        ),
    ],
)
def test_gui_fine_tune(tmp_path: Path, settings: dict[str, object], expected: tuple[str, dict[str, object]]) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/cat.txt").write_text("a cat", encoding="utf-8")
    found = imported(tmp_path, {**GUI_FINE_TUNE, "image_folder": "pictures", **settings})
    config = found.config
    assert (config.family, trained(config)) == expected
    assert (config.method, config.batch_size, config.resolution, config.caption_dropout) == ("fine_tune", 4, 512, 0.1)
    (concept,) = config.concepts
    assert (concept.path, concept.repeats, concept.caption_source) == (str(tmp_path / "pictures"), 10, "txt")
    assert config.aspect_ratio_bucketing  # the tab always passes enable_bucket on
    assert not [line for line in reasons(found).values() if "does not know" in line]


def test_gui_dreambooth(tmp_path: Path) -> None:
    """train_db.py trains the text encoder; the tab passes train_text_encoder on for SDXL only."""
    names = ("batch_size", "image_folder", "dataset_repeats", "create_caption", "create_buckets", "sdxl_checkbox")
    settings = {name: value for name, value in GUI_FINE_TUNE.items() if name not in names}
    base = {**settings, "stop_text_encoder_training": 0, "train_text_encoder": False, "max_train_steps": "300"}
    config = imported(tmp_path, {**base, "sdxl": False}).config
    assert (config.family, config.max_steps) == ("stable_diffusion", 300)
    assert trained(config) == {"unet": None, "text_encoder": 3e-6}
    config = imported(tmp_path, {**base, "sdxl": True}).config
    assert trained(config) == {"unet": None, "text_encoder": 0, "text_encoder_2": 0}


def test_gui_textual_inversion(tmp_path: Path) -> None:
    settings = {
        "additional_parameters": "", "epoch": 3, "init_word": "cat", "learning_rate": 5e-4, "lr_warmup": 0,
        "max_resolution": "512,512", "num_vectors_per_token": 4, "sdxl": False, "template": "object template",
        "token_string": "<my-cat>", "train_batch_size": 2, "max_train_steps": 800, "lr_scheduler": "constant",
    }  # fmt: skip
    found = imported(tmp_path, settings)
    config = found.config
    assert (config.method, config.embedding_token, config.embedding_init) == ("embedding", "<my-cat>", "cat")
    assert (config.embedding_vectors, config.learning_rate, config.max_steps) == (4, 5e-4, 800)
    assert (config.batch_size, config.parts) == (2, ())
    # max_train_steps is computed from epoch only if it is not given
    assert reasons(found) == {"template": "write captions", "epoch": "it has no effect with the other settings"}


def test_sd_scripts_with_a_dataset_file(tmp_path: Path) -> None:
    """[general], [[datasets]] and subsets: the deeper level takes precedence (library/config_util.py)."""
    (tmp_path / "cats").mkdir()
    (tmp_path / "reg").mkdir()
    (tmp_path / "cats/a.txt").write_text("a cat, sitting", encoding="utf-8")
    (tmp_path / "data.toml").write_text(
        '[general]\nshuffle_caption = true\nkeep_tokens = 1\ncaption_extension = ".txt"\n'
        "[[datasets]]\nresolution = [768, 768]\nbatch_size = 2\nenable_bucket = true\ncaption_dropout_rate = 0.1\n"
        '[[datasets.subsets]]\nimage_dir = "cats"\nnum_repeats = 4\nkeep_tokens = 2\n'
        '[[datasets.subsets]]\nimage_dir = "reg"\nis_reg = true\nclass_tokens = "cat"\n',
        encoding="utf-8",
    )
    text = (
        'pretrained_model_name_or_path = "stable-diffusion-v1-5/stable-diffusion-v1-5"\nv2 = false\n'
        'dataset_config = "data.toml"\nnetwork_module = "networks.lora"\nnetwork_dim = 8\nprior_loss_weight = 0.25\n'
        'lr_scheduler = "cosine"\nlr_warmup_steps = 50\nmax_train_steps = 1000\ngradient_accumulation_steps = 2\n'
        'noise_offset = 0.1\nmin_snr_gamma = 5.0\noptimizer_type = "AdamW"\noptimizer_args = ["weight_decay=0.05"]\n'
    )
    found = imported(tmp_path, text, "run.toml")
    config = found.config
    assert (config.family, config.lora_rank, config.lora_alpha) == ("stable_diffusion", 8, 1)  # network_alpha 1
    assert (config.learning_rate, config.scheduler, config.warmup_steps) == (2e-6, "cosine", 50)
    assert (config.max_steps, config.gradient_accumulation_steps, config.lr_scaling) == (1000, 2, "none")
    assert (config.resolution, config.batch_size, config.caption_dropout) == (768, 2, 0.1)
    cats, reg = config.concepts
    assert (cats.repeats, cats.tag_shuffle, cats.keep_tags, cats.loss_weight, cats.prior) == (4, True, 2, 1, False)
    assert (reg.loss_weight, reg.prior, reg.prompt_prefix) == (0.25, True, "cat")
    assert "prior_loss_weight" not in reasons(found)
    assert config.optimizer.model_dump()["weight_decay"] == 0.05


def test_weight_of_regularisation_images_without_any(tmp_path: Path) -> None:
    (tmp_path / "img/3_cat").mkdir(parents=True)
    found = imported(tmp_path, {**GUI_LORA, "train_data_dir": "img", "prior_loss_weight": 0.5})
    assert found.config.concepts[0].repeats == 3
    assert reasons(found)["prior_loss_weight"] == "there are no regularisation images"


def test_images_of_the_folder_itself_are_reported_once(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.png").touch()
    found = imported(tmp_path, {**GUI_LORA, "train_data_dir": "mine"})
    assert found.config.concepts[0].path == str(tmp_path / "mine")
    assert "train_data_dir" not in reasons(found)
    (entry,) = (each for each in found.report.changed if each.source.startswith("train_data_dir"))
    assert (entry.source, entry.target) == ("train_data_dir", "concepts.0.path")
    assert "here the images of the folder itself are trained" in entry.why


@pytest.mark.parametrize(("schedule", "factor"), [("cosine_with_min_lr", 0.1), ("cosine", 0), ("linear", 0)])
def test_the_lowest_rate_is_of_one_schedule(tmp_path: Path, schedule: str, factor: float) -> None:
    """library/train_util.py, get_scheduler_fix: min_lr_rate is passed to COSINE_WITH_MIN_LR only."""
    found = imported(tmp_path, {**GUI_LORA, "lr_scheduler": schedule, "lr_scheduler_min_lr_ratio": 0.1})
    assert (found.config.scheduler, found.config.min_learning_rate_factor) == (schedule.partition("_")[0], factor)
    assert ("lr_scheduler_min_lr_ratio" in reasons(found)) is (factor == 0)


def test_an_alpha_of_0_is_the_rank(tmp_path: Path) -> None:
    """networks/lora.py, LoRAModule: `alpha = self.lora_dim if alpha is None or alpha == 0 else alpha`."""
    for alpha, expected in ((0, 32), (8, 8)):
        assert imported(tmp_path, {**GUI_LORA, "network_alpha": alpha}).config.lora_alpha == expected


def test_dropout_is_reported_as_different(tmp_path: Path) -> None:
    """networks/lora.py, LoRAModule.forward drops the outputs of lora_down, peft the inputs of lora_A."""
    found = imported(tmp_path, {**GUI_LORA, "network_dropout": 0.2})
    assert found.config.lora_dropout == 0.2
    assert "drops the outputs" in {item.source: item.why for item in found.report.changed}["network_dropout"]


@pytest.mark.parametrize(("tokens", "chunks"), [("75", None), ("150", 2), (225, 3)])
def test_long_captions(tmp_path: Path, tokens: object, chunks: object) -> None:
    """sd-scripts pads captions to 75, 150 or 225 tokens (library/strategy_sd.py, get_input_ids)."""
    options = imported(tmp_path, {**GUI_LORA, "max_token_length": tokens}).config.family_options
    assert options.get("prompt_windows") == chunks
    assert options.get("long_prompts") == (chunks and "chunk")


def changes(found: ImportResult) -> dict[str, str]:
    """Why each setting means something else, by the setting that it became."""
    return {item.target: item.why for item in found.report.changed}


def test_two_loss_weightings_are_multiplied_there(tmp_path: Path) -> None:
    """train_network.py, post_process_loss applies both; "no effect" would be false."""
    found = imported(tmp_path, {**GUI_LORA, "min_snr_gamma": 5, "debiased_estimation_loss": True})
    assert found.config.family_options["loss_weighting"] == "debiased"
    assert "min_snr_gamma" not in found.config.family_options
    assert "multiplies" in reasons(found)["min_snr_gamma"]


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"zero_terminal_snr": True, "v_parameterization": True}, "0.0047"),
        ({"zero_terminal_snr": False, "v_parameterization": True}, ""),
        (
            {
                "zero_terminal_snr": True, "v_parameterization": True, "debiased_estimation_loss": True,
                "min_snr_gamma": 0,
            },
            "before the rescaling",
        ),
    ],
)  # fmt: skip
def test_loss_weights_with_zero_terminal_snr(tmp_path: Path, settings: dict[str, object], note: str) -> None:
    """train_network.py calls prepare_scheduler_for_custom_training, which notes the ratios, before the rescaling of
    fix_noise_scheduler_betas_for_zero_terminal_snr. The last ratio is 0.0047 then, its weight 0.0047 / 1.0047.
    """
    why = changes(imported(tmp_path, {**GUI_LORA, **settings})).get("family_options.loss_weighting", "")
    assert note in why
    assert bool(why) is bool(note)


PREFIX_NOTE = "caption_prefix are shuffled"


@pytest.mark.parametrize(
    ("settings", "keep_tags", "note"),
    [
        # the prefix and the caption are split into tags together: "sks cat, sitting" and "sks, cat, sitting"
        ('caption_prefix = "sks"\nkeep_tokens = 1\nshuffle_caption = true', 1, ""),
        ('caption_prefix = "sks,"\nkeep_tokens = 1\nshuffle_caption = true', 0, ""),
        ('caption_prefix = "sks, 1girl,"\nkeep_tokens = 3\ncaption_tag_dropout_rate = 0.1', 1, ""),
        ('caption_prefix = "sks. 1girl."\nkeep_tokens = 3\nshuffle_caption = true\ncaption_separator = "."', 1, ""),
        ('caption_prefix = "sks, 1girl"\nkeep_tokens = 1\nshuffle_caption = true', 0, PREFIX_NOTE),
        ('caption_prefix = "sks"\nshuffle_caption = true', 0, PREFIX_NOTE),
        ('caption_prefix = "sks,"\nkeep_tokens = 1', 1, ""),  # tags stay where they are
    ],
)
def test_the_captions_prefix_counts_as_tags(tmp_path: Path, settings: str, keep_tags: int, note: str) -> None:
    """library/train_util.py, process_caption: the prefix is put before the caption is split into tags."""
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats/a.txt").write_text("cat, sitting", encoding="utf-8")
    subset = f'[[datasets]]\n[[datasets.subsets]]\nimage_dir = "cats"\ncaption_extension = ".txt"\n{settings}\n'
    found = imported(tmp_path, subset, "data.toml")
    assert found.config.concepts[0].keep_tags == keep_tags
    why = changes(found).get("concepts.0.keep_tags", "")
    assert note in why
    assert bool(why) is bool(note)


@pytest.mark.parametrize(("prefix", "expected"), [("", "photo of sks cat"), ("anime,", "anime, photo of sks cat")])
def test_the_captions_prefix_comes_before_class_tokens(tmp_path: Path, prefix: str, expected: str) -> None:
    """library/train_util.py: class_tokens are the caption of images without one, and process_caption puts the prefix
    and a space before every caption.
    """
    (tmp_path / "cats").mkdir()
    subset = f'image_dir = "cats"\nclass_tokens = "photo of sks cat"\ncaption_prefix = "{prefix}"\n'
    found = imported(tmp_path, f"[[datasets]]\n[[datasets.subsets]]\n{subset}", "data.toml")
    assert (found.config.concepts[0].caption_source, found.config.concepts[0].prompt_prefix) == ("none", expected)
    assert "caption_prefix" not in " ".join(entry.source for entry in found.report.not_imported)


@pytest.mark.parametrize(("separator", "is_told"), [(",", False), (";", True)])
def test_tags_are_always_joined_with_a_comma_there(tmp_path: Path, separator: str, is_told: bool) -> None:
    """library/train_util.py, process_caption: `", ".join(...)`, whatever caption_separator is."""
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats/a.txt").write_text("cat; sitting", encoding="utf-8")
    subset = f'[[datasets]]\n[[datasets.subsets]]\nimage_dir = "cats"\ncaption_separator = "{separator}"\n'
    found = imported(tmp_path, subset, "data.toml")
    assert found.config.concepts[0].tag_delimiter == separator
    assert ("with a comma" in changes(found).get("concepts.0.tag_delimiter", "")) is is_told


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'network_module = "lycoris.kohya"\nnetwork_args = ["algo=lokr", "factor=8", "dora_wd=True"]',
            ("lokr", 8, 1, False),
        ),
        ('network_module = "lycoris.kohya"\nnetwork_args = ["algo=loha", "rs_lora=True"]', ("loha", None, 1, True)),
        ('network_module = "lycoris.kohya"\nnetwork_args = ["algo=glora", "rs_lora=True"]', ("lora", None, 1, True)),
        ('network_module = "networks.loha"\nnetwork_dropout = 0.1', ("loha", None, 1, False)),
        ('network_module = "networks.lora"\nnetwork_args = ["loraplus_lr_ratio=4"]', ("lora", None, 4, False)),
    ],
)
def test_algorithms_of_lycoris_and_lora_plus(tmp_path: Path, text: str, expected: tuple[object, ...]) -> None:
    config = imported(tmp_path, f'pretrained_model_name_or_path = "a/b"\n{text}\n', "theirs.toml").config
    found = (config.lora_algorithm, config.lokr_factor, config.lora_plus_ratio, config.lora_rank_stabilized)
    assert found == expected
    assert (config.lora_dropout, config.lora_weight_decompose) == (0, False), "only of plain LoRA"


def gui(folder: Path, **given: object) -> ImportResult:
    preset = {"LoRA_type": "Standard", "model_list": "custom", "max_resolution": "512,512", "sdxl": True, **given}
    (folder / "gui.json").write_text(
        json.dumps({"network_dim": 8, "text_encoder_lr": 1e-4, **preset}), encoding="utf-8"
    )
    return import_file(folder / "gui.json")


def test_additional_parameters_of_the_gui_take_precedence(tmp_path: Path) -> None:
    """kohya_gui/lora_gui.py puts them after --config_file, and read_config_from_file lets them override it."""
    line = '--network_train_unet_only --max_grad_norm=0 --network_args "conv_dim=4" "conv_alpha=2" --log_prefix=a'
    found = gui(tmp_path, additional_parameters=line, max_grad_norm=1)
    assert [part.train for part in found.config.parts] == [True, False, False]
    assert (found.config.max_grad_norm, found.config.lora_targets) == (None, "kohya_conv")
    assert (found.config.lora_conv_rank, found.config.lora_conv_alpha) == (4, 2.0)
    assert "additional_parameters --log_prefix" in {entry.source for entry in found.report.not_imported}
    torch_schedule = '--lr_scheduler_type "CosineAnnealingLR" --lr_scheduler_args "T_max=30"'
    found = gui(tmp_path, additional_parameters=torch_schedule, lr_scheduler="cosine")
    assert found.config.scheduler_target == "torch.optim.lr_scheduler.CosineAnnealingLR"
    assert (found.config.scheduler_arguments, found.config.scheduler_interval) == ("T_max = 30", "step")
    assert "lr_scheduler" in {e.source for e in found.report.not_imported}


def test_other_classes_of_torch_and_of_packages_stay_those_classes(tmp_path: Path) -> None:
    """library/train_util.py, get_optimizer: a name without a dot is of torch.optim."""
    found = gui(tmp_path, optimizer="RAdam", optimizer_args="weight_decay=0.1 betas=0.9,0.95").config.optimizer
    assert (found.class_path(), found.keywords()) == ("torch.optim:RAdam", {"weight_decay": 0.1, "betas": [0.9, 0.95]})
    named = gui(tmp_path, optimizer="pytorch_optimizer.AdaBelief", optimizer_args="rectify=False").config.optimizer
    assert (named.class_path(), named.keywords()) == ("pytorch_optimizer:AdaBelief", {"rectify": False})
    assert gui(tmp_path, optimizer="AdamW", optimizer_args="beta2=0.95").config.optimizer.keywords()["betas"] == (
        0.9,
        0.95,
    )


def test_models_saved_after_steps_and_epochs_are_told(tmp_path: Path) -> None:
    """train_network.py saves at both; Tandem has one interval."""
    found = gui(tmp_path, save_every_n_epochs=2, save_every_n_steps=50)
    assert str(found.config.save_every) == "2 epochs"
    told = {entry.source: entry.why for entry in found.report.not_imported}
    assert told["save_every_n_steps"].startswith("Tandem has one interval, and that of save_every_n_epochs is used")


def test_a_lokr_of_any_rank_has_whole_factors(tmp_path: Path) -> None:
    kind = {
        "LoRA_type": "LyCORIS/LoKr",
        "network_dim": 100_000,
        "conv_dim": 100_000,
        "factor": 6,
        "LyCORIS_preset": "full",
    }
    config = gui(tmp_path, **kind).config
    assert (config.lora_algorithm, config.lora_rank, config.lora_conv_rank, config.lokr_factor) == (
        "lokr",
        4096,
        4096,
        6,
    )


def test_quoted_optimizer_arguments(tmp_path: Path) -> None:
    """kohya_gui/lora_gui.py removes the quotes: str(optimizer_args).replace('"', "").split()."""
    given = {"optimizer": "AdamW", "optimizer_args": '"weight_decay=0.1" "betas=0.9,0.98"'}
    optimizer = dump(imported(tmp_path, {**GUI_LORA, **given}).config)["optimizer"]
    assert isinstance(optimizer, dict)
    assert (optimizer["weight_decay"], optimizer["betas"]) == (0.1, [0.9, 0.98])


def test_what_no_dataset_can_have_is_told(tmp_path: Path) -> None:
    """library/config_util.py: resize_interpolation of subsets; a name that it does not have is no precedence."""
    (tmp_path / "a").mkdir()
    general = {"resize_interpolation": "area", "mystery": 3, "batch_size": 2}
    data = {"general": general, "datasets": [{"batch_size": 1, "subsets": [{"image_dir": "a"}]}]}
    told = {entry.source: entry.why for entry in imported(tmp_path, data).report.not_imported}
    assert "Lanczos" in told["general.resize_interpolation"]
    assert told["general.mystery"] == "the import does not know this setting"
    assert "take precedence" in told["general.batch_size"]


def test_prompts_in_a_list_may_be_lines(tmp_path: Path) -> None:
    """library/train_util.py, load_prompts: line_to_prompt_dict for those that are text."""
    (tmp_path / "prompts.json").write_text(json.dumps(["a cat --w 640", {"prompt": "a dog"}, 7]), encoding="utf-8")
    data = {"pretrained_model_name_or_path": "a/b", "network_module": "networks.lora", "sample_prompts": "prompts.json"}
    found = imported(tmp_path, data)
    assert [(each.prompt, each.width) for each in found.config.samples] == [("a cat", 640), ("a dog", 512)]
    assert any(entry.source == "sample_prompts.2" for entry in found.report.not_imported)
