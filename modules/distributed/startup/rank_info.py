"""What one rank runs on: machine, device, memory and versions, as data that can be sent."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import torch

from modules.config import TrainConfig
from modules.distributed.run_store import StoreFault, parse_value
from modules.distributed.startup.member import Member
from modules.files import printable
from modules.machine import Link, driver_version, gpu_links, memory_mib, visible_gpus
from modules.run.join.fingerprint import Listing, code_listing, digest, family_listing, package_listing
from modules.run.join.local_settings import shared_settings
from modules.run.launch.store_secret import store_secret

_MEASURE_S = 0.3
_MATRIX_SIZE = 4096
_MAX_CHARS = 200


@dataclass(frozen=True)
class RankInfo:
    """One row of the start-up report; `code` and `settings` are digests, empty if they are not compared."""

    rank: int
    host: str
    process_id: int
    device: str
    model: str
    memory_mib: int
    free_mib: int
    backend: str
    threads: int
    versions: Mapping[str, str]
    clock: float = 0.0
    gpu_uuid: str = ""
    code: str = ""
    settings: str = ""
    links: tuple[Link, ...] = ()  # between the machine's GPUs; only in the row of its first rank

    @classmethod
    def of_this_process(
        cls, member: Member, device: torch.device, backend: str, config: TrainConfig | None, *, is_first_of_host: bool
    ) -> RankInfo:
        """This process. What all processes of a machine share is queried by its first rank only."""
        total, free = _memory_mib(device)
        key = store_secret() or ""
        return cls(
            rank=member.rank,
            host=member.host,
            process_id=member.process_id,
            device=str(device),
            model=device_name(device),
            memory_mib=total,
            free_mib=free,
            backend=backend,
            threads=torch.get_num_threads(),
            versions=software_versions(device),
            clock=time.time(),
            gpu_uuid=_gpu_uuid(device),
            code=digest(source_hashes(config), key) if is_first_of_host else "",
            settings=digest(shared_settings(config), key) if config is not None else "",
            links=tuple(gpu_links(visible_gpus())) if is_first_of_host else (),
        )

    @classmethod
    def parse(cls, text: str, rank: int) -> RankInfo:
        """The inverse of `dump`, of what `rank` sent. Raises StoreFault."""
        what = f"the description of rank {rank}"
        info = parse_value(cls, text, what)
        if info.rank != rank:
            raise StoreFault(f"{what} in the store is that of rank {info.rank}.")
        return replace(
            info,
            host=printable(info.host, _MAX_CHARS),
            device=printable(info.device, _MAX_CHARS),
            model=printable(info.model, _MAX_CHARS),
            backend=printable(info.backend, _MAX_CHARS),
            versions={printable(name, _MAX_CHARS): printable(each, _MAX_CHARS) for name, each in info.versions.items()},
        )

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    def event(self) -> dict[str, object]:
        """The row in the `started` event."""
        return {name: value for name, value in asdict(self).items() if name not in {"clock", "code", "settings"}}

    @property
    def on_gpu(self) -> bool:
        """Whether this rank computes on a GPU."""
        return self.device.startswith("cuda")


@dataclass(frozen=True)
class Differences:
    """Names of the settings and files in which a machine differs from rank 0's."""

    host: str
    settings: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def source_hashes(config: TrainConfig | None) -> Listing:
    """Hashes of every file of Tandem and of the config's family and base model, by name."""
    return code_listing() | ({} if config is None else family_listing(config))


def device_name(device: torch.device) -> str:
    """The GPU's model, or the CPU's architecture."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"


def software_versions(device: torch.device) -> dict[str, str]:
    """Versions of Python and the packages and, if a GPU is used, of CUDA, NCCL and the driver."""
    found = {**package_listing()}
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
        if torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["driver"] = driver_version() or "unknown"
    return found


def measure_speed(device: torch.device) -> float:
    """Matrix products per second of this device (bf16 on a GPU, else fp32), to compare GPUs of different models."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    size = _MATRIX_SIZE if device.type == "cuda" else _MATRIX_SIZE // 8
    matrix = torch.ones(size, size, device=device, dtype=dtype)
    _synchronize(matrix @ matrix)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < _MEASURE_S:
        _synchronize(matrix @ matrix)
        count += 1
    return count / (time.perf_counter() - started)


def _synchronize(result: torch.Tensor) -> None:
    if result.device.type == "cuda":
        torch.cuda.synchronize(result.device)


def _gpu_uuid(device: torch.device) -> str:
    """As NVML writes it, "GPU-5f2e..." or "MIG-..."; empty on the CPU, and if this build of torch does not know it."""
    if device.type != "cuda":
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible.startswith("MIG-") and "," not in visible:  # a slice, for which CUDA may give the UUID of its GPU
        return visible
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return "" if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"


def _memory_mib(device: torch.device) -> tuple[int, int]:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total >> 20, free >> 20
    memory = memory_mib()
    return memory.total, memory.available
