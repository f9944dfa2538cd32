"""Launch plans: command lines, environment, ports and addresses."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modules.config import ConfigError, TrainConfig
from modules.machine import Gpu, Route, preferred_addresses
from modules.run import LaunchPlan
from modules.run.launch.environment import network_interfaces
from modules.run.launch.plan import TORCHRUN, TRAIN_SCRIPT, elsewhere, taking_part, where_joined
from modules.run.launch.preview import preview
from modules.run.launch.rank_env import without_rank
from tests.hosts import ROOT, skip_reason
from tests.nvml import A100_MIG, H100, RTX, fake_nvml
from tests.ports import free_port

MULTI: dict[str, Any] = {"enable_multi_gpu": True}
CAN_EXPAND = sys.platform == "linux" and "microsoft" not in platform.release().lower()
EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} if CAN_EXPAND else {}


def gpus(count: int) -> list[Gpu]:
    return [Gpu(index, "GPU", 24_000, f"GPU-{index}") for index in range(count)]


def config(**settings: object) -> TrainConfig:
    return TrainConfig.model_validate({"initial_port": free_port(), **settings})


def plan(count: int = 0, /, *, environment: dict[str, str] | None = None, **settings: object) -> LaunchPlan:
    return LaunchPlan.from_config(
        config(**settings),
        config_path=Path("runs/a b/config.json"),
        run_folder=Path("runs/a b"),
        extra_args=("--resume", "latest"),
        gpus=gpus(count),
        environment=environment or {},
        cores=8,
    )


def test_what_dry_run_shows_of_machines_that_are_started_over_ssh() -> None:
    two: dict[str, Any] = {"num_nodes": 2, "master_addr": "127.0.0.1", **MULTI}
    alone = "\n".join(preview(config(**two), plan(2, **two), ["beta"]))
    assert alone.endswith("Without --dry_run, this machine starts beta over ssh, so no other command is needed.")
    assert "torchrun" not in alone
    three = "\n".join(preview(config(**two), plan(2, **{**two, "num_nodes": 3}), ["beta"]))
    assert "Machine 2:" in three
    assert "it starts beta over ssh and shows a line with which the others join" in three


def test_one_node_command() -> None:
    made = plan(2, **MULTI)
    assert made.argv()[:6] == [
        sys.executable,
        str(TORCHRUN),
        "--nnodes=1",
        "--nproc_per_node=2",
        "--master_addr=127.0.0.1",
        f"--master_port={made.port}",
    ]
    script, *rest = made.argv()[6:]
    assert Path(script).parts[-2:] == ("scripts", "train.py")
    assert rest == [
        *("--config", str(Path("runs/a b/config.json"))),
        *("--run_folder", str(Path("runs/a b"))),
        *("--resume", "latest"),
    ]
    assert (made.backend, made.launcher, made.world_size, made.reasons) == ("nccl", "torchrun", 2, ())
    assert made.ranks() == range(2)


def test_each_node_gets_its_own_command() -> None:
    made = plan(4, num_nodes=3, world_size=12, node_rank=1, master_addr="10.0.0.5", startup_timeout_s=60, **MULTI)
    assert made.world_size == 12
    assert made.ranks() == range(4, 8)
    assert "--node_rank=1" in made.argv()
    assert "--node_rank=2" in made.argv(2)
    assert {"--nnodes=3", "--master_addr=10.0.0.5", "--rdzv_conf=timeout=60"} < set(made.argv(0))
    assert made.reasons == ()


def test_variables_for_other_launchers_are_named() -> None:
    given = {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "29500"}
    said = plan(2, environment=given, **MULTI, initial_port=(port := free_port())).reasons
    assert [each.partition(" in the ")[0] for each in said] == ["MASTER_ADDR=10.0.0.9", "MASTER_PORT=29500"]
    assert said[1].endswith(f"initial_port is {port}")
    assert not plan(1, environment=given).reasons, "one process has no address"


def test_torchruns_options_in_the_environment_are_named_and_kept_from_it() -> None:
    pod = {"PET_NNODES": "2", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "10.0.0.9:29500", "PET_LOG_DIR": "/logs"}
    (said,) = plan(2, environment=pod, **MULTI, initial_port=free_port()).reasons
    assert said.startswith("PET_NNODES, PET_RDZV_BACKEND, PET_RDZV_ENDPOINT in the environment have no effect")
    assert without_rank(pod) == {"PET_LOG_DIR": "/logs"}


def test_machines_with_different_counts() -> None:
    made = plan(4, num_nodes=3, processes_per_node=[1, 2, 4], master_addr="10.0.0.5", **MULTI)
    assert (made.world_size, made.processes_here) == (7, 1)
    assert [made.ranks(node) for node in range(3)] == [range(1), range(1, 3), range(3, 7)]
    assert [f"--nproc_per_node={count}" in made.argv(node) for node, count in enumerate([1, 2, 4])] == [True] * 3


def test_unknown_gpu_counts_of_other_machines() -> None:
    made = plan(4, num_nodes=3, master_addr="10.0.0.5", **MULTI)
    assert (made.world_size, made.ranks()) == (None, range(4))
    assert "known only once all machines have joined" in " ".join(made.reasons)
    with pytest.raises(ValueError, match="known only once all machines have joined"):
        made.ranks(1)
    assert "--nproc_per_node=4" in made.argv()
    assert "--nproc_per_node=gpu" in made.argv(1), "torchrun counts GPUs on each machine"
    assert "--nproc_per_node=1" in plan(0, num_nodes=2, master_addr="10.0.0.5", **MULTI).argv(1)


def test_a_wait_for_machines_is_no_c10d_rendezvous() -> None:
    """torchrun's c10d rendezvous unpickles what anybody puts into its store."""
    made = plan(2, num_nodes=2, on_machine_loss="wait", max_restarts=3, world_size=4, master_addr="zeus", **MULTI)
    for argv in (made.argv(0), made.argv(1)):
        assert "--master_addr=zeus" in argv
        assert not any("rdzv-backend" in word or "c10d" in word or "restarts" in word for word in argv)
    assert "torchrun by hand starts no machine again: its c10d rendezvous, which runs code that anybody" in " ".join(
        made.reasons
    )
    assert "--max-restarts=2" in plan(2, max_restarts=2, **MULTI).argv()
    assert "--max-restarts=2" in plan(2, max_restarts=2, on_machine_loss="wait", **MULTI).argv(), "on one machine"
    alone = plan(2, on_machine_loss="continue", **MULTI)
    assert "on_machine_loss=continue has no effect: num_nodes is 1" in alone.reasons
    whole = plan(2, training_mode="fully_sharded", fsdp_replicate="machines", **MULTI)
    assert "fsdp_replicate=machines has no effect: num_nodes is 1" in whole.reasons
    local = plan(2, local_steps=50, **MULTI)
    assert "local_steps=50 has no effect: num_nodes is 1" in local.reasons
    assert "no effect" not in " ".join(plan(2, **MULTI).reasons)


