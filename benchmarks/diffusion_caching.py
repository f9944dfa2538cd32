"""The caching parts of benchmarks/diffusion.py: beside bare loops that only encode, and two processes beside one."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.diffusion_bench import RESOLUTION, Bench, told
from benchmarks.side_by_side import Clock
from modules.config import TrainConfig
from modules.data.cache import Cache
from modules.families.family import Family, family_class

CACHING, PROCESSES = 0.9, 1.8  # the targets
TOGETHER = 4  # pictures that the bare loop encodes at once


def caching(bench: Bench) -> None:
    """The real cache (reading, hashing, decoding, cutting, encoding, writing) against the encoding alone.

    The bare loops encode as one writes it first, and with the pixels in channels-last order, as the cache does it.
    """
    for size in (1, TOGETHER):
        cache_in_turns(bench, size)


def cache_in_turns(bench: Bench, size: int) -> None:
    """The cache with groups of `size` takes turns with bare loops of one and of four at once, four pictures a turn."""
    print(f"Caching by {size}, {TOGETHER} pictures of {RESOLUTION} px (target {CACHING})")
    family, cache = opened(bench.config(f"cache-turns-{size}"))
    pixels = torch.rand(TOGETHER, 3, RESOLUTION, RESOLUTION) * 2 - 1
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
        if done % TOGETHER:
            return
        clock.stop("cache")
        for name, batches in at_once.items():
            for turn in (name, f"{name} again"):
                for batch in batches:
                    bare_encode(family.encoders["vae"], batch)
                clock.stop(turn)

    cache.encode(cache.groups(cache.missing(), size), family.encode_together, 0, encoded)
    for name in at_once:
        print(f"  against a bare loop, {name}:")
        told(clock, "cache", (name, f"{name} again"))


@torch.no_grad()
def bare_encode(vae: nn.Module, pixels: Tensor) -> Tensor:
    """Mean and spread of a batch, as `latents: sample` keeps them."""
    distribution = vae.encode(pixels, return_dict=False)[0]
    return torch.cat([distribution.mean, distribution.std])


def opened(config: TrainConfig) -> tuple[Family, Cache]:
    """The family, and a cache of the config's pictures."""
    from modules.data.index import index_path, load_index, silent
    from modules.data.indexing import build_index

    family = family_class(config.family).load(config)
    cache_dir = Path(config.cache_dir)
    file = index_path(config, family.size_step, cache_dir)
    if not file.exists():
        build_index(config, family.size_step, cache_dir, silent)
    return family, Cache(cache_dir, family.fingerprint(), load_index(file), config, family.encodes_captions)


def processes(bench: Bench) -> None:
    """The same pictures cached by one process and by two, each with its share; beside them bare loops that only encode
    as many pictures, which shows what the machine itself allows."""
    print(f"Caching by processes (target: two are {PROCESSES} times as fast)")
    walls: dict[tuple[str, int], list[float]] = {}
    work: dict[tuple[str, int], list[float]] = {}
    for turn, count in itertools.product(range(3), (1, 2)):
        family, cache = opened(bench.config(f"cache-{turn}-{count}"))
        vae = family.encoders["vae"]
        for name, share in (("cache", partial(cache_share, family, cache)), ("bare loop", partial(bare_share, vae))):
            wall, cpu = timed_by(count, partial(share, bench.pictures))
            walls.setdefault((name, count), []).append(wall)
            work.setdefault((name, count), []).append(cpu)
    for name in ("cache", "bare loop"):
        for count in (1, 2):
            wall, cpu = statistics.median(walls[name, count]), statistics.median(work[name, count])
            each = ", ".join(f"{seconds:.2f}" for seconds in walls[name, count])
            print(f"  {name}, {count}: {wall:>7.2f} s ({each}), {cpu:.2f} s of CPU time in all")
        faster = statistics.median(walls[name, 1]) / statistics.median(walls[name, 2])
        most = 2 * statistics.median(work[name, 1]) / statistics.median(work[name, 2])
        print(f"  two are {faster:.2f} times as fast; by their CPU time it could be {most:.2f}")
    print(f"  load average {os.getloadavg()[0]:.1f}\n")


def timed_by(count: int, share: Callable[[int, int], None]) -> tuple[float, float]:
    """Wall seconds until the last of `count` processes is ready, and CPU seconds of them all."""
    context = multiprocessing.get_context("fork")  # no thread has been started, and starting anew takes seconds
    barrier, results = context.Barrier(count), context.SimpleQueue()

    def work(rank: int) -> None:
        barrier.wait()
        wall, cpu = time.perf_counter(), time.process_time()
        share(rank, count)
        results.put((time.perf_counter() - wall, time.process_time() - cpu))

    ranks = [context.Process(target=work, args=(rank,)) for rank in range(count)]
    for rank in ranks:
        rank.start()
    told_by = [results.get() for _ in ranks]
    for rank in ranks:
        rank.join()
    return max(wall for wall, _ in told_by), sum(cpu for _, cpu in told_by)


def cache_share(family: Family, cache: Cache, pictures: int, rank: int, count: int) -> None:
    """One process caches its share of the pictures."""
    groups = cache.groups(cache.missing(), 1).share(rank, count)
    assert abs(len(groups) - pictures / count) < 1
    cache.encode(groups, family.encode_together, rank)


def bare_share(vae: nn.Module, pictures: int, rank: int, count: int) -> None:
    """One process encodes as many pictures of noise, one by one, as the cache does it."""
    pixels = torch.rand(1, 3, RESOLUTION, RESOLUTION).contiguous(memory_format=torch.channels_last) * 2 - 1
    for _ in range(rank, pictures, count):
        bare_encode(vae, pixels)
