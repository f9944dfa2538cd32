"""What the Generate page asks for: checked by the same declarations as samples in a config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final

from pydantic import Field, ValidationError

from app.form.setting_text import fault_message
from modules.config import Fault, Option, Sample, faults, options, setting
from modules.facts import all_facts, family_names
from modules.files import expand_home
from modules.run.folder.custom_sample import MAX_PROMPT_CHARS

AUTOMATIC: Final = "automatic"
EMPTY_PROMPT: Final = "Empty: no prompt, as for images without captions."
MOST_STRENGTHS: Final = 16  # as in scripts/common.py
GENERATES_NOTHING: Final = tuple(name for name, facts in all_facts().items() if not facts.draws_samples)


class GenerateSettings(Sample):
    """A model, an optional LoRA, a prompt, and how many images of which size."""

    section_title: ClassVar[str] = "Generate"

    model: str = setting(
        "",
        title="Base model",
        help="A diffusers folder, a .safetensors or .gguf file, a Hugging Face model such as owner/name, or the "
        "model folder of a run.",
        picks="file",
    )
    family: str = setting(
        AUTOMATIC,
        title="Family",
        help="The model family. Only needed where it cannot be found out: for a Hugging Face model that is not in the "
        "cache.",
    )
    lora: str = setting(
        "",
        title="LoRA",
        help="Optional: a LoRA file of any trainer, which is applied to the base model.",
        picks="file",
    )
    lora_scale: tuple[Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)], ...] = setting(
        (1.0,),
        title="LoRA strength",
        help="1 as trained, 0 none, above 1 exaggerates. Several, such as 0, 0.5, 1, give a row of images each, of the "
        "same seeds.",
    )
    prompt: str = setting(
        "",
        title="Prompt",
        help="What to generate. May be empty, for a model that was trained without captions. Of {a red|a blue|no}, "
        "one is drawn for each image, by its seed.",
        picks="long_text",
    )
    random_seed: bool = setting(
        True,
        title="Random seed",
        help="Choose a new seed each time. Switch off to repeat an image, for example with another LoRA.",
    )
    count: int = setting(
        1, title="Number of images", help="Images of one prompt, with consecutive seeds.", ge=1, le=100
    )
    device: str = setting(AUTOMATIC, title="Device", help="Where to generate; automatic: the first GPU, or the CPU.")
    folder: str = setting(
        "generated", title="Folder", help="Where the images are saved. Existing ones stay.", picks="folder"
    )


OPTIONS: Final[Mapping[str, Option]] = {option.path: option for option in options(GenerateSettings)}


def check(values: Mapping[str, object]) -> tuple[GenerateSettings | None, dict[str, str]]:
    """The settings, or a sentence for each field that is wrong, by name."""
    try:
        settings = GenerateSettings.model_validate(values)
    except ValidationError as error:
        found = faults(error, GenerateSettings)
        return None, {fault.path.partition(".")[0]: _sentence(fault, values) for fault in found}
    missing = {}
    if not settings.model.strip():
        missing["model"] = "Choose a base model, or a run with “Runs”."
    if settings.lora.strip() and not 1 <= len(settings.lora_scale) <= MOST_STRENGTHS:
        missing["lora_scale"] = f"Give 1 to {MOST_STRENGTHS} numbers, such as 0, 0.5, 1."
    if not settings.folder.strip():
        missing["folder"] = "Choose a folder for the images."
    for name in ("prompt", "negative_prompt"):
        if len(getattr(settings, name)) > MAX_PROMPT_CHARS:
            missing[name] = f"Use at most {MAX_PROMPT_CHARS:,} characters."
    return (None, missing) if missing else (settings, {})


def _sentence(fault: Fault, values: Mapping[str, object]) -> str:
    name, _, place = fault.path.partition(".")
    strengths = values.get(name)
    if name == "lora_scale" and place and isinstance(strengths, list):
        return f"“{strengths[int(place)]}” is no number from -100 to 100."
    return fault_message(fault, OPTIONS[name]) if name in OPTIONS else fault.sentence


def arguments(settings: GenerateSettings, events: Path) -> list[str]:
    """The command line of scripts/sample.py. `--name=value`, since a value may begin with a dash."""
    given: dict[str, object] = {
        "model": _path(settings.model),
        "prompt": settings.prompt,
        "negative_prompt": settings.negative_prompt,
        "seed": settings.seed,
        "count": settings.count,
        "steps": settings.steps,
        "guidance_scale": settings.guidance_scale,
        "width": settings.width,
        "height": settings.height,
        "frames": settings.frames,
        "out": _path(settings.folder),
        "events": events,
    }
    if settings.family != AUTOMATIC:
        given["family"] = settings.family
    if settings.device != AUTOMATIC:
        given["device"] = settings.device
    if settings.reference.strip():
        given["reference"] = "; ".join(map(_path, settings.reference_files))
    if settings.lora.strip():
        several = ",".join(f"{scale:g}" for scale in settings.lora_scale)
        given |= {
            "lora": _path(settings.lora),
            "lora_scales" if len(settings.lora_scale) > 1 else "lora_scale": several,
        }
    return ["--no_grid", *(f"--{name}={value}" for name, value in given.items() if value is not None)]


def number_of_images(settings: GenerateSettings) -> int:
    """With all strengths of the LoRA."""
    return settings.count * (len(settings.lora_scale) if settings.lora.strip() else 1)


def parse_strengths(typed: str) -> list[str]:
    """The numbers in "0, 0.5, 1" or "0,5; 1"; a single comma between digits ("0,5") is a decimal one."""
    if ";" in typed or not ("." in typed or typed.count(",") > 1 or re.search(r",\s", typed)):
        return [part.strip().replace(",", ".") for part in typed.split(";")]
    return [part.strip() for part in typed.split(",")]


def families() -> list[str]:
    """The choices of the family, the automatic one first."""
    return [AUTOMATIC, *(name for name in family_names() if name not in GENERATES_NOTHING)]


def _path(typed: str) -> str:
    """`typed` without spaces around it; ~ is the home folder."""
    name = typed.strip()
    return str(expand_home(name)) if name.startswith("~") else name
