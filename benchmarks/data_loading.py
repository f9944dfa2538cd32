"""Loading and decoding against bare loops: the same bytes by torch's DataLoader, the same images in a thread pool.

python benchmarks/data_loading.py [--rounds N] [--workers N]

The two take turns in one process, so that a busy machine slows both; figures are the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.data_order import make_images
from benchmarks.targets import Targets
from modules.config import TrainConfig
from modules.data.batch import Example
from modules.data.cache.cache import Cache
from modules.data.cache.crops import crop_example
from modules.data.cache.encode import decoding_threads
from modules.data.cache.keys import ViewKeys
from modules.data.index.build import build_index
from modules.data.index.images import decode_image
from modules.data.index.index import Index
from modules.data.loading.loader import make_loader
from modules.data.loading.order import Order, make_order

ROWS, BATCH = 2000, 8
LATENTS, STATES = (4, 64, 64), (77, 768)  # of Stable Diffusion 1 at 512, in fp32: 300 kB an image
PHOTOS, SIDES, RESOLUTION = 64, (2400, 1800), 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("only", nargs="?", choices=("loader", "decoding"), help="one of the two")
    arguments = parser.parse_args()
    targets = Targets()
    with tempfile.TemporaryDirectory(prefix="tandem-loading-") as folder:
        if arguments.only != "decoding":
            measure_loader(Path(folder), arguments.rounds, arguments.workers, targets)
        if arguments.only != "loader":
            measure_decoding(Path(folder), arguments.rounds, targets)
    targets.end()


def measure_loader(folder: Path, rounds: int, workers: int, targets: Targets) -> None:
    """Epochs of the loader, and of a loop that knows where the bytes are and stacks them."""
    make_images(folder / "small", ROWS, txt=True)
    config = TrainConfig.model_validate(
        {
            "concepts": [{"path": str(folder / "small")}],
            "resolution": 32,
            "loader_workers": workers,
            "batch_size": BATCH,
        }
    )
    index = build_index(config, config.seed, 8, folder / "cache")
    cache = Cache(folder / "cache", "benchmark", index, config, text_fingerprint="texts")
    cache.encode_captions(cache.missing_captions(), BATCH, encode_captions, 0)
    cache.encode(cache.batches(cache.missing(), 1), encode, 0)
    examples = cache.load()
    order = make_order(index, config, config.seed, examples.usable, BATCH)
    loader = make_loader(config, index, examples, order, take, batch_size=BATCH)
    bare = BareLoader(folder / "cache", index, order, workers)
    epochs = iter(range(2 * rounds + 2))
    ratios = in_turns(
        "loader", lambda: loader.epoch(next(epochs)), lambda: bare.epoch(next(epochs)), rounds, len(order.epoch(0))
    )
    loader.close()
    targets.at_least(f"loader, {workers} workers / bare loop, samples/s", ratios[0], 0.95)
    targets.at_least(f"loader, {workers} workers / bare loop, samples per CPU s", ratios[1], 0.95)


def measure_decoding(folder: Path, rounds: int, targets: Targets) -> None:
    """Photos decoded, resized and cropped into the cache, by an encoder that takes no time, and by one that takes half
    as long as that and no processor, as a GPU does; against a thread pool that does the same."""
    make_photos(folder / "photos")
    config = TrainConfig.model_validate({"concepts": [{"path": str(folder / "photos")}], "resolution": RESOLUTION})
    index = build_index(config, config.seed, 8, folder / "photo-cache")
    numbers = iter(range(100 * rounds))

    def caching(encoder_s: float) -> list[int]:
        cache = Cache(folder / "photo-cache", f"round {next(numbers)}", index, config)  # none of its entries is there

        def encode_slowly(examples: Sequence[Example], size: int) -> list[dict[str, Tensor]]:
            time.sleep(encoder_s * len(examples))
            return [{"latents": torch.zeros(LATENTS)} for _ in examples]

        cache.encode(cache.batches(cache.missing(), 4), encode_slowly, 0)
        return [PHOTOS]

    keys = ViewKeys(index, config, "", captions_in_key=False)

    def decode(row: int) -> Example:
        size, crop = (int(index.width[row]), int(index.height[row])), keys.crop(row, 0)
        image = decode_image(Path(index.file(row)).read_bytes(), size, crop.resized[::-1])
        return crop_example(image, None, False, ("",), size[::-1], crop)

    def decoding() -> list[int]:
        with ThreadPoolExecutor(decoding_threads(1)) as pool:
            return [len(list(pool.map(decode, range(PHOTOS))))]

    start = time.perf_counter()
    decoding()
    each_s = (time.perf_counter() - start) / PHOTOS
    for name, encoder_s in (("encoder of no time", 0.0), ("encoder of half the time", each_s / 2)):
        ratios = in_turns(name, lambda s=encoder_s: caching(s), decoding, rounds, PHOTOS)  # type: ignore[misc]
        targets.at_least(f"photos/s into the cache / bare pool, {name}", ratios[0], 0.95)


def in_turns(
    name: str, ours: Callable[[], Iterable[object]], bare: Callable[[], Iterable[object]], rounds: int, samples: int
) -> tuple[float, float]:
    """The medians of ours / bare in samples per second, and per second of processor time of this process and those that
    it has started; the first of each warms up."""
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "bare": []}
    for number in range(rounds + 1):
        for which, work in (("ours", ours), ("bare", bare)) if number % 2 else (("bare", bare), ("ours", ours)):
            start, cpu = time.perf_counter(), cpu_seconds()
            for _ in work():
                pass
            spent = time.perf_counter() - start, cpu_seconds() - cpu
            if number:
                found[which].append(spent)
    for which, figures in found.items():
        wall, cpu = (statistics.median(each) for each in zip(*figures, strict=True))
        print(f"{name + ', ' + which:<40}{samples / wall:10.1f} samples/s{samples / cpu:10.1f} per CPU s", flush=True)
    pairs = list(zip(found["ours"], found["bare"], strict=True))
    walls, cpus = ([other[n] / own[n] for own, other in pairs] for n in range(2))
    return statistics.median(walls), statistics.median(cpus)


def cpu_seconds() -> float:
    """Of this process and its children."""
    own = psutil.Process()
    times = []
    for process in (own, *own.children(recursive=True)):
        try:
            times.append(process.cpu_times())
        except psutil.NoSuchProcess:
            continue
    return sum(each.user + each.system for each in times)


class BareLoader:
    """As somebody writes it who has one data set in this format and reads nothing else."""

    def __init__(self, cache_dir: Path, index: Index, order: Order, workers: int) -> None:
        self._order = order
        self._batches: list[list[int]] = []
        self._loader = DataLoader(
            _Places(cache_dir), batch_size=None, sampler=self, num_workers=workers, persistent_workers=workers > 0
        )

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)

    def epoch(self, epoch: int) -> Iterable[object]:
        """The batches of an epoch in the order of ours."""
        self._batches = [self._order.step(epoch, step).rows.tolist() for step in range(self._order.steps_in(epoch))]
        return self._loader


class _Places(Dataset["dict[str, Tensor]"]):
    """Latents and states are in shards of 64 each, in the order of the rows."""

    def __init__(self, cache_dir: Path) -> None:
        self._shards = sorted((cache_dir / "rank-0").glob("*.safetensors"))
        self._places: dict[str, list[tuple[Any, str]]] = {}  # by the name of the tensors

    def __getitem__(self, rows: list[int]) -> dict[str, Tensor]:
        samples = [self._read(row) for row in rows]
        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}

    def _read(self, row: int) -> dict[str, Tensor]:
        for path in self._shards if not self._places else ():
            file = safe_open(path, framework="pt")
            for key in sorted(file.keys(), key=lambda key: int(key.partition(".")[0])):
                self._places.setdefault(key.partition(".")[2], []).append((file, key))
        return {kind: places[row][0].get_tensor(places[row][1]) for kind, places in self._places.items()}


def encode(examples: Sequence[Example], size: int) -> list[dict[str, Tensor]]:
    return [{"latents": torch.zeros(LATENTS)} for _ in examples]


def encode_captions(captions: Sequence[str], size: int) -> list[dict[str, Tensor]]:
    return [{"states": torch.zeros(STATES)} for _ in captions]


def take(cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
    return cached


def make_photos(folder: Path) -> None:
    """JPEGs of smooth noise, as large as those of a camera."""
    folder.mkdir()
    draw = random.Random(0)
    for number in range(PHOTOS):
        small = np.frombuffer(draw.randbytes(60 * 45 * 3), dtype=np.uint8).reshape(45, 60, 3)
        Image.fromarray(small).resize(SIDES, Image.Resampling.BICUBIC).save(folder / f"{number:03}.jpg", quality=92)


if __name__ == "__main__":
    main()
