"""What Tandem costs beside bare hand-written loops for Stable Diffusion: steps with cached latents, and the caching.

python benchmarks/diffusion.py [--part lora|fine_tune|caching|processes ...] [--steps N] [--pictures N]

The model is randomly initialised, a real UNet, autoencoder and text encoder of diffusers and transformers with fewer
channels, so that a step takes a fraction of a second on one core. Both sides run in one process and take turns: step
by step, or four pictures at a time. A second copy of the bare loop says how noisy the figures are.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.side_by_side import Clock, MemoryLoader, Screen
from modules.config import TrainConfig
from modules.data.batch import Batch
from modules.data.cache import Cache, share_of_work
from modules.families.family import Family, family_class

STEPS, CACHING, PROCESSES = 0.97, 0.9, 1.8  # the targets
RESOLUTION = 256
TOGETHER = 4  # pictures that the bare loop encodes at once
METHODS: dict[str, dict[str, object]] = {
    "lora": {"method": "lora", "lora_rank": 16, "lora_targets": "attention"},
    "fine_tune": {"method": "fine_tune"},
}


def main() -> None:
    arguments = parser().parse_args()
    torch.set_num_threads(1)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, one thread a process\n")
    with tempfile.TemporaryDirectory(prefix="tandem-diffusion-") as folder:
        bench = Bench(Path(folder), arguments.steps, arguments.pictures)
        for part in arguments.part or list(PARTS):
            PARTS[part](bench)


class Bench:
    """A folder with a base model and pictures, in which runs are made."""

    def __init__(self, folder: Path, steps: int, pictures: int) -> None:
        self.folder, self.steps, self.pictures = folder, steps, pictures
        make_model(folder / "base")
        (folder / "pictures").mkdir()
        random = np.random.default_rng(0)
        for number in range(pictures):  # smooth, as photographs are, or the files would be as large as the pixels
            small = Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8))
            file = folder / "pictures" / f"{number:03d}.png"
            small.resize((RESOLUTION + 64, RESOLUTION + 64), Image.Resampling.BICUBIC).save(file)
            file.with_suffix(".txt").write_text(f"a photo, number {number}")

    def config(self, cache: str, **settings: object) -> TrainConfig:
        """A run of four pictures a step with everything that costs time switched on as by default."""
        return TrainConfig.model_validate(
            {
                "family": "stable_diffusion",
                "base_model": str(self.folder / "base"),
                "concepts": [{"path": str(self.folder / "pictures")}],
                "resolution": RESOLUTION,
                "aspect_ratio_bucketing": False,
                "drop_last": True,
                "cache_dir": str(self.folder / cache),
                "runs_dir": str(self.folder / "runs"),
                "batch_size": 4,
                "epochs": 10_000,
                "max_steps": self.steps,
                "optimizer": {"name": "adamw", "fused": True},
                "loader_workers": 0,
                "backup_every": "never",
                **settings,
            }
        )


class BareLoop:
    """What one writes by hand to train an epsilon model on cached latents and encoded captions."""

    def __init__(self, model: nn.Module, batches: Sequence[Batch], config: TrainConfig) -> None:
        self.unet = model.get_submodule("unet")
        self.batches = itertools.cycle(batches)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=config.learning_rate, fused=True)
        self.max_norm = config.max_grad_norm

    def step(self) -> None:
        """One optimizer step."""
        tensors = next(self.batches).tensors
        share = tensors["share"].to(torch.float32).view(-1, 1, 1, 1)
        x_t = share.sqrt() * tensors["latents"] + (1 - share).sqrt() * tensors["noise"]
        words = tensors["text_encoder.hidden"]
        told = self.unet(x_t, tensors["timestep"], encoder_hidden_states=words, return_dict=False)[0]
        functional.mse_loss(told, tensors["noise"]).backward()
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.max_norm, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def steps_of(method: str) -> Callable[[Bench], None]:
    """GenericTrainer with this method against the bare loop; both have their batches in memory."""

    def part(bench: Bench) -> None:
        config = bench.config("cache", run_name=method, **METHODS[method])
        print(f"Steps, {method} (target {STEPS})")
        told(run_in_turns(config), "trainer", ("bare", "bare again"))

    return part


def run_in_turns(config: TrainConfig) -> Clock:
    """The real trainer from start to end; every step of it is followed by one of each bare loop."""
    from modules.monitoring import RunReport
    from modules.run import Commands, EventLog, RunFolder
    from modules.training.calendar import Clocks, intervals
    from modules.training.generic_trainer import GenericTrainer
    from modules.training.wishes import Ending, Wishes

    clock = Clock(["trainer", "bare", "bare again"], warm_up=3)
    others: dict[str, BareLoop] = {}

    class Watched(GenericTrainer):
        """The trainer as it is; only watched from outside between its steps."""

        def start(self) -> None:
            super().start()
            batches = [batch.to(self.device) for batch in self.parts.data.loader.epoch(0) if batch.last]
            for name in ("bare", "bare again"):
                others[name] = BareLoop(copy.deepcopy(self.parts.weights.model), batches, self.config)
            self.parts = replace(self.parts, data=replace(self.parts.data, loader=MemoryLoader(batches)))
            clock.start()

        def between_steps(self) -> Ending | None:
            ending = super().between_steps()
            clock.stop("trainer")
            for name, loop in others.items():
                loop.step()
                clock.stop(name)
            return ending

    folder = RunFolder.create(config)
    report = RunReport(EventLog(folder.events_file), folder.tensorboard_dir)
    screen, sys.stdout = sys.stdout, Screen()
    try:
        Watched(config, folder, report, Wishes(Commands(folder), Clocks(intervals(config)))).run()
    finally:
        sys.stdout = screen
        report.close()
    return clock


def told(clock: Clock, name: str, bare: tuple[str, str]) -> None:
    """Medians of wall and CPU time; `ratio` is bare / Tandem, `noise` that of two equal bare loops."""
    for kind in ("wall", "cpu"):
        own, beside, again = (statistics.median(clock.times[which][kind]) for which in (name, *bare))
        times = f"{own * 1e3:>9.1f} ms, bare {beside * 1e3:>8.1f} ms"
        print(f"  {kind:<5}{times}, ratio {beside / own:.3f}, noise {beside / again:.3f}", flush=True)
    print()


def caching(bench: Bench) -> None:
    """The real cache (reading, hashing, decoding, cutting, encoding, writing) against the encoding alone."""
    print(f"Caching, {TOGETHER} pictures of {RESOLUTION} px (target {CACHING})")
    family, cache = opened(bench.config("cache-turns"))
    clock = Clock(["cache", "batched", "batched again", "one by one", "one by one again"], warm_up=1)
    pixels = torch.rand(TOGETHER, 3, RESOLUTION, RESOLUTION) * 2 - 1
    at_once = {"batched": [pixels], "one by one": list(pixels.split(1))}
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

    cache.encode(cache.missing(), family.encode, 0, encoded)
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
    """The same pictures cached by one process and by two, each with its share."""
    print(f"Caching by processes (target: two are {PROCESSES} times as fast)")
    walls: dict[int, list[float]] = {1: [], 2: []}
    work: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(3):
        for count in (1, 2):
            config = bench.config(f"cache-{turn}-{count}")
            opened(config)  # builds the index once
            wall, cpu = cached_by(count, config)
            walls[count].append(wall)
            work[count].append(cpu)
    for count in (1, 2):
        wall, cpu = statistics.median(walls[count]), statistics.median(work[count])
        each = ", ".join(f"{seconds:.2f}" for seconds in walls[count])
        print(f"  {count}: {wall:>7.2f} s ({each}), {cpu:.2f} s of CPU time in all")
    faster = statistics.median(walls[1]) / statistics.median(walls[2])
    print(f"  two are {faster:.2f} times as fast; load average {os.getloadavg()[0]:.1f}\n")


def cached_by(count: int, config: TrainConfig) -> tuple[float, float]:
    """Wall seconds until the last of `count` processes is ready, and CPU seconds of them all."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(count), context.SimpleQueue()
    ranks = [
        context.Process(target=cache_share, args=(config.model_dump_json(), rank, count, barrier, results))
        for rank in range(count)
    ]
    for rank in ranks:
        rank.start()
    told_by = [results.get() for _ in ranks]
    for rank in ranks:
        rank.join()
    return max(wall for wall, _ in told_by), sum(cpu for _, cpu in told_by)


