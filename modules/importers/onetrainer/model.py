"""OneTrainer's model, adapters and losses. Names and defaults as in its modules/util/config/TrainConfig.py."""

from __future__ import annotations

import re

from modules.importers import common
from modules.importers.flow_families import flow_family
from modules.importers.flow_rules import distribution
from modules.importers.onetrainer.noise import FITTED, NOISE_RULES
from modules.importers.onetrainer.submodules import (
    EMBEDDING_STOP_RULE,
    SUBMODULES,
    network_section,
    submodule_rule,
)
from modules.importers.readers import (
    boolean,
    choice,
    integer,
    model_path,
    non_empty_text,
    number,
    save_dtype,
    text,
)
from modules.importers.rules import (
    ANY,
    Assignment,
    ChangedValue,
    CombinedRule,
    PathValue,
    Rule,
    Unsupported,
    UnsupportedValueError,
    Values,
)

# OneTrainer filters the layers of the UNet; those of text encoders are all adapted.
TARGETS = {"full": "all", "attn-mlp": "onetrainer", "attn-only": r"attn|^text_encoder", "attn": r"attn|^text_encoder"}
OF_TRANSFORMERS = {"full": "all", "blocks": "blocks", "attn-mlp": "attention_mlp", "attn-only": "attention"}


def _family(value: object) -> object:
    name = str(value).upper()
    if name.startswith("STABLE_DIFFUSION_XL"):
        return "stable_diffusion_xl"
    if name == "STABLE_DIFFUSION_20_DEPTH":
        return ChangedValue("stable_diffusion", "Tandem has no depth input: choose another base model")
    if re.match(r"STABLE_DIFFUSION_(15|20|21)", name):
        return "stable_diffusion"
    return flow_family(name) or ChangedValue(name.lower() or "unknown", common.NO_FAMILY)


def _base_model(values: Values) -> list[Assignment]:
    """The model; OneTrainer can take its transformer from elsewhere."""
    name, file = values["base_model_name"], text(values["transformer.model_name"]).strip()
    if not file or network_section(values) != "transformer":
        return [Assignment("base_model", model_path(name), keys=("base_model_name",))]
    is_address = file.startswith(("http://", "https://"))
    why = "download that file, and set base_model to it" if is_address else ""
    return [
        Assignment("base_model", file if is_address else PathValue(file, "model"), why, ("transformer.model_name",)),
        Assignment("flow_options.layout", name, keys=("base_model_name",)),
    ]


def _targets(values: Values) -> list[Assignment]:
    """Which layers get adapters; OneTrainer's window fills in the patterns of a preset, and only those count."""
    preset, pattern = text(values["layer_filter_preset"]).lower(), text(values["layer_filter"]).strip()
    keys = ("layer_filter_preset", "layer_filter", "layer_filter_regex")
    if str(values["training_method"]).upper() != "LORA":
        filtered = preset != "full" or bool(pattern)
        return [Assignment("", why="layers can be chosen for LoRA only", keys=keys)] if filtered else []
    is_unet = network_section(values) == "unet"
    presets = TARGETS if is_unet else OF_TRANSFORMERS
    if not pattern:
        if preset not in presets:
            raise UnsupportedValueError("Tandem has no such preset; set lora_targets")
        return [Assignment("lora_targets", presets[preset], keys=keys[:1])]
    if is_unet and pattern == "attentions":  # of attn-mlp there
        return [Assignment("lora_targets", TARGETS["attn-mlp"], keys=keys)]
    is_regex = boolean(values["layer_filter_regex"])
    parts = [part if is_regex else re.escape(part) for part in map(str.strip, pattern.split(",")) if part]
    # one pattern, because each must match a layer, and text encoders may be frozen
    return [Assignment("lora_targets", "|".join([*parts, "^text_encoder"]) if is_unet else ",".join(parts), keys=keys)]


def _prediction(values: Values) -> list[Assignment]:
    v, epsilon = boolean(values["force_v_prediction"]), boolean(values["force_epsilon_prediction"])
    name = "v_prediction" if v else "epsilon" if epsilon else "auto"
    return [Assignment("family_options.prediction_type", name)] if name != "auto" else []


