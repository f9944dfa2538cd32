"""Values that other trainers accept and a start of Tandem refuses, replaced by the nearest that it accepts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modules.config.run_names import ALLOWED, sanitize_run_name
from modules.facts import all_facts
from modules.importers.translation import Translation

# Pixels; the `size_step` of these families, whose files import torch, unless their facts have it.
_STEPS: Final = {"unet": 64, "transformer": 16}
SIZE_STEPS: Final[Mapping[str, int]] = {
    name: facts.size_step or _STEPS[facts.network] for name, facts in all_facts().items() if facts.network in _STEPS
}


def fit_to_start(translation: Translation) -> None:
    """Replace the run's name and the sizes of images and samples, as far as they need it, and report each."""
    data = translation.data
    name = data.get("run_name")
    if isinstance(name, str) and sanitize_run_name(name) != name:
        translation.change("run_name", sanitize_run_name(name), f"a run name may contain only {ALLOWED}")
    family = str(data.get("family"))
    if family not in SIZE_STEPS:
        return
    _fit_side(translation, data, "resolution", "", family)
    samples = data.get("samples")
    for number, sample in enumerate(samples if isinstance(samples, list) else []):
        for side in ("width", "height"):
            _fit_side(translation, sample, side, f"samples.{number}.", family)


def _fit_side(translation: Translation, group: object, name: str, prefix: str, family: str) -> None:
    step = SIZE_STEPS[family]
    side = group.get(name) if isinstance(group, dict) else None
    if isinstance(side, int) and not isinstance(side, bool) and side > 0 and side % step:
        nearest = max(step, round(side / step) * step)
        translation.change(prefix + name, nearest, f"{family} needs a multiple of {step}")
