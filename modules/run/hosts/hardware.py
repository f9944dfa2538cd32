"""The devices of each machine of the list as it has last described them, with the date: estimates need no connection.

`hardware/NAME.json` in the user's config folder, one file for each machine, so that several programs may write at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field

from modules.files import FileFault, validate_record
from modules.files.private import read_private_json, write_private_json
from modules.files.user_folder import user_config_folder
from modules.machine import Gpu
from modules.run.hosts.description import Devices
from modules.run.hosts.host import Host


class Hardware(Devices):
    """The devices of a machine, by its name in Tandem; `at` is when it has said so, in seconds since 1970, 0 if it was
    not asked yet. Those of the nodes of a cluster are never known."""

    name: str
    target: str
    port: int | None
    at: Annotated[float, Field(ge=0, le=1 << 40)]
    is_cluster: bool = False

    @property
    def as_gpus(self) -> Sequence[Gpu]:
        """Its GPUs, numbered in their order there, as a launch plan takes them."""
        return [Gpu(number, gpu.name, gpu.memory_mib, "") for number, gpu in enumerate(self.gpus)]

    def __str__(self) -> str:
        """In a sentence: "beta has 2 x H100 (80 GiB), 64 CPU cores and 503 GiB of memory (2026-11-29 13:20)."."""
        if self.is_cluster:
            return f"{self.name} is a Slurm cluster: a job gets what its options ask for."
        if not self.at:
            return f"The devices of {self.name} are not known yet."
        parts = [*([self.named] if self.gpus else []), f"{self.cores} CPU core{'s' * (self.cores != 1)}"]
        parts += [f"{self.memory_mib / 1024:.0f} GiB of memory"] if self.memory_mib else []
        listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
        return f"{self.name} has {listed} ({time.strftime('%Y-%m-%d %H:%M', time.localtime(self.at))})."


def _file(name: str) -> Path:
    return user_config_folder() / "hardware" / f"{name}.json"


def keep_hardware(host: Host, devices: Devices) -> None:
    """Keep what a machine has said of its devices now; a full disk is no error, as it can be asked again."""
    known = devices.model_dump(include=set(Devices.model_fields))
    found = Hardware(**known, name=host.name, target=host.target, port=host.port, at=time.time())
    with suppress(OSError):
        write_private_json(_file(host.name), found.model_dump())


def known_hardware(host: Host) -> Hardware:
    """What the machine has said last, of which `at` is 0 if that was never, or under another address; or if it is the
    login node of a cluster, where no run trains."""
    unknown = Hardware(
        gpus=[], cores=1, name=host.name, target=host.target, port=host.port, at=0, is_cluster=bool(host.slurm)
    )
    if host.slurm:
        return unknown
    try:
        found = validate_record(Hardware, read_private_json(_file(host.name)))
    except (OSError, FileFault):
        return unknown
    return found if (found.name, found.target, found.port) == (host.name, host.target, host.port) else unknown


def forget_hardware(name: str) -> None:
    """Of a machine that is taken off the list."""
    with suppress(OSError):
        _file(name).unlink()
