"""diffusion-pipe's TOML: the run, and the dataset file that it refers to. Names as in its examples."""

from __future__ import annotations

from collections.abc import Mapping

from modules.importers import common
from modules.importers.adafactor import IN_PYTORCH_OPTIMIZER
from modules.importers.flow_families import flow_family
from modules.importers.flow_rules import DIFFUSION_PIPE_RULES
from modules.importers.memory import ONE_SCALE, base_weights_rule, fused_rule
from modules.importers.optimizers import optimizer_assignments
from modules.importers.readers import (
    boolean,
    choice,
    data_path,
    integer,
    is_path,
    items,
    model_path,
    number,
    optional_number,
    output_path,
    positive_number,
    save_dtype,
)
from modules.importers.report import ImportEntry
from modules.importers.rules import (
    Assignment,
    ChangedValue,
    CombinedRule,
    Rule,
    Table,
    Unsupported,
    UnsupportedValueError,
    Values,
)
from modules.importers.translation import Translation

TRAINER = "diffusion-pipe"
SUBMODULE_RATES = {
    "unet": "model.unet_lr",
    "text_encoder": "model.text_encoder_1_lr",
    "text_encoder_2": "model.text_encoder_2_lr",
}
# Defaults of warner-benjamin/optimi, optimi/adamw.py and stableadamw.py, which differ from those of torch.
OPTIMI: Mapping[str, object] = {"betas": [0.9, 0.99], "eps": 1e-6}
# models/sdxl.py: all linear layers in the UNet's blocks and in the text encoders.
TARGETS = r"^unet\.(\w+_blocks|mid_block)\..*(to_\w(\.0)?|to_out\.0|net\.2|proj|proj_in|proj_out)$|^text_encoder"
# models/sdxl.py, get_prompt_embeds
LONG_CAPTIONS = (
    "captions of more than 75 tokens are encoded in as many chunks as they have; Tandem cuts them off there, unless "
    "family_options.long_prompts is chunk"
)
# docs/supported_models.md: Z-Image, FLUX.2 and Krea 2 have the first, the others the second.
TRANSFORMER_FILES: Mapping[str, object] = {"model.diffusion_model": None, "model.transformer_path": None}
FROZEN_DTYPES: Mapping[str, object] = {"model.diffusion_model_dtype": None, "model.transformer_dtype": None}
_NO_LAYOUT = "of Chroma's own components: set family_options.layout, or leave it empty for the hub's"
_COMPONENTS = "text encoders and autoencoder come from family_options.layout, a diffusers folder or a name on the hub"
OPTIMIZER_KEYS = (
    "betas", "weight_decay", "eps", "momentum", "d0", "d_coef", "decouple", "use_bias_correction", "scale_parameter",
    "relative_step", "warmup_init", "clip_threshold", "decay_rate",
)  # fmt: skip


def _family(value: object) -> object:
    name = str(value).lower()
    if name == "sdxl":
        return ChangedValue("stable_diffusion_xl", LONG_CAPTIONS)
    return flow_family(name) or ChangedValue(name.replace("-", "_") or "unknown", common.NO_FAMILY)


def _base_model(values: Values) -> list[Assignment]:
    """A checkpoint, a diffusers folder, or for most flow-matching models a transformer's file, whose other components
    such a folder has. Chroma's are those of FLUX.1 there, in which Tandem's Chroma cannot look for them."""
    checkpoint, folder = (values[f"model.{name}"] for name in ("checkpoint_path", "diffusers_path"))
    key = next((key for key in TRANSFORMER_FILES if values[key] is not None), "")
    kind = flow_family(values["model.type"])
    if not key or kind is None:
        keys = ("model.checkpoint_path" if folder is None else "model.diffusers_path",)
        base = checkpoint if folder is None else folder
        return [] if base is None else [Assignment("base_model", model_path(base), keys=keys)]
    found = [Assignment("base_model", model_path(values[key]), keys=(key,))]
    if folder is not None:
        target, why = ("", _NO_LAYOUT) if kind == "chroma" else ("flow_options.layout", "")
        found.append(Assignment(target, model_path(folder) if target else None, why, ("model.diffusers_path",)))
    return found


