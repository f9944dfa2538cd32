"""A run on one machine listens on the loopback interface alone; a stranger who reaches its store changes nothing."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from torch._C._distributed_c10d import TCPStore

from modules.config import TrainConfig
from modules.run import Failure, RunFolder
from tests.end_to_end.conftest import TrainingProcess
from tests.ports import free_port
from tests.runs import group_settings, same_state, tiny_config

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

STEPS = 60
SECRET = "TANDEM_STORE_SECRET"


def config_of(images: Path, place: Path, name: str) -> TrainConfig:
    port = free_port()
    return tiny_config(
        images, place, run_name=name, max_steps=STEPS, epochs=1000,
        family_options={"slow_step_s": 0.2, "slow_until": f"|{place}/fast"},
        backup_every="30 steps", **group_settings(2, port),
    )  # fmt: skip


def listening(training: TrainingProcess) -> dict[str, set[str]]:
    """The addresses on which each process of the run listens."""
    found: dict[str, set[str]] = {}
    for process in training.processes():
        addresses = {each.laddr.ip for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN}
        found[f"{process.pid} {' '.join(process.cmdline()[:4])}"] = addresses
    return found


def attack(port: int, victim: Path) -> None:
    """What a program can write that knows Tandem, but not the secret of the run; it may list the names."""
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=10))
    values = {
        "failure": json.dumps(asdict(Failure(1, "evil", "stopped", "Nothing works."))),
        "heartbeat/1": json.dumps({"number": 1, "waits_s": 1e6, "has_left": True, "frozen_s": 1e6}),
        "snapshot/1": "[[[[",
        "snapshots": "",
        "broken": "",
        "readings/1": json.dumps({"0": {"ram_used_mib": -1.0}}),
    }
    unlisted = {
        **{f"barrier/{number}/decision": "stopped by a stranger" for number in range(100)},
        **{f"barrier/{number}/backup/1": json.dumps({"name": str(victim)}) for number in range(100)},
        **{f"meeting/{number}/backup/1": json.dumps({"name": str(victim)}) for number in range(100)},
        "run_folder": json.dumps({"path": str(victim)}),
        "hello/1": json.dumps({"nonce": "0" * 32, "member": {"rank": 1}}),
        "gave_up": "by a stranger",
    }
    listed = store.list_keys()
    places = {key.partition("heartbeat/")[0] for key in listed if "heartbeat/" in key}
    assert places, "the names can be listed"
    for place in places:
        for key, value in values.items():
            store.set(place + key, value)
    for place in ("", "tandem/", "group/"):
        for key, value in {**values, **unlisted}.items():
            store.set(place + key, value)


def test_only_the_loopback_and_only_its_ranks(
    start: Callable[..., TrainingProcess], images: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "manifest.json").write_text("{}")
    alone = start(config_of(images, tmp_path / "a", "alone"), "--no_torchrun")
    assert_only_loopback(alone)
    attacked = start(config_of(images, tmp_path / "b", "attacked"))  # while the other trains on
    assert_only_loopback(attacked)
    processes = attacked.processes()
    (secret,) = {each.environ().get(SECRET, "") for each in processes} - {""}
    assert not any(secret in word for each in processes for word in each.cmdline()), "which all can read"
    attack(port_of(attacked.run.folder), victim)
    for place, each in (("a", alone), ("b", attacked)):
        (tmp_path / place / "fast").touch()
        assert_finished(each)
    assert attacked.run.events("error") == []
    assert (victim / "manifest.json").exists()
    assert same_state(alone.run.state, attacked.run.state)
    assert len(secret) >= 32
    written = [file for file in attacked.run.folder.path.rglob("*") if file.is_file()]
    assert not any(secret.encode() in file.read_bytes() for file in written), "the secret is in no file of the run"


def assert_only_loopback(training: TrainingProcess) -> None:
    training.wait_for(lambda: len(training.run.events("step")) >= 3, "step 3", within_s=180)
    addresses = listening(training)
    assert sum(bool(found) for found in addresses.values()) >= 3, "two ranks and the launcher's store listen"
    outside = {who: found for who, found in addresses.items() if not all(map(is_loopback, found))}
    assert outside == {}


def assert_finished(training: TrainingProcess) -> None:
    code, output = training.wait(within_s=180)
    assert code == 0, output
    assert "Traceback" not in output


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback


def port_of(folder: RunFolder) -> int:
    """The port of the store, as torchrun was told."""
    log = folder.launcher_log.read_text()
    return int(log.partition("--master_port=")[2].split()[0])
