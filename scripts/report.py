"""Write the report of a run as one HTML file: `python scripts/report.py runs/NAME`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import add_version, prepare_program

prepare_program()

from modules.config import ConfigError, TandemError
from modules.config.file_access import set_file_access
from modules.files import printable
from modules.run import RunFolder
from modules.run.console import echo, warn
from modules.run.exit_codes import FAILED, FINISHED, INTERRUPTED
from modules.run.html_report import write_report


def main(arguments: list[str] | None = None) -> int:
    """Write the report; returns an exit code."""
    options = parser().parse_args(arguments)
    folder = RunFolder(Path(options.run))
    try:
        set_file_access()
        if not folder.events_file.is_file():
            what = "has no events.jsonl" if folder.path.is_dir() else "does not exist"
            raise ConfigError(f"{options.run!r} {what}", "Give the folder of a run, such as runs/NAME")
        echo(f"The report is in {printable(write_report(folder, options.output))}.")
    except TandemError as error:
        warn(str(error))
        return error.exit_code
    except OSError as error:
        file = printable(error.filename or options.output or folder.report_file)
        warn(f"{file} cannot be read or written: {error.strerror or error}.")
        return FAILED
    except KeyboardInterrupt:
        warn("Stopped.")
        return INTERRUPTED
    return FINISHED


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        description="Write the report of a run as one HTML file, which any browser shows without network: its curves, "
        "samples, warnings, data, devices, settings and versions. Each run also writes it when it ends.",
        epilog="exit codes: 0 done, 2 no such run, 3 a file cannot be read or written",
        allow_abbrev=False,
    )
    add_version(top)
    top.add_argument("run", metavar="RUN", help="the folder of a run, such as runs/NAME")
    top.add_argument("--output", type=Path, metavar="FILE", help="default: RUN/report.html")
    return top


if __name__ == "__main__":
    sys.exit(main())
