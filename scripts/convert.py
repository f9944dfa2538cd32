"""Turn models, LoRA and embeddings into the form that a tool wants: `python scripts/convert.py IN OUT --to ...`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.own_python import require_packages

require_packages()

from modules.config import ConfigError, TandemError

if TYPE_CHECKING:
    from modules.checkpoint.formats.kinds import FileKind

FORMS = ("single_file", "diffusers", "kohya", "embedding", "dtype")
EXAMPLES = """examples:
  a diffusers folder as one file, with half the bytes:
    python scripts/convert.py runs/cats/model cats.safetensors --to single_file --dtype fp16
  one file as a diffusers folder, shaped like another of the same architecture (only its small files are read):
    python scripts/convert.py cats.safetensors cats --to diffusers --layout sdxl-base
  a LoRA for ComfyUI, A1111 and Forge, and one for diffusers and peft:
    python scripts/convert.py pytorch_lora_weights.safetensors cats.safetensors --to kohya
    python scripts/convert.py cats.safetensors pytorch_lora_weights.safetensors --to diffusers
  an embedding in the form that A1111 and ComfyUI read:
    python scripts/convert.py learned_embeds.safetensors my-cat.safetensors --to embedding
  any .safetensors file with other numbers:
    python scripts/convert.py cats.safetensors cats-fp16.safetensors --to dtype --dtype fp16
"""


def main(arguments: list[str] | None = None) -> int:
    """Convert, and print what was written; returns an exit code."""
    options = parser().parse_args(arguments)
    try:
        convert(Path(options.source), Path(options.out), options)
    except TandemError as error:
        print(f"Nothing was written: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"Nothing was written: {place_of(error, options.out)}: {error.strerror or error}.", file=sys.stderr)
        return 2
    print(options.out)
    return 0


def place_of(error: OSError, out: str) -> str:
    """Whose error it is; a file that is being written has another name for as long."""
    named = str(error.filename2 or error.filename or out)
    return out if ".partial-" in named else named


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="convert.py",
        description="Convert between the forms in which tools keep models, LoRA and embeddings.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("source", metavar="IN", help="a diffusers folder or a .safetensors file")
    top.add_argument(
        "out", metavar="OUT", help="what to write: a folder for a diffusers model, else a .safetensors file"
    )
    top.add_argument("--to", required=True, choices=FORMS, help="the form to write")
    numbers = "number format (default: as in IN; fp32 for whole models)"
    top.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help=numbers)
    top.add_argument(
        "--layout", metavar="FOLDER", help="for one file to a diffusers folder: one of the same architecture"
    )
    top.add_argument("--overwrite", action="store_true", help="replace OUT where it is a file that exists")
    return top


def convert(source: Path, out: Path, options: argparse.Namespace) -> None:
    """Raises TandemError or OSError; OUT is then as it was before."""
    check_places(source, out, options)
    from modules.checkpoint.formats import DTYPES, conversion, diffusers_folder  # takes seconds to import
    from modules.checkpoint.formats.kinds import file_kind, refuse_other_folders

    dtype = DTYPES.get(options.dtype)
    if source.is_dir():
        refuse_other_folders(source)
        if options.to != "single_file":
            raise ConfigError(
                f"{str(source)!r} is a diffusers folder, which becomes a single_file only; --to {options.to} takes a "
                ".safetensors file."
            )
        conversion.model_to_file(source, out, dtype or DTYPES["fp32"])
        return
    names = conversion.names_in(source)
    refuse_other_kinds(source, file_kind(names), options)
    if options.to == "dtype":
        conversion.convert_numbers(source, out, DTYPES[options.dtype])
    elif options.to == "embedding":
        conversion.convert_embedding(source, out, dtype)
    elif options.layout is not None:
        diffusers_folder(source, Path(options.layout), out, dtype or DTYPES["fp32"])
    else:
        conversion.convert_lora(source, out, options.to, adapter_names(conversion.architecture(source)), dtype)


def check_places(source: Path, out: Path, options: argparse.Namespace) -> None:
    """Raises ConfigError, before anything is read, for what cannot be converted, or not to `out`."""
    if not source.exists():
        raise ConfigError(f"There is no {str(source)!r}.")
    if options.to == "dtype" and options.dtype is None:
        raise ConfigError("--to dtype needs --dtype fp32, bf16 or fp16.")
    if options.layout is not None and options.to != "diffusers":
        raise ConfigError("--layout is for a whole model --to diffusers; leave it out.")
    if options.layout is None and out.suffix != ".safetensors":
        raise ConfigError(
            f"{str(out)!r} does not end in .safetensors, as the file that is written must.",
            "To make a diffusers folder of a whole model, add --layout.",
        )
    if options.layout is not None and out.suffix == ".safetensors":
        raise ConfigError(f"{str(out)!r} ends in .safetensors, but with --layout a folder is written; name a folder.")
    if out.is_dir():
        raise ConfigError(f"{str(out)!r} is a folder that exists; choose another name.")
    if out.exists() and (not options.overwrite or out.samefile(source)):
        raise ConfigError(f"{str(out)!r} exists already; choose another name, or replace another file by --overwrite.")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"There is no folder {str(out.absolute().parent)!r} to write to.")


def adapter_names(architecture: str) -> Mapping[str, tuple[str, str]]:
    """How the parts of Stable Diffusion, or of SDXL, are called in files."""
    from modules.families.stable_diffusion import StableDiffusion
    from modules.families.stable_diffusion_xl import StableDiffusionXL

    return (StableDiffusionXL if "xl" in architecture else StableDiffusion).adapter_names


def refuse_other_kinds(source: Path, kind: FileKind, options: argparse.Namespace) -> None:
    """Raises ConfigError where a file of this kind cannot become that form; `other` is left to those who read it."""
    from modules.checkpoint.formats.kinds import KIND_WORDS

    if options.to == "single_file":
        advice = {
            "model": "Use --to dtype to change its numbers.",
            "lora": "A LoRA stays a file of its own; --to kohya makes what ComfyUI, A1111 and Forge read.",
        }.get(kind, "")
        raise ConfigError(
            f"{str(source)!r} is a file with {KIND_WORDS[kind]}; --to single_file takes a diffusers folder.", advice
        )
    takes: FileKind = "embedding" if options.to == "embedding" else "model" if options.layout is not None else "lora"
    if options.to == "dtype" or kind in (takes, "other"):
        return
    if options.to == "diffusers" and kind == "model":
        raise ConfigError(
            f"{str(source)!r} holds weights only; a diffusers folder also needs configs and tokenizers.",
            "Add --layout FOLDER, a diffusers folder of the same architecture; its weights are not needed.",
        )
    needs = f"--to {options.to}{' with --layout' if options.layout is not None else ''}"
    advice = {"lora": "Leave --layout out.", "embedding": "diffusers reads it as it is."}.get(kind, "")
    raise ConfigError(
        f"{str(source)!r} is {KIND_WORDS[kind]}; {needs} takes {KIND_WORDS[takes]}.",
        advice if options.to == "diffusers" else "",
    )


if __name__ == "__main__":
    sys.exit(main())