@pytest.mark.parametrize(
    ("counts", "number", "processes", "node_rank"),
    [([1, 2], 1, (1, 2), 1), ([1, 0, 4], 2, (1, 4), 1), ([2, 0, 0], 0, (2,), 0)],
)
def test_machines_that_take_no_part_leave_no_gap(
    counts: list[int], number: int, processes: tuple[int, ...], node_rank: int
) -> None:
    settings = {**MULTI, "num_nodes": len(counts), "on_machine_loss": "continue", "world_size": 9}
    made = taking_part(config(**settings), counts, number)
    assert (made.num_nodes, made.processes_per_node, made.node_rank) == (len(processes), processes, node_rank)
    assert made.world_size is None
    assert LaunchPlan.from_config(made, config_path="c.json", gpus=[], cores=8).process_counts == processes


def test_machine_0_determines_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.run.launch.plan.preferred_addresses", lambda: ["10.0.0.5", "192.168.0.5"])
    made = plan(4, num_nodes=2, **MULTI)
    assert made.master_addr == "10.0.0.5"
    assert (
        "will connect to 10.0.0.5 (--join takes its other addresses, too: 192.168.0.5); set master_addr"
        in made.reasons[0]
    )
    useless = plan(4, num_nodes=2, master_addr="127.0.0.1", **MULTI)
    assert useless.master_addr == "10.0.0.5"
    assert "set master_addr" not in useless.reasons[0], "it is set"
    assert "master_addr is 127.0.0.1, which only this machine can reach: the other machines" in useless.reasons[0]
    other = plan(4, num_nodes=2, node_rank=1, **MULTI)
    assert other.master_addr == "localhost"
    assert "only this machine can reach" in other.reasons[0]
    assert "--master_addr=[fe80::1]" in plan(4, num_nodes=2, master_addr="fe80::1", **MULTI).argv()


