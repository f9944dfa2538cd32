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
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch

from benchmarks.bare_loops import EpsilonLoop
from benchmarks.diffusion_bench import STEPS, Bench, print_medians, run_in_turns
from benchmarks.diffusion_caching import caching, processes
from benchmarks.diffusion_transformers import loading, text_reading, transformer_steps

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
