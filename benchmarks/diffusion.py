"""Tandem against bare hand-written loops for diffusion models: steps with cached latents, and the caching itself.

python benchmarks/diffusion.py [--part lora|fine_tune|caching|processes|z_image|flux2|text|load ...] [--steps N]

Models are randomly initialised, real networks of diffusers and transformers with fewer channels, so that a step takes
a fraction of a second on one core. Both sides run in one process and take turns: step by step, or four images at a
time. A second copy of the bare loop shows how noisy the figures are.

- lora, fine_tune, caching, processes: Stable Diffusion
- z_image, flux2: a LoRA of these transformers, with cached latents and captions
- text: what reading cached captions of 256 tokens and 2560 channels takes of a step of z_image
- load: a transformer of 1 GB from its folder, until a device has it, against reading its file
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
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch
from diffusers import Flux2Transformer2DModel, ZImageTransformer2DModel
from PIL import Image
from torch import Tensor, nn
from transformers import Qwen3ForCausalLM, Qwen3Model

from benchmarks.bare_loops import BareLoop, EpsilonLoop, Flux2Loop, VelocityLoop, ZImageLoop
from benchmarks.host_memory import wide_z_image
from benchmarks.side_by_side import Clock, MemoryLoader, Screen
from benchmarks.targets import Targets
from modules.config import TrainConfig
from modules.data.batch import Batch
from modules.data.cache.cache import Cache
from modules.diffusion.component_files import load_network
from modules.families._by_name import family_class
from modules.families._family import Family
from tests.families.tiny_flow_parts import qwen_config, qwen_tokenizer
from tests.families.tiny_flow_pipelines import tiny_flux2, tiny_z_image

STEPS = 0.97  # the target: bare / trainer
RESOLUTION = 256


class Bench:
    """A folder with a base model and images, in which runs are made."""

    def __init__(self, folder: Path, steps: int, images: int) -> None:
        self.folder, self.steps, self.images, self.targets = folder, steps, images, Targets()
        make_model(folder / "base")
        (folder / "images").mkdir()
        random = np.random.default_rng(0)
        for number in range(images):  # smooth like photographs, or the files would be as large as the pixels
            small = Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8))
            file = folder / "images" / f"{number:03d}.png"
            small.resize((RESOLUTION + 64, RESOLUTION + 64), Image.Resampling.BICUBIC).save(file)
            file.with_suffix(".txt").write_text(f"a photo, number {number}")

    def config(self, cache: str, **settings: object) -> TrainConfig:
        """A run of four images per step with the default settings."""
        return TrainConfig.model_validate(
            {
                "family": "stable_diffusion",
                "base_model": str(self.folder / "base"),
                "concepts": [{"path": str(self.folder / "images")}],
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


def print_medians(clock: Clock, name: str, bare: tuple[str, str]) -> float:
    """Medians of wall and CPU time; `ratio` is bare / Tandem, `noise` that of two equal bare loops.

    Returns the ratio of the wall times.
    """
    ratios = []
    for kind in ("wall", "cpu"):
        own, bare_s, again = (statistics.median(clock.times[which][kind]) for which in (name, *bare))
        ratios.append(bare_s / own)
        times = f"{own * 1e3:>9.1f} ms, bare {bare_s * 1e3:>8.1f} ms"
        print(f"  {kind:<5}{times}, ratio {bare_s / own:.3f}, noise {bare_s / again:.3f}", flush=True)
    print()
    return ratios[0]


def run_in_turns(config: TrainConfig, bare: type[BareLoop]) -> Clock:
    """The real trainer from start to end; every step of it is followed by one of each bare loop."""
    from modules.training.loop.generic_trainer import GenericTrainer
    from modules.training.state.requests import Outcome

    clock = Clock(["trainer", "bare", "bare again"], warm_up=3)
    others: dict[str, BareLoop] = {}

    class TimedTrainer(GenericTrainer):
        """The trainer as it is, timed between its steps."""

        def setup(self) -> None:
            super().setup()
            loader = self.components.data.loader
            batches = [batch.to(self.ranks.device) for batch in loader.epoch(0) if batch.is_last_of_step]
            for name in ("bare", "bare again"):
                others[name] = bare(copy.deepcopy(self.components.weights.model), batches, self.config)
            self.components = replace(self.components, data=replace(self.components.data, loader=MemoryLoader(batches)))
            clock.start()

        def after_step(self) -> Outcome | None:
            outcome = super().after_step()
            clock.stop("trainer")
            for name, loop in others.items():
                loop.step()
                clock.stop(name)
            return outcome

    train(config, TimedTrainer)
    return clock


def train(config: TrainConfig, kind: Any) -> None:
    """A run of a trainer of this class, in silence."""
    from modules.monitoring import RunReport
    from modules.run import EventLog, RunFolder
    from modules.training.worker import control_requests, join_ranks

    folder = RunFolder.create(config)
    report = RunReport(EventLog(folder.events_file), folder.tensorboard_dir)
    screen, sys.stdout = sys.stdout, Screen()
    try:
        with join_ranks(config, folder, report, None, None, supervised=True) as ranks:
            kind(config, folder, report, control_requests(config, folder, 0), ranks).run()
    finally:
        sys.stdout = screen
        report.close()


def make_model(folder: Path) -> None:
    """A StableDiffusionPipeline of about 9 million random weights."""
    diffusers: Any = import_module("diffusers")

    from tests.families.tiny_pipelines import WIDTH, tiny_sd

    tiny_sd(folder)  # its text encoder, tokenizer and scheduler
    torch.manual_seed(0)
    diffusers.UNet2DConditionModel(
        sample_size=RESOLUTION // 8,
        block_out_channels=(64, 128, 128),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=4,
    ).save_pretrained(folder / "unet")
    diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(32, 64, 128, 128),
        layers_per_block=2,
        latent_channels=4,
        sample_size=RESOLUTION,
        scaling_factor=0.18215,
    ).save_pretrained(folder / "vae")


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


TEXT, LOAD = 0.02, 1.2  # the targets
_CHANNELS = 2560  # of the text encoder of both
_WORDS = "a photo of a red disc on a table, " * 8  # the tiny tokenizer has a token for each byte
LORA: Mapping[str, object] = {
    "method": "lora",
    "lora_rank": 16,
    "lora_targets": "attention_mlp",
    "family_options": {"max_caption_tokens": 256},
}


def z_image(folder: Path) -> Path:
    """A Z-Image with 4 layers of 256 channels."""
    tiny_z_image(folder)
    torch.manual_seed(0)
    Qwen3Model(qwen_config(qwen_tokenizer(), hidden_size=_CHANNELS)).save_pretrained(folder / "text_encoder")
    network = ZImageTransformer2DModel(
        in_channels=4,
        dim=256,
        n_layers=4,
        n_refiner_layers=1,
        n_heads=4,
        n_kv_heads=4,
        cap_feat_dim=_CHANNELS,
        axes_dims=[16, 24, 24],
        axes_lens=[1024, 64, 64],
    )
    return _with_transformer(folder, network)


def flux2(folder: Path) -> Path:
    """A FLUX.2 klein with 2 and 4 layers of 256 channels."""
    tiny_flux2(folder)
    torch.manual_seed(0)
    encoder = Qwen3ForCausalLM(qwen_config(qwen_tokenizer(), hidden_size=_CHANNELS, num_hidden_layers=27))
    encoder.save_pretrained(folder / "text_encoder")
    network = Flux2Transformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=64,
        num_attention_heads=4,
        joint_attention_dim=3 * _CHANNELS,
        axes_dims_rope=(16, 16, 16, 16),
        guidance_embeds=False,
    )
    return _with_transformer(folder, network)


def _with_transformer(folder: Path, network: Any) -> Path:
    for weight in network.parameters():
        if not weight.any():
            nn.init.normal_(weight, std=0.02)
    network.save_pretrained(folder / "transformer")
    return folder


MODELS: Mapping[str, tuple[Callable[[Path], Path], type[VelocityLoop]]] = {
    "z_image": (z_image, ZImageLoop),
    "flux2": (flux2, Flux2Loop),
}


def config_of(bench: Bench, family: str, **settings: object) -> TrainConfig:
    """A run of one image per step, whose caption has 256 tokens or more."""
    folder = bench.folder / family
    if not folder.exists():
        MODELS[family][0](folder)
        for file in (bench.folder / "images").glob("*.txt"):
            file.write_text(_WORDS)
    given: dict[str, object] = {"base_model": str(folder), "batch_size": 1, "run_name": family, **settings}
    return bench.config(f"cache-{family}", **{**LORA, "family": family, **given})


def transformer_steps(family: str) -> Callable[[Bench], None]:
    """GenericTrainer with a LoRA of `family` against the bare loop; both have their batches in memory."""

    def part(bench: Bench) -> None:
        print(f"Steps, LoRA of {family} (target {STEPS})")
        clock = run_in_turns(config_of(bench, family), MODELS[family][1])
        ratio = print_medians(clock, "trainer", ("bare", "bare again"))
        bench.targets.at_least(f"{family}: bare / trainer", ratio, STEPS)

    return part


def text_reading(bench: Bench) -> None:
    """Processor time of the loader with cached captions, less that without, as a share of a step of z_image."""
    seconds = {}
    kinds: Mapping[str, Mapping[str, object]] = {"cached": {}, "changing": {"tag_shuffle": True}}
    for kind, concept in kinds.items():
        concepts = [{"path": str(bench.folder / "images"), **concept}]
        own = {"cache_dir": str(bench.folder / kind), "run_name": kind}
        config = config_of(bench, "z_image", concepts=concepts, max_steps=10, **own)
        seconds[kind] = _loader_and_step(config)
    read, step = seconds["cached"][0] - seconds["changing"][0], seconds["cached"][1]
    print(f"Cached captions: {1e3 * read:.2f} ms of processor time a step of {1e3 * step:.0f} ms (target {TEXT})\n")
    bench.targets.at_most("reading cached captions / a step, processor time", read / step, TEXT)


def _loader_and_step(config: TrainConfig) -> tuple[float, float]:
    """Medians in seconds of processor time: a batch from the loader, a step without it."""
    from modules.training.loop.generic_trainer import GenericTrainer

    batches: list[float] = []
    steps: list[float] = []

    class Timed(GenericTrainer):
        """Reads two epochs before it starts."""

        def setup(self) -> None:
            super().setup()
            for epoch in (0, 1):
                start = time.process_time()
                for _ in self.components.data.loader.epoch(epoch):
                    batches.append(time.process_time() - start)
                    start = time.process_time()

        def forward_backward(self, batch: Batch) -> None:
            start = time.process_time()
            super().forward_backward(batch)
            steps.append(time.process_time() - start)

    train(config, Timed)
    return statistics.median(batches), statistics.median(steps)


def loading(bench: Bench) -> None:
    """A bf16 transformer of 1 GB from its folder, until a device has it, against reading the file in one piece.

    Its weights stay in the file, which is mapped into memory; a device gets each through a buffer, as here.
    """
    folder = bench.folder / "wide"
    wide_z_image(folder, 36)
    (file,) = (folder / "transformer").glob("*.safetensors")
    buffer = torch.empty(1 << 22, dtype=torch.bfloat16)
    times: dict[str, list[tuple[float, float]]] = {"file": [], "load": []}
    for _ in range(5):
        start = time.perf_counter(), time.process_time()
        content = file.read_bytes()
        times["file"].append((time.perf_counter() - start[0], time.process_time() - start[1]))
        size = len(content) / 1e6
        del content
        start = time.perf_counter(), time.process_time()
        loaded = load_network(folder, "transformer", ZImageTransformer2DModel, torch.bfloat16)
        for weight in loaded.parameters():
            buffer[: weight.numel()].copy_(weight.detach().view(-1))
        times["load"].append((time.perf_counter() - start[0], time.process_time() - start[1]))
        del loaded
    for place, kind in enumerate(("wall", "processor")):
        read, load = (statistics.median(each[place] for each in times[name]) for name in ("file", "load"))
        print(f"  {kind:<10} {size:.0f} MB: loaded in {load:.2f} s, file read in {read:.2f} s, ratio {load / read:.2f}")
        if kind == "wall":
            bench.targets.at_most("loading a transformer / reading its file", load / read, LOAD)
    print()


METHODS: dict[str, dict[str, object]] = {
    "lora": {"method": "lora", "lora_rank": 16, "lora_targets": "attention"},
    "fine_tune": {"method": "fine_tune"},
}


def main() -> None:
    arguments = parser().parse_args()
    torch.set_num_threads(1)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, one thread per process\n")
    with tempfile.TemporaryDirectory(prefix="tandem-diffusion-") as folder:
        bench = Bench(Path(folder), arguments.steps, arguments.images)
        for part in arguments.part or list(PARTS):
            PARTS[part](bench)
    bench.targets.end()


def steps_of(method: str) -> Callable[[Bench], None]:
    """GenericTrainer with this method against the bare loop; both have their batches in memory."""

    def part(bench: Bench) -> None:
        config = bench.config("cache", run_name=method, **METHODS[method])
        print(f"Steps, {method} (target {STEPS})")
        ratio = print_medians(run_in_turns(config, EpsilonLoop), "trainer", ("bare", "bare again"))
        bench.targets.at_least(f"{method}: bare / trainer", ratio, STEPS)

    return part


PARTS: dict[str, Callable[[Bench], None]] = {
    "lora": steps_of("lora"),
    "fine_tune": steps_of("fine_tune"),
    "caching": caching,
    "processes": processes,
    "z_image": transformer_steps("z_image"),
    "flux2": transformer_steps("flux2"),
    "text": text_reading,
    "load": loading,
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--part", action="append", choices=list(PARTS), help="only this part; may be given several times")
    top.add_argument("--steps", type=int, default=40, help="steps of each loop")
    top.add_argument("--images", type=int, default=32, help="images that are cached")
    return top


if __name__ == "__main__":
    main()
