"""How far a data set goes: images made of hard links, indexed, cached, ordered and recorded, each in its own process.

A first scan is killed at nine tenths and goes on; it must find what one in one piece finds, and an epoch must show each
image once. `many_images.py FOLDER COUNT STEP` is one of these steps.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import Tensor

from benchmarks.data_order import encode, make_links, private_mib
from modules import ROOT
from modules.config import TrainConfig
from modules.data.cache.cache import Cache
from modules.data.index.build import build_index
from modules.data.index.index import Index, load_index
from modules.data.loading.data_record import DataTable, dump_record
from modules.data.loading.order import make_order

_BATCH = 256


def many_images(folder: Path, count: int) -> Iterator[str]:
    """A line for each step, with its figures. Raises RuntimeError if one of them fails."""
    folder.mkdir(parents=True, exist_ok=True)
    yield "| step | CPU | wall | memory of its own | |\n|---|---|---|---|---|"
    for name in STEPS:
        command = [sys.executable, str(Path(__file__)), str(folder), str(count), name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode not in (0, -signal.SIGKILL if "killed" in name else 0):
            raise RuntimeError(f"{name}: {done.stderr[-1500:]}")
        yield done.stdout.strip() or f"| {name} | | | | |"


def _config(folder: Path) -> TrainConfig:
    return TrainConfig.model_validate({"concepts": [{"path": str(folder / "images")}], "resolution": 32})


def _index(folder: Path, cache: str = "cache") -> Index:
    config = _config(folder)
    return build_index(config, config.seed, 8, folder / cache)


def _cache(folder: Path) -> Cache:
    index = load_index(next((folder / "cache").glob("index-*.safetensors")))
    return Cache(folder / "cache", "images", index, _config(folder), text_fingerprint="texts")


def _make(folder: Path, count: int) -> str:
    make_links(folder / "images", count)
    return ""


def _scan_killed(folder: Path, count: int) -> str:
    def stop(done: int, total: int) -> None:
        if done >= 0.9 * total:
            os.kill(os.getpid(), signal.SIGKILL)

    config = _config(folder)
    build_index(config, config.seed, 8, folder / "cache", stop)
    return "it was not killed"


def _scan(folder: Path, count: int) -> str:
    index = _index(folder)
    assert len(index) == count
    return f"index of {index.path.stat().st_size / 2**20:.1f} MiB"


def _scan_whole(folder: Path, count: int) -> str:
    whole, resumed = _index(folder, "whole"), _index(folder)
    assert whole.path.read_bytes() == resumed.path.read_bytes(), "another index after the kill"
    return "the same, byte for byte"


def _fill(folder: Path, count: int) -> str:
    cache = _cache(folder)
    cache.encode_captions(cache.missing_captions(), _BATCH, _encode_captions, 0)
    cache.encode(cache.batches(cache.missing(), 1), encode, 0)
    return ""


def _encode_captions(captions: Sequence[str], size: int) -> list[dict[str, Tensor]]:
    return [{"text": torch.tensor([len(caption)])} for caption in captions]


def _first_rank(folder: Path, count: int) -> str:
    cache = _cache(folder)
    cache.update()
    assert cache.load().usable.all()
    return ""


def _further_rank(folder: Path, count: int) -> str:
    cache = _cache(folder)
    cache.follow(next((folder / "cache").glob("views-*")).name)
    assert cache.load().usable.all()
    return ""


def _order(folder: Path, count: int) -> str:
    config, cache = _config(folder), _cache(folder)
    index = load_index(next((folder / "cache").glob("index-*.safetensors")))
    examples = cache.load()
    order = make_order(index, config, config.seed, examples.usable, _BATCH)
    seen = np.zeros(count, dtype=np.int64)
    for step in range(order.steps_per_epoch):
        np.add.at(seen, order.step(0, step).rows, 1)
    assert (seen == 1).all(), "an image came not once"
    table = DataTable.of(
        index.identities(config.concepts),
        examples.contents,
        np.ones(count, dtype=np.bool_),
        index.paths.joined(),
        is_read=True,
        captions=index.caption_texts.unpack,
    )
    record = dump_record(table, order, count // 2)
    assert record is not None
    return f"a backup's record of {len(record) / 2**20:.1f} MiB"


STEPS: dict[str, Callable[[Path, int], str]] = {
    "hard links made": _make,
    "first scan, killed at 90 %": _scan_killed,
    "first scan goes on": _scan,
    "next start, folder checked": _scan,
    "first scan in one piece": _scan_whole,
    "cached": _fill,
    "cache, first rank, something changed": _first_rank,
    "cache, first rank, unchanged": _first_rank,
    "cache, further rank": _further_rank,
    "order of an epoch, record": _order,
}


def main(folder: Path, count: int, name: str) -> None:
    """One step in this process."""
    before, wall, cpu = private_mib(), time.perf_counter(), time.process_time()
    detail = STEPS[name](folder, count)
    spent = time.process_time() - cpu, time.perf_counter() - wall
    print(f"| {name} | {spent[0]:.2f} s | {spent[1]:.1f} s | {private_mib() - before:.1f} MiB | {detail} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
