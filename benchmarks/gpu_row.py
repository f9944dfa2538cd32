"""One row of benchmarks/gpu.py: its run, and what is measured between the steps of its trainer.

What is found is saved after each stage: one that fails, or a process that dies, costs no more than itself.
"""

from __future__ import annotations

import copy
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.bare_loops import BareLoop
from benchmarks.real_sizes import MODELS, TINY_SIDE
from modules.config import TrainConfig
from modules.data.batch import Batch

GIB = 2**30
WARM_UP, ROUNDS = 3, 8
SEGMENT_S, MOST_STEPS = 0.6, 16  # of a loop's turn
COUNTED, BATCHES, BACKUP_STEPS = 4, 3, 8
BACKUP_LIMIT_S = 25
Found: TypeAlias = dict[str, Any]
Stage: TypeAlias = Generator[None, None, None]  # each `yield` is one step of the trainer
_WAITING = ("cudaStreamSynchronize", "cudaEventSynchronize")  # those of the whole device are the benchmark's own
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel")
_RANGES = ("Optimizer.", "ProfilerStep")  # of several kernels, which would count twice
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
        text = {"family_options": {"max_caption_tokens": 32}} if site.is_tiny and size.network[0] != "unet" else {}
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
                **text,
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
        ratios = [b / o for o, b in zip(own, bare, strict=True)]
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
                torch.ones(1, device=self.device).item()  # one that is known, and the last
            finally:
                torch.cuda.set_sync_debug_mode("default")
        said = [
            (Path(each.filename).name, each.lineno) for each in seen if "called a synchronizing" in str(each.message)
        ]
        own = Path(__file__).name
        if own not in dict(said):
            raise RuntimeError("torch does not say here where the host waits")
        places = Counter(f"{file}:{number}" for file, number in said if file != own)
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
        waiting = {each.key: each for each in events if each.key in _WAITING}
        busy = [each for each in events if each.device_type == DeviceType.CUDA and not each.key.startswith(_RANGES)]
        pageable = sum(event.count for event in events if "Pageable" in event.key)
        self.found |= {
            "attention": attention,
            "synchronize_calls": {name: event.count for name, event in waiting.items()},
            "synchronize_ms": sum(event.cpu_time_total for event in waiting.values()) / 1e3,
            "pageable_copies": pageable,
            "launches": sum(event.count for event in events if event.key.startswith(_LAUNCHES)),
            "busy_ms": sum(event.self_device_time_total for event in busy) / 1e3,
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
                    self.trainer.run_action(BACKUP, training_continues=True)
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
