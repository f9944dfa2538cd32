"""The pages of the window, one file each; SECTIONS holds their titles and subtitles in sidebar order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SECTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "model": ("Model", "The model to train and its initial weights."),
    "data": ("Data", "The training data and how it is loaded."),
    "training": ("Training", "Duration, batch size, precision, optimizer and learning rate."),
    "adapters": ("Adapters", "Which submodules are trained; LoRA and textual inversion."),
    "multi_gpu": ("Multi-GPU", "Multiple GPUs and multiple machines."),
    "sampling": ("Sampling", "Sample images generated during training."),
    "output": ("Output", "Where results go and how often to back up."),
    "monitor": ("Monitor", "The run: its curves, samples, GPUs and log."),
    "generate": ("Generate", "Images from any model or LoRA, without a run."),
    "tools": ("Tools", "Model files, captions and masks, near-duplicates, previews."),
}
