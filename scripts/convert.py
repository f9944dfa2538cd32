"""Convert models, LoRA and embeddings between formats: `python scripts/convert.py IN OUT --to ...`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import add_lora_scale, add_version, lora_scales, prepare_program

prepare_program()

from modules.config import ConfigError, TandemError
from modules.config.file_access import set_file_access
from modules.config.sections.adapters import MAX_RANK
from modules.files import control_character
from modules.run.console import echo, warn

if TYPE_CHECKING:
    import torch

    from modules.checkpoint.formats.file_types import FileType

FORMATS = ("single_file", "diffusers", "kohya", "embedding", "dtype")
EXAMPLES = """examples:
  a diffusers folder to a single file of half the size:
    python scripts/convert.py runs/cats/model cats.safetensors --to single_file --dtype fp16
  a single file to a diffusers folder, with configs and tokenizers of another of the same architecture:
    python scripts/convert.py cats.safetensors cats --to diffusers --layout sdxl-base
  the transformer of a flow-matching model for ComfyUI:
    python scripts/convert.py runs/cats/model cats.safetensors --to single_file --dtype bf16
  a LoRA for ComfyUI, A1111 and Forge, and one for diffusers and peft:
    python scripts/convert.py pytorch_lora_weights.safetensors cats.safetensors --to kohya
    python scripts/convert.py cats.safetensors pytorch_lora_weights.safetensors --to diffusers
  an embedding for A1111 and ComfyUI:
    python scripts/convert.py learned_embeds.safetensors my-cat.safetensors --to embedding
  a LoRA merged into a model, a single file or a diffusers folder, at 80 % of its strength:
    python scripts/convert.py base.safetensors merged.safetensors --merge cats.safetensors --lora_scale 0.8
  a LoRA of what training has changed in a model, both diffusers folders, and one of a smaller rank:
    python scripts/convert.py base cats.safetensors --extract runs/cats/model --rank 32
    python scripts/convert.py cats.safetensors cats-8.safetensors --resize --rank 8
  any .safetensors file in another number format:
    python scripts/convert.py cats.safetensors cats-fp16.safetensors --to dtype --dtype fp16
