"""The tables for ai-toolkit's settings. Names and defaults as in its toolkit/config_modules.py."""

from __future__ import annotations

from modules.config.sections.adapters import MAX_RANK
from modules.facts import MODEL_FILES, all_facts
from modules.importers import common
from modules.importers.ai_toolkit.schedule import SCHEDULE_RULES
from modules.importers.flow_families import flow_family, known_family
from modules.importers.flow_rules import AI_TOOLKIT_RULES
from modules.importers.memory import ONE_SCALE, base_weights_rule, encoder_weights_rule
from modules.importers.readers import (
    boolean,
    choice,
    integer,
    model_path,
    non_empty_text,
    number,
    optional_number,
    output_path,
    precision,
    prediction_type,
    save_dtype,
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

# toolkit/lora_special.py: every linear layer and 1x1 convolution of the UNet, attention and MLP of text encoders; of
# transformers all linear layers of the blocks, whose names the model says (get_transformer_block_names).
UNET_TARGETS = (
    r"^unet\..*(linear_\d|time_emb_proj|to_q|to_k|to_v|to_out\.0|net\.0\.proj|net\.2|proj_in|proj_out|conv_shortcut)$"
)
ENCODER_TARGETS = r"^text_encoder.*(self_attn|mlp)"
NETWORK_NAMES = ("type", "linear", "rank", "linear_alpha", "conv", "conv_alpha")
# toolkit/train_tools.py, apply_snr_weight
PLAIN_WEIGHTS = (
    "min(gamma / snr, 1) there, also with v-prediction; min(snr, gamma) / (snr + 1) here, far less with much noise"
)
_FLAGS = dict.fromkeys(
    (
        *("model.is_flux", "model.is_pixart", "model.is_auraflow", "model.is_lumina2", "model.is_v3"),
        *("model.is_ssd", "model.is_vega"),
    ),
    False,
)
_CONSTANT_DECAY = "it is this from the first step there, and rises to it as (1 + step) / (10 + step) here"


def _family(values: Values) -> list[Assignment]:
    given = ("model.arch", "model.is_xl", "model.is_v2", *_FLAGS)
    keys = tuple(key for key in given if values[key] not in EMPTY_VALUES) or ("model.arch",)
    name = _model_name(values)
    if (known := known_family(name)) is not None:
        return [Assignment("family", known, keys=keys)]
    return [Assignment("family", name, common.NO_FAMILY, keys)]


def _model_name(values: Values) -> str:
    flag = next((name for name in _FLAGS if boolean(values[name])), "").removeprefix("model.is_")
    return "sdxl" if boolean(values["model.is_xl"]) else str(values["model.arch"] or "").lower() or flag or "sd1"


def _has_network(values: Values) -> bool:
    return any(values[f"network.{name}"] is not None for name in NETWORK_NAMES)


def _method(values: Values) -> list[Assignment]:
    kind = str(values["network.type"] or ("lora" if _has_network(values) else "")).lower()
    if values["embedding.trigger"] not in EMPTY_VALUES:
        return [Assignment("method", "embedding", keys=("embedding.trigger",))]
    if not kind:
        return [Assignment("method", "fine_tune")]
    why = "" if kind in ("lora", "locon", "dora", "lokr") else common.LORA_INSTEAD
    found = [Assignment("method", "lora", why, ("network.type",))]
    rank = values["network.linear"] if values["network.rank"] is None else values["network.rank"]
    keys: tuple[str, ...] = ("network.rank", "network.linear")
    if kind == "lokr" and not boolean(values["network.lokr_full_rank"]):
        keys = (*keys, "network.lokr_full_rank")
    is_whole = kind == "lokr" and boolean(values["network.lokr_full_rank"])
    if is_whole:  # so large a rank that both factors are whole
        rank, keys = MAX_RANK, ("network.lokr_full_rank",)
    if kind == "lokr":
        found.append(Assignment("lora_algorithm", "lokr", keys=("network.type",)))
        factor = integer(values["network.lokr_factor"])
        if factor > 1:
            found.append(Assignment("lokr_factor", factor, keys=("network.lokr_factor",)))
    rank = 4 if rank is None else integer(rank)
    found.append(Assignment("lora_rank", rank, keys=keys))
    found += _dropout(values, kind)
    family = known_family(_model_name(values))
    if family and flow_family(family):
        return [*found, *_alpha_of_transformer(rank, values), _blocks(family, values), *_no_convolutions(values)]
    alpha = values["network.alpha"] if values["network.linear_alpha"] is None else values["network.linear_alpha"]
    given = rank if is_whole else number(alpha)
    found.append(Assignment("lora_alpha", given, keys=("network.linear_alpha", "network.alpha")))
    if kind == "dora":
        found.append(Assignment("lora_weight_decompose", True, keys=("network.type",)))
    return found + _layers(values, is_whole=is_whole)


def _alpha_of_transformer(rank: int, values: Values) -> list[Assignment]:
    """LoRASpecialNetwork has no alpha in peft's format, in which it saves those of transformers."""
    keys = ("network.linear_alpha", "network.alpha")
    given = next((number(values[key]) for key in keys if values[key] is not None), 1.0)
    why = "" if given == rank else "of transformers ai-toolkit takes the rank as alpha, whatever is set"
    dora = [Assignment("lora_weight_decompose", True, keys=("network.type",))]
    has_dora = str(values["network.type"]).lower() == "dora"
    return [Assignment("lora_alpha", rank, why, keys), *(dora if has_dora else [])]


def _blocks(family: str, values: Values) -> Assignment:
    if not boolean(values["network.transformer_only"]):
        return Assignment("lora_targets", "all_linear", keys=("network.transformer_only",))
    return Assignment("lora_targets", all_facts()[family].ai_toolkit_layers, keys=("network.type",))


def _no_convolutions(values: Values) -> list[Assignment]:
    """Its window writes them for every model, and hides them for those that have none."""
    keys = ("network.conv", "network.conv_alpha")
    return [Assignment("", why="a transformer has no convolutions", keys=keys)] if values["network.conv"] else []


def _dropout(values: Values, kind: str) -> list[Assignment]:
    dropout, keys = optional_number(values["network.dropout"]), ("network.dropout",)
    if not dropout:
        return []
    if kind == "lokr":
        return [Assignment("", why=common.NO_DROPOUT, keys=keys)]
    return [Assignment("lora_dropout", dropout, keys=keys)]


def _layers(values: Values, *, is_whole: bool) -> list[Assignment]:
    """Convolutions of more than 1x1 pixels are adapted if they have a rank."""
    rank = MAX_RANK if is_whole else optional_number(values["network.conv"])
    if not rank:
        has_encoders = boolean(values["train.train_text_encoder"])
        targets = f"{UNET_TARGETS},{ENCODER_TARGETS}" if has_encoders else UNET_TARGETS
        return [Assignment("lora_targets", targets, keys=("network.type",))]
    alpha = rank if is_whole or values["network.conv_alpha"] is None else number(values["network.conv_alpha"])
    return [
        Assignment("lora_targets", "all", keys=("network.conv",)),
        Assignment("lora_conv_rank", integer(rank), keys=("network.conv",)),
        Assignment("lora_conv_alpha", alpha, keys=("network.conv_alpha", "network.conv")),
    ]


def _fraction(value: object) -> object:
    """A share of the 1000 timesteps; 999 is the last."""
    found = number(value)
    return 1.0 if found >= 999 else found / 1000


def _submodules(values: Values) -> list[Assignment]:
    if values["embedding.trigger"] not in EMPTY_VALUES:
        return []
    is_xl = known_family(_model_name(values)) == known_family("sdxl")
    found = []
    for index, part in enumerate(("unet", "text_encoder", "text_encoder_2") if is_xl else ("unet", "text_encoder")):
        name = "unet" if part == "unet" else "text_encoder"
        trained, rate = boolean(values[f"train.train_{name}"]), values[f"train.{name}_lr"]
        own_rate = number(rate) if rate is not None and (trained or part == "unet") else None
        found += common.submodule(index, part, trained, (f"train.train_{name}",), own_rate, (f"train.{name}_lr",))
    return found


# toolkit/util/quantize.py, get_qtype: names of optimum.quanto and of torchao.
_FORMATS = {"qfloat8": "fp8", "float8": "fp8", "qint8": "int8", "int8": "int8"}


def _base_weights(values: Values) -> str | None:
    family = known_family(_model_name(values))
    if not boolean(values["model.quantize"]) or (family and not flow_family(family)):
        return None  # toolkit/stable_diffusion_model.py quantises no UNet
    if not _has_network(values):
        raise UnsupportedValueError("only frozen weights under a LoRA are quantised")
    name = str(values["model.qtype"]).lower()
    return _FORMATS.get(name, name)


def _offload(values: Values) -> list[Assignment]:
    share = number(values["model.layer_offloading_transformer_percent"])
    return [Assignment("block_offload", share)] if boolean(values["model.layer_offloading"]) and share else []


def _layout(values: Values) -> list[Assignment]:
    """Where the other components are: where the model is, unless it is set (toolkit/config_modules.py, ModelConfig)."""
    name, extras = values["model.name_or_path"], values["model.extras_name_or_path"]
    if extras in (*EMPTY_VALUES, name):
        return []
    if str(name).lower().endswith(MODEL_FILES):
        return [Assignment("flow_options.layout", model_path(extras))]
    raise UnsupportedValueError("the folder of the base model has all components")


def _encoder_weights(values: Values) -> str | None:
    name = str(values["model.qtype_te"]).lower()
    given = values["model.quantize" if values["model.quantize_te"] is None else "model.quantize_te"]
    return _FORMATS.get(name, name) if boolean(given) else None


_LOSSES = choice({"mse": "mse", "huber": "huber", "smooth_l1": "smooth_l1"}, "set family_options.loss")
_MODEL_KEYS = {"model.arch": None, "model.is_xl": False, "model.is_v2": False, **_FLAGS}
_UNLOADED = "Tandem does so automatically if no text encoder is trained"
_NOT_HERE = "Tandem has no such objective or memory setting"

PROCESS_TABLE = Table(
    rules=(
        CombinedRule(
            {
                "network.type": None, "network.rank": None, "network.linear": None, "network.linear_alpha": None,
                "network.alpha": 1.0, "network.conv": None, "network.conv_alpha": None, "embedding.trigger": None,
                "network.dropout": None, "network.lokr_factor": -1, "network.lokr_full_rank": True,
                "network.transformer_only": True,
            },
            "method, lora_algorithm, lora_rank, lora_alpha, lora_targets, lora_conv_rank, lora_conv_alpha, "
            "lokr_factor, lora_dropout", _method,
            "network means LoRA, embedding an embedding; conv is for UNets; a transformer's alpha is its rank",
            {**_MODEL_KEYS, "train.train_text_encoder": False},
        ),
        CombinedRule(_MODEL_KEYS, "family", _family),
        *AI_TOOLKIT_RULES,
        Rule("model.name_or_path", "base_model", None, model_path, optional=True),
        CombinedRule(
            {"model.extras_name_or_path": None}, "family_options.layout", _layout,
            "of a transformer in a file of its own", {"model.name_or_path": None},
        ),
        Rule("model.assistant_lora_path", "training_adapter", None, model_path, optional=True),
        base_weights_rule(
            {"model.quantize": False, "model.qtype": "qfloat8"}, _base_weights,
            {**{f"network.{name}": None for name in NETWORK_NAMES}, **_MODEL_KEYS}, ONE_SCALE,
        ),
        CombinedRule(
            {"model.layer_offloading": False, "model.layer_offloading_transformer_percent": 1.0}, "block_offload",
            _offload, "a fraction of the layers there, of the blocks here",
        ),
        encoder_weights_rule(
            {"model.quantize_te": None, "model.qtype_te": "qfloat8"}, _encoder_weights, {"model.quantize": False}
        ),
        Rule("model.compile", "compile", False, boolean, optional=True),
        Rule("model.is_v_pred", "family_options.prediction_type", False, prediction_type, optional=True),
        CombinedRule(
            {"train.train_unet": True, "train.train_text_encoder": False, "train.unet_lr": None,
             "train.text_encoder_lr": None},
            "parts", _submodules, uses={"embedding.trigger": None, **_MODEL_KEYS},
        ),
        Rule("embedding.trigger", "embedding_token", None, non_empty_text, optional=True),
        Rule("embedding.init_words", "embedding_init", "*", text),
        Rule("embedding.tokens", "embedding_vectors", 4, integer),
        Rule("train.batch_size", "batch_size", 1, integer),
        Rule("train.gradient_checkpointing", "gradient_checkpointing", True, boolean),
        *SCHEDULE_RULES,
        Rule("train.ema_config.use_ema", "ema", False, boolean),
        Rule("train.ema_config.ema_decay", "ema_decay", 0.999, number, _CONSTANT_DECAY),
        Rule("train.dtype", "precision", "fp32", precision),
        Rule("train.max_grad_norm", "max_grad_norm", 1.0, optional_number),
        Rule("train.noise_offset", "family_options.offset_noise", 0.0, number, optional=True),
        common.loss_weighting(
            "train.min_snr_gamma", uses={"model.is_v_pred": False},
            note=lambda values, weighting: PLAIN_WEIGHTS if boolean(values["model.is_v_pred"]) else "",
        ),
        Rule("train.min_denoising_steps", "family_options.min_timestep", 0, _fraction, optional=True),
        Rule("train.max_denoising_steps", "family_options.max_timestep", 999, _fraction, optional=True),
        Rule("train.loss_type", "family_options.loss", "mse", _LOSSES, optional=True),
        Rule("training_folder", "runs_dir", None, output_path, optional=True),
        Rule("save.max_step_saves_to_keep", "saves_kept", 5, integer),
        Rule("save.dtype", "save_dtype", "float16", save_dtype),
    ),
    unsupported=(
        Unsupported("type", "set by method", default=ANY),
        Unsupported("device", "Tandem uses a GPU if there is one: see the Multi-GPU settings", default="cuda:0"),
        Unsupported("performance_log_every", "the Monitor shows the speed"),
        Unsupported("sqlite_db_path use_ui_logger", "internal to ai-toolkit"),
        Unsupported("logging.*", "the run's folder contains the log"),
        Unsupported("trigger_word", "there is no folder whose captions it could be added to"),
        Unsupported("embedding.save_format", "Tandem writes safetensors", default="safetensors"),
        Unsupported("network.network_kwargs", "set lora_targets", {"ignore_if_contains": []}, is_group=True),
        Unsupported("network.pretrained_lora_path", "set lora_from"),
        Unsupported("network.*", common.LORA),
        Unsupported("save.push_to_hub save.hf_*", common.UPLOAD),
        Unsupported("save.*", "Tandem writes safetensors; set lora_layouts"),
        Unsupported("train.noise_scheduler", "the base model's own noise schedule is used", default="ddpm"),
        Unsupported("train.skip_first_sample", common.FIRST_SAMPLES),
        Unsupported("train.disable_sampling", "sample_every is set to never"),
        Unsupported("train.content_or_style", "set family_options.timestep_distribution", default="balanced"),
        Unsupported("train.linear_timesteps", "set family_options.timestep_distribution"),
        Unsupported("train.xformers train.sdp", "Tandem uses PyTorch's attention"),
        Unsupported("train.noise_multiplier train.img_multiplier", _NOT_HERE, default=1.0),
        Unsupported("train.reg_weight", "set loss_weight of the concepts with prior", default=1.0),
        Unsupported("train.num_train_timesteps", _NOT_HERE, default=1000),
        Unsupported("train.switch_boundary_every train.diff_output_preservation_multiplier", _NOT_HERE, default=1),
        Unsupported("train.force_first_sample", common.FIRST_SAMPLES),
        Unsupported("train.cache_text_embeddings train.unload_text_encoder", _UNLOADED),
        Unsupported("train.*", _NOT_HERE),
        Unsupported("model.dtype", "parts sets the precision of frozen weights", default="float16"),
        Unsupported("model.use_text_encoder_?", "all text encoders are used", default=True),
        Unsupported("model.vae_path", "put the autoencoder into a diffusers folder"),
        Unsupported("model.layer_offloading_text_encoder_percent", "set family_options.text_encoder_weights"),
        Unsupported("model.only_if_contains model.ignore_if_contains", "the whole transformer is trained or adapted"),
        Unsupported("model.lora_path", common.MERGE_FIRST),
        Unsupported("model.refiner_name_or_path", "Tandem trains no refiner"),
        Unsupported("model.*lora_path model.model_kwargs.*", "Tandem has no such setting"),
        Unsupported("model.*", "Tandem does not quantise or unload weights this way"),
        Unsupported("adapter.*", "Tandem does not train such adapters"),
        Unsupported("slider.*", "Tandem does not train sliders"),
    ),
    renamed={"save.save_dtype": "save.dtype"},
)  # fmt: skip
