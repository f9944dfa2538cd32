"""How each of OneTrainer's submodules is trained. Names and defaults as in its modules/util/config/TrainConfig.py."""

from __future__ import annotations

from collections.abc import Mapping

from modules.facts import all_facts
from modules.importers.flow_families import flow_family
from modules.importers.memory import ENCODERS, QUANTIZED
from modules.importers.onetrainer.values import RATE_USES, interval, interval_change, rate_factor
from modules.importers.readers import PRECISIONS, boolean, number
from modules.importers.rules import Assignment, CombinedRule, Unsupported, Values, is_default

SUBMODULES = ("unet", "text_encoder", "text_encoder_2", "text_encoder_3")
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
# modules/util/create.py: the optimizers that round updates of bf16 weights at random, and, as far as
# modules/util/optimizer_util.py says, whether they do so by default; others lose small updates.
ROUNDING = {
    "ADAFACTOR": True, "PRODIGY_PLUS_SCHEDULE_FREE": True, "ADAM": False, "ADAMW": False, "CAME": False,
    "CAME_8BIT": False,
    **{f"{name}_ADV": True for name in ("ADAMW", "ADOPT", "PRODIGY", "SIGNSGD", "LION", "MUON", "ADAMUON")},
}  # fmt: skip
ROUNDING_USES: Mapping[str, object] = {
    "training_method": "FINE_TUNE", "model_type": "STABLE_DIFFUSION_15", "optimizer.optimizer": "ADAMW",
    "optimizer.stochastic_rounding": None, "unet.weight_dtype": "FLOAT_32", "transformer.weight_dtype": "FLOAT_32",
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
    "offload_fraction": "frozen models leave the GPU once captions are cached (family_options.offload_frozen)",
    "activation_offloading": OTHER_MEMORY,
    "dropout_probability": "all text encoders share caption_dropout",
}
OTHER_SUBMODULES = (
    "vae", "prior", "unconditional_transformer", "text_encoder_4", "effnet_encoder", "decoder", "decoder_text_encoder",
    "decoder_vqgan",
)  # fmt: skip


def submodule_rule(index: int, part: str) -> CombinedRule:
    """How one submodule is trained; `index` is its position in `parts`, where unet and transformer share the first."""
    names = ("train", "learning_rate", "stop_training_after", "stop_training_after_unit", "weight_dtype")
    keys = {f"{part}.{name}": SUBMODULE_DEFAULTS[name] for name in names}
    if part not in NETWORKS:
        keys |= {f"{part}.stop_training_after": 30, f"{part}.stop_training_after_unit": "EPOCH"}
        keys |= {f"{part}.train_embedding": True}

    def read(values: Values) -> list[Assignment]:
        kind = values["model_type"]
        family = flow_family(kind)
        if part in NETWORKS:
            is_there = part == network_section(values)
        else:
            count = all_facts()[family].onetrainer_encoders if family else 1 + ("XL" in str(kind).upper())
            is_there = part in SUBMODULES[1 : 1 + count]
            if is_there and family is not None:
                return _read_frozen_encoder(values, part, family, is_large=part == SUBMODULES[count])
        return _read_submodule(values, part, f"parts.{index}") if is_there else _absent(values, keys, part)

    uses = {
        **ROUNDING_USES, "learning_rate_scaler": "NONE", "learning_rate": 3e-6, "train_dtype": "FLOAT_16",
        **RATE_USES,
    }  # fmt: skip
    target = "family_options.text_encoder_weights" if part == SUBMODULES[-1] else f"parts.{index}"
    return CombinedRule(keys, target, read, "each submodule with its own learning rate and stop", uses)


def _read_submodule(values: Values, part: str, prefix: str) -> list[Assignment]:
    is_embedding = str(values["training_method"]).upper() == "EMBEDDING"
    is_fine_tune = str(values["training_method"]).upper() == "FINE_TUNE"
    switch = f"{part}.train_embedding" if is_embedding and part not in NETWORKS else f"{part}.train"
    trained = boolean(values[switch]) and not (is_embedding and part in NETWORKS)
    found = [
        Assignment(f"{prefix}.part", part, keys=(switch,), quiet=True),
        Assignment(f"{prefix}.train", trained, keys=(switch,)),
    ]
    rate = values[f"{part}.learning_rate"]
    if rate is not None and trained and not is_embedding:  # which has a rate of its own
        factor = rate_factor(values)
        why = "" if factor == 1 else f"multiplied by {factor:.4g}, as learning_rate_scaler does"
        found.append(Assignment(f"{prefix}.learning_rate", number(rate) * factor, why, (f"{part}.learning_rate",)))
    ends = (f"{part}.stop_training_after", f"{part}.stop_training_after_unit")
    stop = interval(values[ends[0]], values[ends[1]], values)
    if trained and not is_embedding:  # which has a stop of its own
        why = interval_change(values[ends[1]], values)
        found.append(Assignment(f"{prefix}.stop_after", stop, why, ends))
    return [*found, _weights(values, part, prefix, trained=is_fine_tune and trained)]


