"""The options of scripts/annotate.py, and the settings that proposals are made with."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from modules.annotation import (
    DEFAULT_FOLDER,
    DEFAULT_MODELS,
    KNOWN_MODELS,
    MOST_CHARACTERS,
    Header,
    Mode,
    Task,
    check_ending,
    model_name,
)
from modules.config import ConfigError
from modules.files import FileFault, expand_home, printable, validate_record, whole_path
from modules.files.addresses import is_address

TASKS: Final[Mapping[Task, str]] = {
    "caption": "write captions with an image-to-text model",
    "tag": "write tags with a WD14 tagger",
    "mask": "write masks of what a text names, with CLIPSeg",
}
_WORDS_OF_TASK: Final[Mapping[Task, tuple[str, ...]]] = {
    "caption": ("prompt", "max_tokens", "prefix", "suffix"),
    "tag": ("threshold", "character_threshold", "exclude", "keep_underscores", "with_rating", "prefix", "suffix"),
    "mask": ("prompt", "threshold", "smooth", "expand", "invert"),
}
_MOST_BATCH: Final = 1024
_MOST_TOKENS: Final = 4096
_MOST_PIXELS: Final = 1000


def add_out(command: argparse.ArgumentParser) -> None:
    """Add `--out`."""
    command.add_argument(
        "--out",
        default=DEFAULT_FOLDER,
        metavar="FOLDER",
        help=f"where the proposals are kept, never among the images (default: {DEFAULT_FOLDER})",
    )


def add_task_options(command: argparse.ArgumentParser, task: Task) -> None:
    """Add the folder and the options of `caption`, `tag` or `mask`."""
    command.add_argument("folder", metavar="FOLDER", help="the folder with the images")
    names = ", ".join(f"{short} ({name})" for short, name in KNOWN_MODELS[task].items())
    command.add_argument(
        "--model",
        default=DEFAULT_MODELS[task],
        help=f"a folder, a name on the hub, or one of {names} (default: {DEFAULT_MODELS[task]})",
    )
    if task == "mask":
        _add_mask_options(command)
    else:
        _add_text_options(command, task)
    modes = command.add_mutually_exclusive_group()
    what = "mask" if task == "mask" else "caption"
    append = {
        "caption": "add a line to captions that exist",
        "tag": "add the tags that a caption does not have yet",
        "mask": "add to masks that exist",
    }[task]
    modes.add_argument("--only_missing", dest="mode", action="store_const", const="missing", default="missing",
                       help=f"only images without a {what} (default)")  # fmt: skip
    modes.add_argument("--replace", dest="mode", action="store_const", const="replace", help=f"replace {what}s, too")
    modes.add_argument("--append", dest="mode", action="store_const", const="append", help=append)
    command.add_argument("--no_subfolders", action="store_true", help="leave out images in subfolders")
    command.add_argument("--batch_size", type=int, default=1, help="images at once (default: 1)")
    command.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: the first GPU, or the CPU)")
    if task != "tag":
        command.add_argument(
            "--precision", choices=("fp32", "bf16", "fp16"), help="default: bf16 on a GPU, fp32 on the CPU"
        )
    command.add_argument("--review", action="store_true", help="only propose; `apply` writes it")
    add_out(command)


def _add_text_options(command: argparse.ArgumentParser, task: Task) -> None:
    if task == "caption":
        command.add_argument("--prompt", default="", help="what the model is asked, or how captions begin (BLIP)")
        command.add_argument("--max_tokens", type=int, default=128, help="of a caption (default: 128)")
    else:
        command.add_argument("--threshold", type=float, default=0.35, help="of general tags (default: 0.35)")
        command.add_argument("--character_threshold", type=float, default=0.85, help="default: 0.85")
        command.add_argument("--exclude", default="", metavar="TAG,TAG", help="tags that are never written")
        command.add_argument("--keep_underscores", action="store_true", help="long_hair instead of long hair")
        command.add_argument("--with_rating", action="store_true", help="begin with the rating, such as general")
    command.add_argument("--prefix", default="", help="put before each text, with the blank or comma that follows it")
    command.add_argument("--suffix", default="", help="put after each text")
    command.add_argument("--caption_extension", dest="ending", default=".txt", help="default: .txt")


def _add_mask_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--prompt", action="append", required=True, help="what is white; may be given several times")
    command.add_argument("--threshold", type=float, default=0.3, help="least probability of white (default: 0.3)")
    command.add_argument("--smooth", type=int, default=5, help="radius, in the model's 352 pixels (default: 5)")
    command.add_argument("--expand", type=int, default=10, help="pixels by which the white part grows (default: 10)")
    command.add_argument("--invert", action="store_true", help="what is named becomes black, the rest white")
    command.add_argument("--mask_suffix", dest="ending", default="-masklabel.png", help="default: -masklabel.png")


def header_of(options: argparse.Namespace) -> Header:
    """What the proposals of a command line are made with. Raises ConfigError for a value that cannot be."""
    task: Task = options.command
    mode: Mode = options.mode
    _check_numbers(options)
    try:
        check_ending(task, options.ending)
    except ValueError as error:
        raise ConfigError(f"{'--mask_suffix' if task == 'mask' else '--caption_extension'}: {error}.") from None
    if is_address(options.folder):
        raise ConfigError(
            f"{printable(options.folder)} is an address, which is only read: nothing can be written beside its images.",
            "Copy them into a folder first.",
        )
    folder = str(whole_path(expand_home(options.folder)))
    if Path(os.path.realpath(expand_home(options.out))).is_relative_to(os.path.realpath(folder)):
        raise ConfigError(f"--out: {options.out!r} is in the folder of the images.", "Use another folder.")
    model = model_name(task, options.model)
    if os.path.isdir(expand_home(model)):
        model = str(whole_path(expand_home(model)))
    try:
        folder.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"The name of the folder {folder!r} is not UTF-8.", "Rename it.") from None
    settings = {name: getattr(options, name) for name in _WORDS_OF_TASK[task]}
    if options.no_subfolders:
        settings["no_subfolders"] = True
    made = {"task": task, "folder": folder, "model": model, "mode": mode, "ending": options.ending}
    try:
        return validate_record(Header, {**made, "settings": settings})
    except FileFault as fault:  # a text that is too long, or not UTF-8
        raise ConfigError(f"The command {fault}.") from None


def _check_numbers(options: argparse.Namespace) -> None:
    limits = {
        "batch_size": (1, _MOST_BATCH),
        "max_tokens": (1, _MOST_TOKENS),
        "threshold": (0, 1),
        "character_threshold": (0, 1),
        "smooth": (0, 100),
        "expand": (0, _MOST_PIXELS),
    }
    for name, (least, most) in limits.items():
        value = getattr(options, name, least)
        if not least <= value <= most:
            raise ConfigError(f"--{name} is {value}; use a number from {least} to {most}.")
    texts = [getattr(options, name, "") or "" for name in ("prompt", "prefix", "suffix", "exclude")]
    for text in (part for each in texts for part in ([each] if isinstance(each, str) else each)):
        if len(text) > MOST_CHARACTERS:
            raise ConfigError(f"A text of {len(text)} characters is too long; the most is {MOST_CHARACTERS}.")
    if options.command == "mask" and not all(text.strip() for text in options.prompt):
        raise ConfigError("--prompt is empty.", 'Name what the mask is of, such as --prompt "person".')
