"""SimpleTuner's config.json, whose names may begin with "--", and the multidatabackend.json that it names."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.errors import ConfigError
from modules.config.importing.optimizers import outcomes
from modules.config.importing.readers import (
    choice,
    data_path,
    flag,
    is_path,
    is_text,
    model_path,
    new_path,
    number,
    optional_number,
    positive,
    precision,
    some_text,
    text,
    whole,
)
from modules.config.importing.reading import read_file
from modules.config.importing.report import Entry
from modules.config.importing.rules import Changed, Joint, NotCarriedError, Outcome, Rule, Table, Values, Without
from modules.config.importing.translation import Translation

TRAINER = "SimpleTuner"
SAMPLE_NUMBERS = {
    "validation_num_inference_steps": "steps",
    "validation_guidance": "guidance_scale",
    "validation_seed": "seed",
}
MANY_EPOCHS = 10_000  # where the number of steps ends a run
FAMILIES = {
    "sdxl": "stable_diffusion_xl",
    "sd1x": "stable_diffusion",
    "sd2x": "stable_diffusion",
    "legacy": "stable_diffusion",
}


def _family(value: object) -> object:
    name = str(value).lower()
    return FAMILIES.get(name) or Changed(name or "unknown", "Tandem has no such model family yet: choose another one")


def _method(values: Values) -> list[Outcome]:
    kind = str(values["model_type"]).lower()
    if kind not in ("lora", "full", "deepfloyd-lora", "deepfloyd-full"):
        raise NotCarriedError("Tandem has fine_tune, lora and embedding; set method")
    if "lora" not in kind:
        return [Outcome("method", "fine_tune", keys=("model_type",))]
    found = [Outcome("method", "lora", keys=("model_type",))]
    if str(values["lora_type"]).lower() == "lycoris":
        why = "Tandem trains plain LoRA and DoRA, and does not read lycoris_config"
        found.append(Outcome("", why=why, keys=("lora_type", "lycoris_config")))
    rank = whole(values["lora_rank"])
    alpha = rank if values["lora_alpha"] is None else number(values["lora_alpha"])
    return [
        *found,
        Outcome("lora_rank", rank, keys=("lora_rank",)),
        Outcome("lora_alpha", alpha, keys=("lora_alpha", "lora_rank")),
    ]


def _length(values: Values) -> list[Outcome]:
    steps, epochs = optional_number(values["max_train_steps"]), optional_number(values["num_train_epochs"])
    if steps and steps > 0:
        return [
            Outcome("max_steps", whole(steps), keys=("max_train_steps",)),
            Outcome("epochs", MANY_EPOCHS, "so many that max_steps ends the run", ("max_train_steps",)),
        ]
    return [Outcome("epochs", whole(epochs), keys=("num_train_epochs",))] if epochs else []


def _optimizer(values: Values) -> list[Outcome]:
    given: dict[str, object] = {}
    for part in filter(None, str(values["optimizer_config"] or "").split(",")):
        name, _, value = part.partition("=")
        given[name.strip()] = value.strip()
    found = []
    for outcome in outcomes(values["optimizer"], given, ("optimizer",)):
        keys = outcome.keys if outcome.keys == ("optimizer",) else ("optimizer_config",)
        found.append(Outcome(outcome.ours, outcome.value, outcome.why, keys))
    return found


def _snr(values: Values) -> list[Outcome]:
    gamma = optional_number(values["snr_gamma"])
    if not gamma:
        return []
    return [Outcome("family_options.loss_weighting", "min_snr"), Outcome("family_options.min_snr_gamma", gamma)]


def _steps(value: object) -> object:
    found = whole(value)
    return f"{found} steps" if found > 0 else "never"


def _resolution(values: Values) -> list[Outcome]:
    kind, size = str(values["resolution_type"]).lower(), number(values["resolution"])
    if kind == "area":
        side = round((max(size, 0.0) * 1e6) ** 0.5 / 8) * 8
        return [Outcome("resolution", side, "megapixels become the side of a square of as many pixels")]
    return [Outcome("resolution", whole(size))]


def _sample(values: Values) -> list[Outcome]:
    prompt = values["validation_prompt"]
    if not is_text(prompt):
        return []
    keys = ("validation_prompt",)
    found = [Outcome("samples.0.prompt", text(prompt), keys=keys)]
    if values["validation_negative_prompt"]:
        key = "validation_negative_prompt"
        found.append(Outcome("samples.0.negative_prompt", text(values[key]), keys=(key,)))
    sizes = [one for one in str(values["validation_resolution"]).lower().split(",")[0].split("x") if one.strip()]
    if len(sizes) in (1, 2):
        key = "validation_resolution"
        found.append(Outcome("samples.0.width", whole(sizes[0].strip()), keys=(key,)))
        found.append(Outcome("samples.0.height", whole(sizes[-1].strip()), keys=(key,)))
    for key, ours in SAMPLE_NUMBERS.items():
        if values[key] is not None:
            found.append(Outcome(f"samples.0.{ours}", number(values[key]), keys=(key,)))
    return found


_SCHEDULES = choice(
    {
        "constant": "constant",
        "constant_with_warmup": "constant",
        "linear": "linear",
        "cosine": "cosine",
        "cosine_with_restarts": "cosine_with_restarts",
        "polynomial": "polynomial",
    },
    "Tandem has no such schedule; set scheduler",
)
_LOSSES = choice({"l2": "mse", "huber": "huber", "smooth_l1": "smooth_l1"}, "set family_options.loss")
_PREDICTIONS = choice({"epsilon": "epsilon", "v_prediction": "v_prediction"}, "set family_options.prediction_type")
_HUB = "upload the result yourself"
_PICTURES = "Tandem scales all pictures to the resolution's area"

TABLE = Table(
    rules=(
        Joint(
            {
                "model_type": "full", "lora_type": "standard", "lycoris_config": None, "lora_rank": 16,
                "lora_alpha": None,
            },
            "method, lora_rank, lora_alpha", _method,
            "LyCORIS becomes plain LoRA; alpha is the rank where it is not given",
        ),
        Rule("model_family", "family", None, _family, ask=False),
        Rule("pretrained_model_name_or_path", "base_model", None, model_path, ask=False),
        Rule("lora_dropout", "lora_dropout", None, number, ask=False),
        Rule("use_dora", "lora_weight_decompose", False, flag, ask=False),
        Rule("prediction_type", "family_options.prediction_type", None, _PREDICTIONS, ask=False),
        Rule("rescale_betas_zero_snr", "family_options.zero_terminal_snr", False, flag, ask=False),
        Rule("noise_offset", "family_options.offset_noise", None, number, ask=False),
        Joint({"snr_gamma": None}, "family_options.loss_weighting, family_options.min_snr_gamma", _snr),
        Rule("loss_type", "family_options.loss", "l2", _LOSSES, ask=False),
        Joint(
            {"max_train_steps": None, "num_train_epochs": None}, "max_steps, epochs", _length,
            "steps count more than epochs",
        ),
        Rule("train_batch_size", "batch_size", None, whole, ask=False),
        Rule("gradient_accumulation_steps", "gradient_accumulation_steps", 1, whole),
        Rule("gradient_checkpointing", "gradient_checkpointing", False, flag),
        Rule("vae_batch_size", "cache_batch_size", None, whole, ask=False),
        Rule("learning_rate", "learning_rate", None, positive, ask=False),
        Rule("lr_scheduler", "scheduler", None, _SCHEDULES, ask=False),
        Rule("lr_warmup_steps", "warmup_steps", None, whole, ask=False),
        Rule("lr_num_cycles", "scheduler_cycles", 1, whole, ask=False),
        Rule("lr_power", "scheduler_power", None, positive, ask=False),
        Joint(
            {"optimizer": "adamw", "optimizer_config": None}, "optimizer", _optimizer,
            "8-bit and other variants become the plain optimizer",
        ),
        Rule("max_grad_norm", "max_grad_norm", None, optional_number, ask=False),
        Rule("mixed_precision", "precision", "bf16", precision),
        Rule("use_ema", "ema", False, flag),
        Rule("ema_decay", "ema_decay", None, number, ask=False),
        Rule("seed", "seed", None, whole, ask=False),
        Joint(
            {"resolution": 1024, "resolution_type": "pixel_area"}, "resolution", _resolution, "megapixels are converted"
        ),
        Rule("caption_dropout_probability", "caption_dropout", None, number, ask=False),
        Rule("output_dir", "runs_dir", None, new_path, "every run gets a folder of its own in it", ask=False),
        Rule("tracker_run_name", "run_name", None, some_text, ask=False),
        Rule("checkpointing_steps", "backup_every", 500, _steps),
        Rule("checkpoints_total_limit", "backups_kept", None, whole, ask=False),
        Rule("validation_steps", "sample_every", None, _steps, "SimpleTuner calls samples validation", ask=False),
        Joint(
            {
                "validation_prompt": None, "validation_negative_prompt": None, "validation_resolution": 512,
                "validation_num_inference_steps": None, "validation_guidance": None, "validation_seed": None,
            },
            "samples", _sample, "SimpleTuner calls the test pictures validation",
        ),
    ),
    without=(
        Without("resume_from_checkpoint", "latest", "use --resume latest"),
        Without("webhook_config", None, "Tandem calls no other programs", secret=True),
        Without("report_to", None, "Tandem writes for TensorBoard, and shows the run in its Monitor"),
        Without("tracker_*", None, "Tandem writes for TensorBoard, and shows the run in its Monitor"),
        Without("push_*", False, _HUB),
        Without("hub_*", None, _HUB),
        Without("hub_token", None, _HUB, secret=True),
        Without("model_card_*", None, _HUB),
        Without("disable_benchmark", False, "samples begin with the first interval"),
        Without("minimum_image_size", 0, _PICTURES),
        Without("maximum_image_size", None, _PICTURES),
        Without("target_downsample_size", None, _PICTURES),
        Without("aspect_bucket_rounding", None, "Tandem makes buckets of the resolution's area itself"),
        Without("base_model_precision", "no_change", "Tandem does not quantise weights"),
        Without("*_precision", None, "Tandem does not quantise weights"),
        Without("flow_*", None, "for flow models, which Tandem has none of yet"),
        Without("flux_*", None, "for a model family that Tandem does not have"),
        Without("validation_*", None, "Tandem's samples have no such setting"),
        Without("*", None, "Tandem has no such setting"),
    ),
    renamed={"checkpoint_step_interval": "checkpointing_steps"},
)  # fmt: skip


def _captions(values: Values) -> list[Outcome]:
    name = str(values["caption_strategy"]).lower()
    words = text(values["instance_prompt"] or "").strip()
    if name == "instanceprompt" or flag(values["only_instance_prompt"]):
        keys = ("caption_strategy", "only_instance_prompt", "instance_prompt")
        return [
            Outcome("caption_source", "none", keys=keys),
            Outcome("prompt_prefix", words, keys=("instance_prompt",)),
        ]
    ours = {"textfile": "txt", "filename": "file_name"}.get(name)
    if ours is None:
        raise NotCarriedError("write captions as .txt or metadata.jsonl: see docs/data.md")
    found = [Outcome("caption_source", ours, keys=("caption_strategy",))]
    if words and flag(values["prepend_instance_prompt"]):
        named = ("prepend_instance_prompt", "instance_prompt")
        found.append(Outcome("prompt_prefix", f"{words} ", keys=named))
    return found


BACKEND_TABLE = Table(
    rules=(
        Rule("instance_data_dir", "path", None, data_path),
        Rule("id", "name", "", text, ask=False),
        Rule("disabled", "enabled", False, lambda value: not flag(value), ask=False),
        Rule(
            "repeats", "repeats", 0, lambda value: whole(value) + 1,
            "SimpleTuner counts the passes after the first, Tandem all of them",
        ),
        Joint(
            {
                "caption_strategy": "filename", "instance_prompt": None, "prepend_instance_prompt": False,
                "only_instance_prompt": False,
            },
            "caption_source, prompt_prefix", _captions,
        ),
    ),
    without=(
        Without("type", "local", "Tandem reads folders on this machine"),
        Without("dataset_type", "image", "Tandem's concepts are pictures"),
        Without("cache_dir*", None, "Tandem's cache is its own: set cache_dir for another disk"),
        Without("crop*", False, "Tandem groups pictures by shape; crop_jitter shifts what must be cut"),
        Without("resolution*", None, "one resolution holds for all concepts"),
        Without("*image_size", None, _PICTURES),
        Without("target_downsample_size", None, _PICTURES),
        Without("aws_*", None, "Tandem reads folders on this machine", secret=True),
        Without("*", None, "Tandem's concepts have no such setting"),
    ),
)  # fmt: skip
TABLES = {"settings": TABLE, "each local data set of pictures": BACKEND_TABLE}


def recognises(data: object) -> bool:
    """Names that begin with "--", or that only SimpleTuner uses."""
    if not isinstance(data, Mapping):
        return False
    names = {str(name).removeprefix("--") for name in data}
    known = {"model_family", "data_backend_config"} & names
    return bool(known) and ("pretrained_model_name_or_path" in names or "model_type" in names or len(known) == 2)


def translate(data: Mapping[str, object], translation: Translation) -> None:
    """Put the settings and the local data sets into the translation."""
    written = {str(name).removeprefix("--"): str(name) for name in data}
    given = {str(name).removeprefix("--"): value for name, value in data.items()}
    sets = given.pop("data_backend_config", None)
    translation.apply(TABLE, given, written_as=written)
    translation.put("lr_scaling", "none")
    if sets is None:
        return
    key = written["data_backend_config"]
    file = translation.places.find(sets) if isinstance(sets, str) and is_path(sets) else None
    if file is None:
        translation.lose(key, sets, "there is no such file beside this one or above it")
        return
    try:
        content = read_file(file)
    except ConfigError as error:
        translation.lose(key, sets, str(error).rstrip("."))
        return
    translation.places.files.append(file)
    translation.taken.append(Entry(key, sets, "concepts", "its local data sets"))
    _backends(content, translation)


def _backends(content: object, translation: Translation) -> None:
    count = 0
    for place, backend in enumerate(content if isinstance(content, list) else []):
        here = f"data_backend_config.{place}."
        if not isinstance(backend, Mapping):
            translation.lose(here[:-1], backend, "a group is expected")
            continue
        kind = str(backend.get("dataset_type", "image"))
        if kind in ("text_embeds", "image_embeds"):
            translation.lose(here[:-1], str(backend.get("id")), "Tandem's cache is its own")
        elif kind != "image" or not is_path(backend.get("instance_data_dir")):
            translation.lose(here[:-1], str(backend.get("id")), "Tandem reads folders of pictures on this machine")
        else:
            translation.apply(BACKEND_TABLE, backend, here, f"concepts.{count}.")
            count += 1
