"""What the parts of benchmarks/diffusion.py share: a small model, images, and how times are printed."""

from __future__ import annotations

import copy
import statistics
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.bare_loops import BareLoop
from benchmarks.side_by_side import Clock, MemoryLoader, Screen
from benchmarks.targets import Targets
from modules.config import TrainConfig

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
