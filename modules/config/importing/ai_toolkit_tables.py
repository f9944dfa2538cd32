"""ai-toolkit: what its settings are here. Names and defaults as in its toolkit/config_modules.py."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.importing.optimizers import outcomes
from modules.config.importing.readers import (
    choice,
    data_path,
    flag,
    items,
    model_path,
    new_path,
    number,
    optional_number,
    precision,
    save_dtype,
    some_text,
    text,
    whole,
)
from modules.config.importing.rules import ANY, BLANK, Joint, NotCarriedError, Outcome, Rule, Table, Values, Without

MANY_EPOCHS = 10_000  # where the number of steps ends a run
ARCHITECTURES = {"sd1": "stable_diffusion", "sd2": "stable_diffusion", "sdxl": "stable_diffusion_xl", "ssd": None}


def _family(values: Values) -> list[Outcome]:
    arch = str(values["model.arch"] or "").lower()
    keys = tuple(key for key in ("model.arch", "model.is_xl", "model.is_v2") if values[key] not in BLANK)
    keys = keys or ("model.arch",)
    if flag(values["model.is_xl"]):
        return [Outcome("family", "stable_diffusion_xl", keys=keys)]
    other = next((name for name in ("flux", "pixart", "auraflow", "lumina2", "v3") if values[f"model.is_{name}"]), "")
    if (arch and arch not in ARCHITECTURES) or other:
        why = "Tandem has no such model family yet: choose another one"
        return [Outcome("family", arch or other, why, (*keys, *((f"model.is_{other}",) if other else ())))]
    return [Outcome("family", ARCHITECTURES.get(arch) or "stable_diffusion", keys=keys)]


def _method(values: Values) -> list[Outcome]:
    kind = str(values["network.type"] or "").lower()
    if values["embedding.trigger"] not in BLANK:
        return [Outcome("method", "embedding", keys=("embedding.trigger",))]
    if not kind:
        return [Outcome("method", "fine_tune")]
    why = "" if kind in ("lora", "locon", "dora") else "Tandem trains plain LoRA and DoRA in place of it"
    found = [Outcome("method", "lora", why, ("network.type",))]
    rank = values["network.linear"] if values["network.rank"] is None else values["network.rank"]
    keys = ("network.rank", "network.linear")
    found += [Outcome("lora_rank", whole(rank), keys=keys)] if rank is not None else []
    alpha = values["network.alpha"] if values["network.linear_alpha"] is None else values["network.linear_alpha"]
    found.append(Outcome("lora_alpha", number(alpha), keys=("network.linear_alpha", "network.alpha")))
    if kind == "dora":
        found.append(Outcome("lora_weight_decompose", True, keys=("network.type",)))
    wide = optional_number(values["network.conv"])
    why = "Tandem has one rank and alpha for all layers" if wide else ""
    keys = ("network.conv", "network.conv_alpha")
    return [*found, Outcome("lora_targets", "all" if wide else "attention_mlp", why, keys)]


def _parts(values: Values) -> list[Outcome]:
    if values["embedding.trigger"] not in BLANK:
        return []
    found = [
        Outcome("parts.0.part", "unet", keys=("train.train_unet",), quiet=True),
        Outcome("parts.0.train", flag(values["train.train_unet"]), keys=("train.train_unet",)),
    ]
    if values["train.unet_lr"] is not None:
        found.append(Outcome("parts.0.learning_rate", number(values["train.unet_lr"]), keys=("train.unet_lr",)))
    is_xl = flag(values["model.is_xl"]) or str(values["model.arch"]).lower() == "sdxl"
    for place, part in enumerate(("text_encoder", "text_encoder_2") if is_xl else ("text_encoder",), 1):
        key, rate = "train.train_text_encoder", values["train.text_encoder_lr"]
        found.append(Outcome(f"parts.{place}.part", part, keys=(key,), quiet=True))
        found.append(Outcome(f"parts.{place}.train", flag(values[key]), keys=(key,)))
        if rate is not None and flag(values[key]):
            found.append(Outcome(f"parts.{place}.learning_rate", number(rate), keys=("train.text_encoder_lr",)))
    return found


def _optimizer(values: Values) -> list[Outcome]:
    given = values["train.optimizer_params"]
    arguments = dict(given) if isinstance(given, Mapping) else {}
    found = []
    for outcome in outcomes(values["train.optimizer"], arguments, ("train.optimizer",)):
        keys = outcome.keys if outcome.keys == ("train.optimizer",) else ("train.optimizer_params",)
        found.append(Outcome(outcome.ours, outcome.value, outcome.why, keys, outcome.quiet))
    return found


def _steps(values: Values) -> list[Outcome]:
    return [
        Outcome("max_steps", whole(values["train.steps"])),
        Outcome("epochs", MANY_EPOCHS, "so many that max_steps ends the run"),
    ]


def _weighting(values: Values) -> list[Outcome]:
    gamma = optional_number(values["train.min_snr_gamma"])
    if not gamma:
        return []
    return [
        Outcome("family_options.loss_weighting", "min_snr"),
        Outcome("family_options.min_snr_gamma", gamma),
    ]


def _every(value: object) -> object:
    found = whole(value)
    return f"{found} steps" if found > 0 else "never"


def _side(value: object) -> object:
    sizes = [whole(one) for one in items(value)]
    if not sizes:
        raise NotCarriedError("it names no size")
    if len(sizes) > 1:
        raise NotCarriedError(f"Tandem trains at one resolution at a time; set resolution to one of {sizes}")
    return sizes[0]


_SCHEDULES = choice(
    {
        "constant": "constant",
        "constant_with_warmup": "constant",
        "linear": "linear",
        "cosine": "cosine",
        "cosine_with_restarts": "cosine_with_restarts",
    },
    "Tandem has no such schedule; set scheduler",
)
_LOSSES = choice({"mse": "mse", "huber": "huber", "smooth_l1": "smooth_l1"}, "set family_options.loss")
_FLAGS = {f"model.is_{name}": False for name in ("flux", "pixart", "auraflow", "lumina2", "v3")}
_MODEL_KEYS = {"model.arch": None, "model.is_xl": False, "model.is_v2": False, **_FLAGS}
_DATA = "Tandem does not have it; prepare the pictures beforehand"
_NOT_HERE = "Tandem has no such objective or memory setting"

PROCESS_TABLE = Table(
    rules=(
        Joint(
            {
                "network.type": None, "network.rank": None, "network.linear": None, "network.linear_alpha": None,
                "network.alpha": 1.0, "network.conv": None, "network.conv_alpha": None, "embedding.trigger": None,
            },
            "method, lora_rank, lora_alpha, lora_targets", _method,
            "a network makes a LoRA, an embedding an embedding; conv adds the convolutions, with the same rank",
        ),
        Joint(_MODEL_KEYS, "family", _family),
        Rule("model.name_or_path", "base_model", None, model_path, ask=False),
        Rule(
            "model.is_v_pred", "family_options.prediction_type", False,
            lambda value: "v_prediction" if flag(value) else "auto", ask=False,
        ),
        Joint(
            {"train.train_unet": True, "train.train_text_encoder": True, "train.unet_lr": None,
             "train.text_encoder_lr": None},
            "parts", _parts, uses={"embedding.trigger": None, **_MODEL_KEYS},
        ),
        Rule("network.dropout", "lora_dropout", None, optional_number, ask=False),
        Rule("embedding.trigger", "embedding_token", None, some_text, ask=False),
        Rule("embedding.init_words", "embedding_init", "*", text, ask=False),
        Rule("embedding.tokens", "embedding_vectors", 4, whole, ask=False),
        Joint({"train.steps": 1000}, "max_steps, epochs", _steps, "ai-toolkit counts steps only"),
        Rule("train.batch_size", "batch_size", 1, whole),
        Rule("train.gradient_accumulation_steps", "gradient_accumulation_steps", 1, whole),
        Rule("train.gradient_checkpointing", "gradient_checkpointing", True, flag),
        Rule("train.lr", "learning_rate", 1e-6, number),
        Joint({"train.optimizer": "adamw", "train.optimizer_params": {}}, "optimizer", _optimizer),
        Rule("train.lr_scheduler", "scheduler", "constant", _SCHEDULES),
        Rule("train.ema_config.use_ema", "ema", False, flag),
        Rule("train.ema_config.ema_decay", "ema_decay", 0.999, number, ask=False),
        Rule("train.dtype", "precision", "fp32", precision),
        Rule("train.max_grad_norm", "max_grad_norm", 1.0, optional_number),
        Rule("train.noise_offset", "family_options.offset_noise", 0.0, number, ask=False),
        Joint({"train.min_snr_gamma": None}, "family_options.loss_weighting, min_snr_gamma", _weighting),
        Rule("train.loss_type", "family_options.loss", "mse", _LOSSES, ask=False),
        Rule("training_folder", "runs_dir", None, new_path, ask=False),
        Rule("save.save_every", "backup_every", 1000, _every, "ai-toolkit saves models, Tandem backups"),
        Rule("save.max_step_saves_to_keep", "backups_kept", 5, whole, "ai-toolkit saves models, Tandem backups"),
        Rule("save.dtype", "save_dtype", "float16", save_dtype),
        Rule("sample.sample_every", "sample_every", 100, _every),
    ),
    without=(
        Without("type", ANY, "Tandem's method says it"),
        Without("device", "cuda:0", "Tandem takes a GPU where there is one: see the Multi-GPU settings"),
        Without("performance_log_every", None, "the Monitor shows the speed"),
        Without("sqlite_db_path", None, "ai-toolkit's own"),
        Without("use_ui_logger", None, "ai-toolkit's own"),
        Without("logging.*", None, "the run's folder has the log"),
        Without("trigger_word", None, "there is no folder whose captions it could stand before"),
        Without("embedding.save_format", "safetensors", "Tandem writes safetensors"),
        Without("network.network_kwargs", {}, "set lora_targets", whole=True),
        Without("network.*", None, "Tandem's LoRA has no such setting"),
        Without("save.push_to_hub", False, "upload the result yourself"),
        Without("save.hf_*", None, "upload the result yourself"),
        Without("save.*", None, "Tandem writes safetensors, and lora_layouts says for which programs"),
        Without("train.noise_scheduler", "ddpm", "the base model's own noise schedule is used"),
        Without("train.skip_first_sample", None, "samples begin with the first interval"),
        Without("train.disable_sampling", False, "set sample_every to never"),
        Without("train.lr_scheduler_params", {}, "set the schedule's own settings", whole=True),
        Without("train.min_denoising_steps", 0, "set family_options.min_timestep, a share"),
        Without("train.max_denoising_steps", 1000, "set family_options.max_timestep, a share"),
        Without("train.content_or_style", "balanced", "set family_options.timestep_distribution"),
        Without("train.timestep_type", "sigmoid", "set family_options.timestep_distribution"),
        Without("train.linear_timesteps", False, "set family_options.timestep_distribution"),
        Without("train.xformers", None, "Tandem uses PyTorch's own attention"),
        Without("train.sdp", None, "Tandem uses PyTorch's own attention"),
        Without("train.noise_multiplier", 1.0, _NOT_HERE),
        Without("train.img_multiplier", 1.0, _NOT_HERE),
        Without("train.*", None, _NOT_HERE),
        Without("model.dtype", "float16", "parts says how frozen weights are kept"),
        Without("model.use_text_encoder_?", True, "the model is used as it is"),
        Without("model.vae_path", None, "put the autoencoder into a diffusers folder"),
        Without("model.*", None, "Tandem does not quantise or unload weights in this way"),
        Without("adapter.*", None, "Tandem trains no such adapters"),
        Without("slider.*", None, "Tandem trains no sliders"),
    ),
    renamed={"train.gradient_accumulation": "train.gradient_accumulation_steps", "save.save_dtype": "save.dtype"},
)  # fmt: skip

DATASET_TABLE = Table(
    rules=(
        Rule("folder_path", "path", None, data_path),
        Rule("num_repeats", "repeats", 1, whole),
        Rule("is_reg", "prior", False, flag, "an epoch shows as many of them as of all other pictures", ask=False),
        Rule("network_weight", "loss_weight", 1.0, number, "the loss is weighted, not the LoRA"),
        Rule("shuffle_tokens", "tag_shuffle", False, flag),
        Rule("token_dropout_rate", "tag_dropout", 0.0, number),
        Rule("keep_tokens", "keep_tags", 0, whole),
        Rule("flip_x", "horizontal_flip", False, flag),
        Rule("random_crop", "crop_jitter", False, flag),
    ),
    without=(
        Without("dataset_path", None, "give a folder"),
        Without("type", "image", "Tandem trains pictures"),
        Without("caption_ext", "txt", "Tandem reads .txt: rename the caption files"),
        Without("caption_type", "txt", "Tandem reads .txt: rename the caption files"),
        Without("default_caption", None, "set prompt_prefix"),
        Without("cache_latents", None, "Tandem always prepares pictures once and keeps them"),
        Without("cache_latents_to_disk", None, "Tandem always prepares pictures once and keeps them"),
        Without("cache_text_embeddings", None, "Tandem does so by itself where no text encoder is trained"),
        Without("mask_path", None, "put each mask beside its picture: cat.jpg has cat-masklabel.png"),
        Without("alpha_mask", False, "put each mask beside its picture: cat.jpg has cat-masklabel.png"),
        Without("mask_min_value", None, "set unmasked_weight"),
        Without("scale", 1.0, _DATA),
        Without("bucket_tolerance", 64, "Tandem makes buckets of the resolution's area itself"),
        Without("standardize_images", False, _DATA),
        Without("num_frames", 1, "Tandem trains pictures"),
        Without("*", None, _DATA),
    ),
)

# What holds for all data sets in Tandem is taken from the first.
FIRST_TABLE = Table(
    rules=(
        Rule("resolution", "resolution", 512, _side),
        Rule("caption_dropout_rate", "caption_dropout", 0.0, number, "one share holds for all concepts"),
        Rule("buckets", "aspect_ratio_bucketing", True, flag),
    )
)

FIRST_NAMES = frozenset(FIRST_TABLE.keys())

SAMPLE_TABLE = Table(
    rules=(
        Rule("prompt", "prompt", "", text),
        Rule("neg", "negative_prompt", "", lambda value: "" if value in BLANK else text(value)),
        Rule("width", "width", 512, whole),
        Rule("height", "height", 512, whole),
        Rule("sample_steps", "steps", 20, whole),
        Rule("guidance_scale", "guidance_scale", 7.0, number),
        Rule("seed", "seed", 0, whole),
    ),
    without=(
        Without("sampler", "ddpm", "family_options.sample_scheduler: the base model's own is used"),
        Without("sample_start_step", 0, "samples begin with the first interval"),
        Without("network_multiplier", 1, "samples are drawn with the whole LoRA"),
        Without("guidance_rescale", 0.0, "Tandem has plain guidance"),
        Without("walk_seed", ANY, "the seeds are counted up"),
        Without("format", "jpg", "samples are PNG files that carry their settings"),
        Without("ext", "jpg", "samples are PNG files that carry their settings"),
        Without("*", None, "Tandem's samples have no such setting"),
    ),
)
