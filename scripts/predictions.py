"""What a trained classifier says of image files, for scripts/classify.py; they are prepared as for a validation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from modules.config import TrainConfig
from modules.data.batch import Example
from modules.data.cache.crops import Crop, compute_crops, crop_example
from modules.data.index.buckets import bucket_images
from modules.data.index.images import (
    IMAGE_ERRORS,
    decode_image,
    describe_image_error,
    read_image_size,
    suppress_pillow_warnings,
)
from modules.files import read_bytes

MAX_BYTES = 1 << 30  # of an image file


class ClassifiesPixels(Protocol):
    """A classifier, ready for inference."""

    classes: tuple[str, ...]

    def probabilities(self, pixels: Tensor) -> Tensor:
        """fp32 [B, classes] of pixels uint8 [B, 3, H, W]."""


@dataclass(frozen=True)
class Prediction:
    """The most likely classes of a file with their probabilities, the first one first; or why there are none."""

    file: str
    classes: tuple[tuple[str, float], ...] = ()
    error: str = ""

    def as_json(self) -> dict[str, object]:
        """file, and classes or error."""
        if self.error:
            return {"file": self.file, "error": self.error}
        return {"file": self.file, "classes": [{"class": name, "probability": share} for name, share in self.classes]}


def predict(
    model: ClassifiesPixels, files: Sequence[str], config: TrainConfig, size_step: int, count: int
) -> list[Prediction]:
    """The `count` most likely classes of each file, in their order; images of one size are classified together.

    Images have the sizes that `config` gave them in training.
    """
    found: dict[int, Prediction] = {}
    pixels: defaultdict[torch.Size, list[tuple[int, Tensor]]] = defaultdict(list)
    for number, file in enumerate(files):
        try:
            with suppress_pillow_warnings():
                read = read_example(file, config, size_step).pixels
        except IMAGE_ERRORS as error:
            found[number] = Prediction(file, error=describe_image_error(error).removeprefix("skipped: "))
        else:
            pixels[read.shape].append((number, read))
    for group in pixels.values():
        chosen = model.probabilities(torch.stack([each for _, each in group])).topk(count)
        rows = zip(chosen.values.tolist(), chosen.indices.tolist(), strict=True)
        for (number, _), (shares, indices) in zip(group, rows, strict=True):
            classes = tuple((model.classes[index], share) for index, share in zip(indices, shares, strict=True))
            found[number] = Prediction(files[number], classes)
    return [found[number] for number in range(len(files))]


def read_example(file: str, config: TrainConfig, size_step: int) -> Example:
    """The image scaled to its bucket and cropped at the centre; raises one of IMAGE_ERRORS."""
    width, height = read_image_size(file)
    widths, heights = (np.array([side], dtype=np.int32) for side in (width, height))
    buckets, number = bucket_images(config, size_step, np.zeros(1, dtype=np.int32), widths, heights)
    bucket = buckets[int(number[0])]
    target = np.array([[bucket.height, bucket.width]], dtype=np.int32)
    no_hash = np.zeros(1, dtype=np.uint64)  # only crops at random need it
    resized_height, resized_width, top, left = compute_crops(widths, heights, target, no_hash, 0)[0].tolist()
    image = decode_image(read_bytes(file, MAX_BYTES), (width, height), min_size=(resized_width, resized_height))
    crop = Crop((resized_height, resized_width), top, left, bucket, flipped=False)
    return crop_example(image, None, False, ("",), (height, width), crop)
