"""How much private memory a process takes for a base model: what it keeps of it, and nothing on the way there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.checkpoint.formats import write_single_file
from tests.families.tiny_pipelines import fat_sd, tiny_sd
from tests.runs import ROOT

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux has smaps_rollup")

LORA: dict[str, Any] = {"method": "lora", "lora_rank": 1, "lora_targets": "attention"}
IN_FP16 = {**LORA, "precision": "fp16", "parts": [{"part": "unet", "weights": "fp16"}]}
IN_BF16 = {**LORA, "precision": "bf16", "parts": [{"part": "unet", "weights": "bf16"}]}
# settings, device, and the most private memory that the model may take, in sizes of its fp16 file: half of one is for
# the tensor that is being converted, the adapter and the allocator
CASES: list[tuple[dict[str, Any], str, float]] = [
    (IN_FP16, "cpu", 0.5),  # as in the file, which all ranks share
    (IN_BF16, "cpu", 1.5),
    ({**LORA, "precision": "bf16"}, "cpu", 2.5),  # fp32
    ({**LORA, "precision": "bf16"}, "cuda", 0.5),  # still in the file, until it is moved
    ({"precision": "bf16"}, "cuda", 0.5),
    # quantised on a device with memory of its own: neither the weights nor their bits are ever whole in host memory
    ({**IN_BF16, "parts": [{"part": "unet", "weights": "int8"}]}, "quantised", 0.5),
    ({**IN_BF16, "parts": [{"part": "unet", "weights": "nf4"}]}, "quantised", 0.5),
]

# Loads the model that is named first as a warm-up, then measures for each case. Sampling ends by the model's own end.
MEASURE = """
import gc, json, sys, threading, warnings
import torch
from modules.config import TrainConfig
from modules.diffusion.quantized import can_be_quantized, quantize_
from modules.training.memory.model_setup import load_family, prepare_model
from modules.training.state.plan import InitialModel
from modules.training.device.precision import Precision
from modules.training.state.resume import check_initial_model

warnings.simplefilter("ignore")
torch.set_num_threads(1)

def private():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Anonymous:")) * 1024

def load(settings, device):
    config = TrainConfig.model_validate(settings)
    family = load_family(config)
    check_initial_model(family, config, InitialModel())
    prepare_model(family, config, Precision(config.precision, torch.device("cpu" if device == "cpu" else "cuda")))
    for name, layer in [*family.model.unet.named_modules()] if device == "quantised" else []:
        if can_be_quantized(name, layer, family.model.unet):
            quantize_(layer, config.parts[0].weights, torch.device("meta"))
    return family

def watch():
    global peak
    while not done.wait(0.001):
        peak = max(peak, private())

warm_up, *cases = json.loads(sys.argv[1])
load(*warm_up)
for settings, device in cases:
    gc.collect()
    before = peak = private()
    done = threading.Event()
    thread = threading.Thread(target=watch)
    thread.start()
    family = load(settings, device)
    done.set()
    thread.join()
    print(max(peak, private()) - before)
    del family
"""


@pytest.mark.slow
def test_private_memory_is_what_is_kept_of_the_model(tmp_path: Path) -> None:
    small, folder, file = tiny_sd(tmp_path / "small"), fat_sd(tmp_path / "folder", 160), tmp_path / "model.safetensors"
    write_single_file(folder, file, torch.float16, {})
    size = file.stat().st_size
    assert size > 30 << 20
    warm_up = {"family": "stable_diffusion", "base_model": str(small), **LORA}
    from_file = {"base_model": str(file), "family_options": {"layout": str(folder)}}
    bases: list[dict[str, Any]] = [{"base_model": str(folder)}, from_file]
    cases = [
        ({"family": "stable_diffusion", **bases[number % 2], **settings}, device, most)
        for number, (settings, device, most) in enumerate([CASES[0], *CASES])
    ]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, json.dumps([(warm_up, "cpu"), *(case[:2] for case in cases)])],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    taken = [int(line) / size for line in done.stdout.split()]
    for (settings, device, most), sizes in zip(cases, taken, strict=True):
        assert sizes <= most, f"{sizes:.2f} sizes of the file for {settings} on {device}"