"""


def main(arguments: list[str] | None = None) -> int:
    """Convert, and print the written path; returns an exit code."""
    if arguments is None:  # as a program
        signal.signal(signal.SIGTERM, terminate)
    options = parser().parse_args(arguments)
    try:
        set_file_access()
        source, out = Path(options.source), Path(options.out)
        check_paths(source, out, options)
        with folder_created(out.absolute().parent):
            convert(source, out, options)
    except TandemError as error:
        warn(f"Nothing was written: {error}")
        return 2
    except OSError as error:
        warn(f"Nothing was written: {failed_path(error, options.out)}: {error.strerror or error}.")
        return 2
    echo(options.out)
    return 0


def failed_path(error: OSError, out: str) -> str:
    """The path an error is about; a file has a temporary name while it is written."""
    named = str(error.filename2 or error.filename or out)
    return out if ".partial-" in named else named


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        description="Convert models, LoRA and embeddings between the formats of other tools.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("source", metavar="IN", help="a diffusers folder or a .safetensors file")
    top.add_argument(
        "out", metavar="OUT", help="the output: a folder for a diffusers model, otherwise a .safetensors file"
    )
    task = top.add_mutually_exclusive_group(required=True)
    task.add_argument("--to", choices=FORMATS, help="the format to write")
    task.add_argument(
        "--merge",
        action="append",
        metavar="LORA",
        help="a LoRA to merge into the model IN; may be given several times",
    )
    task.add_argument(
        "--extract", metavar="TUNED", help="the diffusers folder whose difference to the folder IN becomes a LoRA"
    )
    task.add_argument("--resize", action="store_true", help="write the LoRA IN with another rank")
    top.add_argument("--rank", type=int, metavar="N", help="for --extract and --resize: the rank of the LoRA")
    add_lora_scale(top, "--merge")
    numbers = "number format (default: as in IN; fp32 for whole Stable Diffusion models with --to)"
    top.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help=numbers)
    top.add_argument(
        "--layout", metavar="FOLDER", help="for --to diffusers: a diffusers folder of the same architecture"
    )
    top.add_argument(
        "--skip_unread",
        action="store_true",
        help="leave out tensors of a LoRA that Tandem does not read, such as biases, instead of refusing the file",
    )
    top.add_argument("--overwrite", action="store_true", help="replace OUT if it is an existing file")
    add_version(top)
    return top


def convert(source: Path, out: Path, options: argparse.Namespace) -> None:
    """Convert paths that were checked. Raises TandemError or OSError, and then leaves OUT as it was."""
    from modules.checkpoint.formats import conversion  # takes seconds to import
    from modules.checkpoint.formats.file_types import detect_file_type, require_diffusers_folder
    from modules.diffusion.dtypes import DTYPES

    dtype = DTYPES.get(options.dtype)
    left_out: list[str] | None = [] if options.skip_unread else None
    if options.merge:
        merge(source, out, options, dtype, left_out)
        tell_of_loras([Path(name) for name in options.merge], left_out)
        return
    if options.extract or options.resize:
        from modules.checkpoint.formats.extraction import extract_lora, resize_lora

        if options.resize:
            note = resize_lora(source, out, options.rank, dtype, adapter_names, left_out)
        else:
            note = extract_lora(source, Path(options.extract), out, options.rank, dtype, adapter_names)
        tell_of_loras([source] if options.resize else [], left_out)
        if note:
            warn(f"Note: {note}")
        return
    if source.is_dir():
        require_diffusers_folder(source)
        if options.to != "single_file":
            raise ConfigError(
                f"{str(source)!r} is a diffusers folder, which converts to single_file only; --to {options.to} takes a "
                ".safetensors file."
            )
        conversion.folder_to_single_file(source, out, dtype)
        return
    names = conversion.tensor_names(source)
    refuse_other_kinds(source, detect_file_type(names), options)
    if options.to == "dtype":
        conversion.convert_dtype(source, out, DTYPES[options.dtype])
    elif options.to == "embedding":
        conversion.convert_embedding(source, out, dtype)
    elif options.layout is not None:
        conversion.single_file_to_folder(source, Path(options.layout), out, dtype)
    else:
        prefixes = adapter_names(conversion.detect_architecture(source))
        warning = conversion.convert_lora(source, out, options.to, prefixes, dtype, left_out)
        tell_of_loras([source], left_out)
        if warning:
            warn(f"Note: {warning}")


def tell_of_loras(files: Sequence[Path], left_out: Sequence[str] | None) -> None:
    """Print what was assumed of LoRA files, and which of their tensors were left out."""
    from modules.checkpoint.formats import assumed_alpha, left_out_sentence

    notes = [*map(assumed_alpha, files), left_out_sentence(left_out or ())]
    for note in filter(None, notes):
        warn(f"Note: {note}")


def merge(
    source: Path, out: Path, options: argparse.Namespace, dtype: torch.dtype | None, left_out: list[str] | None
) -> None:
    """Merge the LoRAs given as `--merge` into the model `source`. Raises TandemError or OSError."""
    from modules.checkpoint.formats import Merge, merge_into_file, merge_into_folder

    merges = [
        Merge(Path(name), scale, left_out)
        for name, scale in zip(options.merge, lora_scales(options.merge, options.lora_scale, "--merge"), strict=True)
    ]
    (merge_into_folder if source.is_dir() else merge_into_file)(source, merges, out, dtype, adapter_names)


def check_paths(source: Path, out: Path, options: argparse.Namespace) -> None:
    """Raises ConfigError, before anything is read, for unusable paths or options."""
    for path in (source, out):
        if code := control_character(str(path)):
            raise ConfigError(f"{str(path)!r} contains the control character {code}.")
    if not source.exists():
        raise ConfigError(f"There is no {str(source)!r}.")
    check_options(options)
    check_name_of_result(out, options, source_is_folder=source.is_dir())
    if out.exists() and (not options.overwrite or out.samefile(source)):
        raise ConfigError(f"{str(out)!r} already exists; choose another name, or add --overwrite.")
    if source.is_dir() and source.resolve() in out.resolve().parents:
        raise ConfigError(f"{str(out)!r} is inside {str(source)!r}; choose a place outside of the model.")


def check_options(options: argparse.Namespace) -> None:
    """Raises ConfigError for options that need another one, or have no effect."""
    if options.to == "dtype" and options.dtype is None:
        raise ConfigError("--to dtype needs --dtype fp32, bf16 or fp16.")
    if options.layout is not None and options.to != "diffusers":
        raise ConfigError("--layout is for a whole model --to diffusers; omit it.")
    needs_rank = bool(options.extract or options.resize)
    if needs_rank != (options.rank is not None) or (needs_rank and not 1 <= options.rank <= MAX_RANK):
        problem = f"--rank from 1 to {MAX_RANK} is needed by" if needs_rank else "--rank is for"
        raise ConfigError(f"{problem} --extract and --resize.")
    if options.skip_unread and not (options.merge or options.resize or options.to in ("kohya", "diffusers")):
        raise ConfigError("--skip_unread is for a LoRA: --to kohya, --to diffusers, --resize or --merge; omit it.")
    if options.lora_scale and not options.merge:
        raise ConfigError("--lora_scale is for --merge; omit it.")


def check_name_of_result(out: Path, options: argparse.Namespace, *, source_is_folder: bool) -> None:
    """Raises ConfigError if `out` is not named as the file or folder that will be written, or cannot become one."""
    is_file, is_merged = out.suffix == ".safetensors", bool(options.merge) and source_is_folder
    if is_merged and is_file:
        raise ConfigError(f"{str(out)!r} ends in .safetensors, but a merged diffusers folder is a folder.")
    if options.layout is not None and is_file:
        raise ConfigError(f"{str(out)!r} ends in .safetensors, but --layout writes a folder; name a folder.")
    makes_folder = options.layout is not None or is_merged
    if not makes_folder and not is_file:
        raise ConfigError(
            f"{str(out)!r} does not end in .safetensors.",
            "To make a diffusers folder of a whole model, add --layout.",
        )
    if out.is_dir():
        raise ConfigError(f"{str(out)!r} is an existing folder; choose another name.")
    if makes_folder and (out.exists() or out.is_symlink()):
        raise ConfigError(f"{str(out)!r} exists and is no folder, and the result is one; choose another name.")


@contextmanager
def folder_created(folder: Path) -> Iterator[None]:
    """Create `folder` if it is missing; if the block fails, remove what was created."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for each in missing:
            with suppress(OSError):
                each.rmdir()
        raise


