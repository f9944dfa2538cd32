"""OneTrainer: what is trained, and towards what. Names and defaults as in its modules/util/config/TrainConfig.py."""

from __future__ import annotations

import re
from collections.abc import Mapping

from modules.config.importing.onetrainer_values import RATE_USES, interval, rate_factor
from modules.config.importing.readers import (
    PRECISIONS,
    choice,
    flag,
    model_path,
    number,
    save_dtype,
    some_text,
    text,
    whole,
)
from modules.config.importing.rules import Changed, Joint, NotCarriedError, Outcome, Rule, Values, Without

PARTS = ("unet", "text_encoder", "text_encoder_2")
# What each part of a model has, with the defaults of the parts that are trained by default.
PART_DEFAULTS: Mapping[str, object] = {
    "model_name": "",
    "include": True,
    "train": True,
    "stop_training_after": None,
    "stop_training_after_unit": "NEVER",
    "learning_rate": None,
    "weight_dtype": "FLOAT_32",
    "dropout_probability": 0.0,
    "train_embedding": True,
    "attention_mask": False,
    "guidance_scale": 1.0,
    "gradient_checkpointing": True,
    "offload_fraction": 0.0,
    "activation_offloading": False,
}
TARGETS = {
    "full": "all",
    "attn-mlp": "attention_mlp",
    "attn-only": "attention",
    "attn": "attention",
}


def _family(value: object) -> object:
    name = str(value).upper()
    if name.startswith("STABLE_DIFFUSION_XL"):
        return "stable_diffusion_xl"
    if name == "STABLE_DIFFUSION_20_DEPTH":
        return Changed("stable_diffusion", "Tandem has no depth input: choose another base model")
    if re.match(r"STABLE_DIFFUSION_(15|20|21)", name):
        return "stable_diffusion"
    return Changed(name.lower() or "unknown", "Tandem has no such model family yet: choose another one")


def _targets(values: Values) -> list[Outcome]:
    """Which layers carry adapters."""
    preset, pattern = text(values["layer_filter_preset"]).lower(), text(values["layer_filter"]).strip()
    keys = ("layer_filter_preset", "layer_filter", "layer_filter_regex")
    if str(values["training_method"]).upper() != "LORA":
        filtered = preset != "full" or bool(pattern)
        return [Outcome("", why="layers can be chosen for LoRA only", keys=keys)] if filtered else []
    if preset in TARGETS:
        return [Outcome("lora_targets", TARGETS[preset], keys=keys[:1])]
    if not pattern:
        raise NotCarriedError("Tandem has no such preset; set lora_targets")
    parts = [part.strip() for part in pattern.split(",") if part.strip()]
    patterns = parts if flag(values["layer_filter_regex"]) else [re.escape(part) for part in parts]
    why = "written as regular expressions on the names of diffusers' modules; check that they match"
    return [Outcome("lora_targets", ",".join(f".*{one}.*" for one in patterns), why, keys)]


def _part(place: int, part: str) -> Joint:
    """How one part is trained; `place` is its number in our list of parts."""
    names = ("train", "learning_rate", "stop_training_after", "stop_training_after_unit", "weight_dtype")
    keys = {f"{part}.{name}": PART_DEFAULTS[name] for name in names}
    if part != "unet":
        keys |= {f"{part}.stop_training_after": 30, f"{part}.stop_training_after_unit": "EPOCH"}
        keys |= {f"{part}.train_embedding": True}

    def read(values: Values) -> list[Outcome]:
        found = _read_part(values, part, f"parts.{place}")
        return found if _has(str(values["model_type"]), part) else _absent(values, keys, part)

    uses = {
        "training_method": "FINE_TUNE", "model_type": "STABLE_DIFFUSION_15", "learning_rate_scaler": "NONE",
        "learning_rate": 3e-6, **RATE_USES,
    }  # fmt: skip
    return Joint(keys, f"parts.{place}", read, "each part of the model with its own learning rate and end", uses)


def _read_part(values: Values, part: str, ours: str) -> list[Outcome]:
    method = str(values["training_method"]).upper()
    switch = f"{part}.train"
    if method == "EMBEDDING" and part != "unet":
        switch = f"{part}.train_embedding"
    trained = flag(values[switch]) and not (method == "EMBEDDING" and part == "unet")
    found = [
        Outcome(f"{ours}.part", part, keys=(switch,), quiet=True),
        Outcome(f"{ours}.train", trained, keys=(switch,)),
    ]
    rate = values[f"{part}.learning_rate"]
    if rate is not None and trained:
        factor = rate_factor(values)
        why = "" if factor == 1 else f"multiplied by {factor:.4g}, as learning_rate_scaler does"
        found.append(Outcome(f"{ours}.learning_rate", number(rate) * factor, why, (f"{part}.learning_rate",)))
    ends = (f"{part}.stop_training_after", f"{part}.stop_training_after_unit")
    stop = interval(values[ends[0]], values[ends[1]])
    if stop != "never" and trained:
        found.append(Outcome(f"{ours}.stop_after", stop, keys=ends))
    return [*found, _weights(values, part, ours, frozen=method != "FINE_TUNE" or not trained)]


