"""Make one zip for a bug report: `python scripts/debug_package.py runs/NAME`."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import exit_code_of, is_interactive, prepare_program, program_parser

prepare_program()

from modules.config import ConfigError
from modules.files import printable
from modules.run import RunFolder
from modules.run.console import echo
from modules.run.debug_package import PackedFile, collect_parts, write_package
from modules.run.exit_codes import FINISHED

EXAMPLES = """examples:
  see what would be in the package, and write cats-debug.zip once you agree:
    python scripts/debug_package.py runs/cats
  print all of it and write nothing:
    python scripts/debug_package.py runs/cats --show
  of this machine alone, without a run:
    python scripts/debug_package.py --output debug.zip --yes

Passwords, tokens and home folders are masked; images, captions, prompts and weights are left out.

exit codes: 0 done, 2 a mistake in the command or no such run, 3 the file cannot be written
"""


def main(arguments: list[str] | None = None) -> int:
    """Collect, list, ask and write; returns an exit code."""
    options = parser().parse_args(arguments)
    return exit_code_of(partial(do, options), options.output)


def do(options: argparse.Namespace) -> int:
    """Show or write the package."""
    folder = None if options.run is None else open_run(options.run)
    parts = collect_parts(folder)
    if options.show:
        for part in parts:
            echo(f"==> {part.name} <==\n{part.text}")
        return FINISHED
    return write(parts, target_of(options.output, folder), is_agreed=options.yes)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = program_parser(
        "Make one zip for a bug report: settings, logs, versions, devices and the last events of a run.", EXAMPLES
    )
    made.add_argument("run", nargs="?", metavar="RUN", help="the run folder, such as runs/cats (default: no run)")
    made.add_argument("--output", metavar="FILE", help="the zip to write (default: NAME-debug.zip here)")
    made.add_argument("--show", action="store_true", help="print everything that would be in it, and write nothing")
    made.add_argument("--yes", action="store_true", help="write it without asking, even over an existing file")
    return made


def open_run(path: str) -> RunFolder:
    """The run folder. Raises ConfigError if it is none."""
    folder = RunFolder(Path(path).resolve())
    if not (folder.config_file.is_file() or folder.events_file.is_file()):
        raise ConfigError(
            f"{printable(path)} is not a run folder.", "Give a folder with a config.json, such as runs/cats"
        )
    return folder


def target_of(output: str | None, folder: RunFolder | None) -> Path:
    """The file to write. Raises ConfigError if it cannot be one."""
    file = Path(output if output is not None else f"{'tandem' if folder is None else folder.name}-debug.zip")
    if file.suffix.lower() != ".zip":
        raise ConfigError(f"--output is {printable(file)}; its name must end in .zip.")
    if not file.parent.is_dir():
        raise ConfigError(f"--output is {printable(file)}; there is no folder {printable(file.parent)}.")
    return file


def write(parts: list[PackedFile], file: Path, *, is_agreed: bool) -> int:
    """List the parts and write them, once it is agreed."""
    width = max(len(part.name) for part in parts)
    for part in parts:
        echo(f"{part.name:<{width}}  {len(part.text.encode()) / 1000:>8,.1f} kB  {part.about}")
    if not is_agreed:
        replaces = " It exists and would be replaced." if file.exists() else ""
        if not is_interactive():
            raise ConfigError(
                f"Nothing is written yet.{replaces}", "Repeat with --yes to write it, or --show to see it"
            )
        print(f"Write this to {printable(file)}?{replaces} [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            echo("Nothing was written.")
            return FINISHED
    size = write_package(parts, file)
    echo(f"Wrote {file} ({size / 1000:,.1f} kB).")
    return FINISHED


if __name__ == "__main__":
    sys.exit(main())
