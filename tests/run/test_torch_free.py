"""The rooms that the window uses, and the process that downloads a model, load nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "modules.run, modules.annotation",
        "modules.machine",
        "modules.run.supervise.supervisor",
        "modules.run.queue.runner",
        "modules.diffusion.hub.download",
        "scripts.backup",
        "app",
        "tandem.commands",
    ],
)
def test_import_loads_no_torch(module: str) -> None:
    code = (
        f"import sys, {module}; "
        "print([name for name in ('torch', 'diffusers', 'numpy', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_cache_is_listed_without_torch() -> None:
    code = "import sys, scripts.cache; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
