"""What keeps settings from starting, found in a child process because the window never imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from modules import ROOT
from modules.config import TrainConfig

TIMEOUT_S = 120
_COMMAND = (sys.executable, "-P", "-m", "modules.training.dry_run")


def dry_run(config: TrainConfig) -> list[str]:
    """Why the config cannot start, as sentences; slow. Nothing is written, and the hub is not contacted."""
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            _COMMAND,  # in the current folder, where relative paths start
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
            input=config.model_dump_json(),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
        found = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        found = None
    if not isinstance(found, list):
        return ["The settings could not be checked; python scripts/train.py --config FILE --dry_run says more."]
    return [str(sentence) for sentence in found]
