"""Transformers trained by flow matching: how other trainers name them, and what of their settings applies to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from modules.config import UNET_PRESETS
from modules.config.known_models import known_model
from modules.importers.memory import ENCODERS, QUANTIZED, swap_rule, swapped_blocks
from modules.importers.readers import boolean, number
from modules.importers.report import ImportEntry
from modules.importers.rules import (
    ANY,
    EMPTY_VALUES,
    Assignment,
    CombinedRule,
    UnsupportedValueError,
    Values,
    is_default,
)
from modules.importers.translation import Translation

# OneTrainer's model types, ai-toolkit's arch, SimpleTuner's families, diffusion-pipe's types and sd-scripts' own, in
# lower case with underscores.
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "flux": ("flux", "flux1", "flux_1", "flux_dev", "flux_schnell", "flux_dev_1", "flux_schnell_1"),
    "flux2": (
        *("flux2", "flux_2", "flux2_klein", "flux_2_klein", "flux2_klein_4b", "flux2_klein_9b"),
        *("flux_2_klein_4b", "flux_2_klein_9b", "flux2_dev", "flux_2_dev"),
    ),
    "chroma": ("chroma", "chroma1", "chroma_1"),
    "z_image": ("z_image", "zimage", "z_image_turbo"),
    "qwen_image": ("qwen", "qwen_image"),
    "krea2": ("krea2", "krea_2"),
    "lumina2": ("lumina2", "lumina_2", "lumina"),
    "stable_diffusion_3": ("sd3", "sd35", "sd3_5", "v3", "stable_diffusion_3", "stable_diffusion_35"),
}
FLOW_FAMILIES: Final = frozenset(_NAMES)
_BY_NAME: Final = {name: family for family, names in _NAMES.items() for name in names}
_SHARED_OPTIONS: Final = ("loss", "huber_delta", "offload_frozen", "vae_tiling", "latents")
_GUIDED: Final = ("flux", "qwen_image", "flux2")
_OF_UNET: Final = re.compile(r"unet|text_encoder")
_OWN: Final = "family_options."
_PATH: Final = "flow_options."  # where rules put what counts only if the family turns out to be one of these


def flow_family(name: object) -> str | None:
    """The family that another trainer calls `name`; None if it is none of these."""
    plain = re.sub(r"[\s.-]+", "_", str(name).lower().partition(":")[0])
    return _BY_NAME.get(plain)


def fit_to_family(translation: Translation) -> None:
    """Take away, and report, what the family of the config does not have; the rest gets the names that it has there."""
    data = translation.data
    if "family" not in data and (known := known_model(str(data.get("base_model")))) is not None:
        data["family"] = known.family
    family = data.get("family")
    if family not in FLOW_FAMILIES:
        _drop_flow_options(translation)
        return
    given = data.get("family_options")
    for name in list(given) if isinstance(given, dict) else []:
        if name not in _SHARED_OPTIONS:
            translation.withdraw(_OWN + name, f"{family} is trained by flow matching, which has no such setting")
    if family not in _GUIDED:
        translation.withdraw(f"{_PATH}guidance", f"{family} has no guidance input")
    swapped_blocks(translation, str(family))
    _take_flow_options(translation)
    _fit_parts(translation)
    _fit_targets(translation)
    if data.get("block_offload") and data.get("method") == "lora" and data.get("compile"):
        translation.withdraw("compile", "blocks that are kept in host memory (block_offload) cannot be compiled")


def _take_flow_options(translation: Translation) -> None:
    """Move what rules have found under `flow_options` to `family_options`."""
    for entries in (translation.imported, translation.changed):
        for place, entry in enumerate(entries):
            if entry.target.startswith(_PATH):
                entries[place] = replace(entry, target=_OWN + entry.target.removeprefix(_PATH))
    found = translation.data.pop(_PATH.rstrip("."), {})
    assert isinstance(found, dict), "rules put options there"
    for name, value in found.items():
        translation.put(_OWN + name, value)


def _drop_flow_options(translation: Translation) -> None:
    for entries in (translation.imported, translation.changed):
        for entry in [each for each in entries if each.target.startswith(_PATH)]:
            entries.remove(entry)
            if entry.given and not _are_defaults(entry):
                translation.skip(entry.source, entry.value, "for models trained by flow matching")
    translation.data.pop(_PATH.rstrip("."), None)


def _are_defaults(entry: ImportEntry) -> bool:
    """Whether the settings of an entry are as the other trainer has them anyway."""
    names = [re.split(r"[ ./]", name.removeprefix("--"))[-1] for name in entry.source.split(", ")]
    values = entry.value if isinstance(entry.value, list) and len(names) > 1 else [entry.value]
    defaults = {key.rpartition(".")[2]: value for rule in _ALL_RULES for key, value in rule.keys.items()}
    return all(is_default(value, defaults.get(name, ANY)) for name, value in zip(names, values, strict=False))


def _fit_parts(translation: Translation) -> None:
    """The part that is trained is called transformer there; text encoders stay frozen."""
    parts = translation.data.get("parts")
    if not isinstance(parts, list):
        return
    kept: list[object] = []
    for number_, part in reversed(list(enumerate(parts))):
        if not isinstance(part, dict):
            continue
        if part.get("part") in ("unet", "transformer", "prior"):
            kept = [{**part, "part": "transformer"}]
        else:
            _take_encoder_weights(translation, f"parts.{number_}.weights", part)
            for name in list(part):
                translation.withdraw(f"parts.{number_}.{name}", "text encoders of this model stay frozen")
    if kept:
        translation.data["parts"] = kept
    else:
        translation.data.pop("parts", None)


def _take_encoder_weights(translation: Translation, target: str, part: dict[str, object]) -> None:
    """Text encoders share one setting here, in which the last one of a model, the large one, decides."""
    entry = next((each for each in translation.imported if each.target == target), None)
    option = _OWN + "text_encoder_weights"
    if entry is None or part.get("weights") not in QUANTIZED or any(e.target == option for e in translation.changed):
        return
    del part["weights"]
    translation.imported.remove(entry)
    translation.add(replace(entry, target=option, why=ENCODERS))


def _fit_targets(translation: Translation) -> None:
    """Trainers that adapt all of a UNet's blocks adapt all of a transformer's."""
    targets = translation.data.get("lora_targets")
    if isinstance(targets, str) and (targets in UNET_PRESETS or _OF_UNET.search(targets)):
        translation.change("lora_targets", "blocks", "of the transformer, all linear layers of its blocks")


def timestep_rule(
    keys: Mapping[str, object],
    read: Callable[[Values], list[Assignment]],
    note: str = "",
    uses: Mapping[str, object] = MappingProxyType({}),
) -> CombinedRule:
    """The noise levels of a trainer, from its settings `keys`."""
    target = ", ".join(_OWN + name for name in ("timestep_distribution", "logit_std", "timestep_shift", "shift"))
    return CombinedRule(keys, target, read, note, uses)


def distribution(name: str, *keys: str, why: str = "") -> Assignment:
    """uniform, logit_normal or mode."""
    return Assignment(f"{_PATH}timestep_distribution", name, why, keys)


def static_shift(value: object, *keys: str) -> list[Assignment]:
    """A constant shift of noise levels."""
    return [
        Assignment(f"{_PATH}timestep_shift", "static", keys=keys),
        Assignment(f"{_PATH}shift", number(value), keys=keys),
    ]


def option(name: str, value: object, *keys: str) -> Assignment:
    """One of a family's own options."""
    return Assignment(_PATH + name, value, keys=keys)


