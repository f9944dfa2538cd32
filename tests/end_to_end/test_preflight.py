"""scripts/preflight.py as a person starts it: alone, under torchrun, on two hosts, and with something broken."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from modules.config import save_config
from modules.run.preflight_report.report import Cell, PreflightReport
from tests.hosts import Host, skip_reason, two_hosts
from tests.ports import free_port
from tests.runs import ROOT, environment, tiny_config

pytestmark = [pytest.mark.slow, pytest.mark.end_to_end]

PREFLIGHT = str(ROOT / "scripts" / "preflight.py")
needs_hosts = pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "never")
HANGS_AFTER_S = 150


@pytest.fixture
def config(images: Path, tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    save_config(tiny_config(images, tmp_path), file)
    return file


def cells(file: Path) -> list[Cell]:
    return list(PreflightReport.parse(file.read_text()).cells)


def by_check(found: list[Cell]) -> dict[str, str]:
    """The worst colour of each check."""
    order = ["grey", "green", "yellow", "red"]
    worst: dict[str, str] = {}
    for cell in found:
        worst[cell.check] = max(worst.get(cell.check, "grey"), cell.colour, key=order.index)
    return worst


def run(argv: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=HANGS_AFTER_S, check=False, env=environment(**variables)
    )


def test_alone_with_two_processes_and_all_tests(config: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    argv = [sys.executable, PREFLIGHT, "--config", str(config), "--set", "world_size=2", "--test", "all"]
    done = run([*argv, "--json", str(result)], COLUMNS="80")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("Ready to train.")
    table = done.stdout[done.stdout.index("Preflight of 2 processes") :]
    assert all(len(line) <= 80 for line in table.splitlines())
    assert by_check(cells(result)) == {
        "group": "green",
        "versions": "green",
        "ports": "grey",
        "all-reduce": "green",
        "pairs": "green",
        "GPUs": "grey",
        "speed": "grey",
        "disk runs_dir": "green",
        "disk cache_dir": "green",
        "images": "green",
        "loader": "green",
    }
    data = json.loads(result.read_text())
    assert (data["verdict"], data["exit_code"], data["complete"]) == ("Ready to train.", 0, True)
    found = next(cell["value"] for cell in data["cells"] if cell["check"] == "images")
    assert found == "41 images (82 files with captions and masks)"
    assert not (tmp_path / "cache").exists()  # the loader's small cache is gone, and the real one not begun
    assert not list(tmp_path.glob(".tandem-preflight-*"))


def test_under_torchrun_a_red_cell_makes_it_fail(config: Path, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    missing = ["--set", f"concepts.0.path={tmp_path / 'nowhere'}"]
    done = run([*torchrun, PREFLIGHT, "--config", str(config), *missing])
    assert done.returncode != 0
    assert "NOT ready: images" in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stdout
    assert done.stdout.count("Preflight of 2 processes") == 1


def test_bad_settings_are_one_sentence() -> None:
    done = run([sys.executable, PREFLIGHT, "--set", "world_size=0"])
    assert done.returncode == 2
    assert "Preflight did not start: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_killed_process_is_a_red_cell(config: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    argv = [sys.executable, PREFLIGHT, "--test", "all", "--set", "world_size=2", "--json", str(result)]
    started = subprocess.Popen(
        [*argv, "--patience", "8"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    with ended(started):
        wait_until(lambda: "ports" in by_check(partial(result)), started)
        victim = next(child for child in psutil.Process(started.pid).children() if child.environ().get("RANK") == "1")
        victim.send_signal(signal.SIGKILL)
        out, error = started.communicate(timeout=HANGS_AFTER_S)
    assert started.returncode == 3, out + error
    assert "rank 1" in out
    assert "was killed (signal SIGKILL)" in " ".join(out.split())
    assert "Traceback" not in out + error
    assert by_check(cells(result))["disk runs_dir"] == "green"  # who is alive is checked on


def test_a_signal_ends_it_with_its_processes(config: Path, tmp_path: Path) -> None:
    """test_hosts has Ctrl-C."""
    result = tmp_path / "result.json"
    argv = [sys.executable, PREFLIGHT, "--config", str(config), "--test", "all", "--json", str(result)]
    started = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    with ended(started):
        wait_until(lambda: "group" in by_check(partial(result)), started)
        ranks = psutil.Process(started.pid).children(recursive=True)
        assert ranks
        started.terminate()
        _, error = started.communicate(timeout=HANGS_AFTER_S)
    assert started.returncode == 143, error
    assert error.splitlines()[-1] == "Stopped before all was checked."
    assert not any(rank.is_running() for rank in ranks)


def test_a_rank_that_waits_for_others_can_be_ended(tmp_path: Path) -> None:
    waits = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": str(free_port())}
    argv = [sys.executable, PREFLIGHT]
    rank = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**waits))
    with rank, ended(rank):
        assert rank.stdout is not None
        assert any("Waiting for rank 1" in line for line in rank.stdout), "it ended before"
        rank.terminate()
        assert rank.wait(HANGS_AFTER_S) == -signal.SIGTERM


def starts(
    hosts: tuple[Host, Host], folder: Path, *flags: str, of_beta: tuple[str, ...] = ()
) -> list[subprocess.Popen[str]]:
    """The command on both hosts, with a JSON file each."""
    group = ["--set", "num_nodes=2", "--set", "processes_per_node=[1,1]", "--set", f"master_addr={hosts[0].address}"]
    return [
        host.start(
            [
                *(sys.executable, PREFLIGHT, *group, "--set", f"node_rank={number}", *flags),
                *("--json", str(folder / f"{host.name}.json"), *(of_beta if number else ())),
            ],
            environment(),
        )
        for number, host in enumerate(hosts)
    ]


@needs_hosts
def test_torchrun_by_hand_on_two_hosts_finds_the_network_cards_and_a_slow_cable(config: Path, tmp_path: Path) -> None:
    """Nothing there resolves a host's own name to its address on the cable; and both have the same name."""
    with two_hosts(rate="100mbit") as hosts:
        meet = ["--nnodes=2", "--nproc_per_node=1", f"--master_addr={hosts[0].address}", "--master_port=29611"]
        test = [PREFLIGHT, "--config", str(config), "--json", str(tmp_path / "report.json")]
        both = [
            host.start(
                [sys.executable, "-m", "torch.distributed.run", *meet, f"--node_rank={number}", *test], environment()
            )
            for number, host in enumerate(replace(each, name="twin") for each in hosts)
        ]
        output = [each.communicate(timeout=HANGS_AFTER_S)[0] for each in both]
    assert [each.returncode for each in both] == [0, 0], output
    twins = [f"rank {rank} on twin ({host.address})" for rank, host in enumerate(hosts)]
    assert all(f"{' and '.join(twins)}; formed in" in " ".join(text.split()) for text in output)
    found = cells(tmp_path / "report.json")
    assert by_check(found) == {
        "group": "green",
        "versions": "green",
        "clocks": "green",
        "ports": "green",
        "all-reduce": "green",
        "pairs": "yellow",
        "GPUs": "grey",
        "speed": "grey",
        "disk runs_dir": "green",
        "disk cache_dir": "green",
        "images": "green",
        "loader": "grey",
    }
    (pair,) = [cell for cell in found if cell.check == "pairs"]
    shown = pair.value.split("at least ")[1].split(" MB/s")[0]
    assert 5 < float(shown) < 14  # 100 Mbit are 12.5 MB, and a burst
    assert any(cell.value == "one folder, shared by all hosts" for cell in found)
    assert all(text.rstrip().endswith("Ready to train (1 note).") for text in output)  # both hosts show the table


