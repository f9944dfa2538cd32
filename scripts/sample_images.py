"""The images of scripts/sample.py: generated one by one, written with their settings, and reported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from PIL import Image

from modules.config import ConfigError, TrainConfig
from modules.families._family import Family, SampleRequest
from modules.files.videos import Clip
from modules.monitoring import make_grid, save_image, save_sample
from modules.run.console import echo
from modules.training.device.precision import Precision
from modules.training.memory.move_model import move_model
from modules.training.step.finite_weights import check_weights
from modules.training.step.memory_guard import OutOfMemory, is_out_of_memory
from scripts.sample_events import SampleEvents
from scripts.sample_lora import LoraFile, LoraLayers, merged_dtype


@dataclass(frozen=True)
class Loaded:
    """A model, its weights still in its files, the LoRAs to merge into it, its config, the images, and their notes."""

    family: Family
    loras: Sequence[LoraFile]
    config: TrainConfig
    requests: Sequence[SampleRequest]
    origin: Mapping[str, str]


def find_device(name: str | None) -> torch.device:
    """The device called `name`; by default the first GPU, or the CPU. Raises ConfigError."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{number}" for number in range(gpus))]
    if name not in known:
        raise ConfigError(f"--device is {name!r}; on this computer use one of {', '.join(known)}.")
    return torch.device(name)


def move_to(device: torch.device, family: Family, config: TrainConfig) -> Precision:
    """Move the model to the device in the config's precision, as a run keeps frozen weights.

    Raises OutOfMemory, TrainingError if its weights are not finite: the images would be black.
    """
    family.model.requires_grad_(False)
    try:
        move_model(family, config, device)
    except RuntimeError as error:
        raise _out_of_memory(error, f"The model does not fit into the memory of {device}") from error
    check_weights(config, family, family.model)
    return Precision(config.precision, device)


def write_rows(
    loaded: Loaded, strengths: Sequence[float], device: torch.device, folder: Path, events: SampleEvents
) -> list[tuple[Image.Image, str]]:
    """The images with each strength of the LoRAs, and their captions; without any, once with the LoRAs' own.

    Raises TandemError, or OSError if an image cannot be written.
    """
    batch = {"batch": free_number(folder)}
    adapters = len(loaded.loras) + (loaded.config.method == "lora")
    dtype = merged_dtype(loaded.family, loaded.config, adapters)
    if not strengths:
        for lora in loaded.loras:
            lora.merge_into(loaded.family, dtype)
        precision = move_to(device, loaded.family, loaded.config)
        return write_images(loaded, loaded.loras, precision, folder, events, batch)
    batch["row_length"] = row_length(len(loaded.requests), len(strengths))
    layers = LoraLayers(loaded.family, loaded.loras, dtype)
    images: list[tuple[Image.Image, str]] = []
    for row, strength in enumerate(strengths):
        if events.is_stopped:
            break
        loras = layers.merge(strength)
        precision = move_to(device, loaded.family, loaded.config)
        made = write_images(loaded, loras, precision, folder, events, batch, (row, len(strengths)))
        images += [(image, f"strength {strength:g}  {prompt}") for image, prompt in made]
    return images


def write_images(
    loaded: Loaded,
    loras: Sequence[LoraFile],
    precision: Precision,
    folder: Path,
    events: SampleEvents,
    batch: Mapping[str, int],
    row: tuple[int, int] = (0, 1),
) -> list[tuple[Image.Image, str]]:
    """Generate and write an image for each request, until one is told to stop; returns them with their prompts.

    `batch` says in the PNGs what was generated together; `row` of how many rows it is, for the events.
    Raises OutOfMemory, or OSError if an image cannot be written.
    """
    family, requests = loaded.family, loaded.requests
    origin = {**loaded.origin, **({"lora": ", ".join(map(str, loras))} if loras else {}), **batch}
    first, images = free_number(folder), list[tuple[Image.Image, str]]()
    before, total = row[0] * len(requests), row[1] * len(requests)
    with events.stopping_after_the_image():
        for number, request in enumerate(requests):
            if events.is_stopped:
                break
            events.step(before + number + 1, total, 0, request.steps)
            family.on_sampling_step = partial(events.step, before + number + 1, total)
            image = _generate(family, request, precision)
            file = folder / f"sample-{first + number:02d}.png"
            shown = save_sample(image, file, {**request.settings(), **family.sample_metadata(), **origin})
            echo(str(file if shown is image else file.with_suffix(".mp4")))
            events.report("image", file=str(file))
            images.append((shown, request.prompt))
    return images


def row_length(images: int, strengths: int) -> int:
    """How many images belong side by side: those of a LoRA strength, or one of each."""
    return images if images > 1 else strengths


def write_grid(images: Sequence[tuple[Image.Image, str]], folder: Path, number: int, columns: int = 0) -> None:
    """Write all images side by side, `columns` in a row if given."""
    file = folder / f"grid-{number:02d}.png"
    save_image(make_grid(images, columns), file, {"prompt": "all samples"})
    echo(str(file))


def free_number(folder: Path) -> int:
    """The number after the last existing sample."""
    names = (re.fullmatch(r"sample-(\d{1,9})\.png", file.name) for file in folder.iterdir())
    return max((int(name[1]) + 1 for name in names if name), default=0)


def _generate(family: Family, request: SampleRequest, precision: Precision) -> Image.Image | Clip:
    try:
        with precision.autocast():
            return family.sample(request)
    except RuntimeError as error:
        size = f"{request.width}x{request.height}"
        raise _out_of_memory(error, f"Out of memory while generating {size} pixels") from error


def _out_of_memory(error: RuntimeError, what: str) -> Exception:
    """The error to raise in its place: the same one unless memory ran out."""
    if not is_out_of_memory(error):
        return error
    return OutOfMemory(
        f"{what}.", "Use a smaller size, --precision bf16, or another --device, and end what else uses its memory."
    )