# kohya-ss/sd-scripts, library/flux_train_utils.py, get_noisy_model_input_and_timesteps
_KOHYA_SAMPLING: Final = {"uniform": "uniform", "sigmoid": "logit_normal", "shift": "logit_normal"}
_KOHYA_SD3: Final[Mapping[str, object]] = {
    "network_module": None, "sd3_checkbox": False, "clip_g": None, "pretrained_model_name_or_path": None,
}  # fmt: skip


def _is_kohya_sd3(values: Values) -> bool:
    named = str(values["network_module"]).endswith("sd3") or boolean(values["sd3_checkbox"])
    known = known_model(str(values["pretrained_model_name_or_path"]))
    is_known = known is not None and known.family == "stable_diffusion_3"
    return named or is_known or values["clip_g"] not in EMPTY_VALUES


def _kohya(values: Values) -> list[Assignment]:
    is_sd3 = _is_kohya_sd3(values)  # sd3_train_utils.py: always by weighting_scheme, with a shift of its own
    sampling = "sigma" if is_sd3 else str(values["timestep_sampling"] or "sigma")
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
        if scheme in ("sigma_sqrt", "cosmap"):
            found.append(Assignment("", why="set family_options.loss_weighting", keys=("weighting_scheme",)))
        shift = "training_shift" if is_sd3 else "discrete_flow_shift"
        found += static_shift(values[shift], shift)
    elif sampling in (*_KOHYA_SAMPLING, "flux_shift", "qwen_shift"):
        found.append(distribution(_KOHYA_SAMPLING.get(sampling, "logit_normal"), "timestep_sampling"))
        if (scale := number(values["sigmoid_scale"])) != 1 and sampling != "uniform":
            found.append(option("logit_std", scale, "sigmoid_scale"))
    else:
        raise UnsupportedValueError("set family_options.timestep_distribution")
    if sampling == "shift":
        found += static_shift(values["discrete_flow_shift"], "discrete_flow_shift")
    elif sampling in ("uniform", "sigmoid"):  # without a shift there
        found += static_shift(1, "timestep_sampling")
    return found


