"""`python -m modules.data.loading.count_steps WORLD_SIZE`: the optimizer steps of a run, before it starts.

The window runs it in a child process. Standard input is a config as JSON; the answer is {"steps": N,
"steps_per_epoch": N, "end": "..."} or {"error": "..."}; `end` says which of two limits ends the run, and is empty if
there is only one.
Images that cannot be used are left out, as in the run: what the newest index in the cache does not know is opened for
that, unless it is very much.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from modules.config import ConfigError, TandemError, TrainConfig, effective_batch, end_of_run, total_steps, validate
from modules.data.index.build import newest_index
from modules.data.index.concept_rows import usable_images
from modules.data.index.expand import expand_concepts
from modules.data.index.scan import scan_concept
from modules.data.loading.order import Order, TrainingRows, balanced_repeats
from modules.files import FileFault, decode_json

_MOST_OPENED: Final = 20_000  # images of a concept: 2 s of a CPU core


def main(arguments: Sequence[str]) -> int:
    """Print the answer; returns an exit code."""
    if len(arguments) != 1 or not arguments[0].isdecimal() or int(arguments[0]) < 1:
        print("usage: python -m modules.data.loading.count_steps WORLD_SIZE", file=sys.stderr)
        return 2
    try:
        data = decode_json(sys.stdin.read())
        if not isinstance(data, dict):
            raise ConfigError("The settings are no group of settings.")
        config = validate(data, "the settings")
        per_epoch = steps_per_epoch(config, int(arguments[0]))
        steps, end = total_steps(config, per_epoch), end_of_run(config, per_epoch)
        print(json.dumps({"steps": steps, "steps_per_epoch": per_epoch, "end": end}))
    except (TandemError, FileFault) as error:
        print(json.dumps({"error": str(error)}))
        return 2
    return 0


def steps_per_epoch(config: TrainConfig, world_size: int) -> int:
    """Optimizer steps of an epoch on `world_size` processes. Raises DataError if a folder cannot be listed."""
    config = expand_concepts(config)
    numbers, known = [], newest_index(Path(config.cache_dir))
    for number, concept in enumerate(config.concepts):
        if concept.enabled and concept.kind == "train":
            scan = scan_concept(concept, config.masked_training, config.clip_step is not None)
            usable = int(usable_images(number, scan, concept, known, _MOST_OPENED, config.most_references).sum())
            numbers.append(np.full(usable - round(config.validation_split * usable), number, dtype=np.int32))
    concepts = np.concatenate(numbers) if numbers else np.zeros(0, dtype=np.int32)
    rows = TrainingRows(
        np.arange(len(concepts)),
        np.zeros(len(concepts), dtype=np.int32),  # buckets change the order, not the number of steps
        concepts,
        balanced_repeats(config.concepts, np.bincount(concepts, minlength=len(config.concepts))),
        [concept.loss_weight for concept in config.concepts],
        None,  # as little as identities
    )
    order = Order(rows, config.seed, effective_batch(config, world_size), config.drop_last)
    return order.steps_per_epoch


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
