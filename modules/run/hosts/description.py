"""What a machine says of itself when another one tests it over ssh: its software and its GPUs."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Final

from pydantic import Field

from modules import __version__
from modules.files import FileFault, Record, decode_json, printable, validate_record
from modules.machine import cpu_count, gpu_obstacle, system_hostname, visible_gpus
from modules.machine.host import usable_memory_mib
from modules.run.join.fingerprint import code_listing, digest, package_listing

MARK: Final = "TANDEM-HOST "  # before it on its line may be what a login shell prints without a line end, as a title
_Text = Annotated[str, Field(max_length=300)]


class HostGpu(Record):
    """A GPU that training may use there; its memory in MiB, 0 if the driver does not say."""

    name: _Text
    memory_mib: Annotated[int, Field(ge=0, le=1 << 30)]


class Devices(Record):
    """What a machine trains on: its GPUs, CPU cores, and main memory in MiB, 0 if it does not say."""

    gpus: Annotated[list[HostGpu], Field(max_length=64)]
    obstacle: _Text = ""  # why its torch cannot use them
    cores: Annotated[int, Field(ge=1, le=1 << 16)]
    memory_mib: Annotated[int, Field(ge=0, le=1 << 40)] = 0

    @property
    def named(self) -> str:
        """The GPUs, or the cores of a machine without: "2 x H100 80GB HBM3 (80 GiB)"."""
        if not self.gpus:
            return f"{self.cores} CPU core{'s' * (self.cores != 1)}"
        kinds = Counter((printable(gpu.name, 100).removeprefix("NVIDIA "), gpu.memory_mib) for gpu in self.gpus)
        return ", ".join(f"{count} x {name} ({mib / 1024:.0f} GiB)" for (name, mib), count in kinds.items())


class Description(Devices):
    """A machine's host name, versions, a digest of Tandem's code, and devices."""

    host: _Text
    tandem: _Text
    code: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    packages: Annotated[dict[_Text, _Text], Field(max_length=50)]


def describe_this_machine() -> Description:
    """Queries the driver and reads Tandem's code: takes a tenth of a second."""
    obstacle = gpu_obstacle()
    return Description(
        host=system_hostname()[:300],
        tandem=__version__,
        code=digest(code_listing(), ""),
        packages=package_listing(),
        gpus=[HostGpu(name=gpu.name[:300], memory_mib=gpu.memory_mib) for gpu in visible_gpus()],
        obstacle="" if obstacle is None else printable(obstacle.message, 250),
        cores=cpu_count(),
        memory_mib=usable_memory_mib().total,
    )


def description_line(description: Description) -> str:
    """The line that `find_description` reads."""
    return MARK + json.dumps(description.model_dump())


def find_description(output: str) -> Description | None:
    """The description in what a machine has printed; None if there is none. Raises FileFault if it is damaged."""
    line = next((line for line in output.splitlines() if MARK in line), None)
    if line is None:
        return None
    try:
        return validate_record(Description, decode_json(line.partition(MARK)[2].encode()))
    except ValueError as error:
        raise FileFault(str(error)) from None
