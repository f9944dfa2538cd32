"""scripts/gpu_check.py on the pretended GPU: python -m tests.fake_cuda.run_gpu_check OPTION...

Without NCCL, and without limits of time, because a GPU that is pretended is slow. Its processes are started from this
file as well: python FILE cuda.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from modules.machine import Gpu
from scripts import gpu_cells, gpu_check, gpu_worker
from scripts.gpu_check_list import Limits
from tests.fake_cuda.gpu import Card, install
from tests.fake_cuda.run_cases import small_peak_measurement

LAYOUT = gpu_cells.Layout("gloo, 2 processes on 1 GPU", "gloo", 2, None)
UNLIMITED = Limits(0, math.inf)


def main(arguments: list[str]) -> int:
    """The exit code of gpu_check."""
    card, former = Card(), gpu_cells.cells_of

    def cells_of(layouts: Sequence[gpu_cells.Layout], device: str) -> list[gpu_cells.Cell]:
        return [replace(cell, limits=UNLIMITED) for cell in former(layouts, device)]

    with (
        patch.object(gpu_cells, "available_layouts", lambda device: [LAYOUT]),
        patch.object(gpu_cells, "visible_gpus", lambda: [Gpu(0, card.name, card.total_bytes >> 20, "")]),
        patch.object(gpu_cells, "cells_of", cells_of),
        patch.object(gpu_cells, "START", UNLIMITED),
        patch.object(gpu_cells, "WORKER", Path(__file__)),
    ):
        return gpu_check.main(arguments)


if __name__ == "__main__":
    if sys.argv[1:] == ["cuda"]:
        install()
        with small_peak_measurement():
            gpu_worker.main()
    else:
        sys.exit(main(sys.argv[1:]))
