"""Tandem's accounts of a GPU's memory, against what the pretended one counts and refuses; see run_checks.py."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest
import torch

from modules.config import TrainConfig
from modules.families._by_name import family_class
from modules.run import RunFolder
from modules.run.batch_size.records import RESULT, SearchRequest, SearchResult
from modules.run.batch_size.start import search_config
from modules.training.loop.generic_trainer import GenericTrainer
from modules.training.memory.table import memory_table
from modules.training.worker import run_worker
from scripts.make_demo_data import make_demo_data
from tests.fake_cuda.cases import Case
from tests.fake_cuda.gpu import Gpu
from tests.fake_cuda.run_cases import small_peak_measurement
from tests.runs import TINY, Run, tiny_config, train_alone

MIB: Final = 1 << 20
BATCH: Final = 8
# Its activations take 4 MiB a sample and more, its weights next to nothing.
WIDE: Final[Mapping[str, object]] = {
    "family": TINY,
    "family_options": {"width": 256},
    "resolution": 64,
    "aspect_ratio_bucketing": False,
    "batch_size": BATCH,
    "global_batch_size": BATCH,
    "max_steps": 3,
    "precision": "bf16",
}


def check_memory_table(gpu: Gpu, place: Path) -> None:
    """It says what a step takes at its peak."""
    for case in ("stable_diffusion fine_tune", "stable_diffusion_xl lora gradient_checkpointing"):
        given = {**Case.named(case).settings(place), "resolution": 128, "batch_size": 4, "max_steps": 3}
        config = _config(place, **given, aspect_ratio_bucketing=False)
        table = memory_table(family_class(config.family), config)
        assert table is not None
        # of tiny weights, the rounding to 512 bytes is a good part
        assert table.total("device", "training") == pytest.approx(_peak_of_steps(config), rel=0.3), case


def check_probe(gpu: Gpu, place: Path) -> None:
    """Where half of a batch fits, it says so before the first step, and no step runs out of memory."""
    with limited(gpu, place, share=0.75):
        run = _trained(_config(place, **WIDE))
    assert f"at most {BATCH // 2} instead of {BATCH} samples" in run.warnings, run.warnings
    assert len(run.losses) == WIDE["max_steps"]
    assert gpu.extension.memory(0).refusals


def check_probe_of_a_device_that_is_too_small(gpu: Gpu, place: Path) -> None:
    """It ends the run with advice."""
    with limited(gpu, place, share=0.05):
        code, run = _train(_config(place, **WIDE))
    assert code
    assert "with a single sample" in run.failure(0)


def check_guard(gpu: Gpu, place: Path) -> None:
    """Without the probe, the step in which memory runs out is skipped and the next ones have smaller pieces."""
    with limited(gpu, place, share=0.75):
        run = _trained(_config(place, **WIDE, probe_memory="off"))
    assert f"micro-batches now hold at most {BATCH // 2}" in run.warnings, run.warnings
    assert len(run.losses) == WIDE["max_steps"]


def check_batch_size_finder(gpu: Gpu, place: Path) -> None:
    """It finds the largest batch that fits, and what that takes."""
    folder = Path(tempfile.mkdtemp(dir=place))
    config = search_config(_config(place, **WIDE), folder)
    with limited(gpu, place, share=0.7), patch.dict("os.environ", SearchRequest(memory_target=0.99).environment()):
        run_folder = RunFolder.create(config)
        with small_peak_measurement():
            assert run_worker(config, run_folder) == 0
        total = gpu.extension.memory(0).total
    (found,) = SearchResult.load(run_folder.path / RESULT).ranks
    assert 1 < found.batch_size < BATCH
    assert 0.8 * total < found.peak <= found.limit <= total


@contextmanager
def limited(gpu: Gpu, place: Path, share: float) -> Iterator[None]:
    """Inside the block the device has `share` of what a step of WIDE takes."""
    known = place / "peak_of_wide"
    if not known.exists():
        known.write_text(str(_peak_of_steps(_config(place, **WIDE))))
    gpu.extension.memory(0).refusals = 0
    torch.cuda.empty_cache()
    gpu.set_total(gpu.card.others_bytes + torch.cuda.memory_reserved() + int(share * int(known.read_text())))
    try:
        yield
    finally:
        gpu.set_total(gpu.card.total_bytes)


def _config(place: Path, **settings: object) -> TrainConfig:
    make_demo_data(place / "images", count=2 * BATCH)
    runs = tempfile.mkdtemp(prefix="runs-", dir=place)
    return tiny_config(place / "images", place, **settings, runs_dir=runs)


def _train(config: TrainConfig) -> tuple[int, Run]:
    with small_peak_measurement():
        return train_alone(config)


def _trained(config: TrainConfig) -> Run:
    code, run = _train(config)
    assert code == 0, run.failure(0)
    return run


def _peak_of_steps(config: TrainConfig) -> int:
    """Bytes that are allocated at most in the steps after the first, besides what there was before the run."""
    gc.collect()  # the former run's weights, which would otherwise be freed during this one
    before = torch.cuda.memory_allocated()
    peaks = []
    former = GenericTrainer.after_step

    def after_step(self: GenericTrainer) -> object:
        peaks.append(torch.cuda.max_memory_allocated() - before)
        torch.cuda.reset_peak_memory_stats()
        return former(self)

    with patch.object(GenericTrainer, "after_step", after_step):
        _trained(config)
    return max(peaks[1:])


CHECKS: Final[Mapping[str, Callable[[Gpu, Path], None]]] = {
    name.removeprefix("check_").replace("_", " "): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}
