"""Caches a folder slowly and tells its progress, to be killed by test_cache: FOLDER CACHE_DIR SECONDS_PER_PICTURE."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from torch import Tensor

from modules.data import shards
from modules.data.batch import Example
from modules.data.cache import Cache
from modules.data.indexing import build_index
from tests.data.helpers import config_for, each


def main(folder: str, cache_dir: str, seconds: str) -> None:
    shards._SHARD_ENTRIES = 4
    config = config_for(Path(folder), cache=Path(cache_dir))
    index = build_index(config, 8, Path(cache_dir))

    def encode(example: Example) -> dict[str, Tensor]:
        time.sleep(float(seconds))
        return {"pixels": example.pixels}

    cache = Cache(Path(cache_dir), "f", index, config)
    groups = cache.groups(cache.missing(), 1)
    cache.encode(groups, each(encode), 0, lambda done, total: print(done, flush=True))


main(*sys.argv[1:])