def _clip_skip(values: Values) -> list[Assignment]:
    first, second = (integer(values[f"text_encoder{name}_layer_skip"]) for name in ("", "_2"))
    if "XL" not in str(values["model_type"]).upper() or first == second:
        return [Assignment("family_options.clip_skip", first)] if first else []
    keys = ("text_encoder_layer_skip", "text_encoder_2_layer_skip")
    why = f"OneTrainer skips {first} of text_encoder and {second} of text_encoder_2, Tandem as many of both"
    if not first:
        return [Assignment("", why="both text encoders share clip_skip", keys=keys[1:])]
    return [Assignment("family_options.clip_skip", first, why, keys)]


def _predicts_v(values: Values) -> bool:
    """Whether the model predicts v, as far as the settings say."""
    if boolean(values["force_v_prediction"]) or boolean(values["force_epsilon_prediction"]):
        return boolean(values["force_v_prediction"])
    return str(values["model_type"]).upper() in ("STABLE_DIFFUSION_20", "STABLE_DIFFUSION_21")


def _loss(values: Values) -> list[Assignment]:
    strength = {name: number(values[f"{name}_strength"]) for name in ("mse", "mae", "log_cosh", "huber")}
    found = [
        Assignment("", why="Tandem has MSE, Huber and smooth L1, one at a time", keys=(f"{name}_strength",))
        for name in ("mae", "log_cosh")
        if strength[name]
    ]
    if strength["huber"] and strength["huber"] >= strength["mse"]:
        mixed = "the MSE part of the mixture is not supported" if strength["mse"] else ""
        why = "; ".join(filter(None, (mixed, _scale(strength["huber"]))))
        found.append(Assignment("family_options.loss", "huber", why, ("huber_strength", "mse_strength")))
        found.append(Assignment("family_options.huber_delta", number(values["huber_delta"]), keys=("huber_delta",)))
    elif strength["huber"]:
        why = "losses are not mixed; MSE has the larger weight and is used"
        found.append(Assignment("", why=why, keys=("huber_strength",)))
    elif scale := _scale(strength["mse"]):
        found.append(Assignment("family_options.loss", "mse", scale, ("mse_strength",)))
    return found


def _scale(strength: float) -> str:
    """What a loss times `strength` means; its functions are torch's, as Tandem's are (ModelSetupDiffusionLossMixin)."""
    return "" if strength in (0, 1) else f"the loss there is {strength:g} times as large, {common.SCALE}"


def _loss_weight(values: Values) -> list[Assignment]:
    name = str(values["loss_weight_fn"]).upper()
    target = {"CONSTANT": "none", "MIN_SNR_GAMMA": "min_snr", "DEBIASED_ESTIMATION": "debiased"}.get(name)
    if target is None:
        raise UnsupportedValueError("Tandem has min_snr and debiased; set family_options.loss_weighting")
    if target == "none":
        return []
    why = "1 / sqrt(snr + 1) there, 1 / (snr + 1) here" if target == "debiased" and _predicts_v(values) else ""
    found = [Assignment("family_options.loss_weighting", target, why, ("loss_weight_fn",))]
    if target == "min_snr":
        gamma = number(values["loss_weight_strength"])
        found.append(Assignment("family_options.min_snr_gamma", gamma, keys=("loss_weight_strength",)))
    return found


def _timesteps(values: Values) -> list[Assignment]:
    name, key = str(values["timestep_distribution"]).upper(), "timestep_distribution"
    usual = {"UNIFORM": "uniform", "LOGIT_NORMAL": "logit_normal", "HEAVY_TAIL": "mode"}
    is_unet = network_section(values) == "unet"
    if is_unet and name == "UNIFORM":
        return []
    if name in usual and not (is_unet and name == "HEAVY_TAIL"):
        target, why = usual[name], ""
    elif name in (*usual, *FITTED):
        target, why = "logit_normal", f"the nearest to {name.lower()} that Tandem has"
    else:
        raise UnsupportedValueError("Tandem has uniform, logit_normal and mode; set timestep_distribution")
    return [Assignment(f"family_options.{key}", target, why, (key,)) if is_unet else distribution(target, key, why=why)]


def _layouts(values: Values) -> list[Assignment]:
    """The file format of the result."""
    name, method = str(values["output_model_format"]).upper(), str(values["training_method"]).upper()
    if method == "LORA":
        return [Assignment("lora_layouts", "diffusers" if "DIFFUSERS" in name or "PEFT" in name else "kohya")]
    if method != "FINE_TUNE":
        return []
    why = "a pickle can run code when it is opened; Tandem writes safetensors" if name == "CKPT" else ""
    return [Assignment("save_single_file", name != "DIFFUSERS", why)]


