"""Where the tiles of a grid stand: in lines, which blocks of images begin anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.widgets import theme

SIDE: Final = 168  # unscaled pixels, at least
GAP: Final = 14
_LEAST: Final = 72  # in a row of a given length
_LARGEST: Final = 448
_CAPTION_HEIGHT: Final = 34
_APART: Final = 12  # more above a block that belongs to no other


@dataclass(frozen=True)
class Block:
    """So many consecutive images. `columns`: they are one row of so many, if there is room, however small they get."""

    count: int
    columns: int = 0
    is_apart: bool = False  # from the block before


@dataclass(frozen=True)
class Line:
    """Images side by side: the index of the first, how many, and in pixels their top and a cell with its gap."""

    first: int
    count: int
    top: int
    width: int
    height: int


def lines_of(blocks: Sequence[Block], width: int, height: int) -> list[Line]:
    """The lines on a canvas of this size.

    Blocks without columns have those with which all images are in sight and largest, or else as many as fit.
    """
    fewest = max(1, (width - theme.px(GAP)) // theme.px(_LARGEST + GAP))  # with fewer they get no larger
    most = max(1, (width - theme.px(GAP)) // theme.px(SIDE + GAP))
    found: list[Line] = []
    for columns in range(fewest, most + 1):
        found = _lines(blocks, width, columns)
        if not found or bottom_of(found) <= height:
            break
    return found


def bottom_of(lines: Sequence[Line]) -> int:
    """The height of all lines in pixels, with the gaps around them."""
    return lines[-1].top + lines[-1].height if lines else theme.px(GAP)


def _lines(blocks: Sequence[Block], width: int, flowing: int) -> list[Line]:
    found, first, top = list[Line](), 0, theme.px(GAP)
    for block in blocks:
        columns, side = flowing, SIDE
        if block.columns:
            side = _LEAST
            columns = min(block.columns, max(1, (width - theme.px(GAP)) // theme.px(side + GAP)))
        cell = max(theme.px(side + GAP), min((width - theme.px(GAP)) // columns, theme.px(_LARGEST + GAP)))
        top += theme.px(_APART) if block.is_apart and found else 0
        for start in range(0, block.count, columns):
            found.append(
                Line(first + start, min(columns, block.count - start), top, cell, cell + theme.px(_CAPTION_HEIGHT))
            )
            top += found[-1].height
        first += block.count
    return found
