"""Try out everything a run on several devices needs: `python scripts/preflight.py`, or under torchrun on N machines."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.own_python import require_packages

require_packages()

from modules.config import TandemError, TrainConfig, resolve_config
from modules.run.checkup import Checkup
from modules.run.checkup_start import run_checkup
from modules.run.console import say
from modules.run.exit_codes import BAD_CONFIG, INTERRUPTED
from modules.run.group_place import Place, place_from_environment

LONGEST_S = 86_400


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and check; exit code 0 where all is well, 3 with a red cell, 2 for bad arguments."""
    given = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(given)
    try:
        config = resolve_config(options.config, [*options.set, *_flags(options)])
        place = place_from_environment(os.environ, config.initial_port)
        if place is not None:
            return as_rank(place, config, options)
        result = None if options.json is None else Path(options.json)
        checkup = run_checkup(config, given, options.wait, say, result)
    except TandemError as error:
        print(f"The preflight did not start: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"--json: {options.json} cannot be written: {error.strerror or error}.", file=sys.stderr)
        return BAD_CONFIG
    except KeyboardInterrupt:
        return INTERRUPTED
    show(checkup, options)
    return checkup.exit_code


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="preflight.py",
        description="Check devices, network, disks and data before a run; docs/preflight.md explains every row.",
        allow_abbrev=False,
    )
    top.add_argument("--config", metavar="FILE", help="the run's config: also checks its folders, pictures and loader")
    top.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="override a setting")
    top.add_argument("--test", choices=("basic", "all"), default="basic", help="basic: seconds; all: larger, and data")
    top.add_argument("--backend", choices=("nccl", "gloo"), help="how GPUs talk to each other")
    top.add_argument("--json", metavar="FILE", help="also write the result for programs")
    top.add_argument("--patience", metavar="SECONDS", type=seconds, default=30.0, help="longest time for one question")
    top.add_argument("--wait", metavar="SECONDS", type=seconds, default=300.0, help="longest wait for other machines")
    top.add_argument("--result", help=argparse.SUPPRESS)  # how the processes tell the one that started them
    return top


def seconds(text: str) -> float:
    """A time of the command line. Raises what argparse tells as a mistake."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 <= value <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"it is {text!r}; give seconds between 1 and {LONGEST_S}, such as 60")
    return value


def as_rank(place: Place, config: TrainConfig, options: argparse.Namespace) -> int:
    """One process of the group; the first of each machine shows what was found, or tells who started it."""
    from modules.distributed.preflight import Wanted, run_preflight
    from modules.training.preflight_loader import LOADER

    # torchrun ends all when one has died; who is alive is to finish the table first, which its deadlines see to
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # a late answer is then an error, not the process's end
    wanted = Wanted(
        config,
        has_config=options.config is not None,
        thorough=options.test == "all",
        patience_s=options.patience,
        wait_s=options.wait,
        more_checks=(LOADER,),
    )

    def save(checkup: Checkup) -> None:
        if options.result is not None and place.local_rank == 0:
            checkup.save(Path(options.result))

    checkup = run_preflight(place, wanted, say, save)
    save(checkup)
    if options.result is None and place.local_rank == 0:
        show(checkup, options)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(checkup.exit_code)  # threads of a network library may wait for ranks that are gone


def show(checkup: Checkup, options: argparse.Namespace) -> None:
    """The table, and the file for programs."""
    for line in checkup.lines(shutil.get_terminal_size((100, 24)).columns):
        say(line)
    if options.json is not None:
        try:
            checkup.save(Path(options.json))
        except OSError as error:
            print(f"--json: {options.json} cannot be written: {error.strerror or error}.", file=sys.stderr)


def _flags(options: argparse.Namespace) -> list[str]:
    return [] if options.backend is None else [f"distributed_backend={options.backend}"]


if __name__ == "__main__":
    sys.exit(main())
