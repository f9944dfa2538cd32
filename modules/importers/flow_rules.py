"""Rules for what other trainers set of flow matching: noise levels, their shift, and the guidance input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from modules.facts import all_facts, known_model
from modules.importers.memory import swap_rule
from modules.importers.readers import boolean, is_path, number
from modules.importers.rules import EMPTY_VALUES, Assignment, CombinedRule, PathValue, UnsupportedValueError, Values

OWN: Final = "family_options."
PATH: Final = "flow_options."  # where rules put what counts only if the family turns out to be one of these


def timestep_rule(
    keys: Mapping[str, object],
    read: Callable[[Values], list[Assignment]],
    note: str = "",
    uses: Mapping[str, object] = MappingProxyType({}),
) -> CombinedRule:
    """The noise levels of a trainer, from its settings `keys`."""
    target = ", ".join(OWN + name for name in ("timestep_distribution", "logit_std", "timestep_shift", "shift"))
    return CombinedRule(keys, target, read, note, uses)


def distribution(name: str, *keys: str, why: str = "") -> Assignment:
    """uniform, logit_normal or mode."""
    return Assignment(f"{PATH}timestep_distribution", name, why, keys)


def static_shift(value: object, *keys: str) -> list[Assignment]:
    """A constant shift of noise levels."""
    return [
        Assignment(f"{PATH}timestep_shift", "static", keys=keys),
        Assignment(f"{PATH}shift", number(value), keys=keys),
    ]


def option(name: str, value: object, *keys: str) -> Assignment:
    """One of a family's own options."""
    return Assignment(PATH + name, value, keys=keys)


def encoder_files_rule(*keys: str) -> CombinedRule:
    """Files of text encoders, each in a setting of its own."""

    def read(values: Values) -> list[Assignment]:
        given = {key: text.strip() for key in keys if is_path(text := values[key])}
        if named := next((text for text in given.values() if "," in text), ""):
            raise UnsupportedValueError(f"{named!r} has a comma, which separates files here: give it another name")
        files = PathValue(", ".join(given.values()), "data", ", ")
        return [Assignment(f"{PATH}text_encoder_files", files, keys=tuple(given))] if given else []

    return CombinedRule(dict.fromkeys(keys), f"{OWN}text_encoder_files", read)


# kohya-ss/sd-scripts, library/flux_train_utils.py, get_noisy_model_input_and_timesteps
_KOHYA_SAMPLING: Final = {
    "uniform": "uniform", "sigmoid": "logit_normal", "shift": "logit_normal", "nextdit_shift": "uniform",
}  # fmt: skip
_LOSS_SCHEMES: Final = ("sigma_sqrt", "cosmap")
_OWN_SHIFTS: Final = ("flux_shift", "qwen_shift", "flux2_shift", "krea2_shift")
_KOHYA_MODEL: Final[Mapping[str, object]] = {
    "network_module": None, "sd3_checkbox": False, "clip_g": None, "pretrained_model_name_or_path": None,
    "lumina_checkbox": False, "gemma2": None,
}  # fmt: skip


def _is_kohya_sd3(values: Values) -> bool:
    named = str(values["network_module"]).endswith("sd3") or boolean(values["sd3_checkbox"])
    known = known_model(str(values["pretrained_model_name_or_path"]))
    is_known = known is not None and "sd3" in all_facts()[known.family].aliases
    return named or is_known or values["clip_g"] not in EMPTY_VALUES


