"""kohya's sd-scripts and its GUI: the model, its submodules, adapters and losses."""

from __future__ import annotations

from collections.abc import Mapping

from modules.importers import common
from modules.importers.optimizers import parse_arguments
from modules.importers.readers import boolean, integer, items, model_path, number, optional_number, prediction_type
from modules.importers.rules import (
    EMPTY_VALUES,
    Assignment,
    CombinedRule,
    Rule,
    Unsupported,
    UnsupportedValueError,
    Values,
)

# Settings that identify other model families.
OTHER_FAMILIES = {"flux1_checkbox": "flux", "sd3_checkbox": "stable_diffusion_3", "lumina_checkbox": "lumina"}
MODULES = {"flux": "flux", "sd3": "stable_diffusion_3", "lumina": "lumina", "chroma": "chroma", "hunyuan": "hunyuan"}
METHOD_KEYS: Mapping[str, object] = {"network_module": None, "LoRA_type": None, "token_string": None}
FAMILY_KEYS = {"pretrained_model_name_or_path": None, "sdxl": None, "v2": False, **dict.fromkeys(OTHER_FAMILIES, False)}
# Only sdxl_train.py and sdxl_train_network.py have these.
XL_ONLY: Mapping[str, object] = {
    **dict.fromkeys(("cache_text_encoder_outputs", "cache_text_encoder_outputs_to_disk", "no_half_vae"), False),
    **dict.fromkeys(("learning_rate_te1", "learning_rate_te2")),
}


def method(values: Values) -> str:
    """The training method: fine_tune, lora or embedding."""
    if values["token_string"] not in EMPTY_VALUES:
        return "embedding"
    has_network = any(values[name] not in EMPTY_VALUES for name in ("network_module", "LoRA_type"))
    return "lora" if has_network else "fine_tune"


def is_xl(values: Values) -> bool:
    """Whether the model is SDXL; sd-scripts has a script for each model, so its files need not say so."""
    if values["sdxl"] is not None:
        return boolean(values["sdxl"])
    name = str(values["pretrained_model_name_or_path"]).lower().replace("\\", "/").rpartition("/")[2]
    known = any(word in name for word in ("xl", "illustrious", "pony", "noob"))
    return known or any(values[name] not in EMPTY_VALUES for name in XL_ONLY)


def _family(values: Values) -> list[Assignment]:
    name = "pretrained_model_name_or_path"
    found = []
    if values[name] not in EMPTY_VALUES:
        found.append(Assignment("base_model", model_path(values[name]), keys=(name,)))
    module = str(values["network_module"] or "")
    other = [(key, family) for key, family in OTHER_FAMILIES.items() if boolean(values[key])]
    other += [("network_module", family) for word, family in MODULES.items() if word in module.rpartition("_")[2]]
    if other:
        return [*found, Assignment("family", other[0][1], common.NO_FAMILY, tuple(key for key, _ in other))]
    if values["sdxl"] is not None or boolean(values["v2"]):
        keys = ("sdxl", "v2")
        return [*found, Assignment("family", "stable_diffusion_xl" if is_xl(values) else "stable_diffusion", keys=keys)]
    family = "stable_diffusion_xl" if is_xl(values) else "stable_diffusion"
    why = "guessed from the model's name and settings, because the file does not say which script it is for"
    return [*found, Assignment("family", family, why, (name,))]


def _method(values: Values) -> list[Assignment]:
    target = method(values)
    kind = f"{values['network_module'] or ''} {values['LoRA_type'] or ''}".lower()
    why = ""
    if target == "lora" and any(word in kind for word in ("loha", "lokr", "dylora", "oft", "ia3", "glora", "diag")):
        why = common.LORA_INSTEAD
    keys = {"embedding": ("token_string",), "lora": ("network_module", "LoRA_type")}.get(target, ("network_module",))
    found = [Assignment("method", target, why, keys)]
    if target == "embedding":
        found.append(Assignment("embedding_token", str(values["token_string"]).strip(), keys=("token_string",)))
    return found


