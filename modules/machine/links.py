"""How the NVIDIA GPUs of this machine are wired to each other, asked of the driver through NVML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import ModuleType
from typing import Final, Protocol

from modules.machine.devices import Gpu, ask_driver, driver_text, open_nvml

# nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`.
_LEVELS: Final = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_UNKNOWN: Final = "?"
_READ: Final = 0  # NVML_P2P_CAPS_INDEX_READ, which pynvml 13 declares as a tuple by mistake
_SWITCH: Final = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_MOST_NVLINKS: Final = 36

MEANINGS: Final = {
    "NV#": "NVLink, # lanes of it: the fast way",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the processor's PCIe bridge",
    "NODE": "two bridges of one processor",
    "SYS": "from one processor to another: the slow way",
    _UNKNOWN: "the driver does not say",
}


@dataclass(frozen=True)
class Link:
    """The way between two GPUs; `label` is that of `nvidia-smi topo -m`, such as NV4, PIX or SYS."""

    first: int
    second: int
    label: str
    nvlinks: int = 0
    nvlink_version: int | None = None
    peer_access: bool | None = None  # None where the driver does not say


def gpu_links(gpus: Sequence[Gpu]) -> list[Link]:
    """The link of every pair of the given GPUs; [] without a driver or with one GPU."""
    indices = sorted({gpu.index for gpu in gpus})  # slices of one GPU share its number
    if len(indices) < 2:
        return []
    with open_nvml() as nvml:
        if nvml is None:
            return []
        ports = {index: list(_nvlink_ports(nvml, index)) for index in indices}
        return [_link(nvml, first, second, ports) for first, second in combinations(indices, 2)]


def link_table(links: Sequence[Link]) -> list[str]:
    """The matrix as aligned lines, as `nvidia-smi topo -m` shows it; [] without links."""
    labels = {(link.first, link.second): link.label for link in links}
    indices = sorted({index for pair in labels for index in pair})
    names = [f"GPU{index}" for index in indices]
    if not indices:
        return []
    width = max(len(text) for text in [*names, *labels.values()])
    rows = [["", *names]]
    for name, one in zip(names, indices, strict=True):
        rows.append([name, *("X" if one == other else labels[min(one, other), max(one, other)] for other in indices)])
    return ["  ".join(cell.ljust(width) for cell in row).rstrip() for row in rows]


def without_peer_access(links: Sequence[Link]) -> list[Link]:
    """Those of which the driver says that one GPU cannot read the other's memory."""
    return [link for link in links if link.peer_access is False]


class _Pci(Protocol):
    """What NVML says of a place on the PCI bus."""

    busId: str | bytes  # noqa: N815


@dataclass(frozen=True)
class _Port:
    """One NVLink lane of a GPU that is in use."""

    remote: str  # PCI address of what it leads to
    leads_to_switch: bool
    version: int | None


def _nvlink_ports(nvml: ModuleType, index: int) -> Iterator[_Port]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    for lane in range(_MOST_NVLINKS):
        if not ask_driver(nvml, nvml.nvmlDeviceGetNvLinkState, handle, lane):
            continue
        remote = ask_driver(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, lane)
        kind = ask_driver(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, lane)
        version = ask_driver(nvml, nvml.nvmlDeviceGetNvLinkVersion, handle, lane)
        yield _Port(_address(remote), kind == _SWITCH, version)


def _link(nvml: ModuleType, first: int, second: int, ports: dict[int, list[_Port]]) -> Link:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in (first, second)]
    there = _address(ask_driver(nvml, nvml.nvmlDeviceGetPciInfo, handles[1]))
    direct = [port for port in ports[first] if not port.leads_to_switch and port.remote == there]
    # Through NVSwitches every GPU reaches every other with all of its lanes.
    switched = [[port for port in ports[index] if port.leads_to_switch] for index in (first, second)]
    lanes = direct or min(switched, key=len)
    level = ask_driver(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, *handles)
    status = ask_driver(nvml, nvml.nvmlDeviceGetP2PStatus, *handles, _READ)
    return Link(
        first,
        second,
        label=f"NV{len(lanes)}" if lanes else _LEVELS.get(-1 if level is None else level, _UNKNOWN),
        nvlinks=len(lanes),
        nvlink_version=lanes[0].version if lanes else None,
        peer_access=None if status is None else status == nvml.NVML_P2P_STATUS_OK,
    )


def _address(pci: _Pci | None) -> str:
    return "" if pci is None else driver_text(pci.busId).lower()
