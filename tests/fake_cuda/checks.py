"""What is checked on the pretended GPU: itself, and with it Tandem's accounts of memory, and programs with mistakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from tests.fake_cuda import device_checks, memory_checks
from tests.fake_cuda.gpu import Gpu
from tests.fake_cuda.mutants import MUTANTS, check_mutant

CHECKS: Final[Mapping[str, Callable[[Gpu, Path], None]]] = {
    **device_checks.CHECKS,
    **memory_checks.CHECKS,
    **{name: partial(check_mutant, name) for name in MUTANTS},
}
