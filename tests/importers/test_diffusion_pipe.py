"""diffusion-pipe's TOML, against train.py (defaults), models/sdxl.py (rates, schedule) and utils/dataset.py there."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.importers import ImportResult, import_file

RUN = """
output_dir = 'runs'
dataset = 'data.toml'
epochs = 1000
micro_batch_size_per_gpu = 2
gradient_accumulation_steps = 4
warmup_steps = 100
save_every_n_epochs = 2
activation_checkpointing = true
save_dtype = 'bfloat16'
lr_scheduler = 'linear'
[model]
type = 'sdxl'
checkpoint_path = '/models/sd_xl_base_1.0.safetensors'
dtype = 'bfloat16'
{model}
{adapter}
[optimizer]
type = 'adamw_optimi'
lr = 2e-5
betas = [0.9, 0.99]
weight_decay = 0.01
eps = 1e-8
"""
ADAPTER = "[adapter]\ntype = 'lora'\nrank = 32\ndtype = 'bfloat16'\ndropout = 0\n"
DATA = "resolutions = [1024]\nenable_ar_bucket = true\n[[directory]]\npath = 'pictures'\nnum_repeats = 5\n"


def imported(folder: Path, model: str = "", adapter: str = ADAPTER) -> ImportResult:
    (folder / "pictures").mkdir()
    (folder / "data.toml").write_text(DATA, encoding="utf-8")
    (folder / "run.toml").write_text(RUN.format(model=model, adapter=adapter), encoding="utf-8")
    return import_file(folder / "run.toml")


def changes(found: ImportResult) -> dict[str, str]:
    """Why each setting means something else, by the setting that it became."""
    return {item.target: item.why for item in found.report.changed}


def test_lora(tmp_path: Path) -> None:
    found = imported(tmp_path)
    config = found.config
    assert (config.family, config.method, config.precision) == ("stable_diffusion_xl", "lora", "bf16")
    assert (config.lora_rank, config.lora_alpha, config.lora_dropout) == (32, 32, 0)  # alpha is forced to the rank
    assert (config.learning_rate, config.scheduler, config.warmup_steps) == (2e-5, "linear", 100)
    assert (config.epochs, config.batch_size, config.gradient_accumulation_steps) == (1000, 2, 4)
    assert (config.max_grad_norm, config.gradient_checkpointing, config.save_dtype) == (1, True, "bf16")
    assert (config.resolution, config.aspect_ratio_bucketing, config.lr_scaling) == (1024, True, "none")
    assert str(config.save_every) == "2 epochs"
    assert (config.concepts[0].path, config.concepts[0].repeats) == (str(tmp_path / "pictures"), 5)
    assert not [line for line in found.report.not_imported if "dropout" in line.source]


@pytest.mark.parametrize("adapter", [ADAPTER, ""])
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # get_param_groups: the rate of each, or the optimizer's
        ("", {"unet": (True, None), "text_encoder": (True, None), "text_encoder_2": (True, None)}),
        (
            "unet_lr = 4e-5\ntext_encoder_1_lr = 2e-6",
            {"unet": (True, 4e-5), "text_encoder": (True, 2e-6), "text_encoder_2": (True, None)},
        ),
        (
            "text_encoder_1_lr = 0\ntext_encoder_2_lr = 0.0",
            {"unet": (True, None), "text_encoder": (False, None), "text_encoder_2": (False, None)},
        ),
    ],
)
def test_text_encoders_are_trained(tmp_path: Path, adapter: str, model: str, expected: dict[str, object]) -> None:
    config = imported(tmp_path, model, adapter).config
    assert config.method == ("lora" if adapter else "fine_tune")
    assert {part.part: (part.train, part.learning_rate) for part in config.parts} == expected


def test_sgd_has_no_momentum_by_default(tmp_path: Path) -> None:
    """train.py takes torch.optim.SGD, whose momentum is 0."""
    text = RUN.format(model="", adapter=ADAPTER).replace("adamw_optimi", "sgd")
    for momentum, expected in (("", 0), ("momentum = 0.8\n", 0.8)):
        (tmp_path / "run.toml").write_text(text + momentum, encoding="utf-8")
        optimizer = import_file(tmp_path / "run.toml").config.optimizer.model_dump()
        assert (optimizer["name"], optimizer["momentum"]) == ("sgd", expected)


def test_optimis_defaults(tmp_path: Path) -> None:
    """optimi/adamw.py: betas (0.9, 0.99), weight_decay 1e-2, eps 1e-6; torch's AdamW has 0.999 and 1e-8."""
    text = RUN.format(model="", adapter=ADAPTER)
    short = text[: text.index("betas =")]
    for optimizer, expected in (("adamw_optimi", ((0.9, 0.99), 1e-6)), ("adamw", ((0.9, 0.999), 1e-8))):
        (tmp_path / "run.toml").write_text(short.replace("adamw_optimi", optimizer), encoding="utf-8")
        found = import_file(tmp_path / "run.toml").config.optimizer.model_dump()
        assert (found["betas"], found["eps"], found["weight_decay"]) == (*expected, 0.01)


