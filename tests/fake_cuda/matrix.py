"""Every family with every feature on the pretended GPU: python -m tests.fake_cuda.matrix [--races] [WORD...]

With words, only the cases that have all of them, e.g. `flux int8`. Takes some ten minutes of a core; the exit code is 1
if a case has faults. Combinations that Tandem refuses are named with its reason.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from tests.fake_cuda.cases import FAMILIES, MATRIX, OTHERS
from tests.fake_cuda.run_cases import Result
from tests.fake_cuda.watch import ROOT
from tests.runs import environment

QUANTIZED = {"int8", "fp8", "nf4", "block_offload"}  # of frozen weights
NOT_OF_OTHERS = {"lora", *QUANTIZED}


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description="Every family with every feature on the pretended GPU.")
    parser.add_argument("words", nargs="*", help="of a case; all cases without any")
    parser.add_argument("--races", action="store_true", help="look for data races, too")
    given = parser.parse_args(arguments)
    cases = [case for case in all_cases() if set(given.words) <= set(case.split())]
    clean = True
    for family in FAMILIES:
        ours = [case for case in cases if case.split()[0] == family]
        for result in results_of(ours, races=given.races):
            clean &= result.exit_code is None or result.is_clean
            print(result.summary(), flush=True)
    return 0 if clean else 1


def all_cases() -> Iterator[str]:
    """Each feature alone, where the family has it."""
    for family in FAMILIES:
        features = [name for name in MATRIX if not (family in OTHERS and name in NOT_OF_OTHERS)]
        yield from (f"{family} {feature}" for feature in features)


def results_of(cases: Sequence[str], *, races: bool = False) -> Iterator[Result]:
    """Of a process that runs the cases one after the other. Raises RuntimeError, with its output, if it ends early."""
    command = [sys.executable, "-m", "tests.fake_cuda.run_cases", *(["--races"] if races else []), *cases]
    yield from (Result(**found) for found in json_lines(command if cases else None, len(cases)))


def json_lines(command: Sequence[str] | None, count: int) -> Iterator[dict[str, Any]]:
    """The `count` objects that a command prints, a line each. Raises RuntimeError, with its output, if there are less.

    It is killed when the iterator is closed."""
    if command is None:
        return
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment(), cwd=ROOT)
        assert child.stdout is not None
        found = 0
        try:
            for each in child.stdout:
                found += 1
                yield json.loads(each)
            child.wait()
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        if found != count:
            errors.seek(0)
            raise RuntimeError(f"{command} ended with {child.returncode}:\n{errors.read()[-4000:]}")


if __name__ == "__main__":
    sys.exit(main())
