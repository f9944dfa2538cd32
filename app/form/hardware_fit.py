"""Which models fit the GPUs of this computer: the presets say for how much memory they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from modules.config import preset_names
from modules.config.io.presets import OWN, PresetSummary, preset_summary
from modules.machine import visible_gpus


@dataclass(frozen=True)
class HardwareFit:
    """The memory of the largest GPU in GiB, 0 without one, and the presets made for one GPU."""

    gpu_gib: int
    presets: Sequence[PresetSummary]

    def preset(self, family: str, method: str) -> PresetSummary | None:
        """That of a family and method for the most memory that is there, else that for the least."""
        found = sorted(self._of(family, method), key=lambda preset: preset.memory_gb)
        fitting = [preset for preset in found if preset.memory_gb <= self.gpu_gib]
        return fitting[-1] if fitting else next(iter(found), None)

    def line(self, family: str) -> str:
        """Whether a LoRA of this family can be trained here; empty without a GPU, or if no preset says."""
        least = min((preset.memory_gb for preset in self._of(family, "lora")), default=0)
        if not (least and self.gpu_gib):
            return ""
        if least <= self.gpu_gib:
            return f"LoRA from {least} GB: fits your GPU"
        return f"LoRA from {least} GB; your GPU has {self.gpu_gib}"

    def _of(self, family: str, method: str) -> list[PresetSummary]:
        return [preset for preset in self.presets if (preset.family, preset.method) == (family, method)]


@cache
def hardware_fit() -> HardwareFit:
    """Of this computer; reads files and the driver, so not on the Tk thread."""
    largest = max((gpu.memory_mib for gpu in visible_gpus()), default=0)
    ours = [preset_summary(name) for name in preset_names() if not name.startswith(f"{OWN}/")]
    return HardwareFit(round(largest / 1024), [preset for preset in ours if preset.memory_gb])