def _kohya(values: Values, *, weighs_loss: bool = False) -> list[Assignment]:
    is_sd3 = _is_kohya_sd3(values)  # sd3_train_utils.py: always by weighting_scheme, with a shift of its own
    is_lumina = str(values["network_module"]).endswith("lumina") or boolean(values["lumina_checkbox"])
    is_lumina |= values["gemma2"] not in EMPTY_VALUES
    sampling, flow_shift = ("shift", 6.0) if is_lumina else ("sigma", 3.0)  # the default of lumina_train_util.py
    sampling = "sigma" if is_sd3 else str(values["timestep_sampling"] or sampling)
    if values["discrete_flow_shift"] is None:
        values = {**values, "discrete_flow_shift": flow_shift}
    scheme = str(values["weighting_scheme"] or "uniform")
    found: list[Assignment] = []
    if sampling == "sigma":
        name = {"logit_normal": "logit_normal", "mode": "mode"}.get(scheme, "uniform")
        found.append(distribution(name, "timestep_sampling", "weighting_scheme"))
        if name == "logit_normal":
            # of a place in the list of timesteps, which begins at noise, but for SD 3
            mean = number(values["logit_mean"])
            found.append(option("logit_mean", mean if is_sd3 or not mean else -mean, "logit_mean"))
            found.append(option("logit_std", number(values["logit_std"]), "logit_std"))
        if name == "mode":
            found.append(option("mode_scale", number(values["mode_scale"]), "mode_scale"))
        shift = "training_shift" if is_sd3 else "discrete_flow_shift"
        found += static_shift(values[shift], shift)
    elif sampling in (*_KOHYA_SAMPLING, *_OWN_SHIFTS):
        found.append(distribution(name := _KOHYA_SAMPLING.get(sampling, "logit_normal"), "timestep_sampling"))
        if (scale := number(values["sigmoid_scale"])) != 1 and name != "uniform":
            found.append(option("logit_std", scale, "sigmoid_scale"))
    else:
        raise UnsupportedValueError("set family_options.timestep_distribution")
    if sampling == "shift":
        found += static_shift(values["discrete_flow_shift"], "discrete_flow_shift")
    elif sampling in ("uniform", "sigmoid"):  # without a shift there
        found += static_shift(1, "timestep_sampling")
    if scheme not in _LOSS_SCHEMES:
        return found
    if not (is_sd3 or weighs_loss):
        why = "sd-scripts weighs the loss with model_prediction_type sigma_scaled only, which Tandem does not have"
        return [*found, Assignment("", why=why, keys=("weighting_scheme",))]
    return [*found, option("loss_weighting", scheme, "weighting_scheme")]


def _guidance(values: Values) -> list[Assignment]:
    (value,) = values.values()
    return [] if value in EMPTY_VALUES else [Assignment(f"{PATH}guidance", number(value))]


KOHYA_RULES: Final = (
    timestep_rule(
        {
            "timestep_sampling": None, "weighting_scheme": "uniform", "discrete_flow_shift": None, "logit_mean": 0.0,
            "logit_std": 1.0, "mode_scale": 1.29, "sigmoid_scale": 1.0, "training_shift": 1.0,
        },
        _kohya,
        "sigma and 3 by default, for Lumina shift and 6; flux_shift and nextdit_shift are the model's own shift; sigma "
        "with weighting_scheme as in diffusers' scripts, whose logit_mean above 0 means low noise levels, but for SD 3",
        _KOHYA_MODEL,
    ),
    CombinedRule({"guidance_scale": 3.5}, f"{OWN}guidance", _guidance, "of models that have the input"),
    swap_rule("blocks_to_swap"),
    encoder_files_rule("clip_l", "clip_g", "t5xxl", "gemma2"),
)  # fmt: skip


def _musubi(values: Values) -> list[Assignment]:
    """As in sd-scripts, and schemes that weigh the loss do so with every sampling (training/trainer_base.py)."""
    found = _kohya({**_KOHYA_MODEL, **values, "training_shift": 1.0}, weighs_loss=True)
    if values["timestep_sampling"] == "flux2_shift":
        why = "exp(0.5 to 1.15) by resolution there, that of the model's pipeline here"
        found = [replace(each, why=why) if each.value == "logit_normal" else each for each in found]
    return found


def _unguided(values: Values) -> list[Assignment]:
    """Distilled models get 1 there (*_train_network.py, call_dit)."""
    if values["guidance_scale"] not in (None, 1):
        raise UnsupportedValueError("musubi-tuner uses it for HunyuanVideo only: it trains with 1")
    return [option("guidance", 1.0, "guidance_scale")]


