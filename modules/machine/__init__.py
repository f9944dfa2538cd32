"""What this computer has: GPUs, processors, memory, disk, addresses and ports; never imports torch."""

from modules.machine.devices import Gpu, GpuLoad, gpu_load, visible_gpus
from modules.machine.host import (
    cpu_count,
    free_disk_mib,
    hostname,
    local_addresses,
    memory_mib,
    torch_version,
)
from modules.machine.ports import find_free_port, port_is_free

__all__ = [
    "Gpu",
    "GpuLoad",
    "cpu_count",
    "find_free_port",
    "free_disk_mib",
    "gpu_load",
    "hostname",
    "local_addresses",
    "memory_mib",
    "port_is_free",
    "torch_version",
    "visible_gpus",
]
