"""Adafactor's arguments in the classes that other trainers use; Tandem's keeps to the learning rate that is set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modules.importers.report import ImportEntry
from modules.importers.rules import Assignment
from modules.importers.translation import Translation

# Arguments that are on if they are not given, by the class.
# kohya-ss/sd-scripts, library/train_util.py (get_optimizer), which sets relative_step and leaves the rest to
# huggingface/transformers, src/transformers/optimization.py.
IN_TRANSFORMERS: Final[Mapping[str, object]] = {"scale_parameter": True, "relative_step": True}
# tdrussell/diffusion-pipe, train.py, which takes kozistr/pytorch_optimizer, pytorch_optimizer/optimizer/adafactor.py.
IN_PYTORCH_OPTIMIZER: Final[Mapping[str, object]] = {**IN_TRANSFORMERS, "beta1": 0.9}

# relative_step is min(0.01, 1 / sqrt(step)), the first of which holds until step 10,000; with warmup_init it is
# min(step / 1,000,000, 1 / sqrt(step)), which rises evenly to 0.01 at the same step.
RELATIVE_RATE: Final = 0.01
RELATIVE_STEPS: Final = 10_000
RELATIVE: Final = ("relative_step", "warmup_init")
RELATIVE_STEP: Final = "its relative_step replaces learning rate and schedule"
WARMUP_INIT: Final = f"{RELATIVE_STEP}, and its warmup_init the warm-up"
_REPLACED: Final = (
    *("learning_rate", "scheduler", "scheduler_cycles", "scheduler_power", "min_learning_rate_factor"),
    *("warmup_steps", "warmup_fraction"),
)


def split_adafactor(
    given: Mapping[str, object], defaults: Mapping[str, object], key: str
) -> tuple[dict[str, object], list[Assignment], str]:
    """The other arguments, the class's `defaults` for those not given, and what to say of relative_step (or nothing).

    `key` is the setting that names the optimizer.
    """
    rest = {name: value for name, value in given.items() if value is not None}
    found = [
        Assignment(f"optimizer.{name}", value, "its default in that trainer", (key,))
        for name, value in defaults.items()
        if name not in rest and name != "relative_step" and not (name == "beta1" and "betas" in rest)
    ]
    is_relative = rest.get("relative_step", defaults.get("relative_step")) is True or rest.get("warmup_init") is True
    if not is_relative:
        return rest, found, ""
    rest.pop("relative_step", None)
    return rest, found, WARMUP_INIT if rest.pop("warmup_init", False) is True else RELATIVE_STEP


def set_relative_rate(translation: Translation) -> None:
    """If the imported Adafactor sets its own learning rate: that rate, in place of all others."""
    marked = (each for each in translation.changed if each.target == "optimizer.name")
    entry = next((each for each in marked if each.why in (RELATIVE_STEP, WARMUP_INIT)), None)
    if entry is None:
        return
    why = "Adafactor with relative_step does not use it"
    for path in (*_REPLACED, *(f"parts.{index}.learning_rate" for index in range(translation.count("parts")))):
        translation.withdraw(path, why)
    reason = f"that of relative_step in the first {RELATIVE_STEPS:,} steps"
    translation.add(ImportEntry(entry.source, entry.value, "learning_rate", RELATIVE_RATE, reason))
    if entry.why == WARMUP_INIT:
        reason = "that of warmup_init"
        translation.add(ImportEntry(entry.source, entry.value, "warmup_steps", RELATIVE_STEPS, reason))