METHODS = choice(
    {"fine_tune": "fine_tune", "lora": "lora", "embedding": "embedding"},
    "Tandem has fine_tune, lora and embedding; set method",
)
_ALGORITHMS = {"LORA": "lora", "LOHA": "loha", "LOKR": "lokr", "OFT_2": "oft"}


def _algorithm(values: Values) -> list[Assignment]:
    """LoRAModule.py: LOHA has lora_rank, LOKR a rank of its own, OFT_2 blocks."""
    kind = str(values["peft_type"]).upper()
    found = _ALGORITHMS.get(kind, "lora")
    why = "" if kind in _ALGORITHMS else common.LORA_INSTEAD
    rank = "lokr_dim" if found == "lokr" else "lora_rank"
    chosen = [
        Assignment("lora_algorithm", found, why, ("peft_type",)),
        Assignment("lora_rank", integer(values[rank]), keys=(rank,)),
    ]
    factor = integer(values["lokr_decompose_factor"])
    if found == "lokr" and factor > 1:
        chosen.append(Assignment("lokr_factor", factor, keys=("lokr_decompose_factor",)))
    if found == "oft":
        chosen.append(Assignment("oft_block_size", integer(values["oft_block_size"]), keys=("oft_block_size",)))
    dropout, decompose = number(values["dropout_probability"]), boolean(values["lora_decompose"])
    if found == "lora":
        return [
            *chosen,
            Assignment("lora_dropout", dropout, keys=("dropout_probability",)),
            Assignment("lora_weight_decompose", decompose, keys=("lora_decompose",)),
        ]
    if dropout:
        chosen.append(Assignment("", why=common.NO_DROPOUT, keys=("dropout_probability",)))
    return chosen


QUANTIZED_LAYERS = "where weights are quantised, Tandem quantises all linear layers under an adapter"
_NO_LORA = "Tandem's LoKr and OFT have no such setting"

MODEL_RULES: tuple[Rule | CombinedRule, ...] = (
    Rule("model_type", "family", "STABLE_DIFFUSION_15", _family),
    Rule("training_method", "method", "FINE_TUNE", METHODS),
    CombinedRule(
        {"base_model_name": "stable-diffusion-v1-5/stable-diffusion-v1-5", "transformer.model_name": ""},
        "base_model, family_options.layout", _base_model, uses={"model_type": "STABLE_DIFFUSION_15"},
    ),
    CombinedRule(
        {
            "peft_type": "LORA", "lora_rank": 16, "lokr_dim": 16, "lokr_decompose_factor": -1, "oft_block_size": 32,
            "dropout_probability": 0.0, "lora_decompose": False,
        },
        "lora_algorithm, lora_rank, lokr_factor, oft_block_size, lora_dropout, lora_weight_decompose", _algorithm,
        "lokr_dim is the rank of a LoKr",
    ),
    Rule("lora_alpha", "lora_alpha", 1.0, number),
    CombinedRule(
        {"layer_filter_preset": "full", "layer_filter": "", "layer_filter_regex": False}, "lora_targets", _targets,
        "patterns become regular expressions", {"training_method": "FINE_TUNE", "model_type": "STABLE_DIFFUSION_15"},
    ),
    *(submodule_rule(index, part) for index, part in enumerate(SUBMODULES)),
    submodule_rule(0, "transformer"),
    EMBEDDING_STOP_RULE,
    Rule("embedding.placeholder", "embedding_token", "<embedding>", non_empty_text),
    Rule("embedding.initial_embedding_text", "embedding_init", "*", text),
    Rule("embedding.token_count", "embedding_vectors", 1, integer),
    CombinedRule(
        {"force_v_prediction": False, "force_epsilon_prediction": False}, "family_options.prediction_type", _prediction
    ),
    Rule(
        "rescale_noise_scheduler_to_zero_terminal_snr", "family_options.zero_terminal_snr", False, boolean,
        optional=True,
    ),
    Rule("offset_noise_weight", "family_options.offset_noise", 0.0, number, optional=True),
    Rule("min_noising_strength", "family_options.min_timestep", 0.0, number, optional=True),
    Rule("max_noising_strength", "family_options.max_timestep", 1.0, number, optional=True),
    CombinedRule(
        {"timestep_distribution": "UNIFORM"}, "family_options.timestep_distribution", _timesteps,
        "others than uniform, logit_normal and heavy_tail become the nearest logit_normal",
        {"model_type": "STABLE_DIFFUSION_15"},
    ),
    CombinedRule(
        {"mse_strength": 1.0, "mae_strength": 0.0, "log_cosh_strength": 0.0, "huber_strength": 0.0, "huber_delta": 1.0},
        "family_options.loss", _loss, "losses are not mixed: MSE or Huber is used, whichever has the larger weight",
    ),
    CombinedRule(
        {"loss_weight_fn": "CONSTANT", "loss_weight_strength": 5.0}, "family_options.loss_weighting", _loss_weight,
        "debiased weights of v-prediction differ",
        {"force_v_prediction": False, "force_epsilon_prediction": False, "model_type": "STABLE_DIFFUSION_15"},
    ),
    *NOISE_RULES,
    CombinedRule(
        {"text_encoder_layer_skip": 0, "text_encoder_2_layer_skip": 0}, "family_options.clip_skip", _clip_skip,
        "of all text encoders here", {"model_type": "STABLE_DIFFUSION_15"},
    ),
    Rule("output_dtype", "save_dtype", "FLOAT_32", save_dtype),
    CombinedRule(
        {"output_model_format": "SAFETENSORS"}, "lora_layouts, save_single_file", _layouts,
        "for LoRA the key layout, for a full model whether a single file is also saved",
        {"training_method": "FINE_TUNE"},
    ),
)  # fmt: skip

