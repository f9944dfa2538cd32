"""Which models fit the GPUs where Train starts runs: the presets say for how much memory they are made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from modules.config import preset_names
from modules.config.family_about import FamilyAbout
from modules.config.io.presets import OWN, PresetSummary, preset_summary
from modules.machine import Gpu, visible_gpus
from modules.run.hosts.hardware import Hardware


@dataclass(frozen=True)
class HardwareFit:
    """The memory of the largest GPU in GiB, 0 without one, the presets made for one GPU, and whose GPU it is."""

    gpu_gib: int
    presets: Sequence[PresetSummary]
    whose: str = "your"

    def preset(self, family: str, method: str, base_model: str) -> PresetSummary | None:
        """That of a base model for the most memory that is there, else that for the least.

        Without a base model, that of any of the family's; none where the family's are several, and this one is of none.
        """
        found = [each for each in self.presets if (each.family, each.method) == (family, method)]
        of_model = [each for each in found if each.base_model == base_model]
        if base_model and not of_model and len({each.base_model for each in found}) > 1:
            return None
        found = sorted(of_model or found, key=lambda preset: preset.memory_gb)
        fitting = [preset for preset in found if preset.memory_gb <= self.gpu_gib]
        return fitting[-1] if fitting else next(iter(found), None)

    def line(self, about: FamilyAbout) -> str:
        """Whether a LoRA of this family can be trained there, as `preset` proposes it; empty without a GPU, or where
        only a trial can tell.

        Several GPUs are no help: all presets for them keep the whole model on each.
        """
        if not self.gpu_gib or about.weights_gb is None:
            return ""
        preset = self.preset(about.name, "lora", "")
        if preset is not None and preset.memory_gb <= self.gpu_gib:
            return f"LoRA fits {self.whose} GPU" + (f" with {preset.quantised}" if preset.quantised else "")
        weights = math.ceil(about.weights_gb[0])
        if weights <= self.gpu_gib:
            return ""
        return f"LoRA needs {preset.memory_gb} GB on one GPU" if preset else f"LoRA in bf16 needs {weights}+ GB"


def hardware_fit(machine: Hardware | None = None) -> HardwareFit:
    """Of this computer, or of a machine; reads files and the driver, so not on the Tk thread."""
    gpus = _gpus_here() if machine is None else machine.as_gpus
    largest = max((gpu.memory_mib for gpu in gpus), default=0)
    whose = "your" if machine is None else f"{machine.name}'s"
    return HardwareFit(round(largest / 1024), _presets(), whose)


@cache
def _gpus_here() -> Sequence[Gpu]:
    return visible_gpus()


@cache
def _presets() -> Sequence[PresetSummary]:
    ours = [preset_summary(name) for name in preset_names() if not name.startswith(f"{OWN}/")]
    return [preset for preset in ours if preset.memory_gb]
