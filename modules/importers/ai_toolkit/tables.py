"""The tables for ai-toolkit's settings. Names and defaults as in its toolkit/config_modules.py."""

from __future__ import annotations

from collections.abc import Mapping

from modules.importers import common
from modules.importers.optimizers import optimizer_assignments
from modules.importers.readers import (
    boolean,
    choice,
    data_path,
    integer,
    items,
    model_path,
    non_empty_text,
    number,
    optional_number,
    output_path,
    precision,
    prediction_type,
    save_dtype,
    steps,
    text,
)
from modules.importers.rules import (
    ANY,
    EMPTY_VALUES,
    Assignment,
    CombinedRule,
    Rule,
    Table,
    Unsupported,
    UnsupportedValueError,
    Values,
)

ARCHITECTURES = {"sd1": "stable_diffusion", "sd2": "stable_diffusion", "sdxl": "stable_diffusion_xl", "ssd": None}


def _family(values: Values) -> list[Assignment]:
    arch = str(values["model.arch"] or "").lower()
    keys = tuple(key for key in ("model.arch", "model.is_xl", "model.is_v2") if values[key] not in EMPTY_VALUES)
    keys = keys or ("model.arch",)
    if boolean(values["model.is_xl"]):
        return [Assignment("family", "stable_diffusion_xl", keys=keys)]
    other = next((name for name in ("flux", "pixart", "auraflow", "lumina2", "v3") if values[f"model.is_{name}"]), "")
    if (arch and arch not in ARCHITECTURES) or other:
        keys += (f"model.is_{other}",) if other else ()
        return [Assignment("family", arch or other, common.NO_FAMILY, keys)]
    return [Assignment("family", ARCHITECTURES.get(arch) or "stable_diffusion", keys=keys)]


def _method(values: Values) -> list[Assignment]:
    kind = str(values["network.type"] or "").lower()
    if values["embedding.trigger"] not in EMPTY_VALUES:
        return [Assignment("method", "embedding", keys=("embedding.trigger",))]
    if not kind:
        return [Assignment("method", "fine_tune")]
    why = "" if kind in ("lora", "locon", "dora") else common.LORA_INSTEAD
    found = [Assignment("method", "lora", why, ("network.type",))]
    rank = values["network.linear"] if values["network.rank"] is None else values["network.rank"]
    keys = ("network.rank", "network.linear")
    found += [Assignment("lora_rank", integer(rank), keys=keys)] if rank is not None else []
    alpha = values["network.alpha"] if values["network.linear_alpha"] is None else values["network.linear_alpha"]
    found.append(Assignment("lora_alpha", number(alpha), keys=("network.linear_alpha", "network.alpha")))
    if kind == "dora":
        found.append(Assignment("lora_weight_decompose", True, keys=("network.type",)))
    wide = optional_number(values["network.conv"])
    why = "Tandem has one rank and alpha for all layers" if wide else ""
    keys = ("network.conv", "network.conv_alpha")
    return [*found, Assignment("lora_targets", "all" if wide else "attention_mlp", why, keys)]


def _submodules(values: Values) -> list[Assignment]:
    if values["embedding.trigger"] not in EMPTY_VALUES:
        return []
    is_xl = boolean(values["model.is_xl"]) or str(values["model.arch"]).lower() == "sdxl"
    found = []
    for index, part in enumerate(("unet", "text_encoder", "text_encoder_2") if is_xl else ("unet", "text_encoder")):
        name = "unet" if part == "unet" else "text_encoder"
        trained, rate = boolean(values[f"train.train_{name}"]), values[f"train.{name}_lr"]
        own_rate = number(rate) if rate is not None and (trained or part == "unet") else None
        found += common.submodule(index, part, trained, (f"train.train_{name}",), own_rate, (f"train.{name}_lr",))
    return found


def _optimizer(values: Values) -> list[Assignment]:
    given = values["train.optimizer_params"]
    arguments = dict(given) if isinstance(given, Mapping) else {}
    key = "train.optimizer"
    return optimizer_assignments(values[key], arguments, key, arguments_key="train.optimizer_params")


def _side(value: object) -> object:
    sizes = [integer(item) for item in items(value)]
    if not sizes:
        raise UnsupportedValueError("no size is given")
    if len(sizes) > 1:
        raise UnsupportedValueError(f"Tandem trains at one resolution at a time; set resolution to one of {sizes}")
    return sizes[0]


_LOSSES = choice({"mse": "mse", "huber": "huber", "smooth_l1": "smooth_l1"}, "set family_options.loss")
_FLAGS = {f"model.is_{name}": False for name in ("flux", "pixart", "auraflow", "lumina2", "v3")}
_MODEL_KEYS = {"model.arch": None, "model.is_xl": False, "model.is_v2": False, **_FLAGS}
_DATA = "not supported; prepare the images beforehand"
_NOT_HERE = "Tandem has no such objective or memory setting"

