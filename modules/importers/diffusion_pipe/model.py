"""The model, what is trained of it, and the loss."""

from __future__ import annotations

import re
from collections.abc import Mapping

from modules.facts import all_facts
from modules.importers import common
from modules.importers.flow_families import flow_family
from modules.importers.flow_rules import DIFFUSION_PIPE_RULES, PATH
from modules.importers.readers import boolean, choice, integer, model_path, number, optional_number
from modules.importers.rules import Assignment, CombinedRule, Rule, UnsupportedValueError, Values

SUBMODULE_RATES = {
    "unet": "model.unet_lr",
    "text_encoder": "model.text_encoder_1_lr",
    "text_encoder_2": "model.text_encoder_2_lr",
}
# models/sdxl.py: all linear layers in the UNet's blocks and in the text encoders.
TARGETS = r"^unet\.(\w+_blocks|mid_block)\..*(to_\w(\.0)?|to_out\.0|net\.2|proj|proj_in|proj_out)$|^text_encoder"
# models/sdxl.py, get_prompt_embeds
LONG_CAPTIONS = (
    "captions of more than 75 tokens are encoded in as many chunks as they have; Tandem cuts them off there, unless "
    "family_options.long_prompts is chunk"
)
_NO_FIRST_FRAMES = "diffusion-pipe trains this model on text alone, not on first frames"
# docs/supported_models.md: some models have the first, the others the second.
TRANSFORMER_FILES: Mapping[str, object] = {"model.diffusion_model": None, "model.transformer_path": None}
# Families that have the type of others, and their names tell.
_EDITS: Mapping[str, tuple[str, str]] = {
    name: facts.diffusion_pipe for name, facts in all_facts().items() if facts.diffusion_pipe
}
_NAMES: Mapping[str, object] = {"model.diffusers_path": None, "model.ckpt_path": None, **TRANSFORMER_FILES}
_NO_LAYOUT = "of the model's own components: set family_options.layout, or leave it empty for the hub's"


def kind_of(values: Mapping[str, object]) -> str | None:
    """The family of flow-matching models; some have the type of others, and a name that tells."""
    kind = flow_family(values.get("model.type"))
    names = " ".join(str(values.get(name) or "") for name in _NAMES).lower()
    return next((name for name, (of, found) in _EDITS.items() if of == kind and re.search(found, names)), kind)


def _family(values: Values) -> list[Assignment]:
    name = str(values["model.type"] or "").lower()
    if name == "sdxl":
        return [Assignment("family", "stable_diffusion_xl", LONG_CAPTIONS)]
    if (family := kind_of(values)) is not None:
        clips, share = all_facts()[family].clips, f"{PATH}first_frame_conditioning"
        text_alone = [Assignment(share, 0.0, _NO_FIRST_FRAMES)] if clips and clips.first_frame else []
        return [Assignment("family", family), *text_alone]
    return [Assignment("family", name.replace("-", "_") or "unknown", common.NO_FAMILY)] if name else []


def _base_model(values: Values) -> list[Assignment]:
    """A checkpoint, a diffusers folder, or for most flow-matching models a transformer's file, whose other components
    such a folder has. Chroma's are those of FLUX.1 there, and those of a model that edits may be the other one's, which
    lack the processor."""
    checkpoint, folder = (values[f"model.{name}"] for name in ("checkpoint_path", "diffusers_path"))
    key = next((key for key in TRANSFORMER_FILES if values[key] is not None), "")
    kind = kind_of(values)
    if not key or kind is None:
        keys = ("model.checkpoint_path" if folder is None else "model.diffusers_path",)
        base = checkpoint if folder is None else folder
        return [] if base is None else [Assignment("base_model", model_path(base), keys=keys)]
    found = [Assignment("base_model", model_path(values[key]), keys=(key,))]
    if folder is not None:
        edits = _EDITS.get(kind) if all_facts()[kind].processor else None
        is_other = kind == "chroma" or (edits is not None and not re.search(edits[1], str(folder).lower()))
        target, why = ("", _NO_LAYOUT) if is_other else ("flow_options.layout", "")
        found.append(Assignment(target, model_path(folder) if target else None, why, ("model.diffusers_path",)))
    return found


def _method(values: Values) -> list[Assignment]:
    kind = str(values["adapter.type"] or "").lower()
    if not kind:
        return [Assignment("method", "fine_tune")]
    why = "" if kind == "lora" else common.LORA_INSTEAD
    is_xl = str(values["model.type"]).lower() == "sdxl"
    found = [
        Assignment("method", "lora", why, ("adapter.type",)),
        Assignment("lora_targets", TARGETS if is_xl else "blocks", keys=("adapter.type",)),
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


def _huber(values: Values) -> list[Assignment]:
    bend = optional_number(values["pseudo_huber_c"])
    if bend and str(values["model.type"]).lower() == "sdxl":
        raise UnsupportedValueError("diffusion-pipe does not use it for SDXL")
    return [Assignment("family_options.loss", "huber"), Assignment("family_options.huber_delta", bend)] if bend else []


_PRECISION = choice(
    {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"},
    "Tandem trains in fp32, tf32, bf16 or fp16; set precision",
)
MODEL_RULES: tuple[Rule | CombinedRule, ...] = (
    CombinedRule(
        {"adapter.type": None, "adapter.rank": None}, "method, lora_rank, lora_alpha, lora_targets", _method,
        "diffusion-pipe's alpha is the rank, and its LoRA is on all linear layers of blocks and SDXL's text encoders",
        {"model.type": None},
    ),
    CombinedRule(
        {"model.type": None}, "family, family_options.first_frame_conditioning", _family, "a model that edits or "
        "animates images has another's type there: its name tells it",
        _NAMES,
    ),
    CombinedRule(
        {"model.checkpoint_path": None, "model.diffusers_path": None, **TRANSFORMER_FILES},
        "base_model, family_options.layout", _base_model, "a transformer's file has its other components in layout",
        {"model.type": None, "model.ckpt_path": None},
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
)  # fmt: skip
