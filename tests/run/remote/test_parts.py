"""Runs on several machines of the list: who can join, what each is told, and the part of one that joins."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import pytest

from modules.config import ConfigError, Sample
from modules.run.hosts.description import describe_this_machine
from modules.run.hosts.host import Host
from modules.run.hosts.ssh_command import HostError
from modules.run.join.allowed_paths import check_paths
from modules.run.join.local_settings import check_local_settings
from modules.run.remote.far_messages import receive, send
from modules.run.remote.far_part import FarMachine
from modules.run.remote.parts import (
    check_alike,
    check_places,
    for_machines,
    join_arguments,
    resumed_with,
    together,
)
from tests.conftest import draw_images
from tests.runs import tiny_config

ALPHA = Host.make("alpha", "root@10.0.0.1", "~/.tandem/code", price=2, stop_after=8)
BETA = Host.make("beta", "root@10.0.0.2", "~/.tandem/code", price=1.5, stop_after=5, settings=["device_ids=0"])
# A train.py that fails the first time, and tells what it was given
_JOINS = """import os, sys
print(sys.stdin.readline().strip() == "s" * 32, "s" * 32 in str(dict(os.environ)) + str(sys.argv), sys.argv[1:])
first = os.path.exists("again") or open("again", "w")
sys.exit(0 if first is True else 3)
"""


def say(home: Path, *requests: Mapping[str, object]) -> list[tuple[dict[str, object], bytes]]:
    """The answers in one connection, and their bytes."""
    source, answers = BytesIO(), BytesIO()
    for each in requests:
        send(source, each)
    source.seek(0)
    FarMachine(str(home), source, answers).serve()
    answers.seek(0)
    found = []
    while (received := receive(answers)) is not None:
        found.append((json.loads(received[0]), received[1]))
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Tandem's folder, and a `sleep` that takes no time."""
    say(tmp_path / "home", {"do": "make"})
    (tmp_path / "home" / "code" / "scripts").mkdir(parents=True)
    (tmp_path / "home" / "code" / "scripts" / "train.py").write_text(_JOINS)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sleep").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "sleep").chmod(0o755)
    return tmp_path / "home"


