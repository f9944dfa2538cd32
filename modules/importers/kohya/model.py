"""kohya's sd-scripts and its GUI: the model, its submodules, adapters and losses."""

from __future__ import annotations

from modules.importers import common
from modules.importers.flow_rules import KOHYA_RULES
from modules.importers.kohya.family import FAMILY_KEYS, FILES, METHOD_KEYS, XL_ONLY, family, find_method, is_xl
from modules.importers.kohya.trained import MOST_RANK, alpha, dropout, rank, submodules, targets
from modules.importers.readers import boolean, integer, number, optional_number, prediction_type
from modules.importers.rules import (
    EMPTY_VALUES,
    Assignment,
    CombinedRule,
    Rule,
    Unsupported,
    UnsupportedValueError,
    Values,
)


def _clip_skip(values: Values) -> list[Assignment]:
    if values["clip_skip"] in EMPTY_VALUES:
        return []
    found = integer(values["clip_skip"])
    if found <= 1:
        return []
    if is_xl(values):
        raise UnsupportedValueError("kohya's scripts ignore it for SDXL, which always skips a layer")
    why = "Tandem counts the skipped layers, kohya the layer that is used"
    return [Assignment("family_options.clip_skip", found - 1, why, ("clip_skip",))]


def _offset(values: Values) -> list[Assignment]:
    strength = optional_number(values["noise_offset"])
    if not strength or str(values["noise_offset_type"]).lower() == "multires":
        return []
    why = "always this strength, not a random one up to it" if boolean(values["noise_offset_random_strength"]) else ""
    return [Assignment("family_options.offset_noise", strength, why)]


def timestep_fraction(value: object) -> object:
    """A timestep of 1000 as a fraction."""
    return number(value) / 1000 if value not in (None, "") else 0.0


def last_timestep_fraction(value: object) -> object:
    """Like `timestep_fraction`; 0 means not set."""
    return number(value) / 1000 if value not in EMPTY_VALUES else 1.0


def _long(values: Values) -> list[Assignment]:
    """150 and 225 tokens are two and three chunks of 75."""
    chunks = integer(values["max_token_length"]) // 75 if values["max_token_length"] not in EMPTY_VALUES else 1
    path = "family_options.long_prompts"
    if chunks < 2:
        return []
    return [Assignment(path, "chunk"), Assignment("family_options.prompt_windows", chunks)]


