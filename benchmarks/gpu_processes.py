"""The processes that benchmarks/gpu.py starts: each writes what it finds to the file that is its last argument."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.diffusion import bare_encode, new_cache
from benchmarks.gpu_row import BATCHES, GIB, Found, Measurement, Row, Site
from benchmarks.real_sizes import write_images, write_model
from benchmarks.side_by_side import Screen
from modules.data.batch import Batch
from modules.families._by_name import family_class
from modules.machine import find_free_port
from modules.training.state.requests import Outcome

CACHED_PIXELS, CACHE_ROUNDS = 64 * 512**2, 3
MEASURED = Outcome("measured", 0)


def child(function: Callable[..., None], arguments: Sequence[object], log: Path) -> None:
    """All that a process does: it appends what it prints to `log`, and ends without taking anything apart, which may
    hang in a library once something has failed."""
    with log.open("a") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    code = 1
    try:
        function(*arguments)
        code = 0
    except Exception as error:  # noqa: BLE001  # the process ends here
        traceback.print_exc()
        file = arguments[-1]
        assert isinstance(file, Path)
        if not file.exists():
            file.write_text(json.dumps({"error": f"{type(error).__name__}: {str(error)[:500]}"}))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def train_in_turns(row: Row, site: Site, file: Path) -> None:
    """Train `row` and write what is found to `file`."""
    found: Found = {"started": time.perf_counter()}

    def save() -> None:
        file.write_text(json.dumps({name: value for name, value in found.items() if name != "started"}))

    try:
        _train(row, site, found, save)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {str(error)[:500]}"
        found["traceback"] = traceback.format_exc()[-3000:]
        raise
    finally:
        save()


def _train(row: Row, site: Site, found: Found, save: Callable[[], None]) -> None:
    from modules.distributed import read_rank_env
    from modules.monitoring import RunReport
    from modules.run import EventLog, RunFolder, read_events
    from modules.training.loop.distributed_trainer import DistributedTrainer
    from modules.training.loop.generic_trainer import GenericTrainer
    from modules.training.worker import control_requests, join_ranks

    if row.has_ranks:
        names = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": find_free_port(12355)}
        os.environ.update({"MASTER_ADDR": "127.0.0.1"} | {name: str(value) for name, value in names.items()})
    kind: Any = DistributedTrainer if row.has_ranks else GenericTrainer

    class Measured(kind):  # type: ignore[misc]  # one of two
        """The trainer as it is; between its steps the stages of the measurement take turns with it."""

        def forward_backward(self, batch: Batch) -> None:
            if len(measurement.batches) < BATCHES:
                measurement.batches.append(batch.to(self.ranks.device, self.components.precision.weights))
            super().forward_backward(batch)

        def after_step(self) -> Outcome | None:
            outcome: Outcome | None = super().after_step()
            return outcome if next(stages, self) is None else MEASURED

    config = row.config(site)
    folder = RunFolder.create(config)
    report = RunReport(EventLog(folder.events_file), folder.tensorboard_dir)
    rank_env = read_rank_env(os.environ)
    with quiet(), join_ranks(config, folder, report, rank_env, None, supervised=True) as ranks:
        trainer = Measured(config, folder, report, control_requests(config, folder, 0), ranks)
        measurement = Measurement(row, trainer, save, found)
        stages = measurement.stages()
        trainer.setup()
        try:
            trainer.train()
        finally:
            trainer.components.data.loader.close()
            report.close()
            events = [event for event in read_events(folder.events_file) if event["type"] == "warning"]
            found["warnings"] = [str(event["message"])[:300] for event in events]


def cache_in_turns(row: Row, site: Site, file: Path) -> None:
    """Fill a new cache and encode as many images in a bare loop, in turns, and write what is found to `file`."""
    from modules.data.cache.encode_batches import encode_batch_size
    from modules.training.device.precision import Precision, can_use_tf32

    device, given = torch.device(site.device), row.config(site)
    count = 4 if site.is_tiny else CACHED_PIXELS // given.resolution**2
    images = site.place / row.model / "to-cache"
    write_images(images, given.resolution, count)
    config = given.model_copy(update={"concepts": (given.concepts[0].model_copy(update={"path": str(images)}),)})
    precision = Precision(config.precision, device, tf32=can_use_tf32(config.precision, device))
    precision.benchmark_convolutions(1)
    family = family_class(config.family).load_for_training(config)
    family.device = device
    vae = family.encoders["vae"].to(device)
    size = encode_batch_size(config.cache_batch_size, config.resolution, device.type)
    pixels = torch.rand(size, 3, config.resolution, config.resolution, device=device) * 2 - 1
    seconds: dict[str, list[float]] = {"own": [], "bare": []}
    for turn in range(1 + CACHE_ROUNDS):
        renewed = config.model_copy(update={"cache_dir": str(site.place / row.model / f"cache-{turn}")})
        cache = new_cache(family, renewed)
        batches = cache.batches(cache.missing(), size)
        started = time.perf_counter()
        cache.encode(batches, family.encode_batch, 0)
        seconds["own"].append(time.perf_counter() - started)
        started = time.perf_counter()
        for _ in range(len(batches) // size):
            bare_encode(vae, pixels).cpu()
        seconds["bare"].append(time.perf_counter() - started)
    own, bare = (each[1:] for each in seconds.values())  # cuDNN has chosen its algorithms
    found = {
        "batch": size,
        "ratio": median(bare) / median(own),
        "ratios": [b / o for o, b in zip(own, bare, strict=True)],
        "images_per_s": count / median(own),
        "bare_images_per_s": count / median(bare),
    }
    file.write_text(json.dumps(found))


@contextmanager
def quiet() -> Iterator[None]:
    """The progress bar is rendered as on a terminal, and shown nowhere."""
    screen, sys.stdout = sys.stdout, Screen()
    try:
        yield
    finally:
        sys.stdout = screen


def prepare(model: str, site: Site, file: Path) -> None:
    """Write a base model and its images; `file` gets the seconds."""
    started = time.perf_counter()
    write_model(model, site.place / model, torch.device(site.device), tiny=site.is_tiny)
    file.write_text(json.dumps({"seconds": time.perf_counter() - started}))


def estimate(row: Row, site: Site, file: Path) -> None:
    """Write what the memory table says of `row`, in GiB; on the CPU alone."""
    from modules.training.memory.table import memory_table

    config = row.config(site)
    table = memory_table(family_class(config.family), config)
    assert table is not None, "the model's folder describes it"
    phases = {phase: table.total("device", phase) / GIB for phase in ("training", "caching")}
    file.write_text(json.dumps({"phases": phases, "lines": table.lines()}))


def rates(site: Site, file: Path) -> None:
    """Write what the device does at most: the matrix product, and copies."""
    device, is_cuda = site.device, site.device == "cuda"
    found: Found = {"torch": torch.__version__, "python": sys.version.split()[0], "cores": os.cpu_count()}
    side, size = (256, 1 << 20) if site.is_tiny else (8192, 1 << 30)
    matrix = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    found["matmul_tflops"] = 2 * side**3 / _fastest(lambda: matrix @ matrix, is_cuda) / 1e12
    one, other = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=is_cuda)
    found["copy_gb_s"] = 2 * size / _fastest(lambda: other.copy_(one), is_cuda) / 1e9  # read and written
    found["to_device_gb_s"] = size / _fastest(lambda: one.copy_(host, non_blocking=True), is_cuda) / 1e9
    found["to_host_gb_s"] = size / _fastest(lambda: host.copy_(one, non_blocking=True), is_cuda) / 1e9
    if is_cuda:
        free, total = torch.cuda.mem_get_info()
        versions = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        found |= {"card": torch.cuda.get_device_name(), "total_gib": total / GIB, "free_gib": free / GIB, **versions}
    file.write_text(json.dumps(found))


def _fastest(work: Callable[[], object], is_cuda: bool) -> float:
    """Seconds of one call: the best of three tries, of ten calls on a GPU, whose queue is not to run dry."""
    calls = 10 if is_cuda else 1
    tries = []
    for _ in range(4):
        if is_cuda:
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            work()
        if is_cuda:
            torch.cuda.synchronize()
        tries.append((time.perf_counter() - started) / calls)
    return min(tries[1:])
