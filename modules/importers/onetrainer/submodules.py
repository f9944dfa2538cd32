"""How each of OneTrainer's submodules is trained. Names and defaults as in its modules/util/config/TrainConfig.py."""

from __future__ import annotations

from collections.abc import Mapping

from modules.importers.flow_families import flow_family
from modules.importers.memory import SET_OFFLOAD
from modules.importers.onetrainer.values import RATE_USES, interval, interval_change, rate_factor
from modules.importers.readers import PRECISIONS, boolean, number
from modules.importers.rules import Assignment, CombinedRule, Unsupported, Values

SUBMODULES = ("unet", "text_encoder", "text_encoder_2")
NETWORKS = ("unet", "transformer")  # of which a model has one
# The settings of each submodule, with the defaults of those that are trained by default.
SUBMODULE_DEFAULTS: Mapping[str, object] = {
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
_QUANTIZED = {"int_8": "int8", "int_w8a8": "int8", "float_8": "fp8", "float_w8a8": "fp8", "nfloat_4": "nf4"}
ROUNDING_USES: Mapping[str, object] = {
    "training_method": "FINE_TUNE", "model_type": "STABLE_DIFFUSION_15", "optimizer.stochastic_rounding": False,
    "unet.weight_dtype": "FLOAT_32", "transformer.weight_dtype": "FLOAT_32",
}  # fmt: skip
OTHER_MEMORY = "Tandem has other ways to save memory: gradient_checkpointing, and parts with weights in bf16"
# The other settings of submodules: offloading, separate files, and submodules that no family of Tandem has.
SUBMODULE_REASONS = {
    "model_name": "put the submodule into the base model's folder",
    "include": "all submodules are loaded",
    "train_embedding": "only text encoders have embeddings of tokens",
    "attention_mask": "for models with a T5 or LLM text encoder",
    "guidance_scale": "for guidance-distilled models",
    "gradient_checkpointing": "all submodules share gradient_checkpointing",
    "offload_fraction": SET_OFFLOAD,
    "activation_offloading": OTHER_MEMORY,
    "dropout_probability": "all text encoders share caption_dropout",
}
OTHER_SUBMODULES = (
    "vae", "prior", "unconditional_transformer", "text_encoder_3", "text_encoder_4", "effnet_encoder",
    "decoder", "decoder_text_encoder", "decoder_vqgan",
)  # fmt: skip


def submodule_rule(index: int, part: str) -> CombinedRule:
    """How one submodule is trained; `index` is its position in `parts`, where unet and transformer share the first."""
    names = ("train", "learning_rate", "stop_training_after", "stop_training_after_unit", "weight_dtype")
    keys = {f"{part}.{name}": SUBMODULE_DEFAULTS[name] for name in names}
    if part not in NETWORKS:
        keys |= {f"{part}.stop_training_after": 30, f"{part}.stop_training_after_unit": "EPOCH"}
        keys |= {f"{part}.train_embedding": True}

    def read(values: Values) -> list[Assignment]:
        found = _read_submodule(values, part, f"parts.{index}")
        if part in NETWORKS:
            is_there = part == network_section(values)
        else:
            kind = values["model_type"]
            is_there = part != "text_encoder_2" or "XL" in str(kind).upper() or flow_family(kind) is not None
        return found if is_there else _absent(values, keys, part)

    uses = {
        **ROUNDING_USES, "learning_rate_scaler": "NONE",
        "learning_rate": 3e-6, **RATE_USES,
    }  # fmt: skip
    return CombinedRule(keys, f"parts.{index}", read, "each submodule with its own learning rate and stop", uses)


def _read_submodule(values: Values, part: str, prefix: str) -> list[Assignment]:
    method = str(values["training_method"]).upper()
    switch = f"{part}.train"
    if method == "EMBEDDING" and part not in NETWORKS:
        switch = f"{part}.train_embedding"
    trained = boolean(values[switch]) and not (method == "EMBEDDING" and part in NETWORKS)
    found = [
        Assignment(f"{prefix}.part", part, keys=(switch,), quiet=True),
        Assignment(f"{prefix}.train", trained, keys=(switch,)),
    ]
    rate = values[f"{part}.learning_rate"]
    if rate is not None and trained:
        factor = rate_factor(values)
        why = "" if factor == 1 else f"multiplied by {factor:.4g}, as learning_rate_scaler does"
        found.append(Assignment(f"{prefix}.learning_rate", number(rate) * factor, why, (f"{part}.learning_rate",)))
    ends = (f"{part}.stop_training_after", f"{part}.stop_training_after_unit")
    stop = interval(values[ends[0]], values[ends[1]], values)
    if stop != "never" and trained:
        why = interval_change(values[ends[1]], values)
        found.append(Assignment(f"{prefix}.stop_after", stop, why, ends))
    return [*found, _weights(values, part, prefix, frozen=method != "FINE_TUNE" or not trained)]


def rounds_stochastically(values: Values) -> bool:
    """Whether the network's trained weights are kept in bf16 and rounded at random, from `ROUNDING_USES`."""
    is_bf16 = PRECISIONS.get(str(values[f"{network_section(values)}.weight_dtype"]).lower()) == "bf16"
    is_fine_tune = str(values["training_method"]).upper() == "FINE_TUNE"
    return is_bf16 and is_fine_tune and boolean(values["optimizer.stochastic_rounding"])


def network_section(values: Values) -> str:
    """The section of the network that is trained."""
    return "transformer" if flow_family(values["model_type"]) else "unet"


def _weights(values: Values, part: str, prefix: str, *, frozen: bool) -> Assignment:
    key = f"{part}.weight_dtype"
    name = str(values[key]).lower()
    kept = PRECISIONS.get(name) or _QUANTIZED.get(name)
    if not frozen and part in NETWORKS and rounds_stochastically(values):
        return Assignment("stochastic_rounding", True, keys=(key,))
    if not frozen and kept != "fp32":
        return Assignment("", why="weights that are trained are kept in fp32", keys=(key,))
    if kept is None:
        return Assignment("", why="Tandem has no such format; they keep the run's precision", keys=(key,))
    return Assignment(f"{prefix}.weights", "run" if kept == "tf32" else kept, keys=(key,))


def _absent(values: Values, keys: Mapping[str, object], part: str) -> list[Assignment]:
    why = f"the model type has no {part}"
    return [Assignment("", why=why, keys=(key,)) for key, default in keys.items() if values[key] != default]


def unsupported_submodule_settings() -> tuple[Unsupported, ...]:
    """One row for each setting of each submodule without a rule."""
    found = []
    for part in ("unet", "transformer", "text_encoder", "text_encoder_2", *OTHER_SUBMODULES):
        for name, default in SUBMODULE_DEFAULTS.items():
            if part in OTHER_SUBMODULES:
                why = (
                    "Tandem does not train the VAE" if part == "vae" else "of model families that Tandem does not have"
                )
            else:
                why = SUBMODULE_REASONS.get(name, "")  # without one it has a rule
            default_there = default
            if part.startswith("text_encoder_") and name.startswith("stop_training_after"):
                default_there = 30 if name == "stop_training_after" else "EPOCH"
            elif part == "unconditional_transformer" and name in ("train", "gradient_checkpointing"):
                default_there = False
            found.append(Unsupported(f"{part}.{name}", why, default_there))
    return tuple(found)