MODEL_UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported("lora_model_name", "set lora_from to that file, if it is a LoRA"),
    Unsupported("lora_decompose_norm_epsilon", "set by peft's DoRA", default=True),
    Unsupported("lora_decompose_output_axis", "set by peft's DoRA"),
    Unsupported("lora_weight_dtype", "adapters are always trained in fp32", default="FLOAT_32"),
    Unsupported("bundle_additional_embeddings", "only one thing is trained at a time", default=True),
    Unsupported("oft_block_share dora_oft oft_scaled oft_cans", _NO_LORA),
    Unsupported("oft_clipped_norm", _NO_LORA, default=0.95),
    Unsupported("lokr_dora_on_output lokr_vec_trick", _NO_LORA, default=True),
    Unsupported("lokr_*", _NO_LORA),
    Unsupported("preserve_embedding_norm", "Tandem does not constrain the vectors"),
    Unsupported("embedding_weight_dtype", "embeddings are always trained in fp32", default="FLOAT_32"),
    Unsupported("additional_embeddings", "one embedding is trained at a time", is_group=True),
    Unsupported("embedding.uuid", "an internal name of OneTrainer", default=ANY),
    Unsupported("embedding.model_name", "training cannot start from an embedding; use --resume"),
    Unsupported("embedding.train", "set by method", default=True),
    Unsupported("embedding.is_output_embedding", "Tandem trains input embeddings"),
    Unsupported("text_encoder_?_layer_skip", "no model family of Tandem has this text encoder", default=0),
    Unsupported("text_encoder_sequence_length", "for models with a T5 or LLM text encoder", default=512),
    Unsupported("text_encoder_2_sequence_length", "for models with a T5 or LLM text encoder", default=77),
    Unsupported("generalized_offset_noise", "Tandem has plain offset noise"),
    Unsupported("perturbation_noise_weight", "Tandem does not perturb the input", default=0.0),
    Unsupported("cep_gamma", "Tandem has no such loss", default=0.0),
    Unsupported("vb_loss_strength", "for PixArt only", default=1.0),
    Unsupported("loss_scaler", "change learning_rate instead", default="NONE"),
    Unsupported("force_circular_padding", "Tandem does not train tileable textures"),
    Unsupported("quantization.layer_filter_preset", QUANTIZED_LAYERS, default="full"),
    Unsupported("quantization.layer_filter quantization.layer_filter_regex", QUANTIZED_LAYERS),
    Unsupported("quantization.svd_dtype", "Tandem quantises without SVDQuant", default="NONE"),
    Unsupported("quantization.svd_rank", "Tandem quantises without SVDQuant", default=16),
    Unsupported("quantization.cache_dir", "Tandem quantises when it loads a model"),
    Unsupported("extra_model_name", "Tandem's families need no second model"),
    Unsupported("custom_conditioning_image", "Tandem does not support conditioning images"),
)
