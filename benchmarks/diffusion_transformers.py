"""The parts of benchmarks/diffusion.py about flow-matching transformers: steps, cached captions, loading."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import Flux2Transformer2DModel, ZImageTransformer2DModel
from torch import nn
from transformers import Qwen3ForCausalLM, Qwen3Model

from benchmarks.bare_loops import Flux2Loop, VelocityLoop, ZImageLoop
from benchmarks.diffusion_bench import STEPS, Bench, print_medians, run_in_turns, train
from benchmarks.host_memory import wide_z_image
from modules.config import TrainConfig
from modules.data.batch import Batch
from modules.diffusion.component_files import load_network
from tests.families.tiny_flow_parts import qwen_config, qwen_tokenizer
from tests.families.tiny_flow_pipelines import tiny_flux2, tiny_z_image

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
