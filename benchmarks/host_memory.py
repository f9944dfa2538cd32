"""Host memory of a run's processes: python benchmarks/host_memory.py [--part unet|transformer ...] [--ranks N ...]

- unet: a Stable Diffusion with a wide UNet of random weights is written as fp16, as a diffusers folder and as a
  single file, and `scripts/train.py` fills its cache.
- transformer: a Z-Image with a transformer of 1 GB in bf16, under a LoRA that `scripts/train.py` trains for two steps.

Each with one process and with two. All the while the run's processes are looked at, every few milliseconds, in
/proc/PID/smaps_rollup. Only Linux has that file.

- private: what no file holds, memory that ranks share counted once (Anonymous and Pss_Shmem), the sum over the ranks
- with files: the same and the ranks' share of mapped files, which all processes share and the kernel can drop (Pss)
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch
from diffusers import ZImageTransformer2DModel
from torch import nn

from benchmarks.targets import Targets
from modules.checkpoint.formats import write_single_file
from modules.config import TrainConfig, save_config
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.machine import find_free_port
from tests.families.tiny_flow_parts import WIDTH
from tests.families.tiny_flow_pipelines import tiny_z_image
from tests.families.tiny_pipelines import fat_sd, tiny_sd

MIB = 1 << 20
POLL_S = 0.01
KEPT = 1.3  # the target: of the format that weights are kept in
ADAPTER = {"method": "lora", "lora_rank": 4, "precision": "bf16"}
KINDS: dict[str, dict[str, object]] = {
    "LoRA, frozen weights fp16": {**ADAPTER, "precision": "fp16", "parts": [{"part": "unet", "weights": "fp16"}]},
    "LoRA, frozen weights bf16": {**ADAPTER, "parts": [{"part": "unet", "weights": "bf16"}]},
    "LoRA, frozen weights fp32": ADAPTER,
    "fine-tune": {"precision": "bf16", "optimizer": {"name": "sgd"}},
}

COPIES = {
    "LoRA, frozen weights fp16": 0.05,
    "LoRA, frozen weights bf16": 1.05,
    "LoRA, frozen weights fp32": 2.05,
    "fine-tune": 2.05,
}  # the targets: of the files' fp16, which is mapped; a CPU trains in the memory that it loads to


def main() -> None:
    top = argparse.ArgumentParser(description="Host memory of the ranks of a run.", allow_abbrev=False)
    top.add_argument("--part", action="append", choices=list(PARTS), help="only this part; may be given several times")
    top.add_argument("--layers", type=int, default=36, help="of the transformer, 27 MB each if they are 1024 wide")
    top.add_argument("--layer_width", type=int, default=1024, help="of the transformer; with 2048, 9 layers take 1 GB")
    top.add_argument("--width", type=int, default=512, help="of the UNet's first block; 512 makes 190 million weights")
    top.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="numbers of processes")
    arguments = top.parse_args()
    targets = Targets()
    with tempfile.TemporaryDirectory(prefix="tandem-memory-") as place:
        for part in arguments.part or list(PARTS):
            PARTS[part](Path(place), arguments, targets)
    targets.end()


def unet(place: Path, arguments: argparse.Namespace, targets: Targets) -> None:
    """Print a row for each kind of run, less what the same run takes with a model of a few kilobytes."""
    counts: Sequence[int] = arguments.ranks
    small = tiny_sd(place / "small")
    folder = fat_sd(place / "folder", arguments.width)
    file = place / "model.safetensors"
    write_single_file(folder, file, torch.float16, {})
    size = sum(each.stat().st_size for each in folder.rglob("*.safetensors")) / MIB
    print(f"files: {size:.0f} MiB of fp16; peaks in MiB, less those of a tiny model\n")
    print(f"{'':<36}{'ranks':>6}{'private':>9}{'with files':>12}")
    for ranks in counts:
        for kind, settings in KINDS.items():
            base = peaks(place, small, ranks, settings)
            for where, model in {"folder": folder, "single file": file}.items():
                layout = {"family_options": {"layout": str(folder)}} if model is file else {}
                found = peaks(place, model, ranks, {**settings, **layout})
                private, with_files = (found[name] - base[name] for name in ("Private", "Pss"))
                print(f"{f'{kind}, {where}':<36}{ranks:>6}{private:>9.0f}{with_files:>12.0f}", flush=True)
                name = f"{kind}, {where}, {ranks} ranks: private / ranks / files"
                targets.at_most(name, private / ranks / size, COPIES[kind])


def transformer(place: Path, arguments: argparse.Namespace, targets: Targets) -> None:
    """As `unet`; what a CPU trains on in 8 or 4 bits is there once for all ranks."""
    small, large = (
        tiny_z_image(place / "small_z"),
        wide_z_image(place / "large_z", arguments.layers, arguments.layer_width),
    )
    size = sum(file.stat().st_size for file in (large / "transformer").glob("*.safetensors")) / MIB
    print(f"transformer: {size:.0f} MiB of bf16; peaks in MiB, less those of a tiny model\n")
    print(f"{'':<36}{'ranks':>6}{'private':>9}{'with files':>12}{'kept':>7}")
    for ranks in arguments.ranks:
        for weights, share in {"bf16": 1.0, "int8": 0.5, "nf4": 0.28125}.items():
            settings: dict[str, object] = {
                **ADAPTER,
                "family": "z_image",
                "parts": [{"part": "transformer", "weights": weights}],
                "cache_only": False,
                "max_steps": 2,
                "gradient_checkpointing": True,
                "backup_every": "never",
            }
            base, found = (peaks(place, model, ranks, settings) for model in (small, large))
            private, with_files = (found[name] - base[name] for name in ("Private", "Pss"))
            kept = size * share
            what = f"LoRA, frozen weights {weights}"
            print(f"{what:<36}{ranks:>6}{private:>9.0f}{with_files:>12.0f}{kept:>7.0f}", flush=True)
            taken = with_files if weights == "bf16" else private  # bf16 stays in its file
            targets.at_most(f"{what}, {ranks} ranks: all processes / kept", taken / kept, KEPT)


def wide_z_image(folder: Path, layers: int, width: int = 1024) -> Path:
    """A ZImagePipeline in `folder` with so many layers, 27 MB each in bf16 if they are 1024 wide, of random weights."""
    tiny_z_image(folder)
    with torch.device("meta"):
        network: Any = ZImageTransformer2DModel(
            in_channels=4,
            dim=width,
            n_layers=layers,
            n_refiner_layers=1,
            n_heads=width // 128,
            n_kv_heads=width // 128,
            cap_feat_dim=WIDTH,
            axes_dims=[32, 48, 48],
            axes_lens=[256, 32, 32],
        )
    with quiet_libraries():
        network = network.to(torch.bfloat16).to_empty(device="cpu")
    for weight in network.parameters():
        nn.init.normal_(weight, std=0.02)
    for buffer in network.buffers():
        buffer.zero_()
    network.save_pretrained(folder / "transformer")
    return folder


PARTS: dict[str, Callable[[Path, argparse.Namespace, Targets], None]] = {"unet": unet, "transformer": transformer}


def peaks(place: Path, model: Path, ranks: int, settings: Mapping[str, object]) -> dict[str, float]:
    """The largest sums over the ranks, in MiB, of each number in smaps_rollup, during one run."""
    several = {"enable_multi_gpu": True, "world_size": ranks, "training_mode": "distributed"} if ranks > 1 else {}
    with tempfile.TemporaryDirectory(dir=place) as folder:
        images = Path(folder) / "images"
        images.mkdir()
        write_image(images)
        config = TrainConfig.model_validate(
            {
                "family": "stable_diffusion",
                "base_model": str(model),
                "concepts": [{"path": str(images)}],
                "resolution": 64,
                "cache_dir": str(Path(folder) / "cache"),
                "runs_dir": str(Path(folder) / "runs"),
                "cache_only": True,
                "loader_workers": 0,
                "tensorboard": False,
                "initial_port": find_free_port(29_500),
                **several,
                **settings,
            }
        )
        save_config(config, Path(folder) / "config.json")
        command = [sys.executable, str(ROOT / "scripts/train.py"), "--config", str(Path(folder) / "config.json")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        run = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        found = {"Private": 0.0, "Pss": 0.0}
        while run.poll() is None:
            pids = list(descendants(run.pid))
            # There and back: while one process maps pages of another, the sum in one order is too large.
            now = [rollup(pid) for pid in (*pids, *reversed(pids))]
            for name in found:
                found[name] = max(found[name], sum(each.get(name, 0.0) for each in now) / 2)
            time.sleep(POLL_S)
        if run.returncode:
            assert run.stdout is not None
            raise SystemExit(f"the run ended with {run.returncode}: {run.stdout.read()[-2000:]}")
    return found


def write_image(folder: Path) -> None:
    """One image with a caption."""
    from PIL import Image

    Image.new("RGB", (64, 64), "red").save(folder / "a.png")
    (folder / "a.txt").write_text("a red square")


def descendants(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from descendants(int(child))


def rollup(pid: int) -> dict[str, float]:
    """The sizes in a process's smaps_rollup, in MiB; none if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return {}
    rows = (line.split() for line in lines if line.endswith(" kB"))
    found = {row[0].rstrip(":"): int(row[1]) / 1024 for row in rows}
    return {**found, "Private": found.get("Anonymous", 0.0) + found.get("Pss_Shmem", 0.0)}


if __name__ == "__main__":
    main()
