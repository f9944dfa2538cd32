"""kohya's sd-scripts and its window: which model, how it is trained, and which parts of it."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.importing.optimizers import parsed
from modules.config.importing.readers import flag, items, model_path, number, optional_number, whole
from modules.config.importing.rules import BLANK, Joint, NotCarriedError, Outcome, Rule, Values, Without

# Settings that tell a model from its file or name.
OTHER_FAMILIES = {
    "flux1_checkbox": "flux",
    "sd3_checkbox": "stable_diffusion_3",
    "lumina_checkbox": "lumina",
}
MODULES = {"flux": "flux", "sd3": "stable_diffusion_3", "lumina": "lumina", "chroma": "chroma", "hunyuan": "hunyuan"}
METHOD_KEYS: Mapping[str, object] = {"network_module": None, "LoRA_type": None, "token_string": None}
FAMILY_KEYS: Mapping[str, object] = {
    "pretrained_model_name_or_path": None,
    "sdxl": None,
    "v2": False,
    **dict.fromkeys(OTHER_FAMILIES, False),
}
# Only sdxl_train.py and sdxl_train_network.py know these.
XL_SIGNS: Mapping[str, object] = {
    "cache_text_encoder_outputs": False,
    "cache_text_encoder_outputs_to_disk": False,
    "no_half_vae": False,
    "learning_rate_te1": None,
    "learning_rate_te2": None,
}


def method(values: Values) -> str:
    """What their settings train: fine_tune, lora or embedding."""
    if values["token_string"] not in BLANK:
        return "embedding"
    return "lora" if values["network_module"] not in BLANK or values["LoRA_type"] not in BLANK else "fine_tune"


def is_xl(values: Values) -> bool:
    """Whether the model is SDXL; sd-scripts has a program for each model, so its files need not say it."""
    if values["sdxl"] is not None:
        return flag(values["sdxl"])
    name = str(values["pretrained_model_name_or_path"]).lower().replace("\\", "/").rpartition("/")[2]
    known = any(word in name for word in ("xl", "illustrious", "pony", "noob"))
    return known or any(values[sign] not in BLANK for sign in XL_SIGNS)


def _family(values: Values) -> list[Outcome]:
    name = "pretrained_model_name_or_path"
    found = []
    if values[name] not in BLANK:
        found.append(Outcome("base_model", model_path(values[name]), keys=(name,)))
    module = str(values["network_module"] or "")
    other = [(key, family) for key, family in OTHER_FAMILIES.items() if flag(values[key])]
    other += [("network_module", family) for word, family in MODULES.items() if word in module.rpartition("_")[2]]
    if other:
        why = "Tandem has no such model family yet: choose another one"
        return [*found, Outcome("family", other[0][1], why, tuple(key for key, _ in other))]
    if values["sdxl"] is not None or flag(values["v2"]):
        keys = ("sdxl", "v2")
        return [*found, Outcome("family", "stable_diffusion_xl" if is_xl(values) else "stable_diffusion", keys=keys)]
    family = "stable_diffusion_xl" if is_xl(values) else "stable_diffusion"
    why = "guessed from the model's name and settings, because the file does not say which script it is for"
    return [*found, Outcome("family", family, why, (name,))]


def _method(values: Values) -> list[Outcome]:
    ours = method(values)
    kind = f"{values['network_module'] or ''} {values['LoRA_type'] or ''}".lower()
    why = ""
    if ours == "lora" and any(word in kind for word in ("loha", "lokr", "dylora", "oft", "ia3", "glora", "diag")):
        why = "Tandem trains plain LoRA and DoRA in place of it"
    keys = {"embedding": ("token_string",), "lora": ("network_module", "LoRA_type")}.get(ours, ("network_module",))
    found = [Outcome("method", ours, why, keys)]
    if ours == "embedding":
        found.append(Outcome("embedding_token", str(values["token_string"]).strip(), keys=("token_string",)))
    return found


def _targets(values: Values) -> list[Outcome]:
    """kohya's LoRA sits on attention and its MLP; with conv_dim on the convolutions, too."""
    if method(values) != "lora":
        return []
    arguments = parsed(values["network_args"]) if values["network_args"] not in BLANK else {}
    kind = str(values["LoRA_type"] or "").lower()
    if kind and kind not in ("standard", "flux1", "sd3"):
        arguments = {"conv_dim": values["conv_dim"], "conv_alpha": values["conv_alpha"], **arguments}
    known = {"conv_dim", "conv_alpha", "algo", "dora_wd", "preset"}
    found = []
    wide = bool(optional_number(arguments.get("conv_dim"))) or arguments.get("preset") == "full"
    why = "Tandem has one rank and alpha for all layers" if wide else ""
    found.append(Outcome("lora_targets", "all" if wide else "attention_mlp", why, ("network_args", "conv_dim")))
    if arguments.get("algo", "lora") not in ("lora", "locon"):
        why = f"Tandem has no {arguments['algo']}: it trains plain LoRA and DoRA"
        found.append(Outcome("", why=why, keys=("network_args",)))
    if flag(arguments.get("dora_wd", False)):
        found.append(Outcome("lora_weight_decompose", True, keys=("network_args",)))
    rest = ", ".join(sorted(set(arguments) - known))
    if rest:
        found.append(Outcome("", why=f"Tandem's LoRA has no {rest}", keys=("network_args",)))
    return found


