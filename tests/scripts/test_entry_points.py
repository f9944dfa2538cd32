"""Every program in scripts/ starts by its path, from any folder, and as a command of `tandem`."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from modules import ROOT, __version__
from modules.run.join.join_token import JOIN_TOKEN
from modules.run.supervise import signals
from scripts import train
from scripts.common import require_values
from tandem.commands import COMMANDS, help_text
from tests.hosts import skip_reason

SCRIPTS = ROOT / "scripts"
MODULES = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}
PROGRAMS = sorted(file for file in SCRIPTS.glob("*.py") if '__name__ == "__main__"' in file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_shows_its_help(program: Path, tmp_path: Path) -> None:
    # PYTHONPATH finds the packages but reads no .pth file, so only the program itself can find `modules`.
    python: str = getattr(sys, "_base_executable", sys.executable)
    environment = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}
    command = [python, str(program), "--help"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
    assert done.stderr == ""


@pytest.mark.parametrize("given", ["--config=--", "-o--", "-o=--"])
def test_two_dashes_are_no_value(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """argparse would make an empty list of them."""
    monkeypatch.setattr(sys, "argv", ["program", "--", given])
    require_values()
    monkeypatch.setattr(sys, "argv", ["program", "--all", given])
    with pytest.raises(SystemExit, match="2"):
        require_values()
    assert capsys.readouterr().err == f"{given[:-2].rstrip('=')} is '--', which is no value.\n"


@pytest.fixture
def tandem() -> Callable[[list[str]], int]:
    """The one console command."""
    ((name, target),) = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"].items()
    main: Callable[[list[str]], int] = EntryPoint(name, target, "console_scripts").load()
    return main


@pytest.mark.parametrize("command", sorted(MODULES))
def test_every_command_prints_its_version(
    command: str, tandem: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        tandem([command, "--version"])
    assert exited.value.code == 0
    assert capsys.readouterr().out == f"Tandem {__version__}\n"


def test_tandem_itself_shows_its_commands_and_version(
    tandem: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tandem(["--version"]) == 0
    assert tandem(["--help"]) == 0
    assert capsys.readouterr().out == f"Tandem {__version__}\n{help_text()}\n"
    assert [name for name in MODULES if f"\n  {name} " not in help_text()] == []


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("trian", "There is no command 'trian'; did you mean train? `tandem --help` lists all commands.\n"),
        ("run_queue", "There is no command 'run_queue'; did you mean queue? `tandem --help` lists all commands.\n"),
        ("cats.yaml", "There is no command 'cats.yaml'. `tandem --help` lists all commands.\n"),
    ],
)
def test_an_unknown_command_gets_the_nearest_names(
    typed: str, answer: str, tandem: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tandem([typed]) == 2
    assert capsys.readouterr().err == answer


def test_options_alone_are_those_of_the_window(
    tandem: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tandem(["--fullscreen"])
    assert "tandem: error: unrecognized arguments: --fullscreen" in capsys.readouterr().err


def test_a_command_is_the_program_but_for_its_name(tmp_path: Path) -> None:
    """Also in a project that has folders named as Tandem's packages."""
    for name in ("app", "modules", "scripts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the project has its own')")
    helps = []
    for program in (["-m", "tandem", "train"], [str(SCRIPTS / "train.py")]):
        done = subprocess.run(
            [sys.executable, *program, "--help"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "999"},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr
        helps.append(done.stdout)
    assert helps[0].startswith("usage: tandem train [-h]")
    assert helps[0].replace("usage: tandem train ", "usage: train.py ") == helps[1]


def test_the_manual_has_every_command() -> None:
    manual = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*) \| `tandem (.*)` \| `scripts/(.*)\.py` \| (.*) \|$", manual, re.MULTILINE)
    assert rows == [
        (group, name, module.removeprefix("scripts."), line)
        for group, commands in COMMANDS.items()
        for name, (module, line) in commands.items()
    ]


