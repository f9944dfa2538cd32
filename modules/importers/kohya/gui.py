"""kohya_ss, the GUI of sd-scripts: which of the fields that it saves it passes on (kohya_gui/*_gui.py)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from modules.importers.optimizers import parse_arguments
from modules.importers.readers import boolean
from modules.importers.rules import UnsupportedValueError
from modules.importers.translation import Translation

# The GUI's names for some settings of sd-scripts.
GUI_NAMES = {
    "optimizer": "optimizer_type",
    "sdxl_checkbox": "sdxl",
    "stop_text_encoder_training": "stop_text_encoder_training_pct",
    "sdxl_cache_text_encoder_outputs": "cache_text_encoder_outputs",
}
GUI_ONLY = {"LoRA_type", "model_list", "lr_warmup", "max_resolution", "additional_parameters", "epoch"}
# Fields of its fine-tuning tab.
_FINE_TUNE_TAB = {"image_folder", "dataset_repeats", "create_caption", "create_buckets"}
_XL_ONLY = ("learning_rate_te1", "learning_rate_te2", "sdxl_cache_text_encoder_outputs")
# What it saves for fields that are not set.
_NOT_SET = {
    "conv_dim": (0, 1), "conv_alpha": (0, 1), "multires_noise_iterations": (0,), "multires_noise_discount": (0, 0.3),
}  # fmt: skip
# `LoRA_type`s with settings for convolutions, besides those of LyCORIS.
WITH_CONVOLUTIONS = ("LoCon", "Kohya LoCon", "Kohya DyLoRA")


def is_saved_by_gui(names: set[str], least: int = 2) -> bool:
    """Whether at least so many names are the GUI's own; its presets name no model, but three of these at least."""
    return len(GUI_ONLY & names) >= least


def passed_on(given: Mapping[str, object], translation: Translation) -> dict[str, object]:
    """The settings without those that the GUI saves but does not use with the others, which are reported."""
    reasons = dict(_unused(given))
    for name, why in reasons.items():
        translation.skip(name, given[name], why)
    always = {"enable_bucket": True} if _FINE_TUNE_TAB & set(given) else {}  # without a field of its own
    return {**{name: value for name, value in given.items() if name not in reasons}, **always}


def split_parameters(given: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
    """The settings with those of additional_parameters, a command line that takes precedence over the fields, and how
    these are shown.
    """
    try:
        words = shlex.split(str(given.get("additional_parameters") or ""))
    except ValueError:  # a quotation without an end
        words = []
    if not words or not words[0].startswith("--"):
        return dict(given), {}
    found: dict[str, object] = {}
    for name, *values in _arguments(words):
        found[name] = values or True
        if len(values) == 1:
            found |= parse_arguments([f"{name}={values[0]}"])  # numbers are not text
    rest = {name: value for name, value in given.items() if name != "additional_parameters"}
    return {**rest, **found}, {name: f"additional_parameters --{name}" for name in found}


def _arguments(words: Sequence[str]) -> Iterator[list[str]]:
    """A name, with = or a space before its values."""
    starts = [index for index, word in enumerate(words) if word.startswith("--")]
    for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
        name, equals, value = words[start].removeprefix("--").partition("=")
        yield [name, *([value] if equals else []), *words[start + 1 : end]]


def _unused(given: Mapping[str, object]) -> list[tuple[str, str]]:
    is_xl = _is_on(given.get("sdxl")) or _is_on(given.get("sdxl_checkbox"))
    fine_tunes = bool(_FINE_TUNE_TAB & set(given))
    found = []
    if is_xl:
        found.append(("learning_rate_te", "kohya's GUI uses it for SD 1 and 2 only"))
    else:
        found += [(name, "kohya's GUI uses it for SDXL only") for name in _XL_ONLY]
    if fine_tunes:
        found.append(("batch_size", "kohya's GUI uses it only to prepare files; train_batch_size is the batch size"))
    elif not is_xl:
        found.append(("train_text_encoder", "kohya's GUI uses it for SDXL only; see learning_rate_te"))
    if str(given.get("noise_offset_type") or "Original") == "Original":
        why = "kohya's GUI uses it with the noise_offset_type Multires only"
        found += [(name, why) for name in ("multires_noise_iterations", "multires_noise_discount")]
    kind = str(given.get("LoRA_type") or "")
    if kind not in WITH_CONVOLUTIONS and not kind.startswith("LyCORIS"):
        found += [(name, "this LoRA_type does not adapt convolutions") for name in ("conv_dim", "conv_alpha")]
    return [(name, why) for name, why in found if name in given and given[name] not in _NOT_SET.get(name, (None, ""))]


def _is_on(value: object) -> bool:
    try:
        return boolean(value)
    except UnsupportedValueError:
        return False
