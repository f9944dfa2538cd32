"""Between two syncs no step reads a tensor on the host: on a GPU it would wait until all queued work is done."""

from __future__ import annotations

import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modules.distributed import HostCopy
from tests.adapted_models import LORA
from tests.classes import TINY_NETWORK, write_classes
from tests.runs import tiny_config, train_alone

aten = torch.ops.aten
READS = {
    aten._local_scalar_dense.default,  # .item(), float(), bool(), and `if tensor:`
    aten.equal.default,
    aten.is_nonzero.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.bincount.default,
    aten.lift_fresh.default,  # torch.tensor(numbers): on a GPU a copy from memory that is not pinned
}
IN_A_STEP = {"forward_backward", "optimizer_step", "_local_sums"}  # of the trainer and of validation


class HostReads(TorchDispatchMode):
    """Counts the reads within a step and a validation, by the lines that make them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            stack = traceback.extract_stack()
            loads = any("modules/data/loading" in frame.filename for frame in stack)  # images, which are on the host
            if IN_A_STEP & {frame.name for frame in stack} and not loads:
                readers = [frame for frame in stack[:-1] if "torch/_" not in frame.filename]  # not what wraps this mode
                self.lines[f"{readers[-1].filename}:{readers[-1].lineno}"] += 1
        return func(*args, **(kwargs or {}))


RUNS: dict[str, dict[str, object]] = {
    "adamw": {"ema": True, "max_grad_norm": 0.1},
    "validated": {"validation_split": 0.5, "validate_every": "2 steps", "batch_size": 1},
    "adam in fp16": {"optimizer": "adam", "precision": "fp16"},
    "sgd": {"optimizer": {"name": "sgd", "momentum": 0.0}, "max_grad_norm": None},
    "dropout in pieces": {"family_options": {"dropout": 0.3}, "batch_size": 2, "gradient_checkpointing": True},
    "nf4": {**LORA, "parts": [{"part": "unet", "weights": "nf4"}], "family_options": {"width": 16}},
    "histograms": {"tensorboard": True, "histograms_every": "2 steps"},
    "fused backward": {"fused_backward": True, "max_grad_norm": None, "global_batch_size": None, "ema": True},
    "classifier": {
        "family": "classifier",
        "family_options": {**TINY_NETWORK, "mixup": 0.5},
        "validation_split": 0.5,
        "validate_every": "2 steps",
        "batch_size": 1,
    },
    # what no kernel can skip on the device; see `waits_of`
    "lion": {"optimizer": "lion"},
    "came": {"optimizer": "came"},
    "prodigy": {"optimizer": "prodigy", "learning_rate": 1.0},
    "prodigy with two rates": {"optimizer": "prodigy", "learning_rate": 1.0, "learning_rate_factors": "first = 0.5"},
    "adamw, not fused": {"optimizer": {"name": "adamw", "fused": False}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_step_reads_nothing_on_the_host(
    images: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = waits_of(monkeypatch)
    if name == "classifier":
        images = write_classes(tmp_path / "classes", 41)
    with HostReads() as reads:
        code, run = train_alone(tiny_config(images, tmp_path, **RUNS[name]))
    assert code == 0
    assert len(run.losses) == 6
    if name == "adamw, not fused":  # torch keeps its step counters on the CPU, where reading them waits for nobody
        reads.lines = Counter({line: n for line, n in reads.lines.items() if "torch/optim" not in line})
    made = 2 if name == "classifier" else 0  # mean and standard deviation of pixels, in the first step
    assert sum(reads.lines.values()) == made, reads.lines
    validations = len(run.events("validation"))
    assert validations == (3 if "validate_every" in RUNS[name] else 0)
    waits_in_a_step = 2 if "prodigy" in name else int("not fused" in name or name in ("lion", "came"))
    assert len(waits) == 6 * waits_in_a_step + validations


def waits_of(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """The reads of host copies: one in each validation, and in each step of optimizers that cannot skip one alone;
    another one of prodigy, which finds its step size."""
    waits: list[None] = []
    read = HostCopy.read

    def counted(self: HostCopy) -> list[float]:
        if IN_A_STEP & {frame.name for frame in traceback.extract_stack()}:
            waits.append(None)
        return read(self)

    monkeypatch.setattr(HostCopy, "read", counted)
    return waits


def test_a_host_copy_keeps_the_values_of_its_time() -> None:
    loss, norm = torch.tensor(0.1, dtype=torch.float64), torch.tensor(2.5)
    copy = HostCopy(loss, norm)
    loss.add_(1)
    norm.zero_()
    assert copy.read() == [0.1, 2.5]
    assert copy.read() == [0.1, 2.5]