@pytest.mark.parametrize(
    "name",
    [
        "train.py",
        "run_queue.py",
        "hosts.py",
        "remote.py",
        "preflight.py",
        "find_batch_size.py",
        "sample.py",
        "classify.py",
        "backup.py",
        "debug_package.py",
        "convert.py",
        "submit_slurm.py",
        "submit_kubernetes.py",
        "import_config.py",
    ],
)
def test_a_python_without_the_packages_gets_a_hint(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-S", str(SCRIPTS / name), "--help"]  # -S: without the installed packages
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("Run this with Tandem's Python: .venv")
    assert len(done.stderr.splitlines()) == 1


def test_a_command_without_the_packages_gets_the_hint_too() -> None:
    command = [sys.executable, "-S", "-m", "tandem", "train", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"Run this with Tandem's Python: \.venv\S+ -m tandem train \.\.\., after \S+\.\n", done.stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process there")
def test_only_a_program_ignores_signals_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_IGNORES_AFTER_STOP", threading.Event())
    arguments = ["--config", str(tmp_path / "missing.json")]
    assert train.main(arguments) == 2
    assert not signals.ignores_signals_after_stop()
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    assert train.main() == 2
    assert signals.ignores_signals_after_stop()


def test_ctrl_c_before_machine_0_has_answered(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "train.py"), "--join", "127.0.0.1:9"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, encoding="utf-8", env=os.environ | {JOIN_TOKEN: "0" * 32}, **pipes) as joining:
        assert joining.stdout is not None
        assert joining.stdout.readline() == "Joining the run at 127.0.0.1:9 ...\n"
        joining.send_signal(signal.SIGINT)
        output, error = joining.communicate(timeout=60)
    assert (joining.returncode, output, error) == (130, "Stopped.\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process there")
def test_ctrl_c_before_training_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def readline(self, *_: object) -> Any:
            signal.raise_signal(signal.SIGINT)
            return ""

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert train.main(["--join", "127.0.0.1:9", "--token_file", "-"]) == 130
    assert capsys.readouterr().err == "Stopped.\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_closed_standard_streams_do_no_harm(closed: str, tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    command = f'exec "$0" "$1" list "$2" {closed}'
    argv = ["sh", "-c", command, sys.executable, str(SCRIPTS / "backup.py"), str(tmp_path)]
    done = subprocess.run(argv, stderr=subprocess.PIPE, encoding="utf-8", check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process there")
def test_ctrl_c_during_the_imports_is_one_line(tmp_path: Path) -> None:
    # a package that takes long to import: Ctrl-C arrives in the middle
    (tmp_path / "pydantic.py").write_text("import sys, time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, str(SCRIPTS / "train.py")], encoding="utf-8", env=environment, **pipes
    ) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == "importing\n"
        it.send_signal(signal.SIGINT)
        output, error = it.communicate(timeout=60)
    assert (it.returncode, output, error) == (130, "", "Stopped.\n")


def test_bench_all_runs_every_benchmark() -> None:
    children = {"side_by_side"}  # of trainer_overhead
    no_figures = {"monkey"}  # clicks at random for as long as one likes
    needs_a_gpu = {"gpu"}
    programs = {file.stem for file in (ROOT / "benchmarks").glob("*.py") if '"__main__"' in file.read_text()}
    script = (ROOT / "scripts/bench_all.sh").read_text()
    listed = script.partition("\nall='")[2].partition("'")[0].split()
    assert set(listed) == programs - children - no_figures - needs_a_gpu
    assert len(listed) == len(set(listed))


@pytest.mark.skipif(bool(skip_reason()), reason=skip_reason())
def test_a_missing_proc_is_said_at_once() -> None:
    hidden = 'mount -t tmpfs tmpfs /proc && exec "$0" scripts/train.py --version'
    argv = ["unshare", "--mount", "sh", "-c", hidden, sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("/proc is missing")
    assert "Traceback" not in done.stderr