def test_the_huber_loss_is_not_for_sdxl(tmp_path: Path) -> None:
    """SDXLPipeline.get_loss_fn does not read pseudo_huber_c, which only the default loss function does."""
    text = RUN.format(model="", adapter=ADAPTER).replace("epochs = 1000", "epochs = 1000\npseudo_huber_c = 0.5")
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    found = import_file(tmp_path / "run.toml")
    assert "loss" not in found.config.family_options
    assert {item.source: item.why for item in found.report.not_imported}["pseudo_huber_c"].endswith("for SDXL")


def test_v_prediction_has_zero_terminal_snr(tmp_path: Path) -> None:
    """fix_noise_scheduler_betas_for_zero_terminal_snr is called if v_pred is set, after the ratios were noted."""
    found = imported(tmp_path, "v_pred = true\nmin_snr_gamma = 5")
    assert "0.0047" in changes(found)["family_options.loss_weighting"]
    assert found.config.family_options == {
        "prediction_type": "v_prediction", "zero_terminal_snr": True, "loss_weighting": "min_snr", "min_snr_gamma": 5.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model", "weighting", "note"),
    [
        ("debiased_estimation_loss = true", "debiased", ""),
        ("debiased_estimation_loss = false", "debiased", "whatever its value"),
        ("min_snr_gamma = 5", "min_snr", ""),
        ("", None, ""),
    ],
)
def test_debiased_estimation_needs_only_be_there(tmp_path: Path, model: str, weighting: object, note: str) -> None:
    """SDXLPipeline.get_loss_fn: `if self.debiased_estimation_loss is not None`."""
    found = imported(tmp_path, model)
    assert found.config.family_options.get("loss_weighting") == weighting
    why = changes(found).get("family_options.loss_weighting", "")
    assert note in why
    assert bool(why) is bool(note)


def test_two_loss_weightings_are_multiplied_there(tmp_path: Path) -> None:
    """SDXLPipeline.get_loss_fn applies both."""
    found = imported(tmp_path, "min_snr_gamma = 5\ndebiased_estimation_loss = true")
    assert found.config.family_options["loss_weighting"] == "debiased"
    why = {item.source: item.why for item in found.report.not_imported}
    assert "multiplies" in why["model.min_snr_gamma"]


def test_all_tags_are_shuffled(tmp_path: Path) -> None:
    """utils/dataset.py, process_caption_fn shuffles all tags; Tandem's default keeps the first one in its place."""
    (tmp_path / "data.toml").write_text(DATA + "shuffle_tags = true\n", encoding="utf-8")
    (tmp_path / "run.toml").write_text(RUN.format(model="", adapter=ADAPTER), encoding="utf-8")
    (concept,) = import_file(tmp_path / "run.toml").config.concepts
    assert (concept.tag_shuffle, concept.keep_tags) == (True, 0)


def test_long_captions_are_chunked_there(tmp_path: Path) -> None:
    """models/sdxl.py, get_prompt_embeds splits captions into chunks, as many as there are."""
    assert "long_prompts" in changes(imported(tmp_path))["family"]