def test_single_and_spawn_need_no_torchrun() -> None:
    assert str(TORCHRUN) not in plan(1).argv()
    spawned = plan(2, use_torchrun=False, **MULTI)
    assert (spawned.launcher, spawned.argv()[1]) == ("spawn", spawned.script_argv[0])
    settings: list[dict[str, Any]] = [{"num_nodes": 2}, {"max_restarts": 1}]
    for setting in settings:
        with pytest.raises(ConfigError, match="turn use_torchrun on"):
            plan(2, use_torchrun=False, **setting, **MULTI)


def test_no_run_folder_argument_without_folder() -> None:
    made = LaunchPlan.from_config(config(), config_path="config.json", gpus=[])
    assert "--run_folder" not in made.argv()


def test_nccl_without_cuda_becomes_gloo() -> None:
    made = plan(0, world_size=2, **MULTI)
    assert made.backend == "gloo"
    assert "NCCL needs a CUDA GPU" in " ".join(made.reasons)
    assert plan(2, distributed_backend="gloo", **MULTI).reasons == ()
    assert plan(0).reasons == (), "one process needs no backend"


def test_environment_respects_the_user() -> None:
    assert plan(4, **MULTI).environment()["OMP_NUM_THREADS"] == "2"
    assert plan(4, **MULTI).environment()["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_VISIBLE_DEVICES" not in plan(4, **MULTI).environment()
    assert "OMP_NUM_THREADS" not in plan(4).environment()
    cards = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
    user = {"OMP_NUM_THREADS": "1", **cards, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    made = plan(4, environment=user, **MULTI)
    assert set(made.environment()) == {"PYTHONFAULTHANDLER", "TORCH_FR_BUFFER_SIZE", *EXPANDABLE}
    said = made.variables.describe()
    assert said[0].startswith("Environment variables set: PYTHONFAULTHANDLER=1 TORCH_FR_BUFFER_SIZE=2000")
    assert said[1].startswith("Kept as you set them: OMP_NUM_THREADS=1")


@pytest.mark.skipif(not EXPANDABLE, reason="CUDA has it on Linux only")
def test_segments_of_gpu_memory_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert EXPANDABLE.items() <= plan(1).environment().items()
    made = plan(2, **MULTI)
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True" in made.variables.describe()[0]
    assert "PYTORCH_ALLOC_CONF" not in made.environment(1 - made.node_rank), "another machine may be unable to"
    child = [sys.executable, "-c", "import os, torch; print(os.environ['PYTORCH_ALLOC_CONF'])"]
    done = subprocess.run(child, env=os.environ | made.environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "expandable_segments:True"
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        kept = plan(2, environment={name: "max_split_size_mb:128"}, **MULTI)
        assert not any("ALLOC_CONF" in each for each in kept.environment())
        assert f"{name}=max_split_size_mb:128" in kept.variables.describe()[1]
    assert not EXPANDABLE.keys() & plan(0).environment().keys(), "without a GPU"
    assert not EXPANDABLE.keys() & plan(2, device="cpu").environment().keys()
    monkeypatch.setattr(platform, "release", lambda: "6.6.87.2-microsoft-standard-WSL2")
    assert not EXPANDABLE.keys() & plan(2).environment().keys()


@pytest.mark.parametrize(("gpu", "expected"), [(RTX, "True"), (RTX | {"virtualization": 2}, "False")])
def test_a_share_of_a_gpu_in_a_virtual_machine_has_segments_as_before(gpu: dict[str, object], expected: str) -> None:
    program = "from modules.machine import can_map_memory, visible_gpus; print(can_map_memory(visible_gpus()))"
    environment = os.environ | fake_nvml(gpu, path=[str(ROOT)])
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (expected if EXPANDABLE else "False")


def test_debug_logs_go_to_the_run_folder() -> None:
    made = plan(2, debug_distributed=True, **MULTI).environment()
    assert made["NCCL_DEBUG"] == "INFO"
    assert Path(made["NCCL_DEBUG_FILE"]) == Path("runs/a b/log").absolute() / "nccl-%h-%p.txt"
    assert (made["TORCH_DISTRIBUTED_DEBUG"], made["TORCH_CPP_LOG_LEVEL"]) == ("INFO", "INFO")
    assert "NCCL_DEBUG" not in plan(2, **MULTI).environment()
    assert "NCCL_DEBUG" not in plan(2, debug_distributed=True).environment(), "one process does not communicate"


def test_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    made = plan(2, **MULTI)
    assert made.backend == "gloo"
    assert made.launcher == "spawn"
    assert "--spawn" in made.argv()
    assert "GLOO_SOCKET_IFNAME" not in made.environment()
    assert 'set "OMP_NUM_THREADS=4" && ' in made.command_line()
    settings: list[dict[str, Any]] = [{"num_nodes": 2}, {"max_restarts": 1}]
    for setting in settings:
        with pytest.raises(ConfigError, match="torchrun does not work on Windows"):
            plan(2, **MULTI, **setting)


@pytest.mark.skipif(sys.platform != "linux", reason="the loopback is called lo only there")
def test_one_node_uses_the_loopback() -> None:
    made = plan(2, **MULTI).environment()
    assert (made["GLOO_SOCKET_IFNAME"], made["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")


def network(monkeypatch: pytest.MonkeyPatch, *names: str) -> dict[str, str]:
    """The variables on a machine with these cards, each up and with an address, whose last one leads to the master."""
    cards = {name: [SimpleNamespace(family=socket.AF_INET, address=f"10.0.{n}.1")] for n, name in enumerate(names)}
    loopback = {"lo": [SimpleNamespace(family=socket.AF_INET, address="127.0.0.1")]}
    monkeypatch.setattr("psutil.net_if_addrs", lambda: loopback | cards)
    monkeypatch.setattr("psutil.net_if_stats", lambda: dict.fromkeys(["lo", *names], SimpleNamespace(isup=True)))
    route = Route(names[-1], f"10.0.{len(names) - 1}.1")
    monkeypatch.setattr("modules.run.launch.environment.route_to_master", lambda master_addr: route)
    return network_interfaces("10.0.0.9")


@pytest.mark.skipif(sys.platform == "win32", reason="gloo takes addresses there")
@pytest.mark.skipif(bool(skip_reason()), reason=skip_reason())
def test_a_loopback_that_is_down_is_named() -> None:
    program = (
        "from modules.config import ConfigError, TrainConfig; from modules.run import LaunchPlan\n"
        "for ranks in (1, 2):\n"
        "    config = TrainConfig(enable_multi_gpu=True, world_size=ranks, concepts=[{'path': '.'}])\n"
        "    try: print(LaunchPlan.from_config(config, config_path='c').world_size)\n"
        "    except ConfigError as error: print(error)"
    )
    argv = ["unshare", "--net", sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    alone, group = done.stdout.splitlines()
    assert alone == "1", done.stderr
    assert "cannot reach each other at 127.0.0.1: Network is unreachable" in group
    assert "ip link set lo up" in group


def test_network_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    # NCCL's manual: without "=", NCCL_SOCKET_IFNAME is the beginning of a name. gloo looks up the name as it is.
    chosen = {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}
    assert network(monkeypatch, "eth10", "eth1") == chosen
    assert network(monkeypatch, "eth1") == {"GLOO_SOCKET_IFNAME": "eth1"}, "NCCL has nothing to choose"
    assert network(monkeypatch, "docker0", "eth1") == {"GLOO_SOCKET_IFNAME": "eth1"}, "NCCL leaves docker0 out itself"


def test_chosen_gpus() -> None:
    made = plan(4, device_ids=[3, 1], **MULTI)
    assert made.world_size == 2
    assert made.environment()["CUDA_VISIBLE_DEVICES"] == "3,1"
    assert plan(4, device_ids=[3]).environment()["CUDA_VISIBLE_DEVICES"] == "3"
    narrower = plan(4, device_ids=[3, 1], environment={"CUDA_VISIBLE_DEVICES": "3,1,0"}, **MULTI)
    assert narrower.environment()["CUDA_VISIBLE_DEVICES"] == "GPU-3,GPU-1"
    with pytest.raises(ConfigError, match="device_ids names GPU 7: choose from 0, 1"):
        plan(2, device_ids=[0, 7], **MULTI)
    with pytest.raises(ConfigError, match="no GPU is visible"):
        plan(0, device_ids=[0])


def test_slices_of_a_gpu_are_devices_with_memory_of_their_own() -> None:
    program = (
        "import json; from modules.config import TrainConfig; from modules.machine import visible_gpus\n"
        "from modules.run import LaunchPlan\n"
        "def plan(**more): return LaunchPlan.from_config(TrainConfig(enable_multi_gpu=True, **more), config_path='c')\n"
        "import modules.run.launch.plan as choices; choices.gpu_obstacle = lambda environment: None\n"
        "made, chosen = plan(), plan(device_ids=[1])\n"
        "print(json.dumps([[[gpu.index, gpu.memory_mib, gpu.uuid] for gpu in visible_gpus()], made.world_size,\n"
        "    made.reasons, chosen.world_size, chosen.environment()['CUDA_VISIBLE_DEVICES']]))"
    )
    visible = {"CUDA_VISIBLE_DEVICES": "MIG-small,MIG-slice"}
    environment = os.environ | fake_nvml(H100, A100_MIG, path=[str(ROOT)]) | visible
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, size, reasons, chosen_size, chosen = json.loads(done.stdout)
    assert found == [[1, 9_856, "MIG-small"], [1, 20_096, "MIG-slice"]]
    assert size == chosen_size == 2
    assert chosen == "MIG-small,MIG-slice"
    assert "distributed_backend=gloo" in " ".join(reasons)


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        made = plan(2, initial_port=taken, **MULTI)
        assert made.port > taken
        assert f"port {made.port} instead of {taken}, which is in use" in made.reasons
        first = plan(2, initial_port=taken, num_nodes=2, master_addr="a", **MULTI)
        assert first.port > taken
        assert f"--master_port={first.port}" in first.argv(1), "every machine gets the same port"
        other_node = plan(2, initial_port=taken, num_nodes=2, node_rank=1, master_addr="a", **MULTI)
        assert other_node.port == taken
        assert plan(2, initial_port=taken).reasons == (), "one process needs no port"


def test_other_machines_run_the_python_of_their_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """.venv may be a link, and Tandem's folder may have been entered through one."""
    (tmp_path / "shared" / "bin").mkdir(parents=True)
    (tmp_path / "tandem").mkdir()
    (tmp_path / "conda").mkdir()
    (tmp_path / "tandem" / ".venv").symlink_to(tmp_path / "shared")
    (tmp_path / "link").symlink_to(tmp_path / "tandem")
    monkeypatch.setattr("modules.run.launch.plan.ROOT", tmp_path / "tandem")
    script = tmp_path / "tandem" / "scripts" / TRAIN_SCRIPT.name

    def named(environment: Path) -> list[str]:
        monkeypatch.setattr(sys, "prefix", str(environment))
        monkeypatch.setattr(sys, "executable", str(environment / "bin" / "python"))
        return elsewhere(script)

    for environment in (tmp_path / "shared", tmp_path / "tandem" / ".venv", tmp_path / "link" / ".venv"):
        assert named(environment) == [".venv/bin/python", "scripts/train.py"]
    assert named(tmp_path / "conda") == ["python", "scripts/train.py"]


@pytest.mark.parametrize(
    ("given", "joined_at", "used", "said"),
    [
        ("localhost", ["10.77.0.1"] * 2, "10.77.0.1", "all machines meet at 10.77.0.1, where the others have joined"),
        ("localhost", ["10.8.0.5", ""], "localhost", ""),
        ("localhost", ["127.0.0.1", "fe80::1%eth0"], "localhost", ""),
        ("localhost", ["10.77.0.1", "10.78.0.1"], "localhost", "beta at 10.77.0.1, gamma at 10.78.0.1. If no group"),
        ("localhost", ["10.8.0.5", "10.78.0.1"], "localhost", "--set master_addr= and its address in that network"),
        ("10.8.0.5", ["10.77.0.1"], "10.8.0.5", "start again here with --set master_addr=10.77.0.1"),
    ],
)
def test_machines_meet_where_they_have_joined(given: str, joined_at: list[str], used: str, said: str) -> None:
    config = TrainConfig(num_nodes=2, enable_multi_gpu=True, master_addr=given)
    changed, note = where_joined(config, "10.8.0.5", dict(zip(("beta", "gamma"), joined_at, strict=False)))
    assert changed.master_addr == used
    assert said in note if said else note == ""


def test_commands_for_a_machine_0_elsewhere_have_nothing_of_this_machine() -> None:
    elsewhere = plan(2, num_nodes=2, master_addr="192.0.2.7", device_ids=[0, 1], **MULTI)
    assert elsewhere.is_elsewhere
    assert any("192.0.2.7, which is no address of this machine" in reason for reason in elsewhere.reasons)
    for node in (0, 1):
        assert "SOCKET_IFNAME" not in elsewhere.command_line(node)
    text = "\n".join(preview(config(num_nodes=2, master_addr="192.0.2.7", **MULTI), elsewhere))
    assert "SOCKET_IFNAME" not in text
    assert not plan(2, num_nodes=2, node_rank=1, master_addr="192.0.2.7", **MULTI).is_elsewhere
    for own in preferred_addresses()[:1]:
        here = plan(2, num_nodes=2, master_addr=own, **MULTI)
        assert not here.is_elsewhere
        assert "GLOO_SOCKET_IFNAME=" in here.command_line(0)
        assert "GLOO_SOCKET_IFNAME=" not in here.command_line(1)
