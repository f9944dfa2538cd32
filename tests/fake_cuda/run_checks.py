"""Runs the checks of checks.py in one process, which pytest cannot be: python -m tests.fake_cuda.run_checks [NAME...]

Prints a line of JSON for each: its name, and the error, or none.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

from modules.config import trusted_code
from tests.fake_cuda.gpu import install


def main(names: list[str]) -> int:
    """Exit code 0, whatever they find."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ[trusted_code.VARIABLE] = "any"  # the family files of the tests
    torch.set_num_threads(1)
    gpu = install()
    from tests.fake_cuda.checks import CHECKS  # whose libraries keep torch's functions as they find them

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
