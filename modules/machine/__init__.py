"""What this machine has: GPUs, CPUs, memory, disk, addresses and ports. Never imports torch."""

from modules.machine.devices import Gpu, can_map_memory, installed_gpus, mig_device, visible_gpus
from modules.machine.gpu_info import GpuInfo, GpuMonitor, MetricSummary, device_summary, gpu_info
from modules.machine.gpu_load import GpuLoad, gpu_load, spills_to_host
from modules.machine.health import GpuHealth, driver_version, gpu_health
from modules.machine.host import (
    cpu_count,
    distinct_names,
    free_disk_mib,
    hostname,
    hostname_variable,
    local_addresses,
    machine_id,
    memory_mib,
    process_start,
    set_hostname,
    system_hostname,
)
from modules.machine.links import Link, gpu_links, link_table, without_peer_access
from modules.machine.ports import PortReservations, find_free_port, port_is_free
from modules.machine.process_load import NetworkLoad, ProcessLoad
from modules.machine.routes import (
    Route,
    addresses_of,
    is_loopback_name,
    is_own_address,
    network_cards,
    preferred_addresses,
    route_to,
    route_to_master,
)
from modules.machine.torch_build import gpu_obstacle

__all__ = [
    "Gpu",
    "GpuHealth",
    "GpuInfo",
    "GpuLoad",
    "GpuMonitor",
    "Link",
    "MetricSummary",
    "NetworkLoad",
    "PortReservations",
    "ProcessLoad",
    "Route",
    "addresses_of",
    "can_map_memory",
    "cpu_count",
    "device_summary",
    "distinct_names",
    "driver_version",
    "find_free_port",
    "free_disk_mib",
    "gpu_health",
    "gpu_info",
    "gpu_links",
    "gpu_load",
    "gpu_obstacle",
    "hostname",
    "hostname_variable",
    "installed_gpus",
    "is_loopback_name",
    "is_own_address",
    "link_table",
    "local_addresses",
    "machine_id",
    "memory_mib",
    "mig_device",
    "network_cards",
    "port_is_free",
    "preferred_addresses",
    "process_start",
    "route_to",
    "route_to_master",
    "set_hostname",
    "spills_to_host",
    "system_hostname",
    "visible_gpus",
    "without_peer_access",
]
