"""Small picture folders, and the whole way from a folder to a loader in one call."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from modules.config import Concept, TrainConfig
from modules.data.batch import Example
from modules.data.cache import Cache, CachedExamples, share_of_work
from modules.data.index import Index
from modules.data.indexing import build_index
from modules.data.loader import Loader, make_loader
from modules.data.order import Order


def picture(path: Path, width: int = 40, height: int = 40, seed: int = 0, mode: str = "RGB") -> Path:
    """Write a small picture of random blocks; the suffix decides the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(blocks).resize((width, height)).convert(mode).save(path)
    return path


def config_for(*folders: Path, cache: Path, **settings: object) -> TrainConfig:
    """A small config; settings whose names a Concept has go to every concept."""
    own = {name: settings.pop(name) for name in list(settings) if name in Concept.model_fields}
    concepts = [{"path": str(folder), **own} for folder in folders]
    data = {"concepts": concepts, "cache_dir": str(cache), "resolution": 32, "loader_workers": 0, **settings}
    return TrainConfig.model_validate(data)


class Encoding:
    """A family's `encode` that keeps the pixels and counts its calls."""

    def __init__(self) -> None:
        self.examples: list[Example] = []

    def __call__(self, example: Example) -> dict[str, Tensor]:
        self.examples.append(example)
        encoded = {"pixels": example.pixels}
        return encoded if example.mask is None else {**encoded, "mask": example.mask}


def draw(cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
    """A family's `draw`: pixels, noise, and a number that stands for the caption."""
    number = int.from_bytes(hashlib.sha256(caption.encode()).digest()[:4], "little")
    return {**cached, "noise": torch.randn(3, generator=generator), "caption": torch.tensor(number)}


def fill(config: TrainConfig, index: Index, world: int = 1, fingerprint: str = "f") -> tuple[CachedExamples, int]:
    """Encode what is missing on `world` ranks one after the other; returns the cache and how many were encoded."""
    encoding = Encoding()
    cache = Cache(Path(config.cache_dir), fingerprint, index, config)
    work = cache.missing()
    for rank in range(world):
        cache.encode(share_of_work(work, rank, world), encoding, rank)
    return cache.load(), len(encoding.examples)


@dataclass
class Prepared:
    config: TrainConfig
    index: Index
    cached: CachedExamples
    order: Order

    def loader(self, rank: int = 0, world: int = 1, **settings: int) -> Loader:
        return make_loader(self.config, self.index, self.cached, self.order, draw, rank, world, **settings)


def prepare(config: TrainConfig, global_batch_size: int = 8) -> Prepared:
    """Index, cache and order of a config."""
    index = build_index(config, 8, Path(config.cache_dir))
    cached, _ = fill(config, index)
    return Prepared(config, index, cached, Order.of(index, config, cached.usable, global_batch_size))