def _targets(values: Values) -> list[Assignment]:
    """kohya's LoRA is on attention and MLP layers; with conv_dim also on convolutions."""
    if method(values) != "lora":
        return []
    arguments = parse_arguments(values["network_args"]) if values["network_args"] not in EMPTY_VALUES else {}
    kind = str(values["LoRA_type"] or "").lower()
    if kind and kind not in ("standard", "flux1", "sd3"):
        arguments = {"conv_dim": values["conv_dim"], "conv_alpha": values["conv_alpha"], **arguments}
    known = {"conv_dim", "conv_alpha", "algo", "dora_wd", "preset"}
    found = []
    wide = bool(optional_number(arguments.get("conv_dim"))) or arguments.get("preset") == "full"
    why = "Tandem has one rank and alpha for all layers" if wide else ""
    found.append(Assignment("lora_targets", "all" if wide else "attention_mlp", why, ("network_args", "conv_dim")))
    if arguments.get("algo", "lora") not in ("lora", "locon"):
        why = f"Tandem has no {arguments['algo']}: it trains plain LoRA and DoRA"
        found.append(Assignment("", why=why, keys=("network_args",)))
    if boolean(arguments.get("dora_wd", False)):
        found.append(Assignment("lora_weight_decompose", True, keys=("network_args",)))
    rest = ", ".join(sorted(set(arguments) - known))
    if rest:
        found.append(Assignment("", why=f"Tandem's LoRA has no {rest}", keys=("network_args",)))
    return found


def _rates(values: Values) -> list[object]:
    """The learning rates of the text encoders, as many as are given."""
    if method(values) == "lora":
        given = values["text_encoder_lr"]
        return [] if given in (None, "") else items(given) or [0.0]
    rate = values["learning_rate_te"]
    named = [values["learning_rate_te1"], values["learning_rate_te2"]]
    return [rate] if rate is not None else [value for value in named if value is not None]


def _trained(values: Values, xl: bool) -> tuple[bool, bool]:
    """Whether the UNet and the text encoders are trained."""
    if method(values) == "lora":
        unet, text = optional_number(values["unet_lr"]), any(optional_number(rate) for rate in _rates(values))
        only_unet = boolean(values["network_train_unet_only"]) or bool(unet and _rates(values) and not text)
        only_text = boolean(values["network_train_text_encoder_only"]) or bool(text and values["unet_lr"] == 0)
        return not only_text, not only_unet and not boolean(values["cache_text_encoder_outputs"])
    if values["train_text_encoder"] is not None:
        return True, boolean(values["train_text_encoder"])
    if xl:
        return True, any(optional_number(rate) for rate in _rates(values))
    stops = optional_number(values["stop_text_encoder_training"])
    return True, stops is None or stops > 0


TEXT_KEYS = {
    "lora": ("text_encoder_lr", "network_train_unet_only"),
    "fine_tune": ("train_text_encoder", "learning_rate_te", "learning_rate_te1", "learning_rate_te2"),
}


def _submodules(values: Values) -> list[Assignment]:
    if method(values) == "embedding":
        return []
    xl = is_xl(values)
    unet, text = _trained(values, xl)
    keys = TEXT_KEYS[method(values)]
    rate = optional_number(values["unet_lr"])
    found = common.submodule(
        0, "unet", unet, ("network_train_text_encoder_only",), rate if unet else None, ("unet_lr",)
    )
    rates = _rates(values)
    for index, part in enumerate(("text_encoder", "text_encoder_2") if xl else ("text_encoder",)):
        rate = optional_number(rates[min(index, len(rates) - 1)]) if rates else None
        rate_keys = keys[:1] if method(values) == "lora" else keys[1:]
        found += common.submodule(index + 1, part, text, keys, rate if text else None, rate_keys)
        stops = optional_number(values["stop_text_encoder_training"])
        if stops and stops > 0 and text:
            stop = f"{integer(stops)} steps"
            found.append(Assignment(f"parts.{index + 1}.stop_after", stop, keys=("stop_text_encoder_training",)))
    return found


def _clip_skip(values: Values) -> list[Assignment]:
    if values["clip_skip"] in EMPTY_VALUES:
        return []
    found = integer(values["clip_skip"])
    if is_xl(values):
        raise UnsupportedValueError("kohya's scripts ignore it for SDXL, which always skips a layer")
    why = "Tandem counts the skipped layers, kohya the layer that is used" if found > 1 else ""
    return [Assignment("family_options.clip_skip", max(found - 1, 0), why, ("clip_skip",))]


