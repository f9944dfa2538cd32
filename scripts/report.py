"""Write the report of a run as one HTML file, or its numbers as JSON or CSV: `python scripts/report.py runs/NAME`."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import add_version, prepare_program

prepare_program()

from modules.config import ConfigError, TandemError
from modules.config.file_access import set_file_access
from modules.files import printable, write_fault
from modules.run import RunFolder
from modules.run.console import discard_stdout, echo, warn
from modules.run.exit_codes import FAILED, FINISHED, INTERRUPTED
from modules.run.folder.links import refuse_links
from modules.run.html_report import write_report
from modules.run.view.numbers import save_numbers, write_numbers

_STDOUT = "-"


def main(arguments: list[str] | None = None) -> int:
    """Write what was asked for; returns an exit code."""
    top = parser()
    options = top.parse_args(arguments)
    if options.json == options.csv == _STDOUT:
        top.error("--json - and --csv - cannot both write to standard output; give one of them a file")
    folder = RunFolder(Path(options.run))
    try:
        set_file_access()
        if not folder.events_file.is_file():
            what = "has no events.jsonl" if folder.path.is_dir() else "does not exist"
            raise ConfigError(f"{options.run!r} {what}", "Give the folder of a run, such as runs/NAME")
        refuse_links(folder.path)
        say = warn if _STDOUT in (options.json, options.csv) else echo  # standard output is the numbers' then
        if options.output is not None or not (options.json or options.csv):
            say(f"The report is in {printable(write_report(folder, options.output))}.")
        for name in ("json", "csv"):
            _write_numbers(folder, getattr(options, name), say, as_json=name == "json")
    except TandemError as error:
        warn(str(error))
        return error.exit_code
    except OSError as error:
        file = error.filename or options.output or folder.report_file
        warn(f"{printable(file)} cannot be read or written: {write_fault(error, file)}.")
        return FAILED
    except KeyboardInterrupt:
        warn("Stopped.")
        return INTERRUPTED
    return FINISHED


def _write_numbers(folder: RunFolder, file: str | None, say: Callable[[str], None], *, as_json: bool) -> None:
    if file == _STDOUT:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="")  # as in a file
        try:
            write_numbers(folder, sys.stdout, as_json=as_json)
            sys.stdout.flush()
        except BrokenPipeError:  # `| head`
            discard_stdout()
    elif file:
        rows = save_numbers(folder, Path(file), as_json=as_json)
        say(f"{rows:,} rows are in {printable(file)}.")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        description="Write the report of a run as one HTML file, which any browser shows without network: its curves, "
        "samples, warnings, data, devices, settings and versions. Each run also writes it when it ends. With --json or "
        "--csv, write the numbers of its steps and validations instead, and the report only with --output.",
        epilog="exit codes: 0 done, 2 no such run, 3 a file cannot be read or written",
        allow_abbrev=False,
    )
    add_version(top)
    top.add_argument("run", metavar="RUN", help="the folder of a run, such as runs/NAME")
    top.add_argument("--output", type=Path, metavar="FILE", help="the report (default: RUN/report.html)")
    top.add_argument("--json", metavar="FILE", help="the numbers as a list of objects; - is standard output")
    top.add_argument("--csv", metavar="FILE", help="the numbers as a table; - is standard output")
    return top


if __name__ == "__main__":
    sys.exit(main())
