"""docs/library.md, the guide for programs that use Tandem as a library: every block is run verbatim."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tandem
from tests.hosts import Host, skip_reason, two_hosts
from tests.ports import free_port
from tests.runs import ROOT, environment

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
        file = folder / text.splitlines()[0].removeprefix("# ")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example for Trainer has been started, with torchrun, as the guide says."""
    place = tmp_path_factory.mktemp("trained")
    (place / "examples").symlink_to(ROOT / "examples")
    done = finished(COMMANDS[2], place, place)
    assert done.returncode == 0, done.stdout + done.stderr
    (place / "output.txt").write_text(done.stdout)
    return place


def test_the_programs_are_those_tested_here(folder: Path) -> None:
    files = {file.name for file in folder.glob("*.py")} | {"examples"}
    assert files == {"examples", "notebook.py", "my_training.py", "failing.py", "devices.py"}
    example = (ROOT / "examples" / "library_trainer.py").read_text()
    assert any(kind == "python" and text == example for kind, text in BLOCKS)


def test_programs_of_users_import_tandem_alone() -> None:
    """A project of theirs may have a folder `modules`."""
    texts = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
    imports = re.compile(r"^\s*(?:from|import) (?:app|modules|scripts)\b", re.MULTILINE)
    assert [file.name for file in texts if imports.search(file.read_text(encoding="utf-8"))] == []


def test_every_name_is_in_the_reference() -> None:
    reference = GUIDE.partition("## Reference")[2].partition("## Common mistakes")[0]
    assert [name for name in tandem.__all__ if not re.search(rf"\b{name}\b", reference)] == []


@pytest.mark.slow
def test_the_trainer_trains_under_torchrun(trained: Path) -> None:
    """Both processes print their result, which is the same."""
    output = (trained / "output.txt").read_text()
    said = re.findall(r"^finished: test accuracy (\d+\.\d)%, saved in (.*)$", output, re.MULTILINE)
    assert len(said) == 2
    assert said[0] == said[1]
    assert float(said[0][0]) > 95
    assert (trained / said[0][1] / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_notebook_trains_in_its_own_process(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(folder / "notebook.py"), run_name="notebook")
    assert "finished {'validation_loss': " in capsys.readouterr().out
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_devices_and_speed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(folder / "devices.py"))
    said = capsys.readouterr().out
    parts = (" CPU cores, ", "rank 0 of 1 on ", " ms per batch", "ram_used_mib: mean ", "94% of linear scaling")
    assert [part for part in parts if part not in said] == []


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
    assert programs == ["export", "python", "torchrun", "python", "torchrun", "torchrun", "torchrun"]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS[3:5])
def test_the_program_trains_under_python_and_torchrun(folder: Path, tmp_path: Path, command: str) -> None:
    done = finished(command, folder, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(LAST_LINE % 2, done.stdout), done.stdout
    assert done.stdout.count("epoch ") == 3
    assert (tmp_path / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "two hosts")
def test_the_program_trains_on_two_machines(folder: Path, tmp_path: Path) -> None:
    port = str(free_port())
    with two_hosts() as hosts:
        started = [
            start(host, command, hosts[0], port, folder, tmp_path)
            for host, command in zip(hosts, COMMANDS[5:], strict=True)
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
