"""Small image folders, and the whole data path from a folder to a loader in one call."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from modules.config import Concept, TrainConfig
from modules.data.batch import Example
from modules.data.cache.cache import Cache
from modules.data.cache.encode import Encode
from modules.data.cache.reader import CachedExamples
from modules.data.index.build import build_index
from modules.data.index.index import Index
from modules.data.loading.loader import Loader, make_loader
from modules.data.loading.order import Order, make_order


def write_image(path: Path, width: int = 40, height: int = 40, seed: int = 0, mode: str = "RGB") -> Path:
    """Write a small image of random blocks; the suffix chooses the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(blocks).resize((width, height)).convert(mode).save(path)
    return path


def damage(file: Path) -> None:
    """Change one bit of a PNG's pixels, which only decoding notices."""
    whole = file.read_bytes()
    file.write_bytes(whole[:-60] + bytes([whole[-60] ^ 1]) + whole[-59:])


def config_for(*folders: Path, cache: Path, **settings: object) -> TrainConfig:
    """A small config; settings of a Concept apply to every concept."""
    concept_settings = {name: settings.pop(name) for name in list(settings) if name in Concept.model_fields}
    concepts = [{"path": str(folder), **concept_settings} for folder in folders]
    data = {"concepts": concepts, "cache_dir": str(cache), "resolution": 32, "loader_workers": 0, **settings}
    return TrainConfig.model_validate(data)


class RecordingEncode:
    """A family's `encode_batch` that keeps the pixels and remembers what it was given."""

    def __init__(self) -> None:
        self.examples: list[Example] = []
        self.batches: list[tuple[int, int]] = []  # (examples, size of a full batch)

    def __call__(self, examples: Sequence[Example], size: int) -> list[dict[str, Tensor]]:
        self.batches.append((len(examples), size))
        self.examples += examples
        return [{"pixels": e.pixels} | ({} if e.mask is None else {"mask": e.mask}) for e in examples]


def one_by_one(encode: Callable[[Example], dict[str, Tensor]]) -> Encode:
    """`encode` applied to one example after the other."""
    return lambda examples, size: [encode(example) for example in examples]


def encode_missing(cache: Cache, encode: Encode, rank: int = 0, size: int = 1) -> None:
    """Encode everything that is missing, as one rank."""
    cache.encode(cache.batches(cache.missing(), size), encode, rank)


def transform(cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
    """A family's SampleTransform: pixels, noise, and a number that stands for the caption."""
    number = int.from_bytes(hashlib.sha256(caption.encode()).digest()[:4], "little")
    return {**cached, "noise": torch.randn(3, generator=generator), "caption": torch.tensor(number)}


def index_of(config: TrainConfig, cache_dir: Path) -> Index:
    """The index of a config with bucket sides in multiples of 8 pixels, built or brought up to date."""
    return build_index(config, config.seed, 8, cache_dir)


def indexed(config: TrainConfig) -> Index:
    """The index of a config, in its cache folder."""
    return index_of(config, Path(config.cache_dir))


def fill(
    config: TrainConfig, index: Index, world: int = 1, fingerprint: str = "f", size: int = 1
) -> tuple[CachedExamples, int]:
    """Encode what is missing on `world` ranks one after the other; returns the cache and how many were encoded."""
    encode = RecordingEncode()
    cache = Cache(Path(config.cache_dir), fingerprint, index, config)
    batches = cache.batches(cache.missing(), size)
    for rank in range(world):
        cache.encode(batches.for_rank(rank, world), encode, rank)
    return cache.load(), len(encode.examples)


@dataclass
class Prepared:
    config: TrainConfig
    index: Index
    cached: CachedExamples
    order: Order

    def loader(self, rank: int = 0, world: int = 1, **settings: Any) -> Loader:
        settings = {"batch_size": self.config.batch_size, "rank": rank, "world_size": world, **settings}
        return make_loader(self.config, self.index, self.cached, self.order, transform, **settings)


def prepare(config: TrainConfig, global_batch_size: int = 8) -> Prepared:
    """Index, cache and order of a config."""
    index = index_of(config, Path(config.cache_dir))
    cached, _ = fill(config, index)
    return Prepared(config, index, cached, make_order(index, config, config.seed, cached.usable, global_batch_size))