def _weights(values: Values, part: str, ours: str, *, frozen: bool) -> Outcome:
    key = f"{part}.weight_dtype"
    name = str(values[key]).lower()
    kept = PRECISIONS.get(name)
    if not frozen and kept != "fp32":
        return Outcome("", why="weights that are trained are kept in fp32", keys=(key,))
    if kept is None:
        return Outcome("", why="Tandem does not quantise weights; they keep the run's number format", keys=(key,))
    return Outcome(f"{ours}.weights", "run" if kept == "tf32" else kept, keys=(key,))


def _has(model_type: str, part: str) -> bool:
    return part != "text_encoder_2" or "XL" in model_type.upper()


def _absent(values: Values, keys: Mapping[str, object], part: str) -> list[Outcome]:
    why = f"the model type has no part {part}"
    return [Outcome("", why=why, keys=(key,)) for key, default in keys.items() if values[key] != default]


def _prediction(values: Values) -> list[Outcome]:
    v, epsilon = flag(values["force_v_prediction"]), flag(values["force_epsilon_prediction"])
    name = "v_prediction" if v else "epsilon" if epsilon else "auto"
    return [Outcome("family_options.prediction_type", name)] if name != "auto" else []


def _loss(values: Values) -> list[Outcome]:
    strength = {name: number(values[f"{name}_strength"]) for name in ("mse", "mae", "log_cosh", "huber")}
    found = [
        Outcome("", why="Tandem has MSE, Huber and smooth L1, one at a time", keys=(f"{name}_strength",))
        for name in ("mae", "log_cosh")
        if strength[name]
    ]
    if strength["huber"] and strength["huber"] >= strength["mse"]:
        why = "the mixture with MSE is left out" if strength["mse"] else ""
        found.append(Outcome("family_options.loss", "huber", why, ("huber_strength", "mse_strength")))
        found.append(Outcome("family_options.huber_delta", number(values["huber_delta"]), keys=("huber_delta",)))
    elif strength["huber"]:
        found.append(Outcome("", why="the losses are not mixed; MSE weighs more and is used", keys=("huber_strength",)))
    return found


def _loss_weight(values: Values) -> list[Outcome]:
    name = str(values["loss_weight_fn"]).upper()
    ours = {"CONSTANT": "none", "MIN_SNR_GAMMA": "min_snr", "DEBIASED_ESTIMATION": "debiased"}.get(name)
    if ours is None:
        raise NotCarriedError("Tandem has min_snr and debiased; set family_options.loss_weighting")
    found = [Outcome("family_options.loss_weighting", ours, keys=("loss_weight_fn",))] if ours != "none" else []
    if ours == "min_snr":
        gamma = number(values["loss_weight_strength"])
        found.append(Outcome("family_options.min_snr_gamma", gamma, keys=("loss_weight_strength",)))
    return found


def _timesteps(values: Values) -> list[Outcome]:
    name = str(values["timestep_distribution"]).upper()
    if name not in ("UNIFORM", "LOGIT_NORMAL"):
        raise NotCarriedError("Tandem has uniform and logit_normal; set family_options.timestep_distribution")
    if name == "UNIFORM":
        return []
    return [Outcome("family_options.timestep_distribution", name.lower(), keys=("timestep_distribution",))]


def _layouts(values: Values) -> list[Outcome]:
    """What the result is written as."""
    name, method = str(values["output_model_format"]).upper(), str(values["training_method"]).upper()
    if method == "LORA":
        return [Outcome("lora_layouts", "diffusers" if "DIFFUSERS" in name or "PEFT" in name else "kohya")]
    if method != "FINE_TUNE":
        return []
    why = "a pickle can run code when it is opened; Tandem writes safetensors" if name == "CKPT" else ""
    return [Outcome("save_single_file", name != "DIFFUSERS", why)]


METHODS = choice(
    {"fine_tune": "fine_tune", "lora": "lora", "embedding": "embedding"},
    "Tandem has fine_tune, lora and embedding; set method",
)
_NO_LORA = "only for adapters that Tandem does not have"

