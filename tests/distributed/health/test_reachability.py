"""Whether a silent machine can be reached, and how that shortens the time until it counts as lost."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from modules.distributed.health import heartbeat_monitor
from modules.distributed.health.heartbeat_monitor import HeartbeatMonitor
from modules.distributed.health.watchdog import host_probes
from modules.distributed.startup import host_probe, rendezvous
from modules.distributed.startup.host_probe import HostProbe
from modules.distributed.startup.member import Member
from modules.distributed.startup.rendezvous import JoinedHosts
from modules.run.launch.rank_env import RankEnv
from tests.ports import free_port

NOWHERE = "255.255.255.255"  # the system refuses to connect to the broadcast address at once


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every limit is exceeded immediately."""
    monkeypatch.setattr(host_probe, "UNREACHABLE_AFTER_S", -1.0)
    for name in ("SILENT_AFTER_S", "DEAD_AFTER_UNREACHABLE_S"):
        monkeypatch.setattr(heartbeat_monitor, name, -1.0)


def member(rank: int, machine: str, address: str = "") -> Member:
    return Member(rank, 0, machine, os.getpid(), None, None, machine, address)


def test_a_refused_connection_counts_as_an_answer() -> None:
    assert not HostProbe("127.0.0.1", free_port(), answers=True).is_unreachable()
    probe = HostProbe(NOWHERE, 9, answers=True)
    assert not probe.is_unreachable(), "it has not been probed yet"
    probe.probe()
    assert probe.is_unreachable()


def test_never_answered_is_not_unreachable() -> None:
    probe = HostProbe(NOWHERE, 9)
    probe.probe()
    assert not probe.is_unreachable()


def test_the_time_since_the_last_probe_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may have come back in it: an outage of 8 seconds ended a run on a busy machine."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(host_probe, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda seconds: None))
    monkeypatch.setattr(host_probe, "UNREACHABLE_AFTER_S", 8.0)
    probe = HostProbe(NOWHERE, 9, answers=True)
    monkeypatch.setattr(probe, "start", lambda: None)
    for passed_s, is_unreachable in ((0.0, False), (5.0, False), (3.5, True)):
        clock.now += passed_s
        assert not probe.is_unreachable()
        probe.probe()
        assert probe.is_unreachable() is is_unreachable


def test_an_answer_resets_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = HostProbe("127.0.0.1", free_port(), answers=True)
    monkeypatch.setattr(probe, "_address", NOWHERE)
    probe.probe()
    monkeypatch.setattr(probe, "_address", "127.0.0.1")
    probe.probe()
    assert not probe.is_unreachable()


def test_rank_0_probes_the_others_and_they_its_store() -> None:
    everyone = (member(0, "alpha"), member(1, "alpha"), member(2, "beta", "127.0.0.1"), member(3, "beta", "127.0.0.1"))
    rank_env = RankEnv(0, 0, 4, "127.0.0.1", free_port())
    assert list(host_probes(everyone, rank_env)) == ["beta"]
    assert list(host_probes(everyone, replace(rank_env, rank=1))) == []
    assert list(host_probes(everyone, replace(rank_env, rank=3))) == ["alpha"]


def test_an_unreachable_machine_is_lost_sooner() -> None:
    everyone = (member(0, "alpha"), member(1, "beta"))
    probe = HostProbe(NOWHERE, 9, answers=True)
    probe.probe()
    probing = HeartbeatMonitor(everyone, 0, {"beta": probe})
    not_probing = HeartbeatMonitor(everyone, 0, {})
    for monitor in (probing, not_probing):
        monitor.record(1, 1)
    failure = probing.find_lost_rank(connection_broken=False)
    assert failure is not None
    assert (failure.rank, failure.kind) == (1, "lost")
    assert failure.message == "Host beta (rank 1) sent no heartbeat for 0 s and cannot be reached."
    assert not_probing.find_lost_rank(connection_broken=False) is None
    other = HeartbeatMonitor(everyone, 1, {"alpha": probe})
    lost = other.diagnose_store(1.0, connection_broken=False)
    assert lost is not None
    assert lost.message.endswith("and cannot be reached.")


def test_a_machine_that_refuses_the_store_s_port_has_lost_its_processes() -> None:
    everyone = (member(0, "alpha"), member(1, "beta"))
    probe = HostProbe("127.0.0.1", free_port(), answers=True)
    probe.probe()
    monitor = HeartbeatMonitor(everyone, 1, {"alpha": probe})
    failure = monitor.diagnose_store(1000.0, connection_broken=True)
    assert failure is not None
    assert (failure.rank, failure.kind) == (0, "gone")
    assert failure.message.startswith("Host alpha can be reached, but its processes of this run have ended")


def test_a_host_that_has_joined_and_is_cut_off_while_others_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = JoinedHosts("alpha", free_port())

    def silent(machine: str) -> None:
        probe = hosts._hosts[machine].probe
        assert probe is not None
        probe.probe()
        monkeypatch.setattr(probe, "_address", NOWHERE)
        probe.probe()

    for rank, machine, address in ((1, "alpha", NOWHERE), (3, "beta", "127.0.0.1"), (2, "beta", "127.0.0.1")):
        hosts.record(rank, machine, address, b"1")
    hosts.record(4, "gamma", NOWHERE, b"1")
    hosts.record(5, "delta", "", b"1")
    silent("beta")
    assert hosts.cut_off() is None, "it has just been heard"
    for name in ("SILENT_AFTER_S", "CUT_OFF_AFTER_S"):
        monkeypatch.setattr(rendezvous, name, -1.0)
    found = hosts.cut_off()
    assert found is not None, "gamma has never answered, which a firewall may cause"
    assert found[0] == [2, 3]


def test_time_in_which_this_machine_slept_is_no_silence_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("SILENT_AFTER_S", 3.0), ("DEAD_AFTER_UNREACHABLE_S", 10.0)):
        monkeypatch.setattr(heartbeat_monitor, name, limit)
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(heartbeat_monitor, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monitor = HeartbeatMonitor((member(0, "alpha"), member(1, "beta")), 0, {})
    monitor.expect([1])
    clock.now += 46.0
    monitor.discount(45.0)
    assert monitor.find_lost_rank(connection_broken=False) is None
    clock.now += 25.0
    lost = monitor.find_lost_rank(connection_broken=False)
    assert lost is not None
    assert "Host beta (rank 1) sent no heartbeat for 26 s" in lost.message