def _rates(values: Values) -> list[object]:
    """The learning rates of the text encoders, as many as are given."""
    if method(values) == "lora":
        given = values["text_encoder_lr"]
        return [] if given in (None, "") else items(given) or [0.0]
    one = values["learning_rate_te"]
    named = [values["learning_rate_te1"], values["learning_rate_te2"]]
    return [one] if one is not None else [value for value in named if value is not None]


def _trained(values: Values, xl: bool) -> tuple[bool, bool]:
    """Whether the UNet and the text encoders are trained."""
    if method(values) == "lora":
        unet, text = optional_number(values["unet_lr"]), any(optional_number(rate) for rate in _rates(values))
        only_unet = flag(values["network_train_unet_only"]) or bool(unet and _rates(values) and not text)
        only_text = flag(values["network_train_text_encoder_only"]) or bool(text and values["unet_lr"] == 0)
        return not only_text, not only_unet and not flag(values["cache_text_encoder_outputs"])
    if values["train_text_encoder"] is not None:
        return True, flag(values["train_text_encoder"])
    if xl:
        return True, any(optional_number(rate) for rate in _rates(values))
    stops = optional_number(values["stop_text_encoder_training"])
    return True, stops is None or stops > 0


TEXT_KEYS = {
    "lora": ("text_encoder_lr", "network_train_unet_only"),
    "fine_tune": ("train_text_encoder", "learning_rate_te", "learning_rate_te1", "learning_rate_te2"),
}


def _parts(values: Values) -> list[Outcome]:
    if method(values) == "embedding":
        return []
    xl = is_xl(values)
    unet, text = _trained(values, xl)
    keys = TEXT_KEYS[method(values)]
    found = [
        Outcome("parts.0.part", "unet", keys=("unet_lr",), quiet=True),
        Outcome("parts.0.train", unet, keys=("network_train_text_encoder_only",)),
    ]
    rate = optional_number(values["unet_lr"])
    if rate and unet:
        found.append(Outcome("parts.0.learning_rate", rate, keys=("unet_lr",)))
    encoders = ("text_encoder", "text_encoder_2") if xl else ("text_encoder",)
    rates = _rates(values)
    for place, part in enumerate(encoders):
        ours = f"parts.{place + 1}"
        found.append(Outcome(f"{ours}.part", part, keys=keys, quiet=True))
        found.append(Outcome(f"{ours}.train", text, keys=keys))
        rate = optional_number(rates[min(place, len(rates) - 1)]) if rates else None
        if rate and text:
            found.append(
                Outcome(f"{ours}.learning_rate", rate, keys=(keys[0],) if keys[0] == "text_encoder_lr" else keys[1:])
            )
        stops = optional_number(values["stop_text_encoder_training"])
        if stops and stops > 0 and text:
            stop = f"{whole(stops)} steps"
            found.append(Outcome(f"{ours}.stop_after", stop, keys=("stop_text_encoder_training",)))
    return found