@needs_hosts
def test_two_hosts_that_differ_and_then_disconnect(config: Path, images: Path, tmp_path: Path) -> None:
    others = shutil.copytree(images, tmp_path / "others")
    (others / "03.txt").write_text("another caption of another length")
    differ = ("--set", f"concepts.0.path={others}", "--set", "epochs=7", "--set", f"cache_dir={tmp_path / 'own'}")
    (tmp_path / "own").mkdir()
    with two_hosts() as hosts:
        flags = ("--config", str(config), "--patience", "6", "--test", "all")
        both = starts(hosts, tmp_path, *flags, of_beta=differ)
        wait_until(lambda: "images" in by_check(partial(tmp_path / "alpha.json")), both[0])
        hosts[0].unplug()
        output = [each.communicate(timeout=HANGS_AFTER_S)[0] for each in both]
    assert [each.returncode for each in both] == [3, 3], output
    assert "Traceback" not in "".join(output)
    found = cells(tmp_path / "alpha.json")
    red = {cell.check: cell for cell in found if cell.colour == "red"}
    assert (red["versions"].where, "settings differ from alpha: epochs" in red["versions"].value) == ("beta", True)
    assert (red["images"].where, "03.txt" in red["images"].value) == ("beta", True)
    assert (red["loader"].where, "did not answer within" in red["loader"].value) == ("rank 1 on beta", True)
    assert any(c.where == "beta" and "has its own folder" in c.value for c in found if c.check == "disk cache_dir")
    assert "can no longer be reached" in " ".join(output[1].split())


@needs_hosts
def test_a_host_that_never_joins_is_named(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        hosts[0].unplug()
        both = starts(hosts, tmp_path, "--wait", "8")
        output = [" ".join(each.communicate(timeout=HANGS_AFTER_S)[0].split()) for each in both]
    assert [each.returncode for each in both] == [3, 3], output
    assert "rank 1 (machine 1) did not join; present: rank 0 on alpha" in output[0]
    assert f"rank 0 at {hosts[0].address}:12355 did not join" in output[1]
    assert "present: rank 1 on beta" in output[1]
    assert all("NOT ready: group" in text and "Traceback" not in text for text in output)


def partial(result: Path) -> list[Cell]:
    """What is known so far."""
    return cells(result) if result.exists() else []


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + HANGS_AFTER_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill what still runs after a failed test."""
    try:
        yield
    finally:
        for child in [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []:
            os.kill(child.pid, signal.SIGKILL)
        process.kill()
