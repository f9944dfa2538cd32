"""Links between GPUs as a fake driver reports them: a workstation and a machine with NVSwitches."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from modules.machine import Gpu, Link, driver_version, gpu_health, gpu_links, link_table, without_peer_access

SWITCH, GPU = 2, 0


def gpus(count: int) -> list[Gpu]:
    return [Gpu(index, "RTX", 24576, f"GPU-{index}") for index in range(count)]


@dataclass
class Driver:
    """Answers of NVML: lanes by GPU as (remote PCI address, kind), topology levels and peer states by pair."""

    lanes: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    levels: dict[tuple[int, int], int] = field(default_factory=dict)
    peers: dict[tuple[int, int], int] = field(default_factory=dict)
    throttle: int = 0
    NVML_P2P_STATUS_OK = 0
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=f"00000000:{handle:02X}:00.0".encode())

    def _lane(self, handle: int, lane: int) -> tuple[str, int]:
        try:
            return self.lanes[handle][lane]
        except (KeyError, IndexError):
            raise self.NVMLError("Not Supported") from None

    def nvmlDeviceGetNvLinkState(self, handle: int, lane: int) -> int:  # noqa: N802
        return int(self._lane(handle, lane)[0] != "down")

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, lane: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=self._lane(handle, lane)[0])

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, lane: int) -> int:  # noqa: N802
        return self._lane(handle, lane)[1]

    def nvmlDeviceGetNvLinkVersion(self, handle: int, lane: int) -> int:  # noqa: N802
        self._lane(handle, lane)
        return 4

    def nvmlDeviceGetTopologyCommonAncestor(self, first: int, second: int) -> int:  # noqa: N802
        if (first, second) not in self.levels:
            raise self.NVMLError("Unknown")
        return self.levels[first, second]

    def nvmlDeviceGetP2PStatus(self, first: int, second: int, kind: int) -> int:  # noqa: N802
        assert kind == 0
        if (first, second) not in self.peers:
            raise self.NVMLError("Not Supported")
        return self.peers[first, second]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(free=20 << 30)

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:  # noqa: N802
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return self.throttle

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.65.06"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_workstation_with_one_nvlink_bridge(driver: Driver) -> None:
    to_1, to_0 = ("00000000:01:00.0", GPU), ("00000000:00:00.0", GPU)
    driver.lanes = {0: [to_1, to_1, ("down", GPU), to_1, to_1], 1: [to_0] * 4}
    driver.levels = {(0, 1): 40, (0, 2): 50, (1, 2): 30}
    driver.peers = {(0, 1): 0, (0, 2): 3, (1, 2): 0}
    links = gpu_links(gpus(3))
    assert links == [
        Link(0, 1, "NV4", nvlinks=4, nvlink_version=4, peer_access=True),
        Link(0, 2, "SYS", peer_access=False),
        Link(1, 2, "PHB", peer_access=True),
    ]
    assert without_peer_access(links) == [links[1]]
    assert link_table(links) == [
        "      GPU0  GPU1  GPU2",
        "GPU0  X     NV4   SYS",
        "GPU1  NV4   X     PHB",
        "GPU2  SYS   PHB   X",
    ]


def test_nvswitches_give_every_pair_all_lanes(driver: Driver) -> None:
    driver.lanes = {index: [("00000000:C0:00.0", SWITCH)] * 18 for index in range(4)}
    assert [link.label for link in gpu_links(gpus(4))] == ["NV18"] * 6


@pytest.mark.parametrize(
    ("level", "label"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS"), (None, "?")]
)
def test_labels_are_those_of_nvidia_smi(driver: Driver, level: int | None, label: str) -> None:
    driver.levels = {} if level is None else {(0, 1): level}
    (link,) = gpu_links(gpus(2))
    assert (link.label, link.nvlinks, link.peer_access) == (label, 0, None)


def test_links_of_the_given_gpus_only(driver: Driver) -> None:
    driver.levels = {(1, 3): 20}
    assert [(link.first, link.second) for link in gpu_links([gpus(4)[3], gpus(4)[1]])] == [(1, 3)]


def test_mig_slices_of_one_gpu_have_no_link(driver: Driver) -> None:
    assert gpu_links([Gpu(0, "A (MIG)", 10, "MIG-a"), Gpu(0, "A (MIG)", 10, "MIG-b")]) == []


def test_health(driver: Driver) -> None:
    driver.throttle = 0x40 | 0x04  # 0x04 is the power limit, which is normal under load
    (health,) = gpu_health(gpus(1))
    assert (health.free_mib, health.temperature_c) == (20 * 1024, None)
    assert health.slowdown_reasons == ("temperature (hardware limit)",)
    assert driver_version() == "580.65.06"


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_links(gpus(2)) == []
    assert link_table([]) == []
    assert gpu_health(gpus(1)) == []
    assert driver_version() is None
