"""Converters from another trainer's values to Tandem's; they raise UnsupportedValueError with what is expected."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeGuard

from modules.config.explain import format_value
from modules.config.io.text_formats import MOST_DIGITS
from modules.files.addresses import is_address, parse_address
from modules.importers.rules import EMPTY_VALUES, ChangedValue, PathValue, UnsupportedValueError

# host, owner/model, file
_ADDRESS: Final = re.compile(r"https?://(?:www\.)?([^/]+)/([^/]+/[^/?#]+)/?(?:tree/main/?)?(.*)", re.IGNORECASE)


def number(value: object) -> float:
    """A number, possibly given as text."""
    if isinstance(value, str) and len(value) < MOST_DIGITS:
        try:
            value = float(value)
        except ValueError:
            raise UnsupportedValueError(f"{format_value(value)} is not a number") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UnsupportedValueError(f"{format_value(value)} is not a number")
    try:
        found = float(value)
    except OverflowError:
        raise UnsupportedValueError(f"{format_value(value)} is too large") from None
    if not math.isfinite(found):
        raise UnsupportedValueError(f"{format_value(value)} is not a number")
    return found


def integer(value: object) -> int:
    """A whole number, possibly given as text or as 4.0."""
    found = number(value)
    if not found.is_integer():
        raise UnsupportedValueError(f"{format_value(value)} is not a whole number")
    return int(value) if isinstance(value, int) else int(found)


def boolean(value: object) -> bool:
    """A boolean, possibly given as the text "True" or as 1 or 0."""
    words = {"true": True, "1": True, "false": False, "0": False, "": False, "none": False}
    text = str(value).strip().lower()
    if isinstance(value, (bool, int, str)) and text in words:
        return words[text]
    if value is None:
        return False
    raise UnsupportedValueError(f"{format_value(value)} is neither true nor false")


def text(value: object) -> str:
    """Text; a number is converted to text."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise UnsupportedValueError(f"{format_value(value)} is not text")


def is_text(value: object) -> bool:
    """Whether a value is text that is not empty."""
    return isinstance(value, str) and bool(value.strip())


def is_path(value: object) -> TypeGuard[str]:
    """Whether a value can be a path."""
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def non_empty_text(value: object) -> str:
    """Text that is not empty."""
    found = text(value).strip()
    if not found:
        raise UnsupportedValueError("it is empty")
    return found


def data_path(value: object) -> object:
    """The path of images, masks or other data, which must exist, or an address that is downloaded."""
    given = _path(value)
    return address(given) if is_address(given) else PathValue(given, "data")


def address(text: str) -> str:
    """An address of images."""
    try:
        parse_address(text)
    except ValueError as error:
        raise UnsupportedValueError(f"it {error}") from None
    return text


def data_paths(value: object, most: int, why: str = "") -> ChangedValue:
    """The first `most` of several such paths, as one of our settings that take several has them; `why` as in a rule."""
    given = [_path(each) for each in items(value)]
    if not given:
        raise UnsupportedValueError("no path is given")
    if named := next((each for each in given if ";" in each), ""):
        raise UnsupportedValueError(f"{named!r} has a semicolon, which separates paths here: give it another name")
    fewer = f"the model takes {most}: those after are left out" if len(given) > most else ""
    return ChangedValue(PathValue("; ".join(given[:most]), "data", "; "), "; ".join(filter(None, (fewer, why))))


def model_path(value: object) -> object:
    """The path of a model, or its name on the hub, which an address there contains."""
    text = _path(value)
    if not (address := _ADDRESS.match(text)):
        return PathValue(text, "model")
    host, name, file = address.groups()
    if host != "huggingface.co" or file:
        raise UnsupportedValueError("download the file, and set base_model to it")
    return PathValue(name, "model")


def output_path(value: object) -> object:
    """The path of an output, which need not exist."""
    return PathValue(_path(value), "output")


def _path(value: object) -> str:
    if not is_path(value):
        raise UnsupportedValueError(f"{format_value(value)} is not a path")
    return str(value).strip()


def positive_number(value: object) -> float:
    """A number above 0; other trainers' forms write 0 for "not set"."""
    found = number(value)
    if found <= 0:
        raise UnsupportedValueError("it is not set")
    return found


def positive_integer(value: object) -> int | None:
    """A whole number above 0, or None for an empty field and 0."""
    return None if value in EMPTY_VALUES else integer(value)


def optional_number(value: object) -> float | None:
    """A number, or None for an empty field and 0."""
    return None if value in EMPTY_VALUES else number(value)


def steps(value: object) -> object:
    """An interval of steps; a number below 1 means never."""
    count = integer(value)
    return f"{count} steps" if count > 0 else "never"


def device_ids(value: object) -> object:
    """Numbers separated by commas as a list."""
    return [integer(part.strip()) for item in items(value) for part in str(item).split(",") if part.strip()] or None


def prediction_type(is_v_prediction: object) -> object:
    """v_prediction if the switch is on, else auto."""
    return "v_prediction" if boolean(is_v_prediction) else "auto"


def choice(names: Mapping[str, object], otherwise: str) -> Callable[[object], object]:
    """A converter that looks a word up, ignoring case; `otherwise` is the error for unknown words."""

    def read(value: object) -> object:
        found = names.get(str(value).lower())
        if found is None:
            raise UnsupportedValueError(otherwise)
        return found

    return read


def items(value: object) -> list[object]:
    """A list; a single value becomes a list of one item, an empty value an empty list."""
    if isinstance(value, (list, tuple)):
        return list(value)
    return [] if value in EMPTY_VALUES else [value]


def resolution_side(value: object) -> object:
    """The training resolution from 512, "512", "512,768", "512x768" or [512, 768]: the side of a square of that area.

    Two numbers are width and height.
    """
    parts = items(value)
    numbers = [
        integer(part) for item in parts for part in re.split(r"[,x×*]", str(item).lower().strip("()[] ")) if part
    ]
    if not numbers:
        raise UnsupportedValueError("no size is given")
    if len(numbers) == 1 or numbers[0] == numbers[1]:
        return numbers[0]
    square = max(8, round(math.sqrt(max(numbers[0] * numbers[1], 1)) / 8) * 8)
    return ChangedValue(square, "Tandem's resolution is one number: the side of a square with as many pixels")


def several_sides(values: Iterable[object]) -> str:
    """Resolutions of a concept from the sides of squares, or widths and heights: "512 768"."""
    sides = [resolution_side(each) for each in values]
    return " ".join(dict.fromkeys(str(each.value if isinstance(each, ChangedValue) else each) for each in sides))


PRECISIONS: Mapping[str, object] = {
    name: target
    for target, names in {
        "fp32": ("no", "fp32", "float32", "float", "float_32", "torch.float32"),
        "tf32": ("tf32", "tfloat_32"),
        "fp16": ("fp16", "float16", "float_16", "half", "torch.float16"),
        "bf16": ("bf16", "bfloat16", "bfloat_16", "torch.bfloat16"),
    }.items()
    for name in names
}
precision = choice(PRECISIONS, "Tandem trains in fp32, tf32, bf16 or fp16; set precision")
save_dtype = choice(
    {name: target for name, target in PRECISIONS.items() if target != "tf32"}, "Tandem saves in fp32, bf16 or fp16"
)
