"""What captioning, tagging and mask making have in common: a model, asked about some images at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from PIL import Image

MOST_PIXELS_A_SIDE: Final = 2048  # of what a captioning model is shown; more would only take memory


class Annotator(Protocol):
    """A loaded model. `longest`: an image is scaled down to this many pixels a side before; None: shown whole."""

    longest: int | None

    def __call__(self, images: Sequence[Image.Image]) -> Sequence[str | Image.Image]:
        """A text, or a mask of the image's size (mode L), for each of the RGB images."""
