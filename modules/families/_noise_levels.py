"""`python -m modules.families._noise_levels`: how often training samples which noise level, for the window.

The window keeps it running in a child process, since it never imports torch. Each line of standard input is a config
as JSON; the answer is one line {"counts": [...], "note": "..."}, or {"error": "..."}. It ends with its input.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Final, TextIO

import torch

from modules.config import ConfigError, TandemError, TrainConfig, validate
from modules.families._by_name import family_class
from modules.files import FileFault, decode_json

BINS: Final = 40
DRAWS: Final = 4000
_SEED: Final = 0  # the same draws for every setting, so that only the setting changes the histogram


def main() -> int:
    """Answer until the input ends; returns an exit code."""
    serve(sys.stdin, sys.stdout)
    return 0


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer each line of `requests` by a line."""
    torch.set_num_threads(1)
    for line in requests:
        with redirect_stdout(sys.stderr):  # what a user's file prints
            answer = _answer(line)
        print(json.dumps(answer), file=answers, flush=True)


def histogram(config: TrainConfig) -> tuple[list[int], str]:
    """Counts of DRAWS noise levels in BINS equal parts of [0, 1], drawn by the family's own code, and its note.

    No counts for a family without noise levels. Raises TandemError.
    """
    levels = family_class(config.family).noise_levels(config)
    if levels is None:
        return [], ""
    generator = torch.Generator().manual_seed(_SEED)
    drawn = torch.stack([levels.draw(generator) for _ in range(DRAWS)])
    return torch.histc(drawn.float(), BINS, 0, 1).int().tolist(), levels.note


def _answer(line: str) -> dict[str, object]:
    try:
        data = decode_json(line)
        if not isinstance(data, dict):
            raise ConfigError("The request is no group of settings.")
        counts, note = histogram(validate(data, "the settings"))
    except (TandemError, FileFault) as error:
        return {"error": str(error)}
    return {"counts": counts, "note": note}


if __name__ == "__main__":
    sys.exit(main())
