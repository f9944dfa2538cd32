"""Cache folders that somebody else filled: the index, the manifests and the shards."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

from modules.config import DataError, TrainConfig
from modules.data.cache.cache import Cache
from modules.data.index.index import load_index
from tests.data.helpers import RecordingEncode, config_for, encode_missing, index_of, write_image
from tests.torture.kind import Places
from tests.torture.mutations import bytes_changed, file_changed, file_replaced, json_changed, safetensors_changed


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._images = places.seeds / "images"
        for number in range(3):
            write_image(self._images / f"{number}.png", 40 + 8 * number, seed=number)
            (self._images / f"{number}.txt").write_text(f"image {number}")
        self._use(places.seeds / "cache")

    def _config(self, cache: Path) -> TrainConfig:
        return config_for(self._images, cache=cache)

    def _use(self, folder: Path) -> None:
        """As a run does: bring the index up to date, encode what is missing, read everything."""
        config = self._config(folder)
        index = index_of(config, folder)
        assert [index.relative_path(row) for row in range(len(index))] == ["0.png", "1.png", "2.png"]
        index.problems()
        assert all(index.captions(row) for row in range(3))
        cache = Cache(folder, "f", index, config)
        encode_missing(cache, RecordingEncode())
        cached = cache.load()
        cache.content_hashes()
        for row in range(3):
            assert cached.usable[row], cached.problems
            cached.read(row, 0)

    def make(self, draw: Random) -> None:
        cache = Path(shutil.copytree(self._places.seeds / "cache", self._places.case / "cache"))
        paths = sorted(path for path in cache.rglob("*") if path.name != "lock" or draw.random() < 0.2)
        for path in draw.choices(paths, k=draw.choice((1, 1, 2))):
            if draw.random() < 0.2:
                file_replaced(path, self._places.outside, draw)
            else:
                change = json_changed if path.suffix == ".jsonl" else safetensors_changed
                file_changed(path, change if draw.random() < 0.8 else bytes_changed, draw)

    def read(self) -> str:
        folder = self._places.case / "cache"
        refusals = []
        for file in sorted(folder.glob("index-*.safetensors")):
            try:
                load_index(file)
            except DataError as error:  # it is built again
                refusals.append(str(error))
        self._use(folder)
        return "; ".join(refusals)