@pytest.mark.parametrize("lr", ["", "lr = 1e-6"])
def test_automagic_finds_its_rate(tmp_path: Path, lr: str) -> None:
    """examples/qwen_image_24gb_vram.toml gives none; prodigy's is a factor, of 1e-4 it would learn nothing."""
    text = RUN.format(model="", adapter=ADAPTER).replace("'adamw_optimi'", "'automagic'").replace("lr = 2e-5", lr)
    (tmp_path / "a.toml").write_text(text.replace("'sdxl'", "'qwen_image'"), encoding="utf-8")
    found = import_file(tmp_path / "a.toml")
    assert (found.config.optimizer.name, found.config.learning_rate) == ("prodigy", 1.0)
    assert found.config.lora_targets == "blocks"
    assert "lora_targets" in {entry.target for entry in found.report.imported}, "as it is there"


def test_the_shipped_config_of_a_model_that_is_here(tmp_path: Path) -> None:
    """tdrussell/diffusion-pipe at 8f83dbf, examples/qwen_image_24gb_vram.toml; its others are of video models."""
    text = RUN.format(model="transformer_dtype = 'float8'\ndiffusers_path = 'a/b'", adapter=ADAPTER)
    for theirs, own in {
        "_per_gpu = 2": "_per_gpu = 1\nblocks_to_swap = 8", "warmup_steps = 100": "gradient_clipping = 1",
        "lr_scheduler = 'linear'": "", "'sdxl'": "'qwen_image'", "'adamw_optimi'": "'automagic'", "lr = 2e-5": "",
        "checkpoint_path = '/models/sd_xl_base_1.0.safetensors'": "", "betas = [0.9, 0.99]": "", "eps = 1e-8": "",
    }.items():  # fmt: skip
        text = text.replace(theirs, own)
    (tmp_path / "a.toml").write_text(text, encoding="utf-8")
    config = import_file(tmp_path / "a.toml").config
    assert (config.family, config.base_model, config.method) == ("qwen_image", "a/b", "lora")
    assert (config.lora_rank, config.lora_alpha, config.lora_targets) == (32, 32, "blocks")
    assert (config.batch_size, config.gradient_accumulation_steps, config.epochs) == (1, 4, 1000)
    assert (config.warmup_steps, config.scheduler, config.max_grad_norm) == (0, "constant", 1.0)
    assert (config.precision, config.gradient_checkpointing, config.block_offload) == ("bf16", True, 0.13)
    assert [(part.part, part.weights) for part in config.parts] == [("transformer", "fp8")]
    assert config.family_options == {"timestep_distribution": "logit_normal", "timestep_shift": "static", "shift": 1.0}


@pytest.mark.parametrize(
    ("kind", "file", "family", "problem"),
    [
        ("flux", "flux1-kontext-dev.safetensors", "flux_kontext", ""),
        ("flux", "flux1-dev.safetensors", "flux", "pairs of images"),
        ("qwen_image", "qwen_image_edit.safetensors", "qwen_image_edit", ""),
        ("qwen_image", "credits/qwen_image.safetensors", "qwen_image", "pairs of images"),
    ],
)
def test_pairs(tmp_path: Path, kind: str, file: str, family: str, problem: str) -> None:
    """docs/supported_models.md: Kontext is a flux; examples/flux_kontext_dataset.toml: control_path."""
    for name in ("after", "before"):
        (tmp_path / name).mkdir()
    (tmp_path / "data.toml").write_text("[[directory]]\npath = 'after'\ncontrol_path = 'before'\n", encoding="utf-8")
    model = (
        f"[model]\ntype = '{kind}'\ndtype = 'bfloat16'\ntransformer_path = '{file}'\ndiffusers_path = 'x/FLUX.1-dev'\n"
    )
    (tmp_path / "run.toml").write_text(f"dataset = 'data.toml'\n{model}{ADAPTER.format()}", encoding="utf-8")
    found = import_file(tmp_path / "run.toml")
    assert found.config.family == family
    assert bool(found.config.base_model) is not bool(problem)
    assert problem in "".join(found.report.problems)
    assert ("layout" in found.config.family_options) is (family != "qwen_image_edit")  # Qwen-Image's has no processor
    if not problem:
        assert Path(found.config.concepts[0].references) == tmp_path / "before"
        assert "control_path" not in " ".join(entry.source for entry in found.report.not_imported)
