"""The processor of images and text of a model; its part for videos, which needs torchvision, is left out."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer
from transformers.models.auto.processing_auto import processor_class_from_name

from modules.annotators.annotator import MOST_PIXELS_A_SIDE
from modules.config import ConfigError
from modules.files import printable

_SIZES: Final = ("size", "crop_size", "pad_size", "image_size", "max_image_size", "image_grid_pinpoints", "min_pixels")
_MOST_A_SIDE: Final = 4096  # published models have at most 2304
_MOST_AREA: Final = MOST_PIXELS_A_SIDE**2
_VIDEOS = "video_processor"
_HERE = {"local_files_only": True, "trust_remote_code": False}  # without the latter, transformers asks on the terminal


def load_processor(folder: Path) -> Any:
    """The processor in a model's folder. Raises ImportError and what else transformers raises."""
    try:
        return cast(Any, AutoProcessor).from_pretrained(folder, **_HERE)
    except ImportError as error:
        if "VideoProcessor requires the Torchvision" not in str(error):
            raise
    return _without_videos(folder)


def check_image_sizes(image_processor: Any, name: str) -> None:
    """Raise ConfigError if a model has its images enlarged to a size that no model needs and no memory holds."""
    # such processors, as Qwen2-VL's, call numbers of pixels edges; an image is enlarged to the least of them
    counts_pixels = hasattr(sys.modules[type(image_processor).__module__], "smart_resize")
    settings: dict[str, Any] = image_processor.to_dict()
    for setting in _SIZES:
        for where, value in _numbers(setting, settings.get(setting)):
            if where.endswith("max_pixels") or (counts_pixels and where == "size.longest_edge"):
                continue  # nothing is enlarged to these
            is_area = where.endswith("min_pixels") or (counts_pixels and where == "size.shortest_edge")
            most, unit = (_MOST_AREA, "pixels") if is_area else (_MOST_A_SIDE, "pixels a side")
            if value > most:
                asked = printable(f"{value:,}", 40)
                raise ConfigError(
                    f"--model: {name!r} asks for images of {asked} {unit} ({where} of its image processor); at "
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


def _without_videos(folder: Path) -> Any:
    kind, settings = _class_and_settings(folder)

    def accepts(self: object, name: str, part: object) -> object:
        return None if part is None else kind.check_argument_for_proper_class(self, name, part)

    own: Any = type(kind.__name__, (kind,), {"check_argument_for_proper_class": accepts})
    images = cast(Any, AutoImageProcessor).from_pretrained(folder, **_HERE)
    words = cast(Any, AutoTokenizer).from_pretrained(folder, **_HERE)
    parts = {"image_processor": images, "tokenizer": words, _VIDEOS: None}
    return own(**parts, chat_template=settings.get("chat_template"))


def _class_and_settings(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The class of the processor, from whichever file names it, and its settings."""
    from transformers import ProcessorMixin

    settings: dict[str, Any] = cast(Any, ProcessorMixin).get_processor_dict(folder, local_files_only=True)[0]
    name = settings.get("processor_class")
    if name is None:
        name = cast(Any, AutoTokenizer).from_pretrained(folder, **_HERE).init_kwargs["processor_class"]
    found = processor_class_from_name(name)
    if found is None:
        raise ValueError(f"transformers has no processor {name}")
    return found, settings
