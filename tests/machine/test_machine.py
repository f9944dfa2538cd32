"""Ports, CPUs, memory and GPUs, with a fake driver."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from modules.machine import (
    GpuMonitor,
    MetricSummary,
    NetworkLoad,
    PortReservations,
    cpu_count,
    device_summary,
    find_free_port,
    free_disk_mib,
    gpu_info,
    gpu_load,
    host,
    hostname,
    local_addresses,
    memory_mib,
    port_is_free,
    visible_gpus,
)
from modules.machine.ports import loopback_fault
from tests.nvml import RTX, fake_nvml
from tests.ports import free_port
from tests.runs import ROOT, environment


def test_port_in_use_is_skipped() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        assert not port_is_free(port)
        assert find_free_port(port) > port
    assert port_is_free(port)


def test_a_reserved_port_is_left_to_its_run() -> None:
    port = find_free_port(free_port())
    with PortReservations() as run, PortReservations() as other:
        assert run.take(port)
        assert run.take(port), "its own"
        assert not other.take(port)
        assert not port_is_free(port)
        assert find_free_port(port, other.take) > port
        with socket.create_server(("127.0.0.1", port)):
            assert not run.take(port), "somebody listens there"
    assert port_is_free(port)
    assert not PortReservations().take(0)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_a_machine_without_127_0_0_1_says_so_in_the_words_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loopback_fault() == ""
    create = socket.create_server
    foreign = "203.0.113.1"  # of no machine: https://www.rfc-editor.org/rfc/rfc5737
    monkeypatch.setattr(socket, "create_server", lambda address: create((foreign, address[1])))
    assert loopback_fault() == os.strerror(errno.EADDRNOTAVAIL)


def test_port_in_use_on_one_interface_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not port_is_free(server.getsockname()[1])


def test_port_in_time_wait_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()
        client.close()
    assert port_is_free(port)


def test_no_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.machine.ports.port_is_free", lambda port: False)
    with pytest.raises(OSError, match="no free TCP port between 12355 and 12454"):
        find_free_port(12355)
    with pytest.raises(OSError, match="between 65530 and 65535"):
        find_free_port(65530)
    assert not port_is_free(0)
    assert not port_is_free(70_000)


def test_this_machine(tmp_path: Path) -> None:
    assert hostname()
    assert "." not in hostname()
    assert cpu_count() >= 1
    assert memory_mib().total >= memory_mib().available > 0
    assert free_disk_mib(tmp_path / "not" / "yet") > 0
    assert all(not address.startswith("127.") for address in local_addresses())


LINUX = {"lo": ("up,loopback,running", "127.0.0.1"), "lora0": ("up,broadcast,running", "10.0.0.7")}
WINDOWS = {"Loopback Pseudo-Interface 1": ("", "127.0.0.1"), "Local Area Connection": ("", "10.0.0.7")}


@pytest.mark.parametrize("cards", [LINUX, WINDOWS])
def test_the_network_is_every_card_but_the_loopback(
    cards: dict[str, tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = NetworkLoad()
    own.read()
    assert {name: value >= 0 for name, value in own.read().items()} == {
        "network_sent_mb_s": True,
        "network_received_mb_s": True,
    }
    sent = dict.fromkeys(cards, 0)
    states = {name: SimpleNamespace(flags=flags) for name, (flags, _) in cards.items()}
    places = {
        name: [SimpleNamespace(address="00:00:5e:00:53:01"), SimpleNamespace(address=a)]
        for name, (_, a) in cards.items()
    }
    monkeypatch.setattr("psutil.net_if_stats", lambda: states)
    monkeypatch.setattr("psutil.net_if_addrs", lambda: places)
    monkeypatch.setattr(
        "psutil.net_io_counters",
        lambda pernic: {name: SimpleNamespace(bytes_sent=each, bytes_recv=0) for name, each in sent.items()},
    )
    clock = SimpleNamespace(monotonic=iter([1.0, 2.0, 3.0]).__next__)  # not that of the process, which others ask, too
    monkeypatch.setattr("modules.machine.process_load.time", clock)
    network = NetworkLoad()
    assert network.read() == {}
    loopback, card = cards
    sent[loopback] = 7_000_000
    assert network.read()["network_sent_mb_s"] == 0
    sent[card] = 5_000_000
    assert network.read()["network_sent_mb_s"] == 5


@pytest.mark.parametrize(("text", "count"), [("150000 100000", 2), ("max 100000", None), ("rubbish", None)])
def test_container_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, count: int | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    assert host._cgroup_quota() == count


class FakeDriver:
    """Three GPUs; the last one does not report its power."""

    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    class NVMLError(Exception):
        pass

    def __init__(self, *, is_present: bool = True) -> None:
        self.is_present = is_present
        self.users = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.is_present:
            raise self.NVMLError("Driver Not Loaded")
        self.users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.users -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        raise self.NVMLError("Not Found")

    def nvmlDeviceGetName(self, handle: int) -> bytes:  # noqa: N802
        return b"RTX"

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{'abc'[handle]}{'abc'[handle]}-1"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=24 << 30, used=1 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=97)

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:  # noqa: N802
        return 61

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:  # noqa: N802
        return 300_000

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: int) -> int:  # noqa: N802
        return 350_000

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return 1980

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return 2100

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return 0x04

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        if handle == 2:
            raise self.NVMLError("Not Supported")
        return 250_500


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("", []),
        ("-1", []),
        ("0,7,1", [0]),
        ("GPU-bb", [1]),
        ("GPU-", []),
        ("1,1", [1]),
        ("MIG-x,MIG-y", [0, 0]),
    ],
)
def test_visible_gpus(driver: FakeDriver, wanted: str | None, indices: list[int]) -> None:
    environment = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}
    found = visible_gpus(environment)
    assert [gpu.index for gpu in found] == indices
    memory_mib = 0 if wanted and "MIG" in wanted else 24 * 1024  # of slices that the driver does not know
    assert all(gpu.memory_mib == memory_mib for gpu in found)
    assert driver.users == 0


def test_load(driver: FakeDriver) -> None:
    first, *_, last = gpu_load(visible_gpus({}))
    assert (first.utilization_percent, first.memory_used_mib, first.temperature_c) == (97, 1024, 61)
    assert first.power_w == pytest.approx(250.5)
    assert last.power_w is None
    assert driver.users == 0


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeDriver(is_present=False))
    assert visible_gpus({}) == []
    assert gpu_load([]) == []
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert visible_gpus({}) == []


def test_gpu_info(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    last, first = gpu_info()
    assert (first.index, first.name, first.uuid) == (0, "RTX", "GPU-aa-1")
    assert (first.memory_total_mib, first.memory_free_mib, first.memory_used_mib) == (24_576, 23_552, 1024)
    assert (first.utilization_percent, first.temperature_c) == (97, 61)
    assert first.power_w == pytest.approx(250.5)
    assert (last.index, last.power_w) == (2, None)


def test_gpu_monitor_gives_mean_and_maximum(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    powers = iter((100_000, 300_000, 200_000))
    monkeypatch.setattr(driver, "nvmlDeviceGetPowerUsage", lambda handle: next(powers) if handle == 0 else 50_000)
    monitor = GpuMonitor()
    records = [monitor.record() for _ in range(3)]
    assert [record["gpu 0 power_w"] for record in records] == [100, 300, 200]
    summary = monitor.summary()
    assert summary["gpu 0 power_w"] == MetricSummary(mean=200, max=300, count=3)
    assert summary["gpu 2 utilization_percent"] == MetricSummary(97, 97, 3)
    assert driver.users == 0


def test_gpu_monitor_without_a_gpu_records_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with GpuMonitor(interval_s=0.01) as monitor:
        while len(monitor.summary()) < 2:  # the thread records both metrics
            time.sleep(0.01)
    summary = monitor.summary()
    assert set(summary) == {"cpu_percent", "ram_used_mib"}
    assert 0 < summary["ram_used_mib"].mean <= summary["ram_used_mib"].max <= memory_mib().total
    with pytest.raises(ValueError, match="interval_s is 0; it must be above 0"):
        GpuMonitor(interval_s=0)


def test_device_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_info() == []
    first, second = device_summary().splitlines()
    assert first.startswith(f"{hostname()}: {cpu_count()} CPU cores, ")
    assert second == "No NVIDIA GPU was found: training runs on the CPU."


def test_device_summary_lists_gpus_and_why_torch_cannot_use_them() -> None:
    program = "from modules.machine import device_summary; print(device_summary())"
    fake = fake_nvml(RTX, path=[str(ROOT)], cuda=11_000)
    done = subprocess.run([sys.executable, "-c", program], env=environment(**fake), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    _, header, row, obstacle = done.stdout.splitlines()
    assert header.split("  ")[0] == "GPU"
    assert row.startswith("0    NVIDIA GeForce RTX 4090  24564")
    assert obstacle.startswith("This machine has")
