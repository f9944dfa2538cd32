"""`python -m modules.training.memory_table [WORLD_SIZE] < config.json`: the memory table as JSON, for the window.

{"rows": [...], "has_activations": ..., "trained": PARAMETERS, "problems": [...], "lines": [...], "batch": ...}; rows
are empty if the model is not known before loading, `batch` is a BatchMemory or null. After WORLD_SIZE may be the
devices of another machine, a `Hardware` as JSON.

`python -m modules.training.memory_table PRESET ...` prints what each preset needs on its device, as in docs/models.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from modules.config import TandemError, TrainConfig, load_preset
from modules.families._by_name import family_class
from modules.run.format_memory import format_memory
from modules.run.hosts.hardware import Hardware
from modules.training.memory.advice import RESERVED
from modules.training.memory.report import batch_memory, memory_report
from modules.training.memory.table import memory_table


def main() -> int:
    """Print the table; exit code 2 and a sentence if the config cannot be used."""
    if len(sys.argv) > 1 and not sys.argv[1].isdecimal():
        return _presets(sys.argv[1:])
    config = TrainConfig.model_validate_json(sys.stdin.read())
    world_size = int(sys.argv[1]) if len(sys.argv) > 1 else config.world_size or 1
    machine = Hardware.model_validate_json(sys.argv[2]) if len(sys.argv) > 2 else None
    try:
        table, problems = memory_report(config, world_size, machine)
    except TandemError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    data = {"rows": [], "has_activations": False} if table is None else table.as_data()
    data["batch"] = (batch := batch_memory(config, table, machine)) and asdict(batch)
    json.dump({**data, "problems": problems, "lines": [] if table is None else table.lines()}, sys.stdout)
    return 0


def _presets(names: Sequence[str]) -> int:
    """A line for each preset, with what CUDA itself takes."""
    for name in names:
        try:
            config = load_preset(name)
            table = memory_table(family_class(config.family), config)
        except TandemError as error:
            sys.stderr.write(f"{error}\n")
            return error.exit_code
        if table is not None:
            training, caching = (table.total("device", phase) + RESERVED for phase in ("training", "caching"))
            sys.stdout.write(f"{name}: training {format_memory(training)}, caching {format_memory(caching)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
