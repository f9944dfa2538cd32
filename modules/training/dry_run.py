"""`python -m modules.training.dry_run < config.json`: why a config cannot start, as a JSON list of sentences.

The window runs it as a child process after an import, so that it imports no torch itself.
"""

from __future__ import annotations

import json
import sys

from modules.config import TandemError, TrainConfig
from modules.run.folder.run_folder import check_run_name
from modules.run.start import check_start
from modules.training.loop.checks import startup_problems


def dry_run(config: TrainConfig) -> list[str]:
    """What `--dry_run` would refuse, without a run folder and without the hub."""
    found: list[TandemError] = []
    try:
        check_start(config, require_multi_gpu=False, token=None)
        check_run_name(config.run_name or "run")
    except TandemError as error:
        found.append(error)
    return [str(error) for error in (*found, *startup_problems(config))]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dry_run(TrainConfig.model_validate_json(sys.stdin.read()))))