def adapter_names(architecture: str) -> Mapping[str, tuple[str, str]]:
    """The key prefixes of each submodule in LoRA files of a model of this architecture; of all, if it is empty."""
    from modules.facts import family_of_architecture
    from modules.families._by_name import family_class
    from modules.families._flow_transformer import FlowTransformer
    from modules.families._latent_diffusion import LatentDiffusion

    if family := family_of_architecture(architecture):
        return family_class(family).adapter_prefixes
    return {**LatentDiffusion.adapter_prefixes, **FlowTransformer.adapter_prefixes}


def refuse_other_kinds(source: Path, kind: FileType, options: argparse.Namespace) -> None:
    """Raises ConfigError if a file of this kind has no such conversion; kind `other` is left to the converters."""
    from modules.checkpoint.formats.file_types import DESCRIPTIONS

    if options.to == "single_file":
        advice = {
            "model": "Use --to dtype to change its number format.",
            "transformer": "Use --to dtype to change its number format.",
            "lora": "A LoRA stays a separate file; --to kohya writes what ComfyUI, A1111 and Forge read.",
        }.get(kind, "")
        raise ConfigError(
            f"{str(source)!r} is a file with {DESCRIPTIONS[kind]}; --to single_file takes a diffusers folder.", advice
        )
    takes: FileType = "embedding" if options.to == "embedding" else "model" if options.layout is not None else "lora"
    if options.to == "dtype" or kind in (takes, "other") or (kind == "transformer" and takes == "model"):
        return
    if options.to == "diffusers" and kind in ("model", "transformer"):
        weights = "its weights are not needed" if kind == "model" else "all but the transformer is copied from it"
        raise ConfigError(
            f"{str(source)!r} holds weights only; a diffusers folder also needs configs and tokenizers.",
            f"Add --layout FOLDER, a diffusers folder of the same architecture; {weights}.",
        )
    needs = f"--to {options.to}{' with --layout' if options.layout is not None else ''}"
    advice = {"lora": "Omit --layout.", "embedding": "diffusers reads it as it is."}.get(kind, "")
    raise ConfigError(
        f"{str(source)!r} is {DESCRIPTIONS[kind]}; {needs} takes {DESCRIPTIONS[takes]}.",
        advice if options.to == "diffusers" else "",
    )


def terminate(number: int, _: FrameType | None) -> None:
    """Leave as after an error, so that what is half written is removed. Raises SystemExit."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
