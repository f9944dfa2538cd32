"""How long the data path takes at scale: index, its check at the next start, an epoch's order, cache lookup, loader.

python benchmarks/data_order.py [--rows 100000] [--txt] [--folder DIR]
python benchmarks/data_order.py --start 1000000   # the cache at a start: first rank and further ones, of made-up files
"""

from __future__ import annotations

import argparse
import hashlib
import io
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.targets import Targets
from modules.config import TrainConfig
from modules.data.batch import Example
from modules.data.cache.cache import Cache
from modules.data.cache.keys import NO_MASK, ViewKeys
from modules.data.cache.manifest import MANIFEST_NAME, VERSION, ManifestLine
from modules.data.index.buckets import Bucket
from modules.data.index.build import build_index
from modules.data.index.column_store import Column, StringColumn, write_columns
from modules.data.index.index import Index, IndexHeader, index_path, load_index
from modules.data.loading.loader import make_loader
from modules.data.loading.order import make_order
from modules.data.rng import hash_bytes

Result = TypeVar("Result")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--txt", action="store_true", help="a caption file for each image")
    parser.add_argument("--folder", type=Path, help="folder for the images (default: temporary)")
    parser.add_argument("--start", type=int, help="images that a cache is made up of")
    arguments = parser.parse_args()
    targets = Targets()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.start:
            measure_starts(Path(folder), arguments.start, targets)
            targets.end()
            return
        measure_index(Path(folder), arguments.rows, arguments.txt, targets)
        measure_loader(Path(folder))
    targets.end()


def measure_index(folder: Path, rows: int, txt: bool, targets: Targets) -> None:
    """The index of `rows` tiny images in 100 folders."""
    timed(f"make {rows} files", lambda: make_images(folder / "images", rows, txt))
    config = TrainConfig.model_validate({"concepts": [{"path": str(folder / "images")}], "resolution": 32})
    index = timed("index, first start", lambda: build_index(config, config.seed, 8, folder / "cache"))
    timed(
        "index, next start, folder checked", lambda: build_index(config, config.seed, 8, folder / "cache"), targets, 2
    )
    timed("index, other ranks", lambda: load_index(index.path))
    usable = index.width > 0
    order = timed("order made", lambda: make_order(index, config, config.seed, usable, 256))
    timed("order of an epoch", lambda: order.epoch(1), targets, 1)
    timed("500 steps of it", lambda: [order.step(1, step % order.steps_per_epoch) for step in range(500)])
    print(f"{'index file':<40} {index.path.stat().st_size / 2**20:8.1f} MiB")
    print(f"{'peak memory of the process':<40} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:8.1f} MiB")


def measure_starts(folder: Path, rows: int, targets: Targets) -> None:
    """What a start asks the cache, each in a process of its own; the files are made up, only their manifest is real."""
    started = multiprocessing.get_context("spawn")
    for name, work in (
        ("made", make_cache),
        ("cache, first rank, manifest read", start_first),
        ("cache, first rank, unchanged", start_first),
        ("cache, further rank", start_further),
    ):
        with started.Pool(1) as pool:
            cpu, private = pool.apply(work, (folder, rows))
        print(f"{name:<40} cpu {cpu:8.3f} s   private memory {private:8.1f} MiB", flush=True)
    targets.at_most("cache, further rank, CPU s", cpu, 2)
    targets.at_most("cache, further rank, MiB", private, 100)


def opened(folder: Path) -> Cache:
    config = TrainConfig.model_validate({"concepts": [{"path": str(folder)}], "resolution": 32})
    return Cache(folder / "cache", "benchmark", load_index(next((folder / "cache").glob("index-*"))), config)


def start_first(folder: Path, rows: int) -> tuple[float, float]:
    return spent(folder, lambda cache: cache.update())


def start_further(folder: Path, rows: int) -> tuple[float, float]:
    return spent(folder, lambda cache: cache.follow(next((folder / "cache").glob("views-*")).name))


def spent(folder: Path, begin: Callable[[Cache], object]) -> tuple[float, float]:
    """CPU seconds, and what the process has more of memory that it shares with none, in MiB."""
    before, cpu = private_mib(), time.process_time()
    cache = opened(folder)
    begin(cache)
    assert not len(cache.missing())
    cached = cache.load()
    assert cached.usable.all()
    return time.process_time() - cpu, private_mib() - before


def private_mib() -> float:
    return sum(
        int(line.split()[1]) / 1024
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines()
        if line.startswith("Private_Dirty")
    )