MODEL_RULES: tuple[Rule | CombinedRule, ...] = (
    CombinedRule(
        METHOD_KEYS, "method, embedding_token", find_method,
        "a network module means LoRA, a token string an embedding; OFT, IA3 and others become plain LoRA",
    ),
    CombinedRule(
        FAMILY_KEYS, "base_model, family", family,
        "sd-scripts has a script for each model; if the file does not say, it is guessed from the model's name",
        {**METHOD_KEYS, **XL_ONLY, **FILES},
    ),
    CombinedRule(
        {"network_dim": 4}, "lora_rank", rank, f"of a LoKr at most {MOST_RANK}, where both factors are whole as well",
        {**METHOD_KEYS, "network_args": None},
    ),
    CombinedRule({"network_alpha": 1.0}, "lora_alpha", alpha, "0 means the rank", {"network_dim": 4}),
    CombinedRule(
        {"network_dropout": 0.0}, "lora_dropout", dropout, "of the inputs; kohya drops the first matrix's outputs",
        {**METHOD_KEYS, "network_args": None},
    ),
    CombinedRule(
        {
            "network_args": None, "conv_dim": 1, "conv_alpha": 1, "LyCORIS_preset": "full", "factor": -1,
            "loraplus_lr_ratio": 0, "loraplus_unet_lr_ratio": 0,
        },
        "lora_targets, lora_conv_rank, lora_conv_alpha, lora_weight_decompose, lora_algorithm, lokr_factor, "
        "lora_rank_stabilized, lora_plus_ratio", targets,
        "conv_dim adds residual blocks and their convolutions (LoCon); LyCORIS adapts all layers by default",
        {**METHOD_KEYS, **FAMILY_KEYS, **XL_ONLY},
    ),
    CombinedRule(
        {
            "unet_lr": None, "text_encoder_lr": None, "network_train_unet_only": False,
            "network_train_text_encoder_only": False, "train_text_encoder": None, "learning_rate_te": None,
            "learning_rate_te1": None, "learning_rate_te2": None, "stop_text_encoder_training": None,
        },
        "parts", submodules,
        "LoRA and train_db.py train text encoders by default, the others if asked to; Tandem lists what it trains",
        {**METHOD_KEYS, **FAMILY_KEYS, **XL_ONLY, "in_json": None},
    ),
    Rule("init_word", "embedding_init", None, str, optional=True),
    Rule("num_vectors_per_token", "embedding_vectors", 1, integer, optional=True),
    Rule("v_parameterization", "family_options.prediction_type", False, prediction_type, optional=True),
    CombinedRule(
        {"clip_skip": 1}, "family_options.clip_skip", _clip_skip, "not for SDXL", {**FAMILY_KEYS, **XL_ONLY}
    ),
    Rule("zero_terminal_snr", "family_options.zero_terminal_snr", False, boolean, optional=True),
    Rule("min_timestep", "family_options.min_timestep", 0, timestep_fraction, optional=True),
    Rule("max_timestep", "family_options.max_timestep", 1000, last_timestep_fraction, optional=True),
    CombinedRule(
        {"noise_offset": None, "noise_offset_type": "Original", "noise_offset_random_strength": False},
        "family_options.offset_noise", _offset,
    ),
    common.loss_weighting(
        "min_snr_gamma", "debiased_estimation_loss", uses={"zero_terminal_snr": False},
        note=common.rescaled_weights("zero_terminal_snr"),
    ),
    common.HUBER,
    CombinedRule(
        {"max_token_length": 75}, "family_options.long_prompts, family_options.prompt_windows", _long,
    ),
    *KOHYA_RULES,
)  # fmt: skip

MODEL_UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported(
        "stop_text_encoder_training_pct", "a fraction of all steps; set stop_after of the submodule in steps",
        default=0,
    ),
    Unsupported(
        "network_weights lora_network_weights", "set lora_from to that file, if it is a LoRA",
    ),
    Unsupported("weights", "training cannot start from an embedding; use --resume to continue a run"),
    Unsupported("base_weights*", "merge LoRAs into the base model beforehand"),
    Unsupported("dim_from_weights", "set lora_rank"),
    Unsupported("rank_dropout module_dropout scale_weight_norms", common.LORA, default=0),
    Unsupported("rank_dropout_scale block_* conv_block_* *_lr_weight", common.LORA),
    Unsupported("unit", common.LORA, default=1),
    Unsupported("train_on_input", common.LORA, default=True),
    Unsupported("decompose_both rescaled train_norm use_cp use_scalar use_tucker split_mode bypass_mode", common.LORA),
    Unsupported("constrain", common.LORA, default=0.0),
    Unsupported("dora_wd", "set lora_weight_decompose"),
    Unsupported("use_object_template use_style_template", "write captions"),
    Unsupported("template", "write captions", default="caption"),
    Unsupported("multires_noise_iterations adaptive_noise_scale", "Tandem has offset_noise only", default=0),
    Unsupported("multires_noise_discount", "Tandem has offset_noise only", default=0.3),
    Unsupported("ip_noise_gamma", "Tandem does not perturb the input", default=0),
    Unsupported("ip_noise_gamma_random_strength", "Tandem does not perturb the input"),
    Unsupported("scale_v_pred_loss_like_noise_pred", "set family_options.loss_weighting instead"),
    Unsupported("v_pred_like_loss", "set family_options.loss_weighting instead", default=0),
    Unsupported("huber_scale", "change learning_rate instead", default=1),
    Unsupported("loraplus_*", "set lora_plus_ratio", default=0),
    Unsupported("block_lr", "set learning_rate_factors, with a pattern for each block"),
    Unsupported("weighted_captions", "brackets in captions are read literally"),
    Unsupported("no_token_padding", "prompts are always padded"),
    Unsupported("vae", "put the autoencoder into a diffusers folder"),
)  # fmt: skip
