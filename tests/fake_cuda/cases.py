"""What is trained on the pretended GPU: families x features, each a whole small run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.make_demo_data import make_demo_data
from tests.classes import TINY_NETWORK, write_classes
from tests.families import tiny_flow_pipelines, tiny_pipelines
from tests.runs import TINY

IMAGES: Final = 8
STEPS: Final = 6
ACTIONS_EVERY: Final = "4 steps"  # samples, validation, backups
PROMPT: Final = {"prompt": "a red circle, number 1", "steps": 2}
SHORT_CAPTIONS: Final = {"max_caption_tokens": 32}  # attention to more takes most of the time

LATENT: Final[Mapping[str, Callable[[Path], Path]]] = {
    "stable_diffusion": tiny_pipelines.tiny_sd,
    "stable_diffusion_xl": tiny_pipelines.tiny_sdxl,
    **tiny_flow_pipelines.TINY,
}
OTHERS: Final[Mapping[str, Mapping[str, object]]] = {
    "pixel_diffusion": {"family": "pixel_diffusion", "resolution": 16, "family_options": {"width": 16}},
    "classifier": {"family": "classifier", "resolution": 16, "family_options": TINY_NETWORK},
    "own": {"family": TINY, "resolution": 16},
}
FAMILIES: Final = (*LATENT, *OTHERS)

FEATURES: Final[Mapping[str, Mapping[str, object]]] = {
    "lora": {"method": "lora"},
    "fine_tune": {"method": "fine_tune"},
    "int8": {"weights": "int8"},
    "fp8": {"weights": "fp8"},
    "nf4": {"weights": "nf4"},
    "block_offload": {"block_offload": 1.0},
    "gradient_checkpointing": {"gradient_checkpointing": True},
    "ema_on_cpu": {"ema": True, "ema_on_cpu": True},
    "fp16": {"precision": "fp16"},
    "samples": {"samples": [PROMPT], "sample_every": ACTIONS_EVERY},
    "validation": {"validation_split": 0.2, "validate_every": ACTIONS_EVERY},
    "backup": {"backup_every": ACTIONS_EVERY},
    "save": {"save_every": ACTIONS_EVERY},
    "compile": {"compile": True},
    "histograms": {"histograms_every": ACTIONS_EVERY, "tensorboard": True},
    "dropout": {"family_options": {"dropout": 0.2}},
    "fused_backward": {"batch_size": 4, "fused_backward": True, "stochastic_rounding": True, "max_grad_norm": None},
    "prodigy": {"optimizer": {"name": "prodigy"}, "learning_rate": 1.0},
    "channels_last": {"channels_last": True},
    "loader_workers": {"loader_workers": 1},
    "references": {"reference_dropout": 0.3},  # of a model that edits images
    "padding": {"family_options": {"max_caption_tokens": 256}},  # captions of unequal lengths, none truncated
    "pairs": {},  # the same, without dropout
}
# Faults in a step that a feature cannot do without, see run_cases.faults_of_step: prodigy reads its estimate before the
# weights change, and a histogram is of the step in which it is read.
UNAVOIDABLE: Final[Mapping[str, int]] = {"prodigy": 2, "histograms": 2}
MATRIX: Final = tuple(FEATURES)[:12]  # of every family

# Every family and every feature in few runs, for the tests.
CHOSEN: Final = (
    "stable_diffusion fine_tune fp16 samples channels_last",
    "stable_diffusion_xl lora gradient_checkpointing backup",
    "stable_diffusion_3 lora int8 validation",
    "flux lora fp8 block_offload ema_on_cpu samples",
    "flux_kontext lora samples references",
    "flux2 lora int8 block_offload gradient_checkpointing backup",
    "flux2_dev lora nf4 block_offload references backup save",
    "chroma lora fp8 samples padding",
    "krea2 lora gradient_checkpointing validation padding",
    "qwen_image fine_tune backup padding",
    "qwen_image_edit lora pairs samples backup padding",
    "lumina2 lora ema_on_cpu padding",
    "ernie_image lora gradient_checkpointing samples padding",
    "z_image lora int8 samples padding",
    "wan lora gradient_checkpointing samples backup padding",
    "wan22_5b lora gradient_checkpointing samples backup padding",
    "pixel_diffusion ema_on_cpu fp16 samples validation backup save",
    "pixel_diffusion fused_backward loader_workers",
    "pixel_diffusion histograms",
    "classifier compile validation backup",
    "classifier prodigy",
    "own dropout ema_on_cpu backup",
)


@dataclass(frozen=True)
class Case:
    """A family, and features that are switched on together."""

    family: str
    features: tuple[str, ...]

    @classmethod
    def named(cls, name: str) -> Case:
        """From its words."""
        family, *features = name.split()
        unknown = {family} - set(FAMILIES) | set(features) - set(FEATURES)
        if unknown:
            raise ValueError(f"{name!r}: {', '.join(sorted(unknown))} is neither a family nor a feature")
        return cls(family, tuple(features))

    @property
    def name(self) -> str:
        """Its words."""
        return " ".join((self.family, *self.features))

    def settings(self, place: Path) -> dict[str, object]:
        """Of the run; `place` gets the images and the base model, which cases share."""
        given: dict[str, object] = {
            "concepts": [{"path": str(_images(self.family, place))}],
            "max_steps": STEPS,
            "resolution": 64,
            "batch_size": 2,
            "global_batch_size": 4,
            "learning_rate": 1e-4,
            "precision": "bf16",
            "pin_memory": True,
            **OTHERS.get(self.family, {}),
        }
        if (make := LATENT.get(self.family)) is not None:
            base = place / self.family
            given["base_model"] = str(base if base.exists() else make(base))
            given["family"] = "flux2" if self.family == "flux2_dev" else self.family
            given["method"] = "lora"
        if self.family in tiny_flow_pipelines.TINY:
            given["family_options"] = SHORT_CAPTIONS
        for feature in self.features:
            given.update(FEATURES[feature])
        if {"references", "pairs"} & set(self.features):
            images = _images(self.family, place)
            copies = shutil.copytree(images, place / "references", dirs_exist_ok=True)
            given["concepts"] = [{"path": str(images), "references": str(copies)}]
        if (weights := given.pop("weights", None)) is not None:
            part = "unet" if self.family.startswith("stable_diffusion") and self.family[-1] != "3" else "transformer"
            given["parts"] = [{"part": part, "weights": weights}]
        return given


def _images(family: str, place: Path) -> Path:
    if family == "classifier":
        return write_classes(place / "classes", IMAGES)
    make_demo_data(place / "images", count=IMAGES)
    for number, file in enumerate(sorted((place / "images").glob("*.txt"))):  # the demo's are of equal lengths
        file.write_text(f"a circle{' and a square' * (number % 4)}\n")
    return place / "images"
