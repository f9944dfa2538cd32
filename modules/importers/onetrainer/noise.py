"""Which noise levels OneTrainer trains how often, and the guidance input of distilled models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from modules.facts import all_facts
from modules.importers.flow_families import known_family
from modules.importers.flow_rules import OWN, PATH, option, static_shift, timestep_rule
from modules.importers.readers import boolean, number
from modules.importers.rules import Assignment, CombinedRule, UnsupportedValueError, Values, is_default


def _shift(values: Values) -> list[Assignment]:
    key, family = "dynamic_timestep_shifting", known_family(values["model_type"])
    is_dynamic = boolean(values[key])
    kind = all_facts()[family].onetrainer_shift if family else "same"
    if is_dynamic and kind != "none":
        why = "another shift by resolution there, the model's own here" if kind == "other" else ""
        return [Assignment(f"{PATH}timestep_shift", "model", why, (key,))]
    found = static_shift(values["timestep_shift"], "timestep_shift")
    why = "OneTrainer does not shift this model by resolution either"
    return [*found, Assignment("", why=why, keys=(key,))] if is_dynamic else found


MOST_STD: Final = 5.0  # of logit_std
# ModelSetupNoiseMixin.py, _get_timestep_discrete: how often a noise level t is trained, from noising_weight and
# noising_bias, without its shift, which Tandem applies to all distributions alike.
FITTED: Final[Mapping[str, Callable[[float, float, float], float]]] = {
    "SIGMOID": lambda t, weight, bias: 1 + math.tanh(weight * (t - bias - 0.5) / 2),
    "INVERTED_PARABOLA": lambda t, weight, bias: max(2 - weight * (t - bias - 0.5) ** 2, 0),
    "COS_MAP": lambda t, weight, bias: 1 / (1 - 2 * t + 2 * t * t),
    "BETA": lambda t, weight, bias: t ** (max(weight, 1e-4) - 1) * (1 - t) ** (max(bias, 1e-4) - 1),
}


def _shape(values: Values) -> list[Assignment]:
    """Of sigmoid(normal(bias, 1 + weight)), of SD 3's mode, or the logit-normal that is the most like another one."""
    name = str(values["timestep_distribution"]).upper()
    weight, bias = number(values["noising_weight"]), number(values["noising_bias"])
    if name == "HEAVY_TAIL":
        return [option("mode_scale", weight, "noising_weight")]
    if name == "LOGIT_NORMAL":
        return [option("logit_mean", bias, "noising_bias"), option("logit_std", 1 + weight, "noising_weight")]
    if name not in FITTED:
        return []
    levels = [(index + 0.5) / 1000 for index in range(1000)]
    logits = [math.log(level / (1 - level)) for level in levels]
    shares = [FITTED[name](level, weight, bias) for level in levels]
    if not (total := math.fsum(shares)):
        raise UnsupportedValueError("no noise level is trained with it")
    mean = math.fsum(share * logit for share, logit in zip(shares, logits, strict=True)) / total
    square = math.fsum(share * (logit - mean) ** 2 for share, logit in zip(shares, logits, strict=True)) / total
    why = f"that of log(t / (1 - t)) with {name.lower()}"
    return [
        Assignment(f"{PATH}logit_mean", round(mean, 3) + 0.0, why if bias else "", ("noising_bias",)),  # not -0.0
        Assignment(f"{PATH}logit_std", min(round(math.sqrt(square), 3), MOST_STD), why, ("noising_weight",)),
    ]


def _guidance(values: Values) -> list[Assignment]:
    """Nothing if neither the model nor the file has any."""
    family, value = known_family(values["model_type"]), values["transformer.guidance_scale"]
    has_input = family is not None and all_facts()[family].has_guidance
    return [Assignment(f"{PATH}guidance", number(value))] if has_input or not is_default(value, 1.0) else []


NOISE_RULES: Final = (
    CombinedRule(
        {"noising_weight": 0.0, "noising_bias": 0.0}, f"{OWN}logit_std, {OWN}logit_mean, {OWN}mode_scale",
        _shape, "of the distributions other than uniform", {"timestep_distribution": "UNIFORM"},
    ),
    timestep_rule(
        {"timestep_shift": 1.0, "dynamic_timestep_shifting": False}, _shift,
        "dynamic_timestep_shifting is the model's own shift by resolution", {"model_type": "STABLE_DIFFUSION_15"},
    ),
    CombinedRule(
        {"transformer.guidance_scale": 1.0}, f"{OWN}guidance", _guidance, "of models that have the input",
        {"model_type": "STABLE_DIFFUSION_15"},
    ),
)  # fmt: skip
