"""What one process of a group is and has: machine, device, memory, versions; as data that can be sent."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import torch

from modules.config import TrainConfig
from modules.distributed.sign_in import Member
from modules.machine import Link, driver_version, gpu_links, memory_mib, visible_gpus
from modules.run.join.fingerprint import Listing, code_listing, digest, family_listing, package_listing
from modules.run.join.rules import shared_settings

_MEASURED_S = 0.3
_SIDE = 4096


@dataclass(frozen=True)
class RankFacts:
    """One row of the start-up report; `code` and `settings` are digests, empty where they are not compared."""

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
    code: str = ""
    settings: str = ""
    links: tuple[Link, ...] = ()  # of the machine's GPUs; only in the row of its first rank

    @classmethod
    def here(
        cls, member: Member, device: torch.device, backend: str, config: TrainConfig | None, *, first_of_host: bool
    ) -> RankFacts:
        """This process. What all processes of a machine share is asked by its first rank only."""
        total, free = _memory_mib(device)
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
            versions=versions(device),
            clock=time.time(),
            code=digest(sources(config)) if first_of_host else "",
            settings=digest(shared_settings(config)) if config is not None else "",
            links=tuple(gpu_links(visible_gpus())) if first_of_host else (),
        )

    @classmethod
    def parse(cls, text: str) -> RankFacts:
        """What `dump` wrote."""
        data = json.loads(text)
        return cls(**{**data, "links": tuple(Link(**link) for link in data["links"])})

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
    """Names of settings and files that one machine has otherwise than rank 0's."""

    host: str
    settings: tuple[str, ...] = field(default=())
    files: tuple[str, ...] = field(default=())


def sources(config: TrainConfig | None) -> Listing:
    """Every file of Tandem, and of the config's family and base model, by name and content."""
    return code_listing() | ({} if config is None else family_listing(config))


def device_name(device: torch.device) -> str:
    """The GPU's model, or the processor's kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"


def versions(device: torch.device) -> dict[str, str]:
    """Of Python and the packages, and of CUDA, NCCL and the driver where a GPU is used."""
    found = package_listing()
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
        if torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["driver"] = driver_version() or "unknown"
    return found


def measured_speed(device: torch.device) -> float:
    """Matrix products a second of this device, in half precision on a GPU: what mixed models are compared by."""
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    side = _SIDE if device.type == "cuda" else _SIDE // 8
    matrix = torch.ones(side, side, device=device, dtype=kind)
    _finish(matrix @ matrix)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < _MEASURED_S:
        _finish(matrix @ matrix)
        count += 1
    return count / (time.perf_counter() - began)


def _finish(result: torch.Tensor) -> None:
    if result.device.type == "cuda":
        torch.cuda.synchronize(result.device)


def _memory_mib(device: torch.device) -> tuple[int, int]:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total >> 20, free >> 20
    memory = memory_mib()
    return memory.total, memory.available


def interfaces() -> str:
    """The network interfaces that the environment chooses, in words; empty where it chooses none."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
