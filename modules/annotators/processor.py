"""The processor of images and text of a model; its part for videos, which needs torchvision, is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer
from transformers.models.auto.processing_auto import processor_class_from_name

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
