from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import modules.config
from modules.config import TrainConfig, options
TrainConfig(); options(TrainConfig)
print(sorted({"torch", "diffusers", "numpy", "PIL", "pytorch_optimizer", "transformers"} & set(sys.modules)))
"""


def test_the_config_loads_neither_torch_nor_numpy() -> None:
    command = [sys.executable, "-c", PROGRAM]
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
