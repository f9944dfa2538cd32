"""Class folders of small images, for the tests of classifiers."""

from __future__ import annotations

from pathlib import Path

from modules.config import TrainConfig
from tests.data.helpers import write_image
from tests.runs import tiny_config

TINY_NETWORK = {"network": "cifar_resnet8", "width": 4, "norm": "group"}
CLASSES = ("apple", "big bear", "cat")


def write_classes(folder: Path, count: int, side: int = 20) -> Path:
    """`count` images, in turn of each class, in folders of their names."""
    for number in range(count):
        name = CLASSES[number % len(CLASSES)].replace(" ", "_")
        write_image(folder / name / f"{number:03d}.png", side, side, seed=number)
    return folder


def classifier_config(images: Path, place: Path, **settings: object) -> TrainConfig:
    """Six steps of a tiny classifier whose result does not depend on who is in its micro-batch."""
    given = settings.pop("family_options", {})
    assert isinstance(given, dict)
    options = {**TINY_NETWORK, **given}
    defaults = {"family": "classifier", "family_options": options, "precision": "fp64"}
    return tiny_config(images, place, **{**defaults, **settings})
