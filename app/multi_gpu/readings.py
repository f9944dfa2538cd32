"""What the window shows of the GPUs: asked off the main thread, a second apart."""

from __future__ import annotations

from dataclasses import dataclass

from modules.machine import Gpu, GpuLoad, Link, gpu_links, gpu_load, visible_gpus


@dataclass(frozen=True)
class Reading:
    """The GPUs that a run may use, with what each is doing now."""

    gpus: tuple[Gpu, ...] = ()
    loads: tuple[GpuLoad, ...] = ()


def read_gpus() -> Reading:
    """Ask the driver; some tens of milliseconds."""
    gpus = visible_gpus()
    return Reading(tuple(gpus), tuple(gpu_load(gpus)))


def read_links(reading: Reading) -> list[Link]:
    """How the GPUs are wired to each other; [] where there are fewer than two."""
    return gpu_links(reading.gpus)