PROCESS_TABLE = Table(
    rules=(
        CombinedRule(
            {
                "network.type": None, "network.rank": None, "network.linear": None, "network.linear_alpha": None,
                "network.alpha": 1.0, "network.conv": None, "network.conv_alpha": None, "embedding.trigger": None,
            },
            "method, lora_rank, lora_alpha, lora_targets", _method,
            "network means LoRA, embedding an embedding; conv adds convolutions, with the same rank",
        ),
        CombinedRule(_MODEL_KEYS, "family", _family),
        Rule("model.name_or_path", "base_model", None, model_path, optional=True),
        Rule("model.is_v_pred", "family_options.prediction_type", False, prediction_type, optional=True),
        CombinedRule(
            {"train.train_unet": True, "train.train_text_encoder": True, "train.unet_lr": None,
             "train.text_encoder_lr": None},
            "parts", _submodules, uses={"embedding.trigger": None, **_MODEL_KEYS},
        ),
        Rule("network.dropout", "lora_dropout", None, optional_number, optional=True),
        Rule("embedding.trigger", "embedding_token", None, non_empty_text, optional=True),
        Rule("embedding.init_words", "embedding_init", "*", text, optional=True),
        Rule("embedding.tokens", "embedding_vectors", 4, integer, optional=True),
        CombinedRule(
            {"train.steps": 1000}, "max_steps, epochs", lambda values: common.max_steps(integer(values["train.steps"])),
            "ai-toolkit counts steps only",
        ),
        Rule("train.batch_size", "batch_size", 1, integer),
        Rule("train.gradient_accumulation_steps", "gradient_accumulation_steps", 1, integer),
        Rule("train.gradient_checkpointing", "gradient_checkpointing", True, boolean),
        Rule("train.lr", "learning_rate", 1e-6, number),
        CombinedRule({"train.optimizer": "adamw", "train.optimizer_params": {}}, "optimizer", _optimizer),
        Rule("train.lr_scheduler", "scheduler", "constant", choice(common.SCHEDULES, common.NO_SCHEDULE)),
        Rule("train.ema_config.use_ema", "ema", False, boolean),
        Rule("train.ema_config.ema_decay", "ema_decay", 0.999, number, optional=True),
        Rule("train.dtype", "precision", "fp32", precision),
        Rule("train.max_grad_norm", "max_grad_norm", 1.0, optional_number),
        Rule("train.noise_offset", "family_options.offset_noise", 0.0, number, optional=True),
        common.loss_weighting("train.min_snr_gamma"),
        Rule("train.loss_type", "family_options.loss", "mse", _LOSSES, optional=True),
        Rule("training_folder", "runs_dir", None, output_path, optional=True),
        Rule("save.save_every", "backup_every", 1000, steps, "ai-toolkit saves models, Tandem backups"),
        Rule("save.max_step_saves_to_keep", "backups_kept", 5, integer, "ai-toolkit saves models, Tandem backups"),
        Rule("save.dtype", "save_dtype", "float16", save_dtype),
        Rule("sample.sample_every", "sample_every", 100, steps),
    ),
    unsupported=(
        Unsupported("type", "set by method", default=ANY),
        Unsupported("device", "Tandem uses a GPU if there is one: see the Multi-GPU settings", default="cuda:0"),
        Unsupported("performance_log_every", "the Monitor shows the speed"),
        Unsupported("sqlite_db_path use_ui_logger", "internal to ai-toolkit"),
        Unsupported("logging.*", "the run's folder contains the log"),
        Unsupported("trigger_word", "there is no folder whose captions it could be added to"),
        Unsupported("embedding.save_format", "Tandem writes safetensors", default="safetensors"),
        Unsupported("network.network_kwargs", "set lora_targets", is_group=True),
        Unsupported("network.*", common.LORA),
        Unsupported("save.push_to_hub save.hf_*", common.UPLOAD),
        Unsupported("save.*", "Tandem writes safetensors; set lora_layouts"),
        Unsupported("train.noise_scheduler", "the base model's own noise schedule is used", default="ddpm"),
        Unsupported("train.skip_first_sample", common.FIRST_SAMPLES),
        Unsupported("train.disable_sampling", "set sample_every to never"),
        Unsupported("train.lr_scheduler_params", "set the schedule's own settings", is_group=True),
        Unsupported("train.min_denoising_steps", "set family_options.min_timestep, a fraction", default=0),
        Unsupported("train.max_denoising_steps", "set family_options.max_timestep, a fraction", default=1000),
        Unsupported("train.content_or_style", "set family_options.timestep_distribution", default="balanced"),
        Unsupported("train.timestep_type", "set family_options.timestep_distribution", default="sigmoid"),
        Unsupported("train.linear_timesteps", "set family_options.timestep_distribution"),
        Unsupported("train.xformers train.sdp", "Tandem uses PyTorch's attention"),
        Unsupported("train.noise_multiplier train.img_multiplier", _NOT_HERE, default=1.0),
        Unsupported("train.*", _NOT_HERE),
        Unsupported("model.dtype", "parts sets the precision of frozen weights", default="float16"),
        Unsupported("model.use_text_encoder_?", "all text encoders are used", default=True),
        Unsupported("model.vae_path", "put the autoencoder into a diffusers folder"),
        Unsupported("model.*", "Tandem does not quantise or unload weights this way"),
        Unsupported("adapter.*", "Tandem does not train such adapters"),
        Unsupported("slider.*", "Tandem does not train sliders"),
    ),
    renamed={"train.gradient_accumulation": "train.gradient_accumulation_steps", "save.save_dtype": "save.dtype"},
)  # fmt: skip


