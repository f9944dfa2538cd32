"""How the NVIDIA GPUs of this machine are connected to each other, read through NVML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import ModuleType
from typing import Final, Protocol

from modules.machine.devices import Gpu, nvml_text, open_nvml, query_nvml

# nvmlGpuTopologyLevel_t -> label of `nvidia-smi topo -m`
_LEVELS: Final = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_UNKNOWN: Final = "?"
_READ: Final = 0  # NVML_P2P_CAPS_INDEX_READ, which pynvml 13 wrongly declares as a tuple
_SWITCH: Final = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_MAX_NVLINKS: Final = 36

LINK_MEANINGS: Final = {
    "NV#": "NVLink with # lanes (fast)",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU's PCIe host bridge",
    "NODE": "two host bridges of one NUMA node",
    "SYS": "between CPU sockets (slow)",
    _UNKNOWN: "not reported by the driver",
}


@dataclass(frozen=True)
class Link:
    """The connection of two GPUs; `label` is that of `nvidia-smi topo -m`, for example NV4, PIX or SYS."""

    first: int  # index of a Gpu
    second: int
    label: str
    nvlinks: int = 0  # number of lanes
    nvlink_version: int | None = None
    peer_access: bool | None = None  # None if the driver does not report it


def gpu_links(gpus: Sequence[Gpu]) -> list[Link]:
    """The link of each pair of the given GPUs; [] without a driver or with one GPU."""
    indices = sorted({gpu.index for gpu in gpus})  # MIG slices of a GPU share its index
    if len(indices) < 2:
        return []
    with open_nvml() as nvml:
        if nvml is None:
            return []
        handles = {index: query_nvml(nvml, nvml.nvmlDeviceGetHandleByIndex, index) for index in indices}
        readable = [index for index in indices if handles[index] is not None]
        ports = {index: list(_nvlink_ports(nvml, handles[index])) for index in readable}
        return [_link(nvml, first, second, handles, ports) for first, second in combinations(readable, 2)]


def link_table(links: Sequence[Link]) -> list[str]:
    """The topology matrix of `nvidia-smi topo -m` as aligned lines; [] without links."""
    labels = {(link.first, link.second): link.label for link in links}
    indices = sorted({index for pair in labels for index in pair})
    names = [f"GPU{index}" for index in indices]
    if not indices:
        return []
    width = max(len(text) for text in [*names, *labels.values()])
    rows = [["", *names]]
    for name, row in zip(names, indices, strict=True):
        rows.append([name, *("X" if row == other else labels[min(row, other), max(row, other)] for other in indices)])
    return ["  ".join(cell.ljust(width) for cell in row).rstrip() for row in rows]


def without_peer_access(links: Sequence[Link]) -> list[Link]:
    """The links whose GPUs cannot read each other's memory, according to the driver."""
    return [link for link in links if link.peer_access is False]


class _Pci(Protocol):
    """NVML's PCI information of a device."""

    busId: str | bytes  # noqa: N815


@dataclass(frozen=True)
class _Port:
    """One active NVLink lane of a GPU."""

    remote: str  # PCI address of the other end
    leads_to_switch: bool
    version: int | None


def _nvlink_ports(nvml: ModuleType, handle: object) -> Iterator[_Port]:
    for lane in range(_MAX_NVLINKS):
        if not query_nvml(nvml, nvml.nvmlDeviceGetNvLinkState, handle, lane):
            continue
        remote = query_nvml(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, lane)
        kind = query_nvml(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, lane)
        version = query_nvml(nvml, nvml.nvmlDeviceGetNvLinkVersion, handle, lane)
        yield _Port(_address(remote), kind == _SWITCH, version)


def _link(
    nvml: ModuleType, first: int, second: int, handles: Mapping[int, object], ports: Mapping[int, list[_Port]]
) -> Link:
    both = handles[first], handles[second]
    second_address = _address(query_nvml(nvml, nvml.nvmlDeviceGetPciInfo, both[1]))
    direct = [port for port in ports[first] if not port.leads_to_switch and port.remote == second_address]
    # Through NVSwitches, every GPU reaches every other one with all of its lanes.
    switched = [[port for port in ports[index] if port.leads_to_switch] for index in (first, second)]
    lanes = direct or min(switched, key=len)
    level = query_nvml(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, *both)
    status = query_nvml(nvml, nvml.nvmlDeviceGetP2PStatus, *both, _READ)
    return Link(
        first,
        second,
        label=f"NV{len(lanes)}" if lanes else _LEVELS.get(-1 if level is None else level, _UNKNOWN),
        nvlinks=len(lanes),
        nvlink_version=lanes[0].version if lanes else None,
        peer_access=None if status is None else status == nvml.NVML_P2P_STATUS_OK,
    )


def _address(pci: _Pci | None) -> str:
    return "" if pci is None else nvml_text(pci.busId).lower()