def cache_share(config_json: str, rank: int, count: int, barrier: Barrier, results: object) -> None:
    """One process: its share of the pictures, from when all are ready."""
    torch.set_num_threads(1)
    family, cache = opened(TrainConfig.model_validate_json(config_json))
    mine = share_of_work(cache.missing(), rank, count)
    barrier.wait()
    wall, cpu = time.perf_counter(), time.process_time()
    cache.encode(mine, family.encode, rank)
    results.put((time.perf_counter() - wall, time.process_time() - cpu))  # type: ignore[attr-defined]


def make_model(folder: Path) -> None:
    """A StableDiffusionPipeline of about 9 million random weights."""
    from diffusers import AutoencoderKL, UNet2DConditionModel

    from tests.families.tiny_pipelines import WIDTH, tiny_sd

    tiny_sd(folder)  # its text encoder, tokenizer and scheduler
    torch.manual_seed(0)
    UNet2DConditionModel(
        sample_size=RESOLUTION // 8,
        block_out_channels=(64, 128, 128),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=4,
    ).save_pretrained(folder / "unet")
    AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(32, 64, 128, 128),
        layers_per_block=2,
        latent_channels=4,
        sample_size=RESOLUTION,
        scaling_factor=0.18215,
    ).save_pretrained(folder / "vae")


PARTS: dict[str, Callable[[Bench], None]] = {
    "lora": steps_of("lora"),
    "fine_tune": steps_of("fine_tune"),
    "caching": caching,
    "processes": processes,
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--part", action="append", choices=list(PARTS), help="only this part; may be given several times")
    top.add_argument("--steps", type=int, default=40, help="steps of each loop")
    top.add_argument("--pictures", type=int, default=32, help="pictures that are cached")
    return top


if __name__ == "__main__":
    main()
