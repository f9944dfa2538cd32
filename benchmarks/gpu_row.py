"""One row of benchmarks/gpu.py, in a process of its own: the real trainer in turns with a bare loop, then its figures.

What is found is written to a file after each stage, so that a stage which fails, or a process which dies, costs no more
than itself.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.bare_loops import BareLoop
from benchmarks.diffusion_caching import bare_encode, new_cache
from benchmarks.real_sizes import MODELS, TINY_SIDE, write_images, write_model
from benchmarks.side_by_side import Screen
from modules.config import TrainConfig
from modules.data.batch import Batch
from modules.families._by_name import family_class
from modules.machine import find_free_port
from modules.training.control_requests import Outcome

GIB = 2**30
WARM_UP, ROUNDS = 3, 4
SEGMENT_S, MOST_STEPS = 1.0, 16  # of a loop's turn
COUNTED, BATCHES, BACKUP_STEPS = 4, 3, 8
BACKUP_LIMIT_S = 25
CACHED_PIXELS, CACHE_ROUNDS = 64 * 512**2, 3
MEASURED = Outcome("measured", 0)
Found: TypeAlias = dict[str, Any]
Stage: TypeAlias = Generator[None, None, None]  # each `yield` is one step of the trainer
_ATTENTION = ("scaled_dot_product", "fmha", "flash", "cudnn_attention", "efficient_attention", "flex_attention")


@dataclass(frozen=True)
class Site:
    """Where the rows are measured: a folder for models and runs, a device, and whether networks are tiny."""

    place: Path
    device: str
    is_tiny: bool


@dataclass(frozen=True)
class Row:
    """What is trained: a model of real_sizes, and settings besides its defaults."""

    name: str
    model: str
    settings: Mapping[str, object]
    beside: str = ""  # the row whose images per second it is compared with, and whose operations count
    least: float = 0  # the target: of those images per second
    backs_up: bool = False
    has_ranks: bool = False  # in a group of one rank
    only_caches: bool = False

    def config(self, site: Site) -> TrainConfig:
        """Of a run there."""
        size, folder = MODELS[self.model], site.place / self.model
        backend = "gloo" if site.device == "cpu" else "nccl"
        group = {"enable_multi_gpu": True, "world_size": 1, "distributed_backend": backend} if self.has_ranks else {}
        return TrainConfig.model_validate(
            {
                "family": size.family,
                "base_model": str(folder / "base"),
                "concepts": [{"path": str(folder / "images"), "repeats": 256}],
                "resolution": TINY_SIDE if site.is_tiny else size.side,
                "aspect_ratio_bucketing": False,
                "drop_last": True,
                "cache_dir": str(folder / "cache"),
                "runs_dir": str(site.place / "runs"),
                "run_name": self.name.replace(" ", "-"),
                "epochs": 1000,
                "batch_size": 1,
                "precision": "bf16",
                "learning_rate": 1e-6,
                "optimizer": {"name": "adamw", "fused": True},
                "probe_memory": "off",
                "backup_every": "never",
                "device": "cpu" if site.device == "cpu" else "auto",
                **group,
                **self.settings,
            }
        )


@dataclass
class Measurement:
    """Of one row, while its trainer trains."""

    row: Row
    trainer: Any
    save: Callable[[], None]
    found: Found
    batches: list[Batch] = field(default_factory=list)
    bare: BareLoop | None = None

    @property
    def device(self) -> torch.device:
        """Of the trainer."""
        device: torch.device = self.trainer.ranks.device
        return device

    def stages(self) -> Stage:
        """All of them; the errors of each are kept."""
        for stage in (self.turns, self.waits, self.kernels, self.backup):
            try:
                yield from stage()
            except Exception as error:  # noqa: BLE001  # whatever it was, the other stages follow
                failed = self.found.setdefault("failed", {})
                failed[stage.__name__] = f"{type(error).__name__}: {str(error)[:300]}"
                self.found["traceback"] = traceback.format_exc()[-2000:]
            self.save()

    def turns(self) -> Stage:
        """Segments of steps of both loops, in turns, each from an empty queue to an empty queue."""
        for _ in range(WARM_UP):
            yield
        self.found["setup_s"] = time.perf_counter() - self.found.pop("started")
        self.bare = self._bare_loop()
        for _ in range(WARM_UP):
            self.bare.step()
        started = self._now()
        for _ in range(2):
            yield
        steps = max(2, min(MOST_STEPS, round(SEGMENT_S / (self._now() - started) * 2)))
        own, bare, ahead = list[float](), list[float](), list[float]()
        peaks: dict[str, list[int]] = {"peak": [], "reserved": [], "bare_peak": []}
        for _ in range(ROUNDS):
            self._forget_peaks()
            started = self._now()
            for _ in range(steps):
                yield
            issued = time.perf_counter()
            own.append((self._now() - started) / steps)
            ahead.append(time.perf_counter() - issued)
            peaks["peak"].append(self._peak(torch.cuda.max_memory_allocated))
            peaks["reserved"].append(self._peak(torch.cuda.max_memory_reserved))
            self._forget_peaks()
            started = self._now()
            for _ in range(steps):
                self.bare.step()
            bare.append((self._now() - started) / steps)
            peaks["bare_peak"].append(self._peak(torch.cuda.max_memory_allocated))
            self.trainer.metrics.restart_clock()
        ratios = sorted(b / o for o, b in zip(own, bare, strict=True))
        images = self.trainer.config.batch_size
        self.found |= {
            "steps": steps,
            "batch": images,
            "ratio": median(bare) / median(own),
            "ratios": ratios,
            "images_per_s": images / median(own),
            "bare_images_per_s": images / median(bare),
            "host_ahead_ms": median(ahead) * 1e3,
            "flops_per_image": self.trainer.flops.per_sample,
            **{f"{name}_gib": max(values) / GIB for name, values in peaks.items()},
            "pinned_gib": self._pinned(),
        }

    def waits(self) -> Stage:
        """How often a step makes the host wait, and where."""
        if self.device.type != "cuda":
            yield
            return
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                for _ in range(COUNTED):
                    yield
            finally:
                torch.cuda.set_sync_debug_mode("default")
        places = Counter(
            f"{Path(each.filename).name}:{each.lineno}"
            for each in seen
            if "called a synchronizing" in str(each.message)
        )
        self.found["waits"] = places.total() / COUNTED
        self.found["waits_at"] = dict(places.most_common(6))

    def kernels(self) -> Stage:
        """Of one step: the attention, and what CUDA's calls that wait took of the host."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.device.type == "cuda" else [])]
        yield from self._settled()
        with profile(activities=activities) as trace:
            started = self._now()
            yield
            launched = time.perf_counter() - started
            took = self._now() - started
        events = trace.key_averages()
        attention = {event.key[:90]: event.count for event in events if any(word in event.key for word in _ATTENTION)}
        waiting = {e.key: e for e in events if e.key.startswith(("cuda", "hip")) and "Synchronize" in e.key}
        pageable = sum(event.count for event in events if "Pageable" in event.key)
        self.found |= {
            "attention": attention,
            "synchronize_calls": {name: event.count for name, event in waiting.items()},
            "synchronize_ms": sum(event.cpu_time_total for event in waiting.values()) / 1e3,
            "pageable_copies": pageable,
            "profiled_step_ms": took * 1e3,
            "profiled_host_ms": launched * 1e3,
        }

    def backup(self) -> Stage:
        """What two backups take: until training goes on, and of the steps while they are written."""
        if not self.row.backs_up:
            return
        from modules.training.actions import BACKUP

        writer = self.trainer.components.backups
        for name in ("first", "second"):  # which has its memory from the first
            times = [0.0, 0.0]
            for place in range(2):
                if place:
                    started = self._now()
                    self.trainer.run_action(BACKUP, tolerate_os_errors=True)
                    self.found[f"{name}_backup_stalls_ms"] = (self._now() - started) * 1e3
                started = self._now()
                for _ in range(BACKUP_STEPS):
                    yield
                times[place] = (self._now() - started) / BACKUP_STEPS
            self.found[f"{name}_backup_slows_steps_by"] = times[1] / times[0] - 1
            self.found["pinned_with_backup_gib"] = self._pinned()
            self.save()
            started = time.perf_counter()
            writer.wait(BACKUP_LIMIT_S)
            self.found[f"{name}_backup_wait_s"] = time.perf_counter() - started
            if self.found[f"{name}_backup_wait_s"] >= BACKUP_LIMIT_S:
                return

    def _bare_loop(self) -> BareLoop:
        """Over the trainer's own weights and optimizer state, which are not there twice; in a group over a copy, whose
        gradients DDP does not see."""
        model = self.trainer.components.weights.model
        if self.row.has_ranks:
            return MODELS[self.row.model].bare(copy.deepcopy(model), self.batches, self.trainer.config)
        loop = MODELS[self.row.model].bare(model, self.batches, self.trainer.config)
        loop.optimizer.state = self.trainer.components.guarded_step.optimizer.state
        return loop

    def _now(self) -> float:
        """Seconds, when the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _settled(self) -> Stage:
        """A step after which nothing is under way."""
        yield
        self._now()

    def _forget_peaks(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def _peak(self, kind: Callable[[], int]) -> int:
        return kind() if self.device.type == "cuda" else 0

    def _pinned(self) -> float:
        """GiB of host memory: torch's own, and what Tandem registers with CUDA, which are shared pages of no file."""
        if self.device.type != "cuda":
            return 0.0
        registered, is_shared = 0, False
        for text in Path("/proc/self/smaps").read_text().splitlines():
            if "-" in text.split(" ", 1)[0]:
                is_shared = text.endswith("/dev/zero (deleted)")
            elif is_shared and text.startswith("Rss:"):
                registered += 1024 * int(text.split()[1])
        return float(torch.cuda.host_memory_stats().get("allocated_bytes.current", 0) + registered) / GIB


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
    from modules.training.distributed_trainer import DistributedTrainer
    from modules.training.generic_trainer import GenericTrainer
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
    from modules.training.precision import Precision, can_use_tf32

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
        "ratios": sorted(b / o for o, b in zip(own, bare, strict=True)),
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
    from modules.training.memory_table.table import memory_table

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
    gc.collect()
    return min(tries[1:])