def _method(values: Values) -> list[Assignment]:
    kind = str(values["adapter.type"] or "").lower()
    if not kind:
        return [Assignment("method", "fine_tune")]
    why = "" if kind == "lora" else common.LORA_INSTEAD
    found = [
        Assignment("method", "lora", why, ("adapter.type",)),
        Assignment("lora_targets", TARGETS, keys=("adapter.type",)),
    ]
    if values["adapter.rank"] is not None:
        rank = integer(values["adapter.rank"])
        found += [
            Assignment("lora_rank", rank, keys=("adapter.rank",)),
            Assignment("lora_alpha", rank, keys=("adapter.rank",)),
        ]
    return found


def _submodules(values: Values) -> list[Assignment]:
    """sdxl trains UNet and text encoders, each at the optimizer's rate if it has none of its own; 0 freezes it."""
    if str(values["model.type"]).lower() != "sdxl":
        return []
    found = []
    for index, (part, key) in enumerate(SUBMODULE_RATES.items()):
        rate = None if values[key] is None else number(values[key])
        found += common.submodule(index, part, rate != 0, (key,), rate, (key,))
    return found


def _prediction(values: Values) -> list[Assignment]:
    if not boolean(values["model.v_pred"]):
        return []
    path = "family_options.zero_terminal_snr"
    return [Assignment("family_options.prediction_type", "v_prediction"), Assignment(path, True)]


def _optimizer(values: Values) -> list[Assignment]:
    name = values["optimizer.type"]
    defaults = OPTIMI if str(name).lower() in ("adamw_optimi", "stableadamw") else {}
    written = {key: values[f"optimizer.{key}"] for key in OPTIMIZER_KEYS}
    given = {**defaults, **{key: value for key, value in written.items() if value is not None}}
    return optimizer_assignments(name, given, "optimizer.type", "optimizer.", adafactor=IN_PYTORCH_OPTIMIZER)


def _batch(value: object) -> object:
    sizes = [item[-1] if isinstance(item, list) and item else item for item in items(value)]
    if len(sizes) == 1:
        return integer(sizes[0])
    return ChangedValue(
        min((integer(size) for size in sizes), default=1), "the smallest of those for different resolutions"
    )


def _huber(values: Values) -> list[Assignment]:
    bend = optional_number(values["pseudo_huber_c"])
    if bend and str(values["model.type"]).lower() == "sdxl":
        raise UnsupportedValueError("diffusion-pipe does not use it for SDXL")
    return [Assignment("family_options.loss", "huber"), Assignment("family_options.huber_delta", bend)] if bend else []


def _side(value: object) -> object:
    sizes = items(value)
    if len(sizes) != 1 or isinstance(sizes[0], list):
        raise UnsupportedValueError("Tandem trains at one resolution at a time; set resolution")
    return integer(sizes[0])


def _checkpointing(value: object) -> object:
    return True if value == "unsloth" else boolean(value)


def _base_weights(values: Values) -> str | None:
    """models/base.py and utils/common.py: transformer_dtype (or diffusion_model_dtype) is that of the frozen base."""
    name = next((str(values[key]).lower() for key in FROZEN_DTYPES if values[key]), "")
    if not name or name == str(values["model.dtype"] or "").lower():
        return None
    if not values["adapter.type"]:
        raise UnsupportedValueError("only frozen weights under a LoRA are kept in another format")
    return {"float8": "fp8", "float8_e4m3fn": "fp8", "bfloat16": "bf16", "float16": "fp16"}.get(name, name)


