"""diffusion-pipe's TOML: the run, and the data set file that it names. Names as in its examples."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.errors import ConfigError
from modules.config.importing.optimizers import outcomes
from modules.config.importing.readers import (
    choice,
    data_path,
    flag,
    is_path,
    items,
    model_path,
    new_path,
    number,
    optional_number,
    positive,
    save_dtype,
    whole,
)
from modules.config.importing.reading import read_file
from modules.config.importing.report import Entry
from modules.config.importing.rules import Changed, Joint, NotCarriedError, Outcome, Rule, Table, Values, Without
from modules.config.importing.translation import Translation
from modules.config.interval import Interval, Unit

TRAINER = "diffusion-pipe"
OPTIMIZER_KEYS = ("betas", "weight_decay", "eps", "momentum", "d0", "d_coef", "decouple", "use_bias_correction")


def _family(value: object) -> object:
    name = str(value).lower()
    if name == "sdxl":
        return "stable_diffusion_xl"
    return Changed(name.replace("-", "_") or "unknown", "Tandem has no such model family yet: choose another one")


def _method(values: Values) -> list[Outcome]:
    kind = str(values["adapter.type"] or "").lower()
    if not kind:
        return [Outcome("method", "fine_tune")]
    why = "" if kind == "lora" else "Tandem trains plain LoRA and DoRA in place of it"
    found = [
        Outcome("method", "lora", why, ("adapter.type",)),
        Outcome("lora_targets", "all_linear", keys=("adapter.type",)),
    ]
    if values["adapter.rank"] is not None:
        rank = whole(values["adapter.rank"])
        found += [
            Outcome("lora_rank", rank, keys=("adapter.rank",)),
            Outcome("lora_alpha", rank, keys=("adapter.rank",)),
        ]
    return found


def _parts(values: Values) -> list[Outcome]:
    """sdxl has a learning rate for each part; a text encoder without one is not trained."""
    found = []
    for place, (part, key) in enumerate(
        (("unet", "unet_lr"), ("text_encoder", "text_encoder_1_lr"), ("text_encoder_2", "text_encoder_2_lr"))
    ):
        rate = optional_number(values[f"model.{key}"])
        if str(values["model.type"]).lower() != "sdxl":
            continue
        keys = (f"model.{key}",)
        found.append(Outcome(f"parts.{place}.part", part, keys=keys, quiet=True))
        found.append(Outcome(f"parts.{place}.train", part == "unet" or bool(rate), keys=keys))
        if rate:
            found.append(Outcome(f"parts.{place}.learning_rate", rate, keys=keys))
    return found


def _optimizer(values: Values) -> list[Outcome]:
    given = {name: values[f"optimizer.{name}"] for name in OPTIMIZER_KEYS}
    return outcomes(values["optimizer.type"], given, ("optimizer.type",), "optimizer.")


def _backups(values: Values) -> list[Outcome]:
    pairs: tuple[tuple[str, Unit], ...] = (
        ("checkpoint_every_n_minutes", "minutes"),
        ("checkpoint_every_n_epochs", "epochs"),
    )
    for key, unit in pairs:
        if optional_number(values[key]):
            return [Outcome("backup_every", str(Interval(positive(values[key]), unit)), keys=(key,))]
    return []


def _batch(value: object) -> object:
    sizes = [one[-1] if isinstance(one, list) and one else one for one in items(value)]
    if len(sizes) == 1:
        return whole(sizes[0])
    return Changed(min((whole(size) for size in sizes), default=1), "the smallest of those for different resolutions")


def _weighting(values: Values) -> list[Outcome]:
    if flag(values["model.debiased_estimation_loss"]):
        return [Outcome("family_options.loss_weighting", "debiased", keys=("model.debiased_estimation_loss",))]
    gamma = optional_number(values["model.min_snr_gamma"])
    if not gamma:
        return []
    keys = ("model.min_snr_gamma",)
    return [
        Outcome("family_options.loss_weighting", "min_snr", keys=keys),
        Outcome("family_options.min_snr_gamma", gamma, keys=keys),
    ]


def _huber(values: Values) -> list[Outcome]:
    bend = optional_number(values["pseudo_huber_c"])
    return [Outcome("family_options.loss", "huber"), Outcome("family_options.huber_delta", bend)] if bend else []


def _side(value: object) -> object:
    sizes = items(value)
    if len(sizes) != 1 or isinstance(sizes[0], list):
        raise NotCarriedError("Tandem trains at one resolution at a time; set resolution")
    return whole(sizes[0])


def _checkpointing(value: object) -> object:
    return True if value == "unsloth" else flag(value)


_PRECISION = choice(
    {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"},
    "Tandem trains in fp32, tf32, bf16 or fp16; set precision",
)
_SCHEDULES = choice({"constant": "constant", "linear": "linear", "cosine": "cosine"}, "set scheduler")
_VIDEO = "Tandem trains pictures"
_PIPELINE = "Tandem does not cut a model into stages: training_mode fully_sharded shares it out"
_SAVES = "Tandem writes the model at the end, and whenever you press Save or put a file named save into commands"
_FILES = "Tandem reads a diffusers folder, one .safetensors file, or a name on the hub: set base_model"

TABLE = Table(
    rules=(
        Joint(
            {"adapter.type": None, "adapter.rank": None}, "method, lora_rank, lora_alpha, lora_targets", _method,
            "diffusion-pipe's alpha is the rank, and its LoRA sits on all linear layers",
        ),
        Rule("model.type", "family", None, _family, ask=False),
        Rule("model.checkpoint_path", "base_model", None, model_path, ask=False),
        Rule("model.diffusers_path", "base_model", None, model_path, ask=False),
        Rule("model.dtype", "precision", None, _PRECISION, ask=False),
        Joint(
            {"model.unet_lr": None, "model.text_encoder_1_lr": None, "model.text_encoder_2_lr": None},
            "parts", _parts, "a text encoder without a learning rate is not trained", {"model.type": None},
        ),
        Rule(
            "model.v_pred", "family_options.prediction_type", False,
            lambda value: "v_prediction" if flag(value) else "auto", ask=False,
        ),
        Joint(
            {"model.min_snr_gamma": None, "model.debiased_estimation_loss": False}, "family_options.loss_weighting",
            _weighting,
        ),
        Joint({"pseudo_huber_c": None}, "family_options.loss, family_options.huber_delta", _huber),
        Rule("adapter.dropout", "lora_dropout", None, optional_number, ask=False),
        Rule("optimizer.lr", "learning_rate", None, positive, ask=False),
        Joint(
            {"optimizer.type": "adamw", **{f"optimizer.{name}": None for name in OPTIMIZER_KEYS}}, "optimizer",
            _optimizer, "8-bit and other variants become the plain optimizer",
        ),
        Rule("epochs", "epochs", None, whole, ask=False),
        Rule("max_steps", "max_steps", None, whole, ask=False),
        Rule("micro_batch_size_per_gpu", "batch_size", 1, _batch),
        Rule("caching_batch_size", "cache_batch_size", 1, whole, ask=False),
        Rule("gradient_accumulation_steps", "gradient_accumulation_steps", 1, whole),
        Rule("gradient_clipping", "max_grad_norm", 1.0, optional_number),
        Rule("warmup_steps", "warmup_steps", 0, whole),
        Rule("lr_scheduler", "scheduler", "constant", _SCHEDULES),
        Rule("activation_checkpointing", "gradient_checkpointing", False, _checkpointing),
        Rule("compile", "compile", False, flag, ask=False),
        Rule("output_dir", "runs_dir", None, new_path, ask=False),
        Rule("save_dtype", "save_dtype", None, save_dtype, ask=False),
        Joint(
            {"checkpoint_every_n_minutes": None, "checkpoint_every_n_epochs": None}, "backup_every", _backups
        ),
    ),
    without=(
        Without("pipeline_stages", 1, _PIPELINE),
        Without("partition_*", None, _PIPELINE),
        Without("blocks_to_swap", 0, "gradient_checkpointing is what Tandem has"),
        Without("disable_block_swap_for_eval", False, "gradient_checkpointing is what Tandem has"),
        Without("reentrant_activation_checkpointing", False, "Tandem decides it"),
        Without("force_constant_lr", None, "set learning_rate"),
        Without("eval_datasets", [], "add a concept of the kind validation, and set validate_every", whole=True),
        Without("eval_*", None, "set validate_every"),
        Without("image_*", None, _VIDEO),
        Without("video_clip_mode", "single_beginning", _VIDEO),
        Without("save_every_n_*", None, _SAVES),
        Without("upload_hf_from_epoch", None, "upload the result yourself"),
        Without("huggingface_repo", None, "upload the result yourself"),
        Without("map_num_proc", None, "every GPU prepares its share of the pictures"),
        Without("steps_per_print", 1, "set log_every"),
        Without("x_axis_examples", False, "the Monitor shows steps or time"),
        Without("monitoring.wandb_api_key", "", "Tandem writes for TensorBoard", secret=True),
        Without("monitoring.*", None, "Tandem writes for TensorBoard, and shows the run in its Monitor"),
        Without("adapter.dtype", None, "adapters are always trained in fp32"),
        Without("adapter.*", None, "Tandem's LoRA has no such setting"),
        Without("model.transformer_dtype", None, "parts says how frozen weights are kept"),
        Without("model.*_path", None, _FILES),
        Without("model.*", None, "for a model family that Tandem does not have"),
        Without("optimizer.*", None, "the optimizer has no such setting here"),
    ),
)  # fmt: skip

DIRECTORY_TABLE = Table(
    rules=(
        Rule("path", "path", None, data_path),
        Rule("num_repeats", "repeats", 1, number),
        Rule("shuffle_tags", "tag_shuffle", False, flag),
        Rule("cache_shuffle_delimiter", "tag_delimiter", ", ", lambda value: str(value).strip() or ",", ask=False),
        Rule("caption_prefix", "prompt_prefix", "", str, ask=False),
    ),
    without=(
        Without("mask_path", None, "put each mask beside its picture: cat.jpg has cat-masklabel.png"),
        Without("cache_shuffle_num", 0, "set tag_shuffle: tags are shuffled anew each time"),
        Without("*ar_bucket*", None, "Tandem makes buckets of the resolution's area itself"),
        Without("min_ar", None, "Tandem makes buckets of the resolution's area itself"),
        Without("max_ar", None, "Tandem makes buckets of the resolution's area itself"),
        Without("frame_buckets", [1], _VIDEO),
        Without("*", None, "Tandem's concepts have no such setting"),
    ),
)
DATA_TABLE = Table(
    rules=(
        Rule("resolutions", "resolution", [512], _side),
        Rule("enable_ar_bucket", "aspect_ratio_bucketing", False, flag),
    ),
)
DATA_NAMES = frozenset(DATA_TABLE.keys())
TABLES = {"settings": TABLE, "the data set": DATA_TABLE, "each directory": DIRECTORY_TABLE}


def recognises(data: object) -> bool:
    """A model table with a type beside names that only diffusion-pipe uses."""
    if not isinstance(data, Mapping):
        return False
    model = data.get("model")
    named = {"micro_batch_size_per_gpu", "dataset", "pipeline_stages", "activation_checkpointing", "eval_datasets"}
    return isinstance(model, Mapping) and "type" in model and bool(named & set(data))


def translate(data: Mapping[str, object], translation: Translation) -> None:
    """Put the run and its data set into the translation."""
    translation.apply(TABLE, {name: value for name, value in data.items() if name != "dataset"})
    translation.put("lr_scaling", "none")
    name = data.get("dataset")
    if name is None:
        return
    file = translation.places.find(name) if is_path(name) and isinstance(name, str) else None
    if file is None:
        translation.lose("dataset", name, "there is no such file beside this one or above it")
        return
    try:
        content = read_file(file)
    except ConfigError as error:
        translation.lose("dataset", name, str(error).rstrip("."))
        return
    translation.places.files.append(file)
    translation.taken.append(Entry("dataset", name, "concepts", "its directories"))
    if isinstance(content, Mapping):
        _data(content, translation)


def _data(content: Mapping[str, object], translation: Translation) -> None:
    directories = [one for one in items(content.get("directory")) if isinstance(one, Mapping)]
    common = {name: value for name, value in content.items() if name != "directory"}
    translation.apply(DATA_TABLE, {n: v for n, v in common.items() if n in DATA_NAMES}, "dataset.")
    shared = {name: value for name, value in common.items() if name not in DATA_NAMES}
    count = 0
    for place, directory in enumerate(directories):
        here = f"dataset.directory.{place}."
        if not is_path(directory.get("path")):
            translation.lose(here[:-1], dict(directory), "it has no path")
            continue
        names = {name: f"dataset.{name}" for name in shared if name not in directory}
        translation.apply(DIRECTORY_TABLE, {**shared, **directory}, here, f"concepts.{count}.", names)
        translation.put(f"concepts.{count}.include_subfolders", False)
        count += 1
    if not count:
        for name, value in shared.items():
            translation.lose(f"dataset.{name}", value, "there are no pictures")