def _clip_skip(values: Values) -> list[Outcome]:
    if values["clip_skip"] in BLANK:
        return []
    found = whole(values["clip_skip"])
    if is_xl(values):
        raise NotCarriedError("kohya's scripts pass over it for SDXL, which leaves out a layer by itself")
    why = "Tandem counts the layers that are left out, kohya the layer that is used" if found > 1 else ""
    return [Outcome("family_options.clip_skip", max(found - 1, 0), why, ("clip_skip",))]


def _loss(values: Values) -> list[Outcome]:
    name = str(values["loss_type"]).lower()
    ours = {"l2": "mse", "huber": "huber", "smooth_l1": "smooth_l1"}.get(name)
    if ours is None:
        raise NotCarriedError("Tandem has mse, huber and smooth_l1; set family_options.loss")
    if ours == "mse":
        return []
    why = "Tandem's bends at the same place at all noise levels" if values["huber_schedule"] != "constant" else ""
    return [
        Outcome("family_options.loss", ours, keys=("loss_type",)),
        Outcome("family_options.huber_delta", number(values["huber_c"]), why, ("huber_c", "huber_schedule")),
    ]


def _weighting(values: Values) -> list[Outcome]:
    gamma = optional_number(values["min_snr_gamma"])
    if flag(values["debiased_estimation_loss"]):
        return [Outcome("family_options.loss_weighting", "debiased", keys=("debiased_estimation_loss",))]
    if not gamma:
        return []
    keys = ("min_snr_gamma",)
    return [
        Outcome("family_options.loss_weighting", "min_snr", keys=keys),
        Outcome("family_options.min_snr_gamma", gamma, keys=keys),
    ]


def _offset(values: Values) -> list[Outcome]:
    strength = optional_number(values["noise_offset"])
    if not strength or str(values["noise_offset_type"]).lower() == "multires":
        return []
    why = "always this strength, not a random one below it" if flag(values["noise_offset_random_strength"]) else ""
    return [Outcome("family_options.offset_noise", strength, why)]


def share(value: object) -> object:
    """A timestep of 1000 as a share of all."""
    return number(value) / 1000 if value not in (None, "") else 0.0


def last_share(value: object) -> object:
    """As `share`; 0 means that it is not set."""
    return number(value) / 1000 if value not in BLANK else 1.0


def _long(value: object) -> object:
    return "chunk" if whole(value) > 75 else "truncate"