MUSUBI_RULES: Final = (
    timestep_rule(
        {
            "timestep_sampling": "sigma", "weighting_scheme": "none", "discrete_flow_shift": 1.0, "logit_mean": 0.0,
            "logit_std": 1.0, "mode_scale": 1.29, "sigmoid_scale": 1.0,
        },
        _musubi,
        "flux_shift, flux2_shift, qwen_shift and krea2_shift are the model's own shift; with sigma, a logit_mean above "
        "0 means low noise levels",
    ),
    CombinedRule({"guidance_scale": 1.0}, f"{OWN}guidance", _unguided, "of models that have the input"),
    swap_rule("blocks_to_swap"),
    encoder_files_rule("text_encoder1", "text_encoder2", "text_encoder"),
)  # fmt: skip


def _ai_toolkit(values: Values) -> list[Assignment]:
    name = str(values["train.timestep_type"] or "sigmoid").lower()
    shifted = dict.fromkeys(("shift", "flux_shift", "lumina2_shift"), "uniform")
    known = {"sigmoid": "logit_normal", "linear": "uniform", "weighted": "uniform", **shifted}
    if name not in known:
        raise UnsupportedValueError("set family_options.timestep_distribution and family_options.loss_weighting")
    why = "there the loss also weighs the middle of the noise levels more" if name == "weighted" else ""
    found = [distribution(known[name], "train.timestep_type", why=why)]
    return found if "shift" in name else [*found, *static_shift(1, "train.timestep_type")]


AI_TOOLKIT_RULES: Final = (
    timestep_rule(
        {"train.timestep_type": "sigmoid"}, _ai_toolkit, "shift, flux_shift and lumina2_shift are the model's own shift"
    ),
)


def _simple_tuner(values: Values) -> list[Assignment]:
    found = []
    if boolean(values["flow_use_uniform_schedule"]):
        found.append(distribution("uniform", "flow_use_uniform_schedule"))
    elif (scale := number(values["flow_sigmoid_scale"])) != 1:
        found.append(option("logit_std", scale, "flow_sigmoid_scale"))
    shift = number(values["flow_schedule_shift"] or 0)
    if shift > 0 or not boolean(values["flow_schedule_auto_shift"]):  # custom_schedule.py, apply_flow_schedule_shift
        found += static_shift(shift if shift > 0 else 1, "flow_schedule_shift")
    return found


SIMPLE_TUNER_RULES: Final = (
    timestep_rule(
        {
            "flow_schedule_shift": 3.0, "flow_schedule_auto_shift": False, "flow_use_uniform_schedule": False,
            "flow_sigmoid_scale": 1.0,
        },
        _simple_tuner,
        "flow_schedule_auto_shift is the model's own shift by resolution, if flow_schedule_shift is 0",
    ),
    CombinedRule({"flux_guidance_value": 1.0}, f"{OWN}guidance", _guidance, "of models that have the input"),
)  # fmt: skip


def _diffusion_pipe(values: Values) -> list[Assignment]:
    name = str(values["model.timestep_sample_method"] or "logit_normal")
    if name not in ("logit_normal", "uniform"):
        raise UnsupportedValueError("set family_options.timestep_distribution")
    found = [distribution(name, "model.timestep_sample_method")]
    if (scale := number(values["model.sigmoid_scale"] or 1)) != 1:
        found.append(option("logit_std", scale, "model.sigmoid_scale"))
    if boolean(values["model.flux_shift"]):
        return [*found, Assignment(f"{PATH}timestep_shift", "model", keys=("model.flux_shift",))]
    return [*found, *static_shift(values["model.shift"] or 1, "model.shift")]


DIFFUSION_PIPE_RULES: Final = (
    timestep_rule(
        {
            "model.timestep_sample_method": "logit_normal", "model.shift": None, "model.flux_shift": False,
            "model.sigmoid_scale": 1.0,
        },
        _diffusion_pipe,
        "flux_shift is the model's own shift by resolution",
    ),
    swap_rule("blocks_to_swap", more=1),
)  # fmt: skip


# Of settings that are given although they are at the default; OneTrainer's are not translated then.
ALL_RULES: Final = (
    *KOHYA_RULES,
    *MUSUBI_RULES,
    *AI_TOOLKIT_RULES,
    *SIMPLE_TUNER_RULES,
    *DIFFUSION_PIPE_RULES,
)
