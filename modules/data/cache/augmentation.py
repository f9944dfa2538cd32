"""Rotation and colours of a view: what is drawn for it, and what that does to its pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from modules.config import Concept
from modules.data.rng import SampleRng

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, of red, green and blue


@dataclass(frozen=True)
class Augmentation:
    """What is done to a view once it is cropped and mirrored, in this order; the default does nothing."""

    angle: float = 0.0  # degrees, counter-clockwise
    brightness: float = 1.0  # factor
    contrast: float = 1.0  # factor of the distance to the mean grey
    saturation: float = 1.0  # factor of the distance to grey
    hue: float = 0.0  # turns of the colour circle


UNCHANGED = Augmentation()


def augmentation(concept: Concept, rng: SampleRng | None) -> Augmentation:
    """What all images of a concept have, and what is drawn from `rng`, if it is given."""

    def drawn(strength: float) -> float:
        return strength * (2 * rng.uniform() - 1) if rng is not None and strength else 0.0

    # The order of the draws is that of all runs that resume: a new one comes last.
    jitter = [1 + drawn(concept.color_jitter) for _ in range(3)]
    return Augmentation(
        concept.fixed_rotate + drawn(concept.random_rotate),
        jitter[0] * (1 + concept.fixed_brightness) * (1 + drawn(concept.random_brightness)),
        jitter[1] * (1 + concept.fixed_contrast) * (1 + drawn(concept.random_contrast)),
        jitter[2] * (1 + concept.fixed_saturation) * (1 + drawn(concept.random_saturation)),
        (concept.fixed_hue + drawn(concept.random_hue)) / 2,
    )


def resized_and_turned(
    image: Image.Image,
    size: tuple[int, int],
    box: tuple[float, float, float, float] | None,
    *,
    flip: bool,
    angle: float,
) -> Image.Image:
    """The `box` of an image or mask (left, top, right, bottom; None: all of it) at `size` (width, height), mirrored if
    `flip`, then turned by `angle` degrees counter-clockwise and enlarged so far that no corner is empty."""
    (width, height), (cos, sin) = size, (abs(math.cos(math.radians(angle))), abs(math.sin(math.radians(angle))))
    zoom = max(cos + sin * height / width, cos + sin * width / height)
    # an even margin, so that the centre stays where it is
    margins = [2 * math.ceil(side * (zoom - 1) / 2 - 1e-9) for side in size]
    # Resizing only the part that is kept gives the same pixels as resizing all and cropping, for less work.
    whole = image.resize((width + margins[0], height + margins[1]), Image.Resampling.LANCZOS, box=box)
    if flip:
        whole = whole.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if angle == 0:
        return whole
    left, top = margins[0] // 2, margins[1] // 2
    return whole.rotate(angle, Image.Resampling.BICUBIC).crop((left, top, left + width, top + height))


def change_colours(pixels: Tensor, change: Augmentation) -> Tensor:
    """uint8 [3, H, W], or of a clip [3, F, H, W], with other brightness, contrast, saturation and hue; the mean grey of
    a clip is that of all its frames."""
    if (change.brightness, change.contrast, change.saturation, change.hue) == (1, 1, 1, 0):
        return pixels
    image = pixels.to(torch.float32) * change.brightness
    mean_grey = _grey(image).mean()
    image = mean_grey + change.contrast * (image - mean_grey)
    grey = _grey(image)
    image = (grey + change.saturation * (image - grey)).clamp(0, 255)
    return (_turn_hue(image, change.hue) if change.hue else image).round().to(torch.uint8)


def _turn_hue(image: Tensor, turns: float) -> Tensor:
    """fp32 [3, ...] with its hue in HSV moved; value and saturation stay."""
    (red, green, blue), (value, lead) = image, image.max(dim=0)
    spread = value - image.amin(dim=0)
    safe = spread.clamp_min(1e-6)
    sixths = torch.stack([(green - blue) / safe, 2 + (blue - red) / safe, 4 + (red - green) / safe])
    hue = sixths.gather(0, lead[None])[0] + 6 * turns
    # the inverse in one formula: https://en.wikipedia.org/wiki/HSL_and_HSV#HSV_to_RGB_alternative
    k = (torch.tensor([5.0, 3.0, 1.0]).view(3, *(1 for _ in hue.shape)) + hue) % 6
    return value - spread * torch.minimum(k, 4 - k).clamp(0, 1)


def _grey(image: Tensor) -> Tensor:
    """[1, ...] of [3, ...]."""
    weights = torch.tensor(_LUMA).view(3, *(1 for _ in image.shape[1:]))
    return (image * weights).sum(dim=0, keepdim=True)