MODEL_RULES: tuple[Rule | Joint, ...] = (
    Joint(
        METHOD_KEYS, "method, embedding_token", _method,
        "a network module makes a LoRA, a token string an embedding; LoHa, LoKr and others become plain LoRA",
    ),
    Joint(
        FAMILY_KEYS, "base_model, family", _family,
        "sd-scripts has a program for each model; what the file does not say is guessed from the model's name",
        {**METHOD_KEYS, **XL_SIGNS},
    ),
    Rule("network_dim", "lora_rank", 4, whole),
    Rule("network_alpha", "lora_alpha", 1.0, number),
    Rule("network_dropout", "lora_dropout", 0.0, optional_number, ask=False),
    Joint(
        {"network_args": None, "conv_dim": 1, "conv_alpha": 1}, "lora_targets, lora_weight_decompose", _targets,
        "kohya's LoRA sits on attention and MLP; conv_dim adds the convolutions, with the same rank",
        METHOD_KEYS,
    ),
    Joint(
        {
            "unet_lr": None, "text_encoder_lr": None, "network_train_unet_only": False,
            "network_train_text_encoder_only": False, "train_text_encoder": None, "learning_rate_te": None,
            "learning_rate_te1": None, "learning_rate_te2": None, "stop_text_encoder_training": None,
        },
        "parts", _parts, "kohya trains text encoders unless told otherwise; Tandem lists what it trains",
        {**METHOD_KEYS, **FAMILY_KEYS, **XL_SIGNS},
    ),
    Rule("init_word", "embedding_init", None, str, ask=False),
    Rule("num_vectors_per_token", "embedding_vectors", 1, whole, ask=False),
    Rule(
        "v_parameterization", "family_options.prediction_type", False,
        lambda value: "v_prediction" if flag(value) else "auto", ask=False,
    ),
    Joint({"clip_skip": None}, "family_options.clip_skip", _clip_skip, "not for SDXL", {**FAMILY_KEYS, **XL_SIGNS}),
    Rule("zero_terminal_snr", "family_options.zero_terminal_snr", False, flag, ask=False),
    Rule("min_timestep", "family_options.min_timestep", 0, share, ask=False),
    Rule("max_timestep", "family_options.max_timestep", 1000, last_share, ask=False),
    Joint(
        {"noise_offset": None, "noise_offset_type": "Original", "noise_offset_random_strength": False},
        "family_options.offset_noise", _offset,
    ),
    Joint(
        {"min_snr_gamma": None, "debiased_estimation_loss": False}, "family_options.loss_weighting", _weighting
    ),
    Joint(
        {"loss_type": "l2", "huber_c": 0.1, "huber_schedule": "snr"}, "family_options.loss", _loss,
        "Tandem's Huber loss bends at the same place at all noise levels",
    ),
    Rule("max_token_length", "family_options.long_prompts", 75, _long, ask=False),
)  # fmt: skip

_LORA = "Tandem's LoRA has no such setting"
MODEL_WITHOUT: tuple[Without, ...] = (
    Without("stop_text_encoder_training_pct", 0, "a share of all steps; set stop_after of the part in steps"),
    Without("network_weights", None, "training does not begin from a LoRA; use --resume to continue a run"),
    Without("lora_network_weights", "", "training does not begin from a LoRA; use --resume to continue a run"),
    Without("weights", "", "training does not begin from an embedding; use --resume to continue a run"),
    Without("base_weights*", None, "merge LoRAs into the base model beforehand"),
    Without("dim_from_weights", False, "set lora_rank"),
    Without("rank_dropout", 0, _LORA),
    Without("rank_dropout_scale", False, _LORA),
    Without("module_dropout", 0, _LORA),
    Without("scale_weight_norms", 0, _LORA),
    Without("block_*", "", _LORA),
    Without("conv_block_*", "", _LORA),
    Without("*_lr_weight", "", _LORA),
    Without("LyCORIS_preset", "full", _LORA),
    Without("factor", -1, _LORA),
    Without("unit", 1, _LORA),
    Without("train_on_input", True, _LORA),
    *(
        Without(name, False, _LORA)
        for name in ("decompose_both", "rescaled", "train_norm", "use_cp", "use_scalar", "use_tucker", "split_mode")
    ),
    Without("constrain", 0.0, _LORA),
    Without("bypass_mode", False, _LORA),
    Without("dora_wd", False, "set lora_weight_decompose"),
    Without("use_object_template", False, "write captions"),
    Without("use_style_template", False, "write captions"),
    Without("template", "caption", "write captions"),
    Without("multires_noise_iterations", 0, "Tandem has offset_noise only"),
    Without("multires_noise_discount", 0.3, "Tandem has offset_noise only"),
    Without("adaptive_noise_scale", 0, "Tandem has offset_noise only"),
    Without("ip_noise_gamma", 0, "Tandem does not disturb the input"),
    Without("ip_noise_gamma_random_strength", False, "Tandem does not disturb the input"),
    Without("scale_v_pred_loss_like_noise_pred", False, "loss_weighting is what Tandem has"),
    Without("v_pred_like_loss", 0, "loss_weighting is what Tandem has"),
    Without("huber_scale", 1, "change learning_rate instead"),
    Without("weighted_captions", False, "brackets in captions are read as letters"),
    Without("no_token_padding", False, "prompts are always filled up"),
    Without("vae", None, "put the autoencoder into a diffusers folder"),
)