@pytest.mark.skipif(sys.platform == "win32", reason="the other machine has a shell")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a part outlives what has started it
def test_a_part_in_the_run_of_another_machine(home: Path, tmp_path: Path) -> None:
    """The secret is in no argument and no variable; one that fails joins again, if it may."""
    join = {
        "do": "join", "run": "x", "machine": "alpha", "id": "1", "address": "10.0.0.1:12356", "secret": "s" * 32,
        "arguments": ["--set=a=b"], "ends": "0 2 4", "python": sys.executable, "token": "",
        "variables": {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"},
    }  # fmt: skip
    part = {"do": "part", "run": "x", "whole": True}
    (home / "state").mkdir()
    (home / "state" / "x.jobs").write_text("Job 5: of an earlier run of that name")
    assert say(home, join) == [({}, b"")]
    while (found := say(home, part)[0])[0]["is_active"]:
        time.sleep(0.02)
    line = "True False ['--join', '10.0.0.1:12356', '--token_file', '-', '--set=a=b']\n"
    assert found == ({"is_active": False, "code": 0}, f"{line}It joins again.\n{line}".encode())
    assert not (home / "state" / "x.jobs").exists()
    (home / "runs" / "x").mkdir(parents=True)
    assert say(home, {"do": "runs"})[0][0]["runs"][0]["part_of"] == "alpha"  # type: ignore[index]
    for do in ("follow", "results", "command"):
        said = say(home, {"do": do, "run": "x", "command": "stop"})[0][0]["error"]
        assert said == "this machine only takes part in the run x, which is on alpha: ask there"
    assert "a run x is there already" in str(say(home, {**join, "id": "2"})[0][0]["error"])
    assert say(home, {**join, "id": "resume-2", "ends": "all"}) == [({}, b"")]
    while say(home, part)[0][0]["is_active"]:
        time.sleep(0.02)
    assert say(home, {"do": "clean", "run": "x", "all": False})[0] == ({"left": []}, b"")
    assert list((home / "state").iterdir()) == []


def test_only_machine_0_itself_is_reached(home: Path) -> None:
    """Not another program at its address, and not its port when it has gone."""
    reach = {"do": "reach", "address": "127.0.0.1", "word": "a1b2"}
    source, answers = BytesIO(), BytesIO()
    machine = FarMachine(str(home), source, answers)
    machine.do_listen({"ports": [20_000, 20_001], "word": "a1b2"}, b"")
    answers.seek(0)
    received = receive(answers)
    assert received is not None
    ports = json.loads(received[0])["ports"]
    assert len(set(ports)) == 2
    assert say(home, {**reach, "ports": ports}) == [({"fault": ""}, b"")]
    assert (
        say(home, {**reach, "ports": ports, "word": "b2b2"})[0][0]["fault"]
        == f"port {ports[0]}: another program answers"
    )
    assert "port 1: " in str(say(home, {**reach, "ports": [1]})[0][0]["fault"])


def test_the_number_of_machines(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, tmp_path)
    assert for_machines(config, ALPHA, []) is config
    made = for_machines(config, ALPHA, [BETA])
    assert (made.num_nodes, made.enable_multi_gpu) == (2, True)
    for machines in ([], [BETA]):
        with pytest.raises(ConfigError, match="num_nodes is 3, but alpha"):
            for_machines(config.model_copy(update={"num_nodes": 3}), ALPHA, machines)
    with pytest.raises(ConfigError, match="Set num_nodes=1: the option --nodes N"):
        for_machines(made, ALPHA.model_copy(update={"slurm": ["--gpus=2"]}), [])
    assert resumed_with(made, ALPHA, [BETA]) == (made, {})
    assert resumed_with(made, ALPHA, [])[1] == {"set": ["num_nodes=1", "enable_multi_gpu=true"]}
    assert together(ALPHA, [BETA]).price == 3.5
    assert together(ALPHA, [BETA]).stop_after == 5
    assert together(ALPHA, [BETA.model_copy(update={"price": 0.0})]).price == 0, "not known"


def test_machines_that_differ_are_named() -> None:
    here = describe_this_machine()
    other = here.model_copy(update={"packages": {**here.packages, "torch": "1.0"}})
    check_alike(ALPHA, [BETA], {"alpha": here, "beta": here})
    with pytest.raises(HostError, match=r"torch is 1\.0 on beta and .* on alpha"):
        check_alike(ALPHA, [BETA], {"alpha": here, "beta": other})


def test_a_machine_that_joins_has_its_own_paths(tmp_path: Path) -> None:
    """With what it is told, it asks nobody about the config of machine 0, and reads nothing else that this names."""
    (tmp_path / "images").mkdir()
    reference = draw_images(tmp_path / "images", 1) / "00.png"
    config = tiny_config(tmp_path / "images", tmp_path, family="classifier")
    config = config.model_copy(update={"samples": [Sample(prompt="a cat", reference=str(reference))]})
    arguments = join_arguments(config, BETA, "/root/.tandem", trusts_code=False)
    place = f"/root/.tandem/data{tmp_path}/images"
    assert arguments == [
        f"--set=samples.0.reference={place}/00.png",
        f"--set=concepts.0.path={place}",
        "--set=runs_dir=/root/.tandem/runs",
        "--set=cache_dir=/root/.tandem/cache",
        "--set=device_ids=0",
    ]
    own = [each.removeprefix("--set=") for each in arguments]
    check_local_settings(own)
    hostile = config.model_copy(update={"base_model": str(tmp_path)})
    with pytest.raises(ConfigError, match="which nobody has allowed"):
        check_paths(hostile, [each.partition("=")[0] for each in own], "", (), None)


def test_a_file_that_no_machine_can_have_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("")
    options = {"table": str(tmp_path / "table.csv")}
    config = tiny_config(tmp_path, tmp_path, concepts=[], family_options=options)
    check_places(config, [ALPHA, BETA], {"alpha": "/opt/tandem", "beta": "/opt/tandem"})
    assert f"--allow=/opt/tandem/data{tmp_path}/table.csv" in join_arguments(
        config, BETA, "/opt/tandem", trusts_code=True
    )
    with pytest.raises(ConfigError, match=r"family_options\.table names a file, which would be /b/data"):
        check_places(config, [ALPHA, BETA], {"alpha": "/a", "beta": "/b"})
