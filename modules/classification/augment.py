"""From one decoded image to a sample of a classifier: crop with padding, RandAugment, random erasing; in the loader's
workers, every number from the sample's generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.nn import functional

from modules.data.batch import Example

MAX_MAGNITUDE = 10
_ERASED_AREA = (0.02, 1 / 3)  # of the image
_ERASED_ASPECT = (0.3, 1 / 0.3)
_FILL = (128, 128, 128)  # of pixels that a shift or a rotation uncovers


def keep_pixels(example: Example) -> dict[str, Tensor]:
    """An ExampleTransform: pixels uint8 [3, H, W]."""
    return {"pixels": example.pixels}


@dataclass(frozen=True)
class Labels:
    """The sample without augmentation: its pixels and the number of its class."""

    numbers: Mapping[str, int]  # caption -> class

    def __call__(self, cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
        """pixels uint8 [3, H, W], label int64 []."""
        return {"pixels": cached["pixels"], "label": torch.tensor(self.numbers[caption])}


@dataclass(frozen=True)
class Augmentation:
    """How training images are changed, besides crop, mirroring and colours of their concept."""

    labels: Labels
    rand_augment: int  # operations on each image
    magnitude: float  # of them, 0 to MAX_MAGNITUDE
    crop_padding: int  # pixels
    erasing: float  # probability

    def __call__(self, cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
        """As Labels."""
        sample = self.labels(cached, caption, generator)
        pixels = sample["pixels"]
        if self.rand_augment:
            pixels = rand_augment(pixels, self.rand_augment, self.magnitude, generator)
        if self.crop_padding:
            pixels = random_crop(pixels, self.crop_padding, generator)
        if self.erasing and _uniform(generator) < self.erasing:
            pixels = random_erase(pixels, generator)
        return {**sample, "pixels": pixels}


def random_crop(pixels: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """[C, H, W] padded with zeros on all sides and cropped to its size at random (He et al. 2015, section 4.2)."""
    _, height, width = pixels.shape
    top, left = torch.randint(2 * padding + 1, (2,), generator=generator).tolist()
    return functional.pad(pixels, (padding,) * 4)[:, top : top + height, left : left + width]


def random_erase(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """[3, H, W] with a rectangle of random pixels (Zhong et al. 2017, arXiv:1708.04896).

    As in timm's RandomErasing, at most a third of the area (0.4 in the paper), and the logarithm of the aspect ratio is
    uniform. A side longer than the image's is shortened to it, where paper and timm draw again.
    """
    _, height, width = pixels.shape
    area = _between(generator, *_ERASED_AREA) * height * width
    aspect = math.exp(_between(generator, *map(math.log, _ERASED_ASPECT)))
    tall = max(1, min(height, round(math.sqrt(area * aspect))))
    wide = max(1, min(width, round(math.sqrt(area / aspect))))
    top, left = (int(_uniform(generator) * (side + 1)) for side in (height - tall, width - wide))
    erased = pixels.clone()
    noise = torch.randint(256, (3, tall, wide), generator=generator, dtype=torch.uint8)
    erased[:, top : top + tall, left : left + wide] = noise
    return erased


def rand_augment(pixels: Tensor, count: int, magnitude: float, generator: torch.Generator) -> Tensor:
    """uint8 [3, H, W] after `count` operations drawn from OPERATIONS (Cubuk et al. 2019, arXiv:1909.13719)."""
    image = Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))
    strength = magnitude / MAX_MAGNITUDE
    for _ in range(count):
        operation = OPERATIONS[int(torch.randint(len(OPERATIONS), (), generator=generator))]
        sign = 1.0 if _uniform(generator) < 0.5 else -1.0
        image = operation(image, strength, sign)
    return torch.from_numpy(np.array(image).transpose(2, 0, 1).copy())


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=_FILL)


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, strength, sign: kind(image).enhance(1 + sign * 0.9 * strength)


# (image, strength from 0 to 1, sign) -> image. Ranges of AutoAugment (Cubuk et al. 2018, arXiv:1805.09501, table 6): 30
# degrees, a shear of 0.3, enhancement from 0.1 to 1.9; a shift of a third of the image, about the 10 of 32 pixels of
# its code for CIFAR (150 of 331 for ImageNet).
Operation = Callable[[Image.Image, float, float], Image.Image]
OPERATIONS: tuple[Operation, ...] = (
    lambda image, strength, sign: image,
    lambda image, strength, sign: ImageOps.autocontrast(image),
    lambda image, strength, sign: ImageOps.equalize(image),
    lambda image, strength, sign: image.rotate(sign * 30 * strength, Image.Resampling.BILINEAR, fillcolor=_FILL),
    lambda image, strength, sign: ImageOps.posterize(image, 8 - round(4 * strength)),
    lambda image, strength, sign: ImageOps.solarize(image, 256 - round(256 * strength)),
    _enhance(ImageEnhance.Color),
    _enhance(ImageEnhance.Contrast),
    _enhance(ImageEnhance.Brightness),
    _enhance(ImageEnhance.Sharpness),
    lambda image, strength, sign: _affine(image, 1, sign * 0.3 * strength, 0, 0, 1, 0),
    lambda image, strength, sign: _affine(image, 1, 0, 0, sign * 0.3 * strength, 1, 0),
    lambda image, strength, sign: _affine(image, 1, 0, sign * strength * image.width / 3, 0, 1, 0),
    lambda image, strength, sign: _affine(image, 1, 0, 0, 0, 1, sign * strength * image.height / 3),
)


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))


def _between(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * _uniform(generator)
