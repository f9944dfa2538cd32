"""Generate images with a model: `python scripts/sample.py --model runs/NAME/model --prompt "..."`.

The model may be one that Tandem did not write, and `--lora FILE` applies a LoRA file of any trainer.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import (
    add_lora_scale,
    add_lora_scales,
    add_trust_code,
    add_version,
    allow_code,
    lora_scales,
    lora_strengths,
    option_groups,
    prepare_program,
    quick_imports,
)

prepare_program()

from pydantic import ValidationError

from modules.config import ConfigError, Sample, TandemError, TrainConfig, explain
from modules.config.file_access import set_file_access
from modules.files import write_fault
from modules.machine import gpu_obstacle
from modules.run.console import warn
from modules.run.exit_codes import BAD_CONFIG, FAILED, INTERRUPTED
from modules.run.folder.error_help import explain_exception
from modules.run.format_progress import BYTES, format_progress
from scripts.sample_events import SampleEvents

if TYPE_CHECKING:
    from modules.families._family import Family
    from scripts.sample_images import Loaded

MOST_IMAGES = 10_000  # of a prompt; the requests of all are made before the first image


def main(arguments: list[str] | None = None) -> int:
    """Generate images for every prompt and write PNG files with their settings; returns an exit code."""
    options = parser().parse_args(arguments)
    try:
        set_file_access()
        events = SampleEvents(None if options.events is None else Path(options.events))
    except TandemError as error:
        warn(str(error))
        return error.exit_code
    except OSError as error:
        warn(f"--events: {error.filename}: {error.strerror or error}")
        return BAD_CONFIG
    try:
        generate(options, events)
    except TandemError as error:
        return failed(events, error.message, error.advice, error.exit_code)
    except OSError as error:
        return failed(events, f"{error.filename or options.out}: {write_fault(error)}", "", FAILED)
    except KeyboardInterrupt:
        warn("Stopped.")
        return INTERRUPTED
    except Exception as error:  # the boundary: another program is to get one sentence
        if options.events is None:
            raise
        traceback.print_exc()
        explained = explain_exception(error)
        return failed(events, explained.message, explained.advice, FAILED)
    finally:
        events.close()
    return INTERRUPTED if events.was_interrupted else 0


def failed(events: SampleEvents, message: str, advice: str, exit_code: int) -> int:
    """Report why it ends; returns the exit code."""
    events.report("failed", message=message, advice=advice)
    warn(f"{'Not every' if events.images else 'No'} image was generated: {TandemError(message, advice)}")
    return exit_code


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description="Generate images with a model.", allow_abbrev=False)
    _, devices, _, output = option_groups(top)
    top.add_argument(
        "--model",
        required=True,
        help="a model folder, e.g. runs/NAME/model, a diffusers folder, a .safetensors or .gguf file or, with "
        "--family, a hub name",
    )
    top.add_argument(
        "--lora", action="append", default=[], metavar="FILE", help="a LoRA file to apply; may be given several times"
    )
    add_lora_scale(top, "--lora")
    add_lora_scales(top)
    top.add_argument(
        "--family",
        help="family of a model that Tandem did not write, if it is not found, such as stable_diffusion_xl or flux",
    )
    top.add_argument(
        "--layout",
        default="",
        metavar="FOLDER",
        help="for a single file: a diffusers folder of the same architecture, for its configuration and, if it is "
        "a transformer file, the other components (default: from the hub); for a LoRA that a run has saved, if it was "
        "moved",
    )
    top.add_argument("--base_model", help="base model of a LoRA or an embedding, if it was moved")
    top.add_argument(
        "--prompt",
        required=True,
        action="append",
        help="the prompt, or ''; may be given several times; of {a|b} in it, one is drawn for each image",
    )
    top.add_argument("--negative_prompt", default="", help="what to avoid")
    top.add_argument(
        "--reference",
        default="",
        metavar="FILE",
        help="of a model that edits images: the image that the prompts change; of one that animates: the first frame",
    )
    output.add_argument(
        "--out",
        default="samples",
        metavar="FOLDER",
        help="where to write PNG files, and .mp4 of videos; existing ones stay (default: samples)",
    )
    top.add_argument("--steps", type=int, default=20, help="sampling steps (default: 20)")
    top.add_argument("--guidance_scale", type=float, default=4.0, help="how closely to follow the prompt (default: 4)")
    top.add_argument("--width", type=int, help="pixels (default: the resolution the model was trained at)")
    top.add_argument("--height", type=int, help="pixels (default: the resolution the model was trained at)")
    top.add_argument("--frames", type=int, help="of a model of videos; 1 is an image (default: as it was trained)")
    top.add_argument("--seed", type=int, default=42, help="the same seed gives the same image (default: 42)")
    top.add_argument("--count", type=int, default=1, help="images per prompt, with consecutive seeds (default: 1)")
    output.add_argument("--no_grid", action="store_true", help="write no image of all images side by side")
    devices.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: the first GPU, or the CPU)")
    devices.add_argument(
        "--precision",
        choices=("fp32", "bf16", "fp16"),
        help="in which the model is kept and computes (default: fp32; bf16 for large transformers on a GPU)",
    )
    output.add_argument(
        "--events",
        metavar="FILE",
        help="for other programs: write the progress to this file, as JSON, and stop after the current image if there "
        "is a file FILE.stop",
    )
    add_trust_code(top)
    add_version(top)
    return top


def generate(options: argparse.Namespace, events: SampleEvents) -> None:
    """Load the model through its family and generate. Raises TandemError, or OSError if an image cannot be written."""
    from scripts.sample_images import find_device, free_number, row_length, write_grid, write_rows

    if not 1 <= options.count <= MOST_IMAGES:
        raise ConfigError(f"--count is {options.count}; use 1 to {MOST_IMAGES}.")
    device = find_device(options.device)
    folder = Path(options.out)
    nearest = next(each for each in (folder, *folder.absolute().parents) if os.path.lexists(each))
    if not nearest.is_dir():
        raise ConfigError(f"--out: {str(nearest)!r} is not a folder.", "Choose another name.")
    if not os.access(nearest, os.W_OK):
        raise ConfigError(f"--out: {str(nearest)!r} cannot be written.", "Choose another folder.")
    events.report("loading")
    strengths = lora_strengths(options.lora_scales, options.lora, options.lora_scale)
    try:
        loaded = load(options, events, device.type)
    except OSError as error:  # a name that is too long, a disk that fails
        raise ConfigError(f"{error.filename or options.model} cannot be read: {error.strerror or error}.") from error
    for note in notes(loaded, options):
        warn(f"Note: {note}")
        events.report("note", message=note)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out: {options.out!r} cannot be made: {write_fault(error)}.", "Choose another.") from error
    first = free_number(folder)
    images = write_rows(loaded, strengths, device, folder, events)
    requested = len(loaded.requests) * max(1, len(strengths))
    if len(images) > 1 and not options.no_grid:
        columns = row_length(len(loaded.requests), len(strengths)) if strengths else 0
        write_grid(images, folder, first, columns)
    events.report("finished", images=len(images), stopped=len(images) < requested)


def load(options: argparse.Namespace, events: SampleEvents, device_type: str) -> Loaded:
    """What `options` name. Raises TandemError or OSError."""
    with quick_imports():
        from modules.families._by_name import family_class
        from modules.training.methods.method import apply_adapter
        from modules.training.state.sample_requests import sample_requests
        from scripts.sample_images import Loaded
        from scripts.sample_lora import merged_dtype, model_config, read_loras, with_parts_of

    scales = lora_scales(options.lora, options.lora_scale, "--lora")
    saved_model, config = model_config(options)
    config = with_samples(with_base_model(config, options), options)
    allow_code(config, trust=options.trust_code, trains=False)
    family_type = family_class(config.family)
    if not family_type.draws_samples:
        raise ConfigError(f"--model: {options.model!r} is a {config.family}, which generates no images.")
    config = with_precision(config, options.precision, family_type, device_type)
    loras = read_loras(options.lora, scales, family_type)
    config = with_parts_of(config, loras, family_type)
    try:
        requests = sample_requests(config, family_type.size_step)
    except ConfigError as error:
        raise ConfigError(re.sub(r"^samples\.\d+\.", "--", error.message), error.advice) from error
    try:
        if (hub_model := family_type.hub_model(config)) is not None:
            hub_model.ensure_cached(partial(show_download, events))
        family = family_type.load_for_training(config)
    except ConfigError as error:
        raise base_model_error(error, config, options) from error
    if saved_model is not None:
        apply_adapter(family, config, saved_model, merged_dtype(family, config, 1 + len(loras)))
    family.expected_requests = requests
    return Loaded(family, loras, config, requests, {"model": options.model})


def with_precision(config: TrainConfig, precision: str | None, family: type[Family], device_type: str) -> TrainConfig:
    """The config with `--precision`; by default fp32, or bf16 for a large transformer on a GPU."""
    usual = "bf16" if family.half_frozen_weights and device_type != "cpu" else "fp32"
    return config.model_copy(update={"precision": precision or usual})


def notes(loaded: Loaded, options: argparse.Namespace) -> list[str]:
    """What to know about the images to come."""
    import torch

    from modules.checkpoint.formats import assumed_alpha

    prompts = list(dict.fromkeys(each.prompt for each in loaded.requests))
    negative = list(dict.fromkeys(each.negative_prompt for each in loaded.requests))
    obstacle = None if torch.cuda.is_available() else gpu_obstacle()
    return [
        *filter(None, (assumed_alpha(Path(file)) for file in options.lora)),
        *loaded.family.prompt_warnings([*prompts, *negative]),
        *missing_token(loaded.config, prompts),
        *([] if obstacle is None else [str(obstacle)]),
    ]


def show_download(events: SampleEvents, done: int, total: int) -> None:
    """Show progress in bytes on the last line of standard error."""
    if total:
        events.report("downloading", done=done, total=total)
        end = "\n" if done >= total else ""
        print(f"\rdownloading: {format_progress(done, total, BYTES)}", end=end, file=sys.stderr, flush=True)


def with_base_model(config: TrainConfig, options: argparse.Namespace) -> TrainConfig:
    """The config with `--base_model`. Raises ConfigError if the model needs none."""
    if options.base_model is None:
        return config
    if options.lora and config.method == "fine_tune":
        raise ConfigError("--base_model is for a model folder of a LoRA; with --lora give the base model as --model.")
    if config.method == "fine_tune":
        raise ConfigError(f"--base_model: {options.model!r} is a whole model and needs no base model; omit it.")
    if not options.base_model.strip():
        raise ConfigError("--base_model is empty.", "Use a folder, a .safetensors file or a hub name.")
    return config.model_copy(update={"base_model": options.base_model})


def base_model_error(error: ConfigError, config: TrainConfig, options: argparse.Namespace) -> ConfigError:
    """A loading error in terms of this command line: an adapter or an embedding needs its base model."""
    from modules.checkpoint import read_model_config
    from modules.diffusion.transformer_files.base import LAYOUT

    if error.message.startswith(LAYOUT):
        return ConfigError(error.message.replace(LAYOUT, "--layout", 1), error.advice)
    if not error.message.startswith("base_model"):
        return error
    error = ConfigError(error.message, error.advice.replace(LAYOUT, "--layout"))
    if config.method == "fine_tune":
        return ConfigError(error.message.replace("base_model", "--model", 1), error.advice)
    trained_on = read_model_config(Path(options.model)).base_model
    hint = f"{options.model} was trained on {trained_on!r}: give its current location as --base_model."
    if options.base_model is None:
        return ConfigError(error.message, f"{error.advice} {hint}")
    advice = hint if trained_on is not None else f"{options.model} was trained without one: omit it."
    return ConfigError(f"--{error.message}", advice)


def with_samples(config: TrainConfig, options: argparse.Namespace) -> TrainConfig:
    """The config with `--count` samples of every prompt."""
    samples = tuple(
        checked_sample(options, prompt, options.seed + number)
        for prompt in options.prompt
        for number in range(options.count)
    )
    return config.model_copy(update={"samples": samples})


def missing_token(config: TrainConfig, prompts: list[str]) -> list[str]:
    """A warning if a prompt does not contain the trained token."""
    token = config.embedding_token
    without = [prompt for prompt in prompts if config.method == "embedding" and token not in prompt]
    return [f"the prompt {without[0]!r} does not contain {token}, the trained token."] if without else []


def checked_sample(options: argparse.Namespace, prompt: str, seed: int) -> Sample:
    """The sample with these options. Raises ConfigError."""
    given = {
        "prompt": prompt,
        "negative_prompt": options.negative_prompt,
        "reference": options.reference,
        "width": options.width,
        "height": options.height,
        "frames": options.frames,
        "steps": options.steps,
        "guidance_scale": options.guidance_scale,
        "seed": seed,
    }
    try:
        return Sample.model_validate(given)
    except ValidationError as error:
        raise ConfigError.from_faults("The sample", explain(error, Sample)) from error


if __name__ == "__main__":
    sys.exit(main())
