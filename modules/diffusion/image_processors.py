"""The part of a model that prepares images for a network that sees them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from modules.config import ConfigError
from modules.diffusion.library_errors import damage_refused
from modules.files import printable

_SIZES: Final = ("size", "crop_size", "pad_size", "image_size", "max_image_size", "image_grid_pinpoints", "min_pixels")
_MOST_A_SIDE: Final = 4096  # published models have at most 2304
_MOST_MULTIPLE: Final = 256  # pixels that sides are rounded up to a multiple of; published models have 28 or 32
_MOST_AREA: Final = 1024**2  # that each image is enlarged to; published models enlarge to much smaller ones


def load_image_processor(folder: Path, name: str) -> Any:
    """The image processor of the component `name` in a base model's folder. Raises ConfigError if it cannot be used."""
    from transformers import AutoImageProcessor

    with damage_refused(f"base_model: {name} of the model in {str(folder)!r}"):
        found = cast(Any, AutoImageProcessor).from_pretrained(
            folder / name, local_files_only=True, trust_remote_code=False
        )
        check_image_sizes(found, str(folder), "base_model")
    return found


def check_image_sizes(image_processor: Any, name: str, option: str = "--model") -> None:
    """Raise ConfigError if a model has its images enlarged to a size that no model needs and no memory holds.

    `option` is the setting that names the model."""
    # such processors, as Qwen2-VL's, call numbers of pixels edges; an image is enlarged to the least of them
    counts_pixels = hasattr(sys.modules[type(image_processor).__module__], "smart_resize")
    settings: dict[str, Any] = image_processor.to_dict()
    patch, merged = (
        max((value for _, value in _numbers("", settings.get(each))), default=1)
        for each in ("patch_size", "merge_size")
    )
    if counts_pixels and patch * merged > _MOST_MULTIPLE:
        asked = printable(f"{patch:,} x {merged:,}", 40)
        raise ConfigError(
            f"{option}: {name!r} asks for images in pieces of {asked} pixels a side (patch_size x merge_size of its "
            f"image processor); at most {_MOST_MULTIPLE} are used.",
            "Copy or download it again, or use another.",
        )
    for setting in _SIZES:
        for where, value in _numbers(setting, settings.get(setting)):
            if where.endswith("max_pixels") or (counts_pixels and where == "size.longest_edge"):
                continue  # nothing is enlarged to these
            is_area = where.endswith("min_pixels") or (counts_pixels and where == "size.shortest_edge")
            most, unit = (_MOST_AREA, "pixels") if is_area else (_MOST_A_SIDE, "pixels a side")
            if value > most:
                asked = printable(f"{value:,}", 40)
                raise ConfigError(
                    f"{option}: {name!r} asks for images of {asked} {unit} ({where} of its image processor); at "
                    f"most {most:,} are used.",
                    "Copy or download it again, or use another.",
                )


def _numbers(where: str, value: object) -> Iterator[tuple[str, float]]:
    """The numbers in a setting, with their places."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _numbers(f"{where}.{key}", each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _numbers(where, each)
    elif isinstance(value, (int, float)):
        yield where, value
