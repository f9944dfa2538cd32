"""What a classifier gets right and wrong: counts that add up over batches and ranks, accuracies, and their image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

MAX_MATRIX = 1000  # classes; beyond it only the counts of each class are kept
TOP = 5
# All in pixels.
_LARGEST_CELL, _SMALLEST_CELL, _SIDE = 40, 1, 800
_LABELLED_CELL, _NUMBERED_CELL, _LABEL = 12, 26, 120
_BACKGROUND, _TEXT = (24, 24, 27), (212, 212, 216)
_RIGHT, _WRONG = (52, 168, 110), (214, 80, 70)


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


def draw_matrix(matrix: Tensor, classes: Sequence[str]) -> Image.Image:
    """The confusion matrix int64 [C, C]: a row for each class, a column for each prediction. A cell is as bright as its
    part of the row, green on the diagonal and red elsewhere."""
    cell = max(_SMALLEST_CELL, min(_LARGEST_CELL, _SIDE // len(classes)))
    margin = _LABEL if cell >= _LABELLED_CELL else 0
    side = margin + cell * len(classes)
    image = Image.new("RGB", (side, side), _BACKGROUND)
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(size=10)
    shares = matrix.double() / matrix.sum(dim=1, keepdim=True).clamp_min(1)
    for row, column in matrix.nonzero().tolist():
        left, top = margin + column * cell, margin + row * cell
        share = float(shares[row, column]) ** 0.5  # single mistakes stay visible
        colour = _RIGHT if row == column else _WRONG
        shade = tuple(round(dark + share * (full - dark)) for dark, full in zip(_BACKGROUND, colour, strict=True))
        gap = int(cell > 3)
        pen.rectangle((left, top, left + cell - 1 - gap, top + cell - 1 - gap), fill=shade)
        if cell >= _NUMBERED_CELL:
            pen.text((left + 3, top + cell // 2 - 6), str(int(matrix[row, column])), fill=_TEXT, font=font)
    if margin:
        for number, name in enumerate(classes):
            place = margin + number * cell
            pen.text((4, place + cell // 2 - 6), name[:20], fill=_TEXT, font=font)
            image.paste(_upward(name[:20], font, cell), (place, 0))
    return image


def _upward(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> Image.Image:
    label = Image.new("RGB", (_LABEL, width), _BACKGROUND)
    ImageDraw.Draw(label).text((4, width // 2 - 6), text, fill=_TEXT, font=font)
    return label.transpose(Image.Transpose.ROTATE_90)
