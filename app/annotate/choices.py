"""What the page offers for captions, tags and masks, and the arguments of scripts/annotate.py for it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from app.annotate.job import Order
from app.annotate.rows import TITLES
from app.tools.model_tasks import ModelTask, ToolField, applies
from modules.annotation import DEFAULT_MODELS, KNOWN_MODELS, Task
from modules.files import expand_home

OTHER_FOLDER: Final = "other"
OWN_MODEL: Final = "own"
AUTOMATIC: Final = "automatic"
_MODELS: Final = {  # short name -> title, and what it is good for
    "blip": ("BLIP large", "One short sentence. Small and fast, also without a GPU."),
    "blip2": ("BLIP-2", "One short sentence; about 15 GB to download."),
    "florence2": ("Florence-2 large", "A detailed paragraph. Small and fast."),
    "joycaption": ("JoyCaption", "A long description that follows the prompt; needs about 18 GB of GPU memory."),
    "wd14": ("WD14 ViT v2", "Danbooru tags; the smallest of the taggers."),
    "wd-swinv2": ("WD SwinV2 v3", "Danbooru tags; newer, a good balance."),
    "wd-eva02": ("WD EVA02 large v3", "Danbooru tags; the most accurate, and the slowest."),
    "clipseg": ("CLIPSeg", "Marks what a text names."),
}
_LIMITS: Final = {  # field -> least and most, as in scripts/annotate_options.py
    "max_tokens": (1, 4096),
    "batch_size": (1, 1024),
    "threshold": (0, 1),
    "character_threshold": (0, 1),
    "smooth": (0, 100),
    "expand": (0, 1000),
}
_CONCEPT: Final = ToolField(
    *("concept", "Images", "choice", "A folder of the Data section, or another one.", OTHER_FOLDER),
    {OTHER_FOLDER: "Another folder"},
)
_FOLDER: Final = ToolField(
    *("folder", "Folder", "folder", "Images in its subfolders count, too."),
    is_required=True,
    only_for=(OTHER_FOLDER,),
    decided_by="concept",
)
_BATCH: Final = ToolField(
    *("batch_size", "Images at once", "integer", "More is faster on a GPU, and takes more of its memory.", "1"),
    is_required=True,
)
_PREFIX: Final = ToolField("prefix", "Begin with", "text", "Put before each, such as the name that is trained.")


_DEVICE: Final = ToolField(
    *("device", "Device", "choice", "Automatic: the first GPU, or the CPU if there is none.", AUTOMATIC),
    {AUTOMATIC: "Automatic", "cpu": "CPU"},
)


def _model(task: Task) -> tuple[ToolField, ToolField]:
    names = KNOWN_MODELS[task]
    titles = {name: _MODELS.get(name, (name, ""))[0] for name in names}
    details = {name: _MODELS.get(name, ("", names[name]))[1] for name in names}
    model = ToolField(
        *("model", "Model", "choice", "It is downloaded at its first use.", DEFAULT_MODELS[task]),
        {**titles, OWN_MODEL: "Another model"},
        details={**details, OWN_MODEL: "A folder, or a name on the Hugging Face hub."},
    )
    own = ToolField(
        *("own", "Folder or name", "any", "A folder with the model, or owner/name on the Hugging Face hub."),
        is_required=True,
        only_for=(OWN_MODEL,),
        decided_by="model",
    )
    return model, own


def _mode(what: str, append: str) -> ToolField:
    return ToolField(
        *("mode", f"Images with a {what}", "choice", "Undo brings back what was there.", "missing"),
        {"missing": "Leave", "replace": "Replace", "append": "Append"},
        details={"missing": f"Only images without a {what}.", "replace": f"New {what}s for all.", "append": append},
    )


_FIELDS: Final[dict[Task, tuple[ToolField, ...]]] = {
    "caption": (
        ToolField(
            "prompt", "Prompt", "text", "What the model is asked; BLIP's captions begin with it. May stay empty."
        ),
        _PREFIX,
        ToolField(
            "max_tokens", "Longest caption", "integer", "In tokens, about ¾ of a word each.", "128", is_required=True
        ),
        _BATCH,
        _mode("caption", "Another line; training chooses one of the lines at random."),
    ),
    "tag": (
        ToolField(
            *("threshold", "Threshold", "number", "From 0 to 1: lower gives more tags, and more wrong ones.", "0.35"),
            is_required=True,
        ),
        ToolField(
            "character_threshold", "For characters", "number", "For names of characters.", "0.85", is_required=True
        ),
        ToolField("with_rating", "Rating first", "switch", "On: begins with the rating, such as general."),
        ToolField("exclude", "Leave out", "text", "Tags that are never wanted, with commas between them."),
        _PREFIX,
        _BATCH,
        _mode("caption", "The tags that a caption does not have yet."),
    ),
    "mask": (
        ToolField(
            *("prompt", "What counts", "text", "Such as face, or: person, dog. It becomes white in the mask."),
            is_required=True,
        ),
        ToolField(
            *("threshold", "Threshold", "number", "From 0 to 1: lower marks more of the image.", "0.3"),
            is_required=True,
        ),
        ToolField(
            "smooth",
            "Smooth by",
            "integer",
            "Blurs the mask by this many pixels of 352, the size at which the model sees an image.",
            "5",
            is_required=True,
        ),
        ToolField("expand", "Grow by", "integer", "Pixels by which the marked part grows.", "10", is_required=True),
        ToolField("invert", "Invert", "switch", "On: what is named is left out, and the rest counts."),
        _mode("mask", "What either mask marks counts."),
    ),
}
_ABOUT: Final[dict[Task, str]] = {
    "caption": "A model describes each image in words.",
    "tag": "A model names what is in each image, as tags with commas. It needs the package onnxruntime; without it, "
    "Start says how to install it.",
    "mask": "A model marks the part of each image that counts, for masked training (Data, Masks).",
}
TASKS: Final[dict[Task, ModelTask]] = {
    task: ModelTask(task, TITLES[task], _ABOUT[task], (_CONCEPT, _FOLDER, *_model(task), *fields, _DEVICE))
    for task, fields in _FIELDS.items()
}


def folder_of(values: Mapping[str, str]) -> Path:
    """The folder of the images, absolute."""
    concept = values["concept"]
    return expand_home(values["folder"].strip() if concept == OTHER_FOLDER else concept).absolute()


def faults(task: Task, values: Mapping[str, str]) -> dict[str, str]:
    """What is missing or wrong, as a sentence for each field."""
    found = {}
    for field in TASKS[task].fields:
        value = values.get(field.name, "").strip()
        if not applies(field, values):
            continue
        if field.is_required and not _parts(value):
            found[field.name] = f"{field.title} is missing."
        elif field.name in _LIMITS and not _is_within(value, *_LIMITS[field.name], whole=field.kind == "integer"):
            least, most = _LIMITS[field.name]
            kind = "whole number" if field.kind == "integer" else "number"
            found[field.name] = f"{field.title} is {value!r}; use a {kind} from {least} to {most}."
    place = "folder" if values["concept"] == OTHER_FOLDER else "concept"
    if place not in found and not os.path.isdir(folder_of(values)):
        found[place] = f"There is no folder {str(folder_of(values))!r}; choose another one."
    return found


def order(task: Task, values: Mapping[str, str], concept: Mapping[str, object]) -> Order:
    """What to propose, for values without faults; `concept` has the settings of the folder, if it is one of them."""
    folder = folder_of(values)
    setting, default = ("mask_suffix", "-masklabel.png") if task == "mask" else ("caption_extension", ".txt")
    ending = next(iter(str(concept.get(setting) or "").split()), default)
    more = [f"--{setting}={ending}"] if ending != default else []
    if concept.get("include_subfolders") is False:
        more.append("--no_subfolders")
    return Order(task, folder, ending, (*_arguments(task, values), *more, "--review", "--", str(folder)))


def _arguments(task: Task, values: Mapping[str, str]) -> Iterator[str]:
    own = values["own"].strip()
    yield f"--model={values['model'] if values['model'] != OWN_MODEL else _expanded(own)}"
    yield "--only_missing" if values["mode"] == "missing" else f"--{values['mode']}"
    if task == "mask":
        yield from (f"--prompt={part}" for part in _parts(values["prompt"]))
    elif values.get("prompt", "").strip():
        yield f"--prompt={values['prompt'].strip()}"
    if values.get("prefix", "").strip():
        prefix = values["prefix"].strip()
        yield f"--prefix={prefix.rstrip(', ')}, " if task == "tag" else f"--prefix={prefix} "
    for name in (*_LIMITS, "exclude"):
        if values.get(name, "").strip():
            yield f"--{name}={values[name].strip()}"
    for name in ("invert", "with_rating"):
        if values.get(name):
            yield f"--{name}"
    if values["device"] != AUTOMATIC:
        yield f"--device={values['device']}"


def _parts(text: str) -> list[str]:
    """What is between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _expanded(name: str) -> str:
    return str(expand_home(name)) if name.startswith("~") else name


def _is_within(text: str, least: float, most: float, *, whole: bool) -> bool:
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        return False
    return math.isfinite(value) and least <= value <= most
