"""Caches a folder slowly and prints its progress, to be killed: FOLDER CACHE_DIR SECONDS_PER_IMAGE."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from torch import Tensor

from modules.data.batch import Example
from modules.data.cache import shards
from modules.data.cache.cache import Cache
from tests.data.helpers import config_for, index_of, one_by_one


def main(folder: str, cache_dir: str, seconds: str) -> None:
    shards._SHARD_ENTRIES = 4
    config = config_for(Path(folder), cache=Path(cache_dir))
    index = index_of(config, Path(cache_dir))

    def encode(example: Example) -> dict[str, Tensor]:
        time.sleep(float(seconds))
        return {"pixels": example.pixels}

    cache = Cache(Path(cache_dir), "f", index, config)
    batches = cache.batches(cache.missing(), 1)
    cache.encode(batches, one_by_one(encode), 0, lambda done, total: print(done, flush=True))


main(*sys.argv[1:])
