"""`python -m modules.data.loading.count_steps WORLD_SIZE`: the optimizer steps of a run, before it starts.

The window runs it in a child process. Standard input is a config as JSON; the answer is {"steps": N} or
{"error": "..."}. Files are listed but not opened, so that images which cannot be read still count.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import numpy as np

from modules.config import ConfigError, TandemError, TrainConfig, effective_batch, total_steps, validate
from modules.data.index.build import in_validation_split
from modules.data.index.scan import scan_concept
from modules.data.loading.order import Order, TrainingRows, balanced_repeats
from modules.data.rng import hash_bytes
from modules.files import FileFault, decode_json


def main(arguments: Sequence[str]) -> int:
    """Print the answer; returns an exit code."""
    if len(arguments) != 1 or not arguments[0].isdecimal() or int(arguments[0]) < 1:
        print("usage: python -m modules.data.loading.count_steps WORLD_SIZE", file=sys.stderr)
        return 2
    try:
        data = decode_json(sys.stdin.read())
        if not isinstance(data, dict):
            raise ConfigError("The settings are no group of settings.")
        print(json.dumps({"steps": count_steps(validate(data, "the settings"), int(arguments[0]))}))
    except (TandemError, FileFault) as error:
        print(json.dumps({"error": str(error)}))
        return 2
    return 0


def count_steps(config: TrainConfig, world_size: int) -> int:
    """Optimizer steps of the whole run on `world_size` processes. Raises DataError if a folder cannot be listed."""
    numbers, kept = [], []
    for number, concept in enumerate(config.concepts):
        if concept.enabled and concept.kind == "train":
            paths = scan_concept(concept, config.masked_training).paths
            hashes = np.array([hash_bytes(path) for path in paths], dtype=np.uint64)
            kept.append(~in_validation_split(hashes, config.seed, config.validation_split))
            numbers.append(np.full(len(paths), number, dtype=np.int32))
    concepts = np.concatenate(numbers)[np.concatenate(kept)] if numbers else np.zeros(0, dtype=np.int32)
    rows = TrainingRows(
        np.arange(len(concepts)),
        np.zeros(len(concepts), dtype=np.int32),  # buckets change the order, not the number of steps
        concepts,
        balanced_repeats(config.concepts, np.bincount(concepts, minlength=len(config.concepts))),
        [concept.loss_weight for concept in config.concepts],
    )
    order = Order(rows, config.seed, effective_batch(config, world_size), config.drop_last)
    return total_steps(config, order.steps_per_epoch)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