def _guidance(values: Values) -> list[Assignment]:
    (value,) = values.values()
    return [] if value in EMPTY_VALUES else [Assignment(f"{_PATH}guidance", number(value))]


KOHYA_RULES: Final = (
    timestep_rule(
        {
            "timestep_sampling": "sigma", "weighting_scheme": "uniform", "discrete_flow_shift": 3.0, "logit_mean": 0.0,
            "logit_std": 1.0, "mode_scale": 1.29, "sigmoid_scale": 1.0, "training_shift": 1.0,
        },
        _kohya,
        "flux_shift is the model's own shift; sigma with weighting_scheme as in diffusers' scripts, whose logit_mean "
        "above 0 means low noise levels, but for SD 3",
        _KOHYA_SD3,
    ),
    CombinedRule({"guidance_scale": 3.5}, f"{_OWN}guidance", _guidance, "of models that have the input"),
    swap_rule("blocks_to_swap"),
)  # fmt: skip


def _ai_toolkit(values: Values) -> list[Assignment]:
    name = str(values["train.timestep_type"] or "sigmoid").lower()
    shifted = dict.fromkeys(("shift", "flux_shift", "lumina2_shift"), "uniform")
    known = {"sigmoid": "logit_normal", "linear": "uniform", **shifted}
    if name not in known:
        raise UnsupportedValueError("set family_options.timestep_distribution and family_options.loss_weighting")
    found = [distribution(known[name], "train.timestep_type")]
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
    if not boolean(values["flow_schedule_auto_shift"]):
        found += static_shift(values["flow_schedule_shift"] or 1, "flow_schedule_shift")
    return found


SIMPLE_TUNER_RULES: Final = (
    timestep_rule(
        {
            "flow_schedule_shift": 3.0, "flow_schedule_auto_shift": False, "flow_use_uniform_schedule": False,
            "flow_sigmoid_scale": 1.0,
        },
        _simple_tuner,
        "flow_schedule_auto_shift is the model's own shift by resolution",
    ),
    CombinedRule({"flux_guidance_value": 1.0}, f"{_OWN}guidance", _guidance, "of models that have the input"),
)  # fmt: skip


def _diffusion_pipe(values: Values) -> list[Assignment]:
    name = str(values["model.timestep_sample_method"] or "logit_normal")
    if name not in ("logit_normal", "uniform"):
        raise UnsupportedValueError("set family_options.timestep_distribution")
    found = [distribution(name, "model.timestep_sample_method")]
    if (scale := number(values["model.sigmoid_scale"] or 1)) != 1:
        found.append(option("logit_std", scale, "model.sigmoid_scale"))
    if boolean(values["model.flux_shift"]):
        return [*found, Assignment(f"{_PATH}timestep_shift", "model", keys=("model.flux_shift",))]
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


def _onetrainer_shift(values: Values) -> list[Assignment]:
    if boolean(values["dynamic_timestep_shifting"]):
        return [Assignment(f"{_PATH}timestep_shift", "model", keys=("dynamic_timestep_shifting",))]
    return static_shift(values["timestep_shift"], "timestep_shift")


def _onetrainer_shape(values: Values) -> list[Assignment]:
    """ModelSetupNoiseMixin.py, _get_timestep_discrete: sigmoid(normal(bias, 1 + weight)), and SD 3's mode."""
    name = str(values["timestep_distribution"]).upper()
    if name == "HEAVY_TAIL":
        return [option("mode_scale", number(values["noising_weight"]), "noising_weight")]
    if name != "LOGIT_NORMAL":
        return []
    return [
        option("logit_mean", number(values["noising_bias"]), "noising_bias"),
        option("logit_std", 1 + number(values["noising_weight"]), "noising_weight"),
    ]


ONETRAINER_RULES: Final = (
    CombinedRule(
        {"noising_weight": 0.0, "noising_bias": 0.0}, f"{_OWN}logit_std, {_OWN}logit_mean, {_OWN}mode_scale",
        _onetrainer_shape, "of the distributions logit_normal and heavy_tail", {"timestep_distribution": "UNIFORM"},
    ),
    timestep_rule(
        {"timestep_shift": 1.0, "dynamic_timestep_shifting": False}, _onetrainer_shift,
        "dynamic_timestep_shifting is the model's own shift by resolution",
    ),
    CombinedRule({"transformer.guidance_scale": 1.0}, f"{_OWN}guidance", _guidance, "of models that have the input"),
)  # fmt: skip

_ALL_RULES: Final = (
    *KOHYA_RULES,
    *AI_TOOLKIT_RULES,
    *SIMPLE_TUNER_RULES,
    *DIFFUSION_PIPE_RULES,
    *ONETRAINER_RULES,
)
