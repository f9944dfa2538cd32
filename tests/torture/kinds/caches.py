"""Cache folders that somebody else filled: the index, the manifests, the shards and the table of what they hold."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from random import Random

import torch

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
        assert not self._use(places.seeds / "cache")

    def _config(self, cache: Path) -> TrainConfig:
        return config_for(self._images, cache=cache)

    def _use(self, folder: Path) -> list[str]:
        """As a run does: update the index, encode what is missing, read everything. Returns what is skipped."""
        config = self._config(folder)
        index = index_of(config, folder)
        names = [index.relative_path(row) for row in range(len(index))]
        assert {"0.png", "1.png", "2.png"}.issuperset(names), names
        assert len(names) + len(index.problems()) >= 3, names  # a forged size of a mask makes an image a problem
        assert all(index.captions(row) for row in range(len(index)))
        cache = Cache(folder, "f", index, config, text_fingerprint="t")
        cache.update()
        captions = cache.missing_captions()
        cache.encode_captions(captions, 2, lambda some, size: [{"text": torch.zeros(3)} for _ in some], 0)
        encode_missing(cache, RecordingEncode())
        name = cache.update()
        cache = Cache(folder, "f", index, config, text_fingerprint="t")
        cache.follow(name)
        cached = cache.load()
        cache.content_hashes()
        for row in range(len(index)):
            if cached.usable[row]:
                cached.read(row, 0)
                cached.text(index.captions(row)[0])
        assert len(cached.problems) == len(index) - cached.usable.sum()
        return [problem.what for problem in (*index.problems(), *cached.problems)]

    def make(self, draw: Random) -> None:
        cache = Path(shutil.copytree(self._places.seeds / "cache", self._places.case / "cache"))
        paths = sorted(path for path in cache.rglob("*") if path.name != "lock" or draw.random() < 0.2)
        for path in draw.choices(paths, k=draw.choice((1, 1, 2))):
            with suppress(OSError):  # it was in a folder that has been replaced
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
        return "; ".join([*refusals, *self._use(folder)])
