"""What the page for model files offers, and the arguments of scripts/convert.py for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from modules.config.sections.adapters import MAX_RANK
from modules.files import expand_home
from modules.run import RunFolder

Kind = Literal["any", "file", "folder", "save", "choice", "integer", "number", "switch", "text"]
AS_IS: Final = "as in the file"
_MODEL: Final = "A diffusers folder, a .safetensors or a .gguf file."
_LORA: Final = "A LoRA in a .safetensors file."
LORAS: Final = ("lora", "kohya_lora", "lora_folder")  # kinds of the source
LORA_FILES: Final = ("lora_kohya.safetensors", "pytorch_lora_weights.safetensors")  # of a run, in its model folder
KIND: Final = "kind"  # of the source, among the values of a task: see app/tools/models_page.py
STRONGEST: Final = 100.0  # strength of a LoRA, as in scripts/common.py


@dataclass(frozen=True)
class ToolField:
    """One field of a task: `name` is unique in it; it counts if the field `decided_by` has a value of `only_for`."""

    name: str
    title: str
    kind: Kind
    help: str
    default: str = ""
    choices: Mapping[str, str] | None = None  # value -> title
    is_required: bool = False
    only_for: tuple[str, ...] = ()
    decided_by: str = "to"
    details: Mapping[str, str] | None = None  # value -> what it means, below its title
    not_for: tuple[str, ...] = ()  # kinds of the source


@dataclass(frozen=True)
class ModelTask:
    """One thing that a page can do; `suffix` is that of the suggested name of the result."""

    name: str
    title: str
    about: str
    fields: tuple[ToolField, ...]
    suffix: str = ""


_NUMBERS: Final = {AS_IS: "As in the file", "fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
_DTYPE: Final = ToolField(
    "dtype",
    "Saved precision (dtype)",
    "choice",
    "Half-size formats: bf16 for current GPUs, fp16 for all.",
    AS_IS,
    _NUMBERS,
)
_OUT: Final = ToolField("out", "Result", "save", "The file or folder that is written.", is_required=True)
_OVERWRITE: Final = ToolField("overwrite", "Replace an existing file", "switch", "Off: an existing file is kept.", "")
_RANK: Final = ToolField(
    "rank", "Rank", "integer", f"From 1 to {MAX_RANK}: higher keeps more, in a larger file.", "32", is_required=True
)
FORMATS: Final = {
    "single_file": "Single file of a model",
    "diffusers": "diffusers",
    "kohya": "LoRA for ComfyUI, A1111, Forge",
    "embedding": "Embedding for A1111 and ComfyUI",
    "dtype": "Same layout, other number format",
}
TASKS: Final[tuple[ModelTask, ...]] = (
    ModelTask(
        "convert",
        "Convert",
        "Between the formats of diffusers, ComfyUI, A1111 and Forge, and between number formats.",
        (
            ToolField("source", "Model, LoRA or embedding", "any", _MODEL, is_required=True),
            ToolField("to", "Format", "choice", "The kind of file that is made.", "single_file", FORMATS),
            _DTYPE,
            ToolField(
                *("layout", "Folder with the layout", "folder"),
                "A diffusers folder of the same architecture, which gives what the file lacks: configs, tokenizers.",
                only_for=("diffusers",),
                not_for=(*LORAS, "embedding"),
            ),
            _OUT,
            _OVERWRITE,
        ),
        "converted",
    ),
    ModelTask(
        "merge",
        "Merge a LoRA",
        "Makes one or two LoRAs part of a model.",
        (
            ToolField("source", "Model", "any", f"{_MODEL}", is_required=True),
            ToolField("lora", "LoRA", "file", _LORA, is_required=True),
            ToolField("scale", "Strength", "number", "1 as trained, 0 none.", "1", is_required=True),
            ToolField("lora2", "Second LoRA", "file", f"{_LORA} May stay empty."),
            ToolField("scale2", "Its strength", "number", "1 as trained, 0 none.", "1", is_required=True),
            _DTYPE,
            _OUT,
            _OVERWRITE,
        ),
        "merged",
    ),
    ModelTask(
        "extract",
        "Extract a LoRA",
        "Writes what training has changed in a model as a LoRA.",
        (
            ToolField("source", "Base model", "folder", "The diffusers folder before training.", is_required=True),
            ToolField("tuned", "Trained model", "folder", "The diffusers folder after training.", is_required=True),
            _RANK,
            _DTYPE,
            _OUT,
            _OVERWRITE,
        ),
        "lora",
    ),
    ModelTask(
        "resize",
        "Resize a LoRA",
        "Writes a LoRA with another rank: a smaller file with nearly the same effect.",
        (ToolField("source", "LoRA", "file", _LORA, is_required=True), _RANK, _DTYPE, _OUT, _OVERWRITE),
        "resized",
    ),
)


def applies(field: ToolField, values: Mapping[str, str]) -> bool:
    """Whether the field counts under the other values."""
    is_wanted = not field.only_for or values.get(field.decided_by) in field.only_for
    return is_wanted and values.get(KIND, "") not in field.not_for


def faults(task: ModelTask, values: Mapping[str, str]) -> dict[str, str]:
    """What is missing or wrong, as a sentence for each field."""
    found = {}
    for field in task.fields:
        value = values.get(field.name, "").strip()
        if not applies(field, values):
            continue
        if field.is_required and not value:
            found[field.name] = f"{field.title} is missing."
        elif field.kind == "integer" and not (value.isdecimal() and 1 <= int(value) <= MAX_RANK):
            found[field.name] = f"{field.title} is {value!r}; use a whole number from 1 to {MAX_RANK}."
        elif field.kind == "number" and not _is_strength(value):
            found[field.name] = f"{field.title} is {value!r}; use a number from {-STRONGEST:g} to {STRONGEST:g}."
    if values.get(KIND) == "lora_folder":
        files = " or ".join(name for name in LORA_FILES if (expand_home(values["source"].strip()) / name).is_file())
        found["source"] = f"This folder holds a LoRA: choose its file {files}."
    if values.get(KIND) == "model" and values.get("to") == "diffusers" and not values.get("layout", "").strip():
        found["layout"] = "Choose a diffusers folder of the same architecture: the file holds weights only."
    if values.get("to") == "dtype" and values.get("dtype") == AS_IS and task.name == "convert":
        found["dtype"] = "Choose a number format: only that is converted."
    return found


def arguments(task: ModelTask, values: Mapping[str, str]) -> list[str]:
    """The arguments of scripts/convert.py for values without faults."""
    source, out = (str(expand_home(values[name].strip())) for name in ("source", "out"))
    more: list[str] = []
    if task.name == "convert":
        more = [f"--to={values['to']}"]
        if _has_layout(values):
            more.append(f"--layout={_path(values['layout'])}")
    elif task.name == "merge":
        for lora, scale in (("lora", "scale"), ("lora2", "scale2")):
            if values.get(lora, "").strip():
                more += [f"--merge={_path(values[lora])}", f"--lora_scale={values[scale].strip()}"]
    elif task.name == "extract":
        more = [f"--extract={_path(values['tuned'])}"]
    else:
        more = ["--resize"]
    if "rank" in values and task.name in ("extract", "resize"):
        more.append(f"--rank={values['rank'].strip()}")
    if values.get("dtype", AS_IS) != AS_IS:
        more.append(f"--dtype={values['dtype']}")
    if values.get("overwrite"):
        more.append("--overwrite")
    return [*more, "--", source, out]


def suggested_out(task: ModelTask, values: Mapping[str, str]) -> str:
    """A free name beside the source, but outside of a run's own folders; empty without a source."""
    text = values.get("source", "").strip()
    if not text:
        return ""
    source = expand_home(text)
    is_model_folder = source.is_dir() and not source.suffix
    is_folder = (task.name == "merge" and is_model_folder) or (task.name == "convert" and _has_layout(values))
    stem = source.name if is_model_folder else source.stem
    ending = "" if is_folder else ".safetensors"
    names = (f"{stem}-{task.suffix}{'' if number == 1 else f'-{number}'}{ending}" for number in range(1, 1000))
    folder = _outside_of_run_folders(source.parent)
    return str(next((folder / name for name in names if not (folder / name).exists()), folder))


def _outside_of_run_folders(folder: Path) -> Path:
    """The folder itself, or that of the run in whose model, backups or best weights it is: a run replaces these."""
    runs = (RunFolder(path) for path in folder.parents)
    return next((run.path for run in runs if run.config_file.is_file() and run.events_file.is_file()), folder)


def _has_layout(values: Mapping[str, str]) -> bool:
    is_wanted = values.get("to") == "diffusers" and values.get(KIND) not in LORAS
    return is_wanted and bool(values.get("layout", "").strip())


def _path(text: str) -> str:
    return str(expand_home(text.strip()))


def _is_strength(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and abs(value) <= STRONGEST
