"""Readers: a value of theirs as ours, or NotCarriedError with what is expected."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from modules.config.explain import show
from modules.config.importing.rules import BLANK, Changed, Located, NotCarriedError

MOST_DIGITS = 1000  # Python refuses to read integers of more than 4,300 digits


def number(value: object) -> float:
    """A number, also from text."""
    if isinstance(value, str) and len(value) < MOST_DIGITS:
        try:
            value = float(value)
        except ValueError:
            raise NotCarriedError(f"{show(value)} is no number") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise NotCarriedError(f"{show(value)} is no number")
    try:
        found = float(value)
    except OverflowError:
        raise NotCarriedError(f"{show(value)} is too large") from None
    if not math.isfinite(found):
        raise NotCarriedError(f"{show(value)} is no number")
    return found


def whole(value: object) -> int:
    """A whole number, also from text or 4.0."""
    found = number(value)
    if not found.is_integer():
        raise NotCarriedError(f"{show(value)} is no whole number")
    return int(value) if isinstance(value, int) else int(found)


def flag(value: object) -> bool:
    """On or off, also from the text "True" and from 1 and 0."""
    words = {"true": True, "1": True, "false": False, "0": False, "": False, "none": False}
    text = str(value).strip().lower()
    if isinstance(value, (bool, int, str)) and text in words:
        return words[text]
    if value is None:
        return False
    raise NotCarriedError(f"{show(value)} is neither true nor false")


def text(value: object) -> str:
    """Text; a number is taken as it is written."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise NotCarriedError(f"{show(value)} is no text")


def is_text(value: object) -> bool:
    """Whether a value is text that is not empty."""
    return isinstance(value, str) and bool(value.strip())


def is_path(value: object) -> bool:
    """Whether a value may be a path."""
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def some_text(value: object) -> str:
    """Text that is not empty."""
    found = text(value).strip()
    if not found:
        raise NotCarriedError("it is empty")
    return found


def data_path(value: object) -> object:
    """The path of pictures, masks and the like."""
    return Located(_path(value), "data")


def model_path(value: object) -> object:
    """The path of a model, or its name on the hub."""
    return Located(_path(value), "model")


def new_path(value: object) -> object:
    """The path of something that is written."""
    return Located(_path(value), "new")


def _path(value: object) -> str:
    if not is_path(value):
        raise NotCarriedError(f"{show(value)} is no path")
    return str(value).strip()


def positive(value: object) -> float:
    """A number above 0; forms write 0 for "not set"."""
    found = number(value)
    if found <= 0:
        raise NotCarriedError("it is not set")
    return found


def optional_number(value: object) -> float | None:
    """A number, or None for an empty field and 0."""
    return None if value in BLANK else number(value)


def choice(names: Mapping[str, object], otherwise: str) -> Callable[[object], object]:
    """A reader that looks a word of theirs up, whatever its case; `otherwise` tells what becomes of others."""

    def read(value: object) -> object:
        found = names.get(str(value).lower())
        if found is None:
            raise NotCarriedError(otherwise)
        return found

    return read


def items(value: object) -> list[object]:
    """A list; a single value is a list of one, nothing is an empty one."""
    if isinstance(value, (list, tuple)):
        return list(value)
    return [] if value in BLANK else [value]


def side(value: object) -> object:
    """The training resolution, from 512, "512", "512,768", "512x768", [512, 768]: the side of a square of that area.

    Two numbers are width and height.
    """
    parts = items(value)
    numbers = [whole(part) for one in parts for part in re.split(r"[,x×*]", str(one).lower().strip("()[] ")) if part]
    if not numbers:
        raise NotCarriedError("it names no size")
    if len(numbers) == 1 or numbers[0] == numbers[1]:
        return numbers[0]
    square = max(8, round(math.sqrt(max(numbers[0] * numbers[1], 1)) / 8) * 8)
    return Changed(square, "Tandem's resolution is one number: the side of a square with as many pixels")


PRECISIONS: Mapping[str, object] = {
    name: ours
    for ours, names in {
        "fp32": ("no", "fp32", "float32", "float", "float_32", "torch.float32"),
        "tf32": ("tf32", "tfloat_32"),
        "fp16": ("fp16", "float16", "float_16", "half", "torch.float16"),
        "bf16": ("bf16", "bfloat16", "bfloat_16", "torch.bfloat16"),
    }.items()
    for name in names
}
precision = choice(PRECISIONS, "Tandem trains in fp32, tf32, bf16 or fp16; set precision")
save_dtype = choice(
    {name: ours for name, ours in PRECISIONS.items() if ours != "tf32"}, "Tandem saves in fp32, bf16 or fp16"
)