def make_cache(folder: Path, rows: int) -> tuple[float, float]:
    """An index and a manifest of images and shards that are not there, 64 images each."""
    config = TrainConfig.model_validate({"concepts": [{"path": str(folder)}], "resolution": 32})
    paths = [f"{number // 1000:04}/image_{number:07}.png".encode() for number in range(rows)]
    numbers, ones = np.arange(rows, dtype=np.int64), np.ones(rows, dtype=np.int32)
    columns: dict[str, Column] = {
        "concept": 0 * ones,
        "size": numbers,
        "mtime_ns": numbers,
        "width": 40 * ones,
        "height": 40 * ones,
        "bucket": 0 * ones,
        "validation": numbers < 0,
        "mask_size": np.zeros((rows, 2), dtype=np.int32),
        "path_hash": np.array([hash_bytes(path) for path in paths], dtype=np.uint64),
        **{name: np.full((rows, 2), -1, dtype=np.int64) for name in ("caption_file", "mask_file")},
        **{name: np.zeros(rows, dtype=np.uint8) for name in ("caption_state", "caption_place")},
    }
    for name, texts in (("path", paths), ("caption", paths), ("mask", [b""] * rows), ("reference", [b""] * rows)):
        packed = StringColumn.pack(texts)
        columns |= {f"{name}_blob": packed.blob, f"{name}_starts": packed.starts}
    header = IndexHeader((str(folder),), ("[]",), (Bucket(32, 32),), (), rows)
    write_columns(index_path(config, config.seed, 8, folder / "cache"), columns, header.dump())
    index = opened(folder)._index
    keys, rank = ViewKeys(index, config, "benchmark", captions_in_key=False), folder / "cache/rank-0"
    rank.mkdir()
    with open(rank / MANIFEST_NAME, "w") as manifest:
        for shard, first in enumerate(range(0, rows, 64)):
            line = ManifestLine(f"{shard:06}.safetensors", 1, version=VERSION)
            (rank / line.shard).write_bytes(b" ")
            for row in range(first, min(first + 64, rows)):
                content = hashlib.sha256(paths[row]).digest()
                line.keys.append(keys.key(row, 0, content, NO_MASK).hex())
                line.checksums.append(0)
                line.files.append((index.file(row), row, row, content.hex()))
            manifest.write(line.dump() + "\n")
    return 0.0, 0.0


def measure_loader(folder: Path, rows: int = 1200, batch_size: int = 16) -> None:
    """The loader in this process on cached 32 x 32 pixels, against merely stacking tensors that are in memory."""
    make_images(folder / "small", rows, txt=True)
    config = TrainConfig.model_validate(
        {"concepts": [{"path": str(folder / "small")}], "resolution": 32, "loader_workers": 0, "batch_size": batch_size}
    )
    index = build_index(config, config.seed, 8, folder / "cache")
    cache = Cache(folder / "cache", "benchmark", index, config)
    timed(f"encode {rows} images", lambda: cache.encode(cache.batches(cache.missing(), 1), encode, 0))
    timed("nothing missing", cache.missing)
    cached = timed("cache manifest read", cache.load)
    order = make_order(index, config, config.seed, cached.usable, batch_size)
    loader = make_loader(config, index, cached, order, transform, batch_size=config.batch_size)
    for name, epoch in (("cold", 0), ("warm", 1), ("warm", 2)):
        start = time.perf_counter()
        steps = sum(batch.is_last_of_step for batch in loader.epoch(epoch))
        print(f"{f'loader, {batch_size} samples, {name}':<40} {(time.perf_counter() - start) / steps * 1e3:8.3f} ms")
    print(f"{'   of which transform and stack':<40} {transform_and_stack_ms(index, batch_size):8.3f} ms")


def transform_and_stack_ms(index: Index, batch_size: int) -> float:
    """The cost of the same batch in a hand-written loop."""
    cached = {"pixels": torch.zeros(3, 32, 32, dtype=torch.uint8)}
    generator = torch.Generator()
    start = time.perf_counter()
    for _ in range(100):
        samples = [transform(cached, "", generator) for _ in range(batch_size)]
        _ = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
    return (time.perf_counter() - start) * 10


def encode(examples: Sequence[Example], size: int) -> list[dict[str, Tensor]]:
    return [{"pixels": example.pixels} for example in examples]


def transform(cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
    return {**cached, "noise": torch.randn(3, 32, 32, generator=generator)}


def make_images(folder: Path, count: int, txt: bool) -> None:
    """`count` files with the bytes of one tiny PNG, in folders of up to 1000."""
    buffer = io.BytesIO()
    Image.new("RGB", (40, 40), "teal").save(buffer, "PNG")
    for n in range(count):
        path = folder / f"{n // 1000:04}"
        if n % 1000 == 0:
            path.mkdir(parents=True)
        with open(path / f"image_{n:07}.png", "wb") as file:
            # Bytes after the end of a PNG are ignored; they make each file's content unique.
            file.write(buffer.getvalue() + n.to_bytes(8, "little"))
        if txt:
            (path / f"image_{n:07}.txt").write_text(f"image number {n}")


def make_links(folder: Path, count: int) -> None:
    """`count` images and captions in folders of 1000, hard links to 200 pairs: the largest sets that fit on any disk.

    File systems have at most some 60,000 links to one file.
    """
    originals = folder.parent / "originals"
    make_images(originals, 200, txt=True)
    pairs = sorted((originals / "0000").glob("*.png"))
    for n in range(count):
        place = folder / f"{n // 1000:04}"
        if n % 1000 == 0:
            place.mkdir(parents=True)
        image = pairs[n % len(pairs)]
        os.link(image, place / f"image_{n:07}.png")
        os.link(image.with_suffix(".txt"), place / f"image_{n:07}.txt")


def timed(
    name: str, work: Callable[[], Result], targets: Targets | None = None, limit_s: float = float("inf")
) -> Result:
    start, cpu = time.perf_counter(), time.process_time()
    result = work()
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    print(f"{name:<40} {wall:8.3f} s   cpu {used:8.3f} s", flush=True)
    if targets is not None:
        targets.at_most(f"{name}, s", wall, limit_s)
    return result


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
