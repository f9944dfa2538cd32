"""`python -m modules.training.memory_table [WORLD_SIZE] < config.json`: the memory table as JSON, for the window.

{"rows": [...], "has_activations": ..., "trained": PARAMETERS, "problems": [...], "lines": [...]}; rows are
empty if the model is not known before loading.
"""

from __future__ import annotations

import json
import sys

from modules.config import TandemError, TrainConfig
from modules.training.memory_table.report import memory_report


def main() -> int:
    """Print the table; exit code 2 and a sentence if the config cannot be used."""
    config = TrainConfig.model_validate_json(sys.stdin.read())
    world_size = int(sys.argv[1]) if len(sys.argv) > 1 else config.world_size or 1
    try:
        table, problems = memory_report(config, world_size)
    except TandemError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    data = {"rows": [], "has_activations": False} if table is None else table.as_data()
    json.dump({**data, "problems": problems, "lines": [] if table is None else table.lines()}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