_PRECISION = choice(
    {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"},
    "Tandem trains in fp32, tf32, bf16 or fp16; set precision",
)
_SCHEDULES = choice({"constant": "constant", "linear": "linear", "cosine": "cosine"}, "set scheduler")
_PIPELINE = "Tandem has no pipeline parallelism: training_mode fully_sharded shards the model"

TABLE = Table(
    rules=(
        CombinedRule(
            {"adapter.type": None, "adapter.rank": None}, "method, lora_rank, lora_alpha, lora_targets", _method,
            "diffusion-pipe's alpha is the rank, and its LoRA is on all linear layers of blocks and text encoders",
        ),
        Rule("model.type", "family", None, _family, optional=True),
        CombinedRule(
            {"model.checkpoint_path": None, "model.diffusers_path": None, **TRANSFORMER_FILES},
            "base_model, family_options.layout", _base_model, "a transformer's file has its other components in layout",
            {"model.type": None},
        ),
        Rule("model.dtype", "precision", None, _PRECISION, optional=True),
        CombinedRule(
            dict.fromkeys(SUBMODULE_RATES.values()), "parts", _submodules,
            "text encoders are trained by default; a learning rate of 0 means that one is not", {"model.type": None},
        ),
        CombinedRule(
            {"model.v_pred": False}, "family_options.prediction_type, family_options.zero_terminal_snr", _prediction,
            "v_pred also rescales the noise schedule to zero terminal SNR",
        ),
        *DIFFUSION_PIPE_RULES,
        common.loss_weighting(
            "model.min_snr_gamma", "model.debiased_estimation_loss", lambda value: value is not None,
            {"model.v_pred": False}, common.rescaled_weights("model.v_pred"),
        ),
        CombinedRule(
            {"pseudo_huber_c": None}, "family_options.loss, family_options.huber_delta", _huber, "not for SDXL",
            {"model.type": None},
        ),
        Rule("adapter.dropout", "lora_dropout", 0.0, optional_number, optional=True),
        Rule("optimizer.lr", "learning_rate", None, positive_number, optional=True),
        CombinedRule(
            {"optimizer.type": "adamw", **{f"optimizer.{name}": None for name in OPTIMIZER_KEYS}}, "optimizer",
            _optimizer, common.PLAIN_OPTIMIZER,
        ),
        Rule("epochs", "epochs", None, integer, optional=True),
        Rule("max_steps", "max_steps", None, integer, optional=True),
        Rule("micro_batch_size_per_gpu", "batch_size", 1, _batch),
        Rule("caching_batch_size", "cache_batch_size", 1, integer, optional=True),
        Rule("gradient_accumulation_steps", "gradient_accumulation_steps", 1, integer),
        Rule("gradient_clipping", "max_grad_norm", 1.0, optional_number),
        Rule("warmup_steps", "warmup_steps", 0, integer),
        Rule("lr_scheduler", "scheduler", "constant", _SCHEDULES),
        Rule("activation_checkpointing", "gradient_checkpointing", False, _checkpointing),
        base_weights_rule(
            FROZEN_DTYPES, _base_weights, {"model.dtype": None, "adapter.type": None}, ONE_SCALE
        ),
        fused_rule("optimizer.gradient_release"),
        Rule("compile", "compile", False, boolean, optional=True),
        Rule("output_dir", "runs_dir", None, output_path, optional=True),
        Rule("save_dtype", "save_dtype", None, save_dtype, optional=True),
        common.interval(
            "backup_every", {"checkpoint_every_n_minutes": "minutes", "checkpoint_every_n_epochs": "epochs"}
        ),
    ),
    unsupported=(
        Unsupported("pipeline_stages", _PIPELINE, default=1),
        Unsupported("partition_*", _PIPELINE),
        Unsupported("disable_block_swap_for_eval", "block_offload also holds for samples"),
        Unsupported("reentrant_activation_checkpointing", "Tandem decides"),
        Unsupported("force_constant_lr", "set learning_rate"),
        Unsupported("eval_datasets", "add a concept of the kind validation, and set validate_every", is_group=True),
        Unsupported("eval_*", "set validate_every"),
        Unsupported("image_*", common.IMAGES_ONLY),
        Unsupported("video_clip_mode", common.IMAGES_ONLY, default="single_beginning"),
        Unsupported(
            "save_every_n_*",
            "Tandem writes the model at the end, and when you press Save or put a file named save into commands",
        ),
        Unsupported("upload_hf_from_epoch huggingface_repo", common.UPLOAD),
        Unsupported("map_num_proc", "every GPU encodes its share of the images"),
        Unsupported("steps_per_print", "set log_every", default=1),
        Unsupported("x_axis_examples", "the Monitor shows steps or time"),
        Unsupported("monitoring.wandb_api_key", "Tandem logs to TensorBoard", secret=True),
        Unsupported("monitoring.*", common.MONITOR),
        Unsupported("adapter.dtype", "adapters are always trained in fp32"),
        Unsupported("adapter.*", common.LORA),
        Unsupported("model.merge_adapters", common.MERGE_FIRST),
        Unsupported("model.vae model.vae_path model.text_encoder* model.llm_path", _COMPONENTS),
        Unsupported(
            "model.*_path",
            "Tandem loads a diffusers folder, one .safetensors file, or a name on the hub: set base_model",
        ),
        Unsupported("model.lumina_shift", "set family_options.timestep_shift", default=False),
        Unsupported("model.*", "Tandem has no such setting of a model"),
        Unsupported("optimizer.*", "the optimizer has no such setting here"),
    ),
)  # fmt: skip

DIRECTORY_TABLE = Table(
    rules=(
        Rule("path", "path", None, data_path),
        Rule("num_repeats", "repeats", 1, number),
        Rule("shuffle_tags", "tag_shuffle", False, boolean),
        Rule("cache_shuffle_delimiter", "tag_delimiter", ", ", lambda value: str(value).strip() or ",", optional=True),
        Rule("caption_prefix", "prompt_prefix", "", str, optional=True),
    ),
    unsupported=(
        Unsupported("mask_path", common.MASKS),
        Unsupported("cache_shuffle_num", "set tag_shuffle: tags are shuffled each time", default=0),
        Unsupported("*ar_bucket* min_ar max_ar", common.BUCKETS),
        Unsupported("frame_buckets", common.IMAGES_ONLY, default=[1]),
        Unsupported("*", "Tandem's concepts have no such setting"),
    ),
)
DATA_TABLE = Table(
    rules=(
        Rule("resolutions", "resolution", [512], _side),
        Rule("enable_ar_bucket", "aspect_ratio_bucketing", False, boolean),
    )
)
DATA_NAMES = frozenset(DATA_TABLE.keys())
TABLES = {"settings": TABLE, "the dataset": DATA_TABLE, "each directory": DIRECTORY_TABLE}


def recognises(data: object) -> bool:
    """Whether the data has a model table with a type, and names that only diffusion-pipe uses."""
    if not isinstance(data, Mapping):
        return False
    model = data.get("model")
    named = {"micro_batch_size_per_gpu", "dataset", "pipeline_stages", "activation_checkpointing", "eval_datasets"}
    return isinstance(model, Mapping) and "type" in model and bool(named & set(data))


def translate(data: Mapping[str, object], translation: Translation) -> None:
    """Translate the run and its dataset."""
    translation.apply(TABLE, {name: value for name, value in data.items() if name != "dataset"})
    translation.put("lr_scaling", "none")
    name = data.get("dataset")
    content = None if name is None else translation.read_file("dataset", name)
    if content is not None:
        translation.imported.append(ImportEntry("dataset", name, "concepts", "its directories"))
    if isinstance(content, Mapping):
        _data(content, translation)


def _data(content: Mapping[str, object], translation: Translation) -> None:
    directories = [item for item in items(content.get("directory")) if isinstance(item, Mapping)]
    common = {name: value for name, value in content.items() if name != "directory"}
    translation.apply(DATA_TABLE, {n: v for n, v in common.items() if n in DATA_NAMES}, "dataset.")
    shared = {name: value for name, value in common.items() if name not in DATA_NAMES}
    count = 0
    for index, directory in enumerate(directories):
        prefix = f"dataset.directory.{index}."
        if not is_path(directory.get("path")):
            translation.skip(prefix[:-1], dict(directory), "it has no path")
            continue
        names = {name: f"dataset.{name}" for name in shared if name not in directory}
        translation.apply(DIRECTORY_TABLE, {**shared, **directory}, prefix, f"concepts.{count}.", names)
        translation.put(f"concepts.{count}.include_subfolders", False)
        translation.put(f"concepts.{count}.keep_tags", 0)  # process_caption_fn shuffles all tags
        translation.put(f"concepts.{count}.caption_lines", "whole")  # utils/dataset.py: read().strip()
        count += 1
    if not count:
        for name, value in shared.items():
            translation.skip(f"dataset.{name}", value, "there are no images")
