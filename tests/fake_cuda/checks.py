"""Checks on the pretended GPU, in one process, which pytest cannot be: python -m tests.fake_cuda.checks [NAME...]

Prints a line of JSON for each: its name, and the error, or none.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import torch

from tests.fake_cuda import device_checks
from tests.fake_cuda.gpu import Gpu, install
from tests.fake_cuda.mutants import MUTANTS, check_mutant

CHECKS: Final[Mapping[str, Callable[[Gpu, Path], None]]] = {
    **device_checks.CHECKS,
    **{name: partial(check_mutant, name) for name in MUTANTS},
}


def main(names: list[str]) -> int:
    """Exit code 0, whatever they find."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    gpu = install()
    results = sys.stdout
    with tempfile.TemporaryDirectory(prefix="fake-cuda-") as folder, redirect_stdout(sys.stderr):
        for name in names or CHECKS:
            gpu.watch.forget()
            gpu.watch.findings.clear()
            error = ""
            try:
                CHECKS[name](gpu, Path(folder))
            except (Exception, pytest.fail.Exception):  # noqa: BLE001  # the others go on
                error = traceback.format_exc()
            print(json.dumps({"name": name, "error": error}), file=results, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