def _caption_extension(value: object) -> object:
    """ai-toolkit adds a missing dot (toolkit/config_modules.py, DatasetConfig)."""
    extension = f".{text(value or 'txt').strip().lstrip('.')}"
    if extension == ".json":
        raise UnsupportedValueError(common.CAPTION_FILES)
    return extension


DATASET_TABLE = Table(
    rules=(
        Rule("folder_path", "path", None, data_path),
        Rule("num_repeats", "repeats", 1, integer),
        Rule("caption_ext", "caption_extension", ".txt", _caption_extension),
        Rule("is_reg", "prior", False, boolean, "an epoch shows as many of them as of all other images", optional=True),
        Rule("network_weight", "loss_weight", 1.0, number, "the loss is weighted, not the LoRA"),
        Rule("shuffle_tokens", "tag_shuffle", False, boolean),
        Rule("token_dropout_rate", "tag_dropout", 0.0, number),
        Rule("keep_tokens", "keep_tags", 0, integer),
        Rule("flip_x", "horizontal_flip", False, boolean),
        Rule("random_crop", "crop_jitter", False, boolean),
    ),
    unsupported=(
        Unsupported("dataset_path", "give a folder"),
        Unsupported("type", common.IMAGES_ONLY, default="image"),
        Unsupported("caption_type", "set by caption_ext", default="txt"),
        Unsupported("default_caption", "set prompt_prefix"),
        Unsupported("cache_latents cache_latents_to_disk", common.CACHE),
        Unsupported("cache_text_embeddings", "Tandem does so automatically if no text encoder is trained"),
        Unsupported("mask_path alpha_mask", common.MASKS),
        Unsupported("mask_min_value", "set unmasked_weight"),
        Unsupported("scale", _DATA, default=1.0),
        Unsupported("bucket_tolerance", common.BUCKETS, default=64),
        Unsupported("standardize_images", _DATA),
        Unsupported("num_frames", common.IMAGES_ONLY, default=1),
        Unsupported("*", _DATA),
    ),
)

# Settings that all concepts share in Tandem: those of the first dataset are used.
FIRST_TABLE = Table(
    rules=(
        Rule("resolution", "resolution", 512, _side),
        Rule("caption_dropout_rate", "caption_dropout", 0.0, number, "all concepts share one probability"),
        Rule("buckets", "aspect_ratio_bucketing", True, boolean),
    )
)

FIRST_NAMES = frozenset(FIRST_TABLE.keys())

SAMPLE_TABLE = Table(
    rules=(
        Rule("prompt", "prompt", "", text),
        Rule("neg", "negative_prompt", "", lambda value: "" if value in EMPTY_VALUES else text(value)),
        Rule("width", "width", 512, integer),
        Rule("height", "height", 512, integer),
        Rule("sample_steps", "steps", 20, integer),
        Rule("guidance_scale", "guidance_scale", 7.0, number),
        Rule("seed", "seed", 0, integer),
    ),
    unsupported=(
        Unsupported("sampler", "family_options.sample_scheduler: the base model's own is used", default="ddpm"),
        Unsupported("sample_start_step", common.FIRST_SAMPLES, default=0),
        Unsupported("network_multiplier", "samples use the full LoRA", default=1),
        Unsupported("guidance_rescale", "Tandem has plain guidance", default=0.0),
        Unsupported("walk_seed", "the seeds are incremented", default=ANY),
        Unsupported("format ext", "samples are PNG files with their settings as metadata", default="jpg"),
        Unsupported("*", "Tandem's samples have no such setting"),
    ),
)
