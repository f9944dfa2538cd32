"""docs/library.md, the guide for your own training function: every block is run verbatim."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from modules.distributed import GroupError, is_main_process, main_process_first, mean_over_ranks, setup_distributed
from tests.hosts import Host, skip_reason, two_hosts
from tests.ports import free_port
from tests.runs import LAUNCHER_VARIABLES, ROOT, environment

GUIDE = (ROOT / "docs" / "library.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE, re.DOTALL)
COMMANDS = [text.strip() for kind, text in BLOCKS if kind == "sh"]
LAST_LINE = r"epoch 3: loss \d+\.\d{4} on %d processes\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide's programs under the names in their first lines."""
    folder = tmp_path_factory.mktemp("guide")
    programs = [text for kind, text in BLOCKS if kind == "python"]
    for text in programs:
        (folder / text.splitlines()[0].removeprefix("# ")).write_text(text)
    assert {file.name for file in folder.iterdir()} == {"my_training.py", "failing.py"}
    return folder


def argv(command: str) -> list[str]:
    """A command of the guide, with this Python."""
    program, *rest = shlex.split(command)
    return [sys.executable, *(["-m", "torch.distributed.run"] if program == "torchrun" else []), *rest]


def variables(folder: Path) -> dict[str, str]:
    return environment(PYTHONPATH=str(ROOT), MY_FOLDER=str(folder), PYTHONWARNINGS="ignore")


def finished(command: str, folder: Path, into: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv(command), cwd=folder, env=variables(into), capture_output=True, text=True, timeout=120, check=False
    )


def test_the_guide_has_the_commands_tested_here() -> None:
    programs = [command.split()[0] for command in COMMANDS]
    assert programs == ["export", "python", "torchrun", "torchrun", "torchrun"]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS[1:3])
def test_the_program_trains_under_python_and_torchrun(folder: Path, tmp_path: Path, command: str) -> None:
    done = finished(command, folder, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(LAST_LINE % 2, done.stdout), done.stdout
    assert done.stdout.count("epoch ") == 3
    assert (tmp_path / "model.pt").is_file()


@pytest.mark.slow
@pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "two hosts")
def test_the_program_trains_on_two_machines(folder: Path, tmp_path: Path) -> None:
    port = str(free_port())
    with two_hosts() as hosts:
        started = [
            start(host, command, hosts[0], port, folder, tmp_path)
            for host, command in zip(hosts, COMMANDS[3:], strict=True)
        ]
        said = [process.communicate(timeout=150)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert re.search(LAST_LINE % 4, said[0]), said
    assert "epoch" not in said[1]


def start(host: Host, command: str, first: Host, port: str, folder: Path, into: Path) -> subprocess.Popen[str]:
    """A command of the guide on one of the hosts, with these hosts' address and a free port."""
    here = command.replace("192.168.1.10", first.address).replace("29500", port).replace("my_training", "here")
    (folder / "here.py").write_text((folder / "my_training.py").read_text())
    words = [str(folder / word) if word.endswith(".py") else word for word in argv(here)]
    return host.start(words, {**variables(into), "GLOO_SOCKET_IFNAME": "cable"})


@pytest.mark.slow
def test_a_failure_is_reported_as_documented(folder: Path, tmp_path: Path) -> None:
    done = finished("python failing.py", folder, tmp_path)
    said = re.search(r"prints `(.*?)`", GUIDE)
    assert said is not None
    assert done.stdout.strip() == said[1]


def test_a_single_process_is_the_main_process() -> None:
    done: list[float] = []
    main_process_first(lambda: done.append(time.time()))
    assert len(done) == 1
    assert is_main_process()
    assert mean_over_ranks(2.5, weight=3) == 2.5
    with pytest.raises(ValueError, match="no rank gave a weight above 0"):
        mean_over_ranks(1.0, weight=0)


def test_setup_without_a_launcher_explains_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*LAUNCHER_VARIABLES, *(name for name in os.environ if name.startswith("SLURM"))):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(GroupError, match="neither RANK and WORLD_SIZE nor srun's variables are set"):
        setup_distributed()
