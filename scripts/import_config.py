"""Settings of another trainer as a Tandem config: `python scripts/import_config.py FILE [-o OUT.yaml]`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import add_version, prepare_program

prepare_program()

from modules.config import ConfigError, TandemError, TrainConfig, dump, override, save_config, validate
from modules.config.file_access import set_file_access
from modules.config.io.files import WRITERS
from modules.importers import TRAINERS, import_file
from modules.run.console import echo, warn
from modules.run.exit_codes import INTERRUPTED


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and import; 0 if the config was made, 2 for input that cannot be used."""
    code = exit_code_of_import(parser().parse_args(arguments))
    if arguments is None and "torch" in sys.modules:  # as a program, which Python would take seconds to take down
        from modules.distributed import exit_at_once

        exit_at_once(code)
    return code


def exit_code_of_import(options: argparse.Namespace) -> int:
    """Import as the command line says."""
    try:
        set_file_access()
        check_target(options.out, overwrite=options.overwrite)
        imported = import_file(options.file)
        config = with_settings(imported.config, options.set)
        from modules.training.dry_run import dry_run  # torch takes seconds to import, so this comes last

        lines = imported.with_problems(dry_run(config)).report.lines()
        if options.out is None:
            lines.append("\nNothing was written: give a file with -o to save the config.")
        else:
            save_config(config, options.out)
            lines.append(f"\nWritten: {options.out}. Try it: python scripts/train.py --config {options.out} --dry_run")
        for line in lines:
            echo(line)
    except TandemError as error:
        warn(f"Nothing was imported: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        description="Convert the settings of another trainer to a config, and report how each was imported.",
        epilog=f"Supported: {', '.join(trainer.name for trainer in TRAINERS)}. More: docs/importing.md.",
        allow_abbrev=False,
    )
    top.add_argument("file", metavar="FILE", help="the settings file of the other trainer")
    top.add_argument("-o", "--out", metavar="OUT", help="where to write the config (.yaml or .json)")
    top.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="change a setting of the result, may be repeated",
    )
    top.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    add_version(top)
    return top


def check_target(out: str | None, *, overwrite: bool) -> None:
    """Raise ConfigError if the config cannot or should not be written, before anything is read."""
    if out is None:
        return
    if Path(out).suffix.lower() not in WRITERS:
        raise ConfigError(f"-o {out}: the name must end in .yaml, .yml or .json.")
    if os.path.exists(out) and not overwrite:  # False for a name that is too long, which saving says
        raise ConfigError(f"-o {out} already exists.", "Choose another name, or add --overwrite.")


def with_settings(config: TrainConfig, assignments: list[str]) -> TrainConfig:
    """The config with the `--set` assignments applied."""
    if not assignments:
        return config
    return validate(override(dump(config), assignments), "The result", assignments)


if __name__ == "__main__":
    sys.exit(main())
