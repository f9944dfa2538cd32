"""What a classifier gets right and wrong: counts that add up over batches and ranks, accuracies, and their image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

MAX_MATRIX = 1000  # classes; beyond it only the counts of each class are kept
TOP = 5
# All in pixels.
_LARGEST_CELL, _SMALLEST_CELL, _SIDE = 40, 1, 800
_LABELLED_CELL, _NUMBERED_CELL, _LABEL = 12, 26, 120
_BACKGROUND, _TEXT = (24, 24, 27), (212, 212, 216)
_RIGHT, _WRONG = (52, 168, 110), (214, 80, 70)
_SHADES = 100  # of each of these two
_TEXT_INDEX = 2 * _SHADES + 1


def count(logits: Tensor, labels: Tensor, counted: Tensor) -> dict[str, Tensor]:
    """int64 counts over the samples where `counted` bool [B] is true, of logits [B, C] and labels int64 [B].

    `matrix` [C, C] by label and prediction, or with more than MAX_MATRIX classes `seen` and `right` [C]; `top` [].
    """
    classes, weights = logits.shape[1], counted.to(torch.int64)
    best = logits.topk(min(TOP, classes), dim=1).indices
    is_right, is_in_top = best[:, 0] == labels, (best == labels[:, None]).any(dim=1)

    def histogram(values: Tensor, of: Tensor, size: int) -> Tensor:
        # unlike bincount and masks, it never makes the host wait for the device
        return torch.zeros(size, dtype=torch.int64, device=logits.device).scatter_add_(0, values, of)

    top = (weights * is_in_top).sum()
    if classes > MAX_MATRIX:
        return {
            "seen": histogram(labels, weights, classes),
            "right": histogram(labels, weights * is_right, classes),
            "top": top,
        }
    matrix = histogram(labels * classes + best[:, 0], weights, classes**2)
    return {"matrix": matrix.view(classes, classes), "top": top}


def accuracies(counts: Mapping[str, Tensor]) -> tuple[dict[str, float], list[float]]:
    """`accuracy`, and `top5_accuracy` if there are more than 5 classes; then that of each class, NaN if it has no
    samples."""
    matrix = counts.get("matrix")
    seen = counts["seen"] if matrix is None else matrix.sum(dim=1)
    right = counts["right"] if matrix is None else matrix.diagonal()
    total = max(1, int(seen.sum()))
    values = {"accuracy": int(right.sum()) / total}
    if len(seen) > TOP:
        values["top5_accuracy"] = int(counts["top"]) / total
    return values, (right.double() / seen).tolist()


def draw_matrix(matrix: NDArray[np.int64], classes: Sequence[str]) -> Image.Image:
    """The confusion matrix int64 [C, C]: a row for each class, a column for each prediction. A cell is as bright as its
    part of the row, green on the diagonal and red elsewhere. The image has a palette, so that it is written quickly."""
    cell = max(_SMALLEST_CELL, min(_LARGEST_CELL, _SIDE // len(classes)))
    margin = _LABEL if cell >= _LABELLED_CELL else 0
    image = Image.fromarray(_cells(matrix, cell, margin)).convert("P")
    image.putpalette(_palette())
    if cell >= _NUMBERED_CELL:
        for row, column in np.argwhere(matrix).tolist():
            place = (margin + column * cell + 3, margin + row * cell + cell // 2 - 6)
            image.paste(_TEXT_INDEX, place, _written(str(int(matrix[row, column]))))
    if margin:
        for number, name in enumerate(classes):
            image.paste(_TEXT_INDEX, (4, margin + number * cell + cell // 2 - 6), _written(name[:20]))
        labels = image.crop((0, margin, margin, image.height))
        image.paste(labels.transpose(Image.Transpose.ROTATE_90), (margin, 0))
    return image


def _cells(matrix: NDArray[np.int64], cell: int, margin: int) -> NDArray[np.uint8]:
    """The palette's index of each pixel, without text: uint8 [H, W]."""
    shares = matrix / matrix.sum(axis=1, keepdims=True).clip(1)
    index = (np.sqrt(shares) * _SHADES).round().astype(np.uint8)  # the root: single mistakes stay visible
    index[~np.eye(len(index), dtype=bool) & (index > 0)] += _SHADES
    gap = int(cell > 3)
    squares = np.kron(index, np.pad(np.ones((cell - gap, cell - gap), dtype=np.uint8), (0, gap)))
    return np.pad(squares, ((margin, 0), (margin, 0)))


def _palette() -> list[int]:
    """The background, the shades of right and of wrong predictions, and the text."""
    background, shares = np.array(_BACKGROUND), np.linspace(0, 1, _SHADES + 1)[1:, None]
    shades = [background + shares * (np.array(full) - background) for full in (_RIGHT, _WRONG)]
    colours = np.concatenate([background[None], *shades, np.array(_TEXT)[None]])
    flat: list[int] = colours.round().astype(int).reshape(-1).tolist()
    return flat


@lru_cache(maxsize=4096)  # 0.15 ms each, and the next validation has mostly the same
def _written(text: str) -> Image.Image:
    """A mask of the text."""
    font = ImageFont.load_default(size=10)
    mask = Image.new("1", (_LABEL, 14))
    ImageDraw.Draw(mask).text((0, 0), text, fill=1, font=font)
    return mask.crop((0, 0, min(_LABEL, round(font.getlength(text)) + 1), mask.height))
