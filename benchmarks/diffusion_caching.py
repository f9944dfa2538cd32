"""The caching parts of benchmarks/diffusion.py: against bare loops that only encode, and two processes against one."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.diffusion_bench import RESOLUTION, Bench, print_medians
from benchmarks.side_by_side import Clock
from modules.config import TrainConfig
from modules.data.cache.cache import Cache
from modules.families._by_name import family_class
from modules.families._family import Family

CACHING, PROCESSES = 0.9, 1.8  # the targets
BARE_BATCH = 4  # images that the bare loop encodes at once


def caching(bench: Bench) -> None:
    """The real cache (reading, hashing, decoding, cropping, encoding, writing) against the encoding alone.

    The bare loops encode with pixels in the default order, and in channels-last order as the cache does.
    """
    for size in (1, BARE_BATCH):
        cache_in_turns(bench, size)


def cache_in_turns(bench: Bench, size: int) -> None:
    """The cache with batches of `size` takes turns with bare loops of one and of four at once, four images per turn."""
    print(f"Caching by {size}, {BARE_BATCH} images of {RESOLUTION} px (target {CACHING})")
    family, cache = open_cache(bench.config(f"cache-turns-{size}"))
    pixels = torch.rand(BARE_BATCH, 3, RESOLUTION, RESOLUTION) * 2 - 1
    last = pixels.contiguous(memory_format=torch.channels_last)
    at_once = {
        "four at once": [pixels],
        "one by one": list(pixels.split(1)),
        "four at once, channels last": [last],
        "one by one, channels last": list(last.split(1)),
    }
    turns = [turn for name in at_once for turn in (name, f"{name} again")]
    clock = Clock(["cache", *turns], warm_up=1)
    clock.start()

    def encoded(done: int, total: int) -> None:
        if done % BARE_BATCH:
            return
        clock.stop("cache")
        for name, batches in at_once.items():
            for turn in (name, f"{name} again"):
                for batch in batches:
                    bare_encode(family.encoders["vae"], batch)
                clock.stop(turn)

    cache.encode(cache.batches(cache.missing(), size), family.encode_batch, 0, encoded)
    for name in at_once:
        print(f"  against a bare loop, {name}:")
        ratio = print_medians(clock, "cache", (name, f"{name} again"))
        if size == 1 and name == "four at once":  # the default on a CPU against what a user would write
            bench.targets.at_least("caching: bare / cache", ratio, CACHING)


@torch.no_grad()
def bare_encode(vae: nn.Module, pixels: Tensor) -> Tensor:
    """Mean and standard deviation of a batch, as `latents: sample` keeps them."""
    distribution = cast(Any, vae).encode(pixels, return_dict=False)[0]
    return torch.cat([distribution.mean, distribution.std])


def open_cache(config: TrainConfig) -> tuple[Family, Cache]:
    """The family, and a cache of the config's images."""
    family = family_class(config.family).load_for_training(config)
    return family, new_cache(family, config)


def new_cache(family: Family, config: TrainConfig) -> Cache:
    """A cache of the config's images, which are indexed first."""
    from modules.data.index.build import build_index
    from modules.data.index.index import index_path, load_index, no_progress

    cache_dir = Path(config.cache_dir)
    file = index_path(config, config.seed, family.size_step, cache_dir)
    if not file.exists():
        build_index(config, config.seed, family.size_step, cache_dir, no_progress)
    return Cache(cache_dir, family.fingerprint(), load_index(file), config, family.encodes_captions)


def processes(bench: Bench) -> None:
    """The same images cached by one process and by two, and bare loops that only encode as many images, which show what
    the machine itself allows."""
    print(f"Caching by processes (target: two are {PROCESSES} times as fast)")
    walls: dict[tuple[str, int], list[float]] = {}
    work: dict[tuple[str, int], list[float]] = {}
    for turn, count in itertools.product(range(3), (1, 2)):
        family, cache = open_cache(bench.config(f"cache-{turn}-{count}"))
        vae = family.encoders["vae"]
        for name, share in (("cache", partial(cache_share, family, cache)), ("bare loop", partial(bare_share, vae))):
            wall, cpu = timed_by(count, partial(share, bench.images))
            walls.setdefault((name, count), []).append(wall)
            work.setdefault((name, count), []).append(cpu)
    for name in ("cache", "bare loop"):
        for count in (1, 2):
            wall, cpu = statistics.median(walls[name, count]), statistics.median(work[name, count])
            each = ", ".join(f"{seconds:.2f}" for seconds in walls[name, count])
            print(f"  {name}, {count}: {wall:>7.2f} s ({each}), {cpu:.2f} s of CPU time in total")
        faster = statistics.median(walls[name, 1]) / statistics.median(walls[name, 2])
        most = 2 * statistics.median(work[name, 1]) / statistics.median(work[name, 2])
        print(f"  two are {faster:.2f} times as fast; by their CPU time it could be {most:.2f}")
        if name == "cache":
            bench.targets.at_least("caching: times as fast with two processes", faster, PROCESSES)
    print(f"  load average {os.getloadavg()[0]:.1f}\n")


def timed_by(count: int, share: Callable[[int, int], None]) -> tuple[float, float]:
    """Wall seconds until the last of `count` processes has finished, and CPU seconds of them all."""
    context = multiprocessing.get_context("fork")  # no thread has been started, and a fresh start takes seconds
    barrier, results = context.Barrier(count), context.SimpleQueue()

    def work(rank: int) -> None:
        barrier.wait()
        wall, cpu = time.perf_counter(), time.process_time()
        share(rank, count)
        results.put((time.perf_counter() - wall, time.process_time() - cpu))

    ranks = [context.Process(target=work, args=(rank,)) for rank in range(count)]
    for rank in ranks:
        rank.start()
    results_by_rank = [results.get() for _ in ranks]
    for rank in ranks:
        rank.join()
    return max(wall for wall, _ in results_by_rank), sum(cpu for _, cpu in results_by_rank)


def cache_share(family: Family, cache: Cache, images: int, rank: int, count: int) -> None:
    """One process caches its share of the images."""
    groups = cache.batches(cache.missing(), 1).for_rank(rank, count)
    assert abs(len(groups) - images / count) < 1
    cache.encode(groups, family.encode_batch, rank)


def bare_share(vae: nn.Module, images: int, rank: int, count: int) -> None:
    """One process encodes as many images of noise, one by one, as the cache does."""
    pixels = torch.rand(1, 3, RESOLUTION, RESOLUTION).contiguous(memory_format=torch.channels_last) * 2 - 1
    for _ in range(rank, images, count):
        bare_encode(vae, pixels)
