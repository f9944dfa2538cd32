"""Feed mutants of every kind of foreign input to the readers: each is accepted or refused with a sentence, in time.

A crash is any exception that is no TandemError, a worker that dies, much memory, or anything that is done outside of
the folder of a case; a hang is 5 s.

Only if named: writes (every call of a backup fails), disks (a run's disk fails), kills (a run is killed), orders (its
data changes), cuts (a run on another machine is cut); a crash is a damaged backup, other weights after the resume, an
image that comes too often, an end without a word, or what stays on the other machine after it was cleaned.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the file can be started by its path

from scripts.common import prepare_program

DEFAULT_COUNT = 2000
HEADER = (
    "| kind | cases | refused | accepted | crashes | hangs | slowest | seconds |\n|---|---|---|---|---|---|---|---|"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if there was a crash or a hang."""
    arguments = _parser().parse_args(argv)
    prepare_program()
    from tests.torture.breakdowns import BREAKDOWNS, needs, run_breakdowns
    from tests.torture.kinds import KINDS
    from tests.torture.watch import Plan, Tally, run

    every_kind = {**KINDS, **BREAKDOWNS}

    if arguments.list:
        print("\n".join(f"{name:10} {what}" for name, what in every_kind.items()))
        return 0
    unknown = [name for name in arguments.kinds if name not in every_kind]
    if unknown:
        print(f"there is no kind {unknown[0]!r}; the kinds are {', '.join(every_kind)}.", file=sys.stderr)
        return 2
    plans = [Plan(name, 0, arguments.count - 1) for name in every_kind if name in (arguments.kinds or KINDS)]
    if arguments.only:
        kind, _, number = arguments.only.partition(":")
        if kind not in every_kind or not number.isdecimal():
            print(f"--only is {arguments.only!r}; use KIND:NUMBER, such as configs:17.", file=sys.stderr)
            return 2
        plans = [Plan(kind, int(number), int(number))]
    if arguments.images is not None and arguments.images < 1:
        print(f"--images is {arguments.images}; use a whole number from 1.", file=sys.stderr)
        return 2
    if arguments.images and arguments.keep and (arguments.keep / "many").exists():
        print(f"{arguments.keep / 'many'} is there already; remove it, or give another folder.", file=sys.stderr)
        return 2
    shown_at = time.monotonic()

    def progress(tally: Tally) -> None:
        nonlocal shown_at
        if sys.stderr.isatty() and time.monotonic() - shown_at > 1:
            shown_at = time.monotonic()
            print(f"\r{tally.kind}: {tally.cases} cases, {len(tally.faults)} faults ", end="", file=sys.stderr)

    with tempfile.TemporaryDirectory(prefix="torture-") as temporary:
        folder = arguments.keep or Path(temporary)
        if arguments.images:
            from tests.torture.many_images import many_images

            for line in many_images(folder.absolute() / "many", arguments.images):
                print(line, flush=True)
            return 0
        tallies: list[Tally] = []
        print(HEADER, flush=True)
        for plan in plans:
            if plan.kind in BREAKDOWNS:
                tally = run_breakdowns(plan, arguments.seed, folder.absolute(), progress)
                if tally is None:
                    print(f"{plan.kind}: needs {needs(plan.kind)}.", file=sys.stderr)
                    return 2
                tallies.append(tally)
            else:
                tallies += run([plan], arguments.seed, folder.absolute(), progress=progress)
            print(_row(tallies[-1]), flush=True)
    faults = [fault for tally in tallies for fault in tally.faults]
    for fault in faults:
        print(f"\n{fault.result}: python scripts/torture.py --seed {arguments.seed} --only {fault.kind}:{fault.number}")
        print(fault.detail)
    if arguments.report is not None:
        arguments.report.write_text(json.dumps([asdict(tally) for tally in tallies], indent=1), encoding="utf-8")
    print(f"\n{len(faults)} faults in {sum(tally.cases for tally in tallies)} cases, seed {arguments.seed}.")
    return 1 if faults else 0


def _row(tally: object) -> str:
    from tests.torture.watch import Tally

    assert isinstance(tally, Tally)
    counts = f"{tally.cases} | {tally.refused} | {tally.accepted} | {tally.count('crash')} | {tally.count('hang')}"
    return f"| {tally.kind} | {counts} | {tally.slowest_s:.2f} s ({tally.kind}:{tally.slowest}) | {tally.seconds:.0f} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="kinds of input (default: all; --list names them)")
    parser.add_argument("--list", action="store_true", help="print the kinds and end")
    parser.add_argument(
        "--count", type=int, default=DEFAULT_COUNT, metavar="N", help="cases of each kind (%(default)s)"
    )
    parser.add_argument(
        "--images",
        type=int,
        metavar="N",
        help="instead of the kinds, index, cache and order N images made of hard links (docs/data.md has 1000000)",
    )
    parser.add_argument("--seed", default="0", help="any text; the same seed makes the same cases (%(default)s)")
    parser.add_argument("--only", metavar="KIND:NUMBER", help="repeat one case")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work in this folder and leave the last case in it")
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the results as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