def _loss(values: Values) -> list[Assignment]:
    name = str(values["loss_type"]).lower()
    target = {"l2": "mse", "huber": "huber", "smooth_l1": "smooth_l1"}.get(name)
    if target is None:
        raise UnsupportedValueError("Tandem has mse, huber and smooth_l1; set family_options.loss")
    if target == "mse":
        return []
    why = "Tandem uses the same delta at all noise levels" if values["huber_schedule"] != "constant" else ""
    return [
        Assignment("family_options.loss", target, keys=("loss_type",)),
        Assignment("family_options.huber_delta", number(values["huber_c"]), why, ("huber_c", "huber_schedule")),
    ]


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


def _long(value: object) -> object:
    return "chunk" if integer(value) > 75 else "truncate"


MODEL_RULES: tuple[Rule | CombinedRule, ...] = (
    CombinedRule(
        METHOD_KEYS, "method, embedding_token", _method,
        "a network module means LoRA, a token string an embedding; LoHa, LoKr and others become plain LoRA",
    ),
    CombinedRule(
        FAMILY_KEYS, "base_model, family", _family,
        "sd-scripts has a script for each model; if the file does not say, it is guessed from the model's name",
        {**METHOD_KEYS, **XL_ONLY},
    ),
    Rule("network_dim", "lora_rank", 4, integer),
    Rule("network_alpha", "lora_alpha", 1.0, number),
    Rule("network_dropout", "lora_dropout", 0.0, optional_number, optional=True),
    CombinedRule(
        {"network_args": None, "conv_dim": 1, "conv_alpha": 1}, "lora_targets, lora_weight_decompose", _targets,
        "kohya's LoRA is on attention and MLP layers; conv_dim adds convolutions, with the same rank", METHOD_KEYS,
    ),
    CombinedRule(
        {
            "unet_lr": None, "text_encoder_lr": None, "network_train_unet_only": False,
            "network_train_text_encoder_only": False, "train_text_encoder": None, "learning_rate_te": None,
            "learning_rate_te1": None, "learning_rate_te2": None, "stop_text_encoder_training": None,
        },
        "parts", _submodules, "kohya trains text encoders by default; Tandem lists what it trains",
        {**METHOD_KEYS, **FAMILY_KEYS, **XL_ONLY},
    ),
    Rule("init_word", "embedding_init", None, str, optional=True),
    Rule("num_vectors_per_token", "embedding_vectors", 1, integer, optional=True),
    Rule("v_parameterization", "family_options.prediction_type", False, prediction_type, optional=True),
    CombinedRule(
        {"clip_skip": None}, "family_options.clip_skip", _clip_skip, "not for SDXL", {**FAMILY_KEYS, **XL_ONLY}
    ),
    Rule("zero_terminal_snr", "family_options.zero_terminal_snr", False, boolean, optional=True),
    Rule("min_timestep", "family_options.min_timestep", 0, timestep_fraction, optional=True),
    Rule("max_timestep", "family_options.max_timestep", 1000, last_timestep_fraction, optional=True),
    CombinedRule(
        {"noise_offset": None, "noise_offset_type": "Original", "noise_offset_random_strength": False},
        "family_options.offset_noise", _offset,
    ),
    common.loss_weighting("min_snr_gamma", "debiased_estimation_loss"),
    CombinedRule(
        {"loss_type": "l2", "huber_c": 0.1, "huber_schedule": "snr"}, "family_options.loss", _loss,
        "Tandem's Huber loss uses the same delta at all noise levels",
    ),
    Rule("max_token_length", "family_options.long_prompts", 75, _long, optional=True),
)  # fmt: skip

MODEL_UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported(
        "stop_text_encoder_training_pct", "a fraction of all steps; set stop_after of the submodule in steps",
        default=0,
    ),
    Unsupported(
        "network_weights lora_network_weights", "training cannot start from a LoRA; use --resume to continue a run",
    ),
    Unsupported("weights", "training cannot start from an embedding; use --resume to continue a run"),
    Unsupported("base_weights*", "merge LoRAs into the base model beforehand"),
    Unsupported("dim_from_weights", "set lora_rank"),
    Unsupported("rank_dropout module_dropout scale_weight_norms", common.LORA, default=0),
    Unsupported("rank_dropout_scale block_* conv_block_* *_lr_weight", common.LORA),
    Unsupported("LyCORIS_preset", common.LORA, default="full"),
    Unsupported("factor", common.LORA, default=-1),
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
    Unsupported("weighted_captions", "brackets in captions are read literally"),
    Unsupported("no_token_padding", "prompts are always padded"),
    Unsupported("vae", "put the autoencoder into a diffusers folder"),
)  # fmt: skip