MODEL_RULES: tuple[Rule | Joint, ...] = (
    Rule("model_type", "family", "STABLE_DIFFUSION_15", _family),
    Rule("training_method", "method", "FINE_TUNE", METHODS),
    Rule("base_model_name", "base_model", "stable-diffusion-v1-5/stable-diffusion-v1-5", model_path),
    Rule("lora_rank", "lora_rank", 16, whole),
    Rule("lora_alpha", "lora_alpha", 1.0, number),
    Rule("dropout_probability", "lora_dropout", 0.0, number),
    Rule("lora_decompose", "lora_weight_decompose", False, flag),
    Joint(
        {"layer_filter_preset": "full", "layer_filter": "", "layer_filter_regex": False},
        "lora_targets",
        _targets,
        "patterns become regular expressions",
        {"training_method": "FINE_TUNE"},
    ),
    *(_part(place, part) for place, part in enumerate(PARTS)),
    Rule("embedding.placeholder", "embedding_token", "<embedding>", some_text, ask=False),
    Rule("embedding.initial_embedding_text", "embedding_init", "*", text, ask=False),
    Rule("embedding.token_count", "embedding_vectors", 1, whole, ask=False),
    Joint(
        {"force_v_prediction": False, "force_epsilon_prediction": False},
        "family_options.prediction_type",
        _prediction,
    ),
    Rule("rescale_noise_scheduler_to_zero_terminal_snr", "family_options.zero_terminal_snr", False, flag, ask=False),
    Rule("offset_noise_weight", "family_options.offset_noise", 0.0, number, ask=False),
    Rule("min_noising_strength", "family_options.min_timestep", 0.0, number, ask=False),
    Rule("max_noising_strength", "family_options.max_timestep", 1.0, number, ask=False),
    Joint({"timestep_distribution": "UNIFORM"}, "family_options.timestep_distribution", _timesteps),
    Joint(
        {"mse_strength": 1.0, "mae_strength": 0.0, "log_cosh_strength": 0.0, "huber_strength": 0.0, "huber_delta": 1.0},
        "family_options.loss",
        _loss,
        "losses are not mixed: the stronger of MSE and Huber is used",
    ),
    Joint({"loss_weight_fn": "CONSTANT", "loss_weight_strength": 5.0}, "family_options.loss_weighting", _loss_weight),
    Rule("text_encoder_layer_skip", "family_options.clip_skip", 0, whole, ask=False),
    Rule("output_dtype", "save_dtype", "FLOAT_32", save_dtype),
    Joint(
        {"output_model_format": "SAFETENSORS"},
        "lora_layouts, save_single_file",
        _layouts,
        "for LoRA the key layout, for a whole model whether one file is written as well",
        {"training_method": "FINE_TUNE"},
    ),
)

MODEL_WITHOUT: tuple[Without, ...] = (
    Without("peft_type", "LORA", "Tandem trains LoRA and DoRA; LoHa, LoKr and OFT are not there"),
    Without("lora_model_name", "", "training does not begin from a LoRA; use --resume to continue a run"),
    Without("lora_decompose_norm_epsilon", True, "peft's DoRA decides it"),
    Without("lora_decompose_output_axis", False, "peft's DoRA decides it"),
    Without("lora_weight_dtype", "FLOAT_32", "adapters are always trained in fp32"),
    Without("bundle_additional_embeddings", True, "one thing is trained at a time"),
    Without("oft_block_size", 32, _NO_LORA),
    Without("oft_block_share", False, _NO_LORA),
    Without("dora_oft", False, _NO_LORA),
    Without("oft_scaled", False, _NO_LORA),
    Without("oft_clipped_norm", 0.95, _NO_LORA),
    Without("oft_cans", False, _NO_LORA),
    Without("lokr_dim", 16, _NO_LORA),
    Without("lokr_decompose_factor", -1, _NO_LORA),
    Without("lokr_dora_on_output", True, _NO_LORA),
    Without("lokr_vec_trick", True, _NO_LORA),
    Without("lokr_*", False, _NO_LORA),
    Without("preserve_embedding_norm", False, "Tandem trains the vectors freely"),
    Without("embedding_weight_dtype", "FLOAT_32", "embeddings are always trained in fp32"),
    Without("additional_embeddings", [], "one embedding is trained at a time", whole=True),
    Without("embedding.uuid", None, "a name that only OneTrainer uses"),
    Without("embedding.model_name", "", "training does not begin from an embedding; use --resume"),
    Without("embedding.train", True, "method decides what is trained"),
    Without("embedding.stop_training_after", None, "set epochs"),
    Without("embedding.stop_training_after_unit", "NEVER", "set epochs"),
    Without("embedding.is_output_embedding", False, "Tandem trains input embeddings"),
    Without("text_encoder_2_layer_skip", 0, "one clip_skip holds for both text encoders"),
    Without("text_encoder_?_layer_skip", 0, "no model family of Tandem has this text encoder"),
    Without("text_encoder_sequence_length", 512, "for models with a T5 or LLM text encoder"),
    Without("text_encoder_2_sequence_length", 77, "for models with a T5 or LLM text encoder"),
    Without("generalized_offset_noise", False, "Tandem has the plain offset noise"),
    Without("perturbation_noise_weight", 0.0, "Tandem does not disturb the input"),
    Without("noising_weight", 0.0, "the shape of the timestep distribution cannot be set"),
    Without("noising_bias", 0.0, "the shape of the timestep distribution cannot be set"),
    Without("timestep_shift", 1.0, "for flow models, which Tandem has none of yet"),
    Without("dynamic_timestep_shifting", False, "for flow models, which Tandem has none of yet"),
    Without("cep_gamma", 0.0, "Tandem has no such loss"),
    Without("vb_loss_strength", 1.0, "for PixArt only"),
    Without("loss_scaler", "NONE", "change learning_rate instead"),
    Without("force_circular_padding", False, "Tandem does not train tileable textures"),
    Without("quantization", {}, "Tandem does not quantise weights", whole=True),
    Without("extra_model_name", "", "Tandem's families need no second model"),
    Without("custom_conditioning_image", False, "Tandem takes no conditioning pictures"),
)