def _read_embedding_stop(values: Values) -> list[Assignment]:
    """When an embedding stops, which its text encoders' stops do not change (modules/modelSetup/BaseModelSetup.py)."""
    ends = ("embedding.stop_training_after", "embedding.stop_training_after_unit")
    stop = interval(values[ends[0]], values[ends[1]], values)
    if str(values["training_method"]).upper() != "EMBEDDING" or stop == "never":
        return []
    count = 2 if "XL" in str(values["model_type"]).upper() else 1
    why = interval_change(values[ends[1]], values)
    return [
        Assignment(f"parts.{index}.stop_after", stop, why, ends)
        for index, part in enumerate(SUBMODULES[1 : 1 + count], 1)
        if boolean(values[f"{part}.train_embedding"])
    ]


EMBEDDING_STOP_RULE = CombinedRule(
    {"embedding.stop_training_after": None, "embedding.stop_training_after_unit": "NEVER"},
    "parts.1.stop_after", _read_embedding_stop, "of all text encoders",
    {
        "training_method": "FINE_TUNE", "model_type": "STABLE_DIFFUSION_15", "text_encoder.train_embedding": True,
        "text_encoder_2.train_embedding": True, **RATE_USES,
    },
)  # fmt: skip


def _read_frozen_encoder(values: Values, part: str, family: str, *, is_large: bool) -> list[Assignment]:
    """A text encoder of a flow-matching family, which Tandem does not train."""
    switch, key = f"{part}.train", f"{part}.weight_dtype"
    if all_facts()[family].onetrainer_trains_encoders and boolean(values[switch]):
        found = [Assignment("", why="Tandem trains the transformer only", keys=(switch,))]
    else:
        told = not boolean(values[switch])
        found = [Assignment("parts.0.part", "transformer", keys=(switch,), quiet=not told)]
    name = str(values[key]).lower()
    kept = PRECISIONS.get(name) or _QUANTIZED.get(name)
    option = "flow_options.text_encoder_weights"
    if is_large and kept in QUANTIZED:
        return [*found, Assignment(option, kept, ENCODERS, (key,))]
    if name == "float_32":
        return found
    why = "" if kept == PRECISIONS.get(str(values["train_dtype"]).lower()) else "they keep the run's precision"
    return [*found, Assignment(option if is_large or not why else "", "run", why, (key,))]


def rounds_stochastically(values: Values) -> bool:
    """Whether the network's trained weights are kept in bf16 and rounded at random, from `ROUNDING_USES`."""
    is_bf16 = PRECISIONS.get(str(values[f"{network_section(values)}.weight_dtype"]).lower()) == "bf16"
    is_fine_tune = str(values["training_method"]).upper() == "FINE_TUNE"
    name, given = str(values["optimizer.optimizer"]).upper(), values["optimizer.stochastic_rounding"]
    return is_bf16 and is_fine_tune and name in ROUNDING and (ROUNDING[name] if given is None else boolean(given))


def network_section(values: Values) -> str:
    """The section of the network that is trained."""
    name = str(values["model_type"]).upper()
    is_unet = name.startswith(("STABLE_DIFFUSION_1", "STABLE_DIFFUSION_2", "STABLE_DIFFUSION_X"))
    return "transformer" if flow_family(name) or not is_unet else "unet"


def _weights(values: Values, part: str, prefix: str, *, trained: bool) -> Assignment:
    key = f"{part}.weight_dtype"
    name = str(values[key]).lower()
    kept = PRECISIONS.get(name) or _QUANTIZED.get(name)
    if trained and part in NETWORKS and rounds_stochastically(values):
        return Assignment("stochastic_rounding", True, keys=(key,))
    if trained and kept != "fp32":
        return Assignment("", why="weights that are trained are kept in fp32", keys=(key,))
    if kept is None:
        return Assignment("", why="Tandem has no such format; they keep the run's precision", keys=(key,))
    is_fine_tune = str(values["training_method"]).upper() == "FINE_TUNE"
    is_as_the_run = is_fine_tune and kept == PRECISIONS.get(str(values["train_dtype"]).lower())
    if is_fine_tune and kept in ("bf16", "fp16") and not is_as_the_run:
        return Assignment("", why="they keep the run's precision", keys=(key,))
    why = "activations are quantised there, too" if name.endswith("w8a8") else ""
    return Assignment(f"{prefix}.weights", "run" if kept == "tf32" or is_as_the_run else kept, why, (key,))


def _absent(values: Values, keys: Mapping[str, object], part: str) -> list[Assignment]:
    why = f"the model type has no {part}"
    return [
        Assignment("", why=why, keys=(key,)) for key, default in keys.items() if not is_default(values[key], default)
    ]


def unsupported_submodule_settings() -> tuple[Unsupported, ...]:
    """One row for each setting of each submodule without a rule."""
    found = []
    for part in ("transformer", *SUBMODULES, *OTHER_SUBMODULES):
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
