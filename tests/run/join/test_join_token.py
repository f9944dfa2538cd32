"""Where the token comes from, and that no command line, log or event ever contains it."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from modules import ROOT
from modules.config import ConfigError
from modules.run.folder.run_folder import RunFolder
from modules.run.join.join_line import read_join_line
from modules.run.join.join_token import (
    JOIN_TOKEN,
    ask_for_token,
    check_token,
    find_token,
    generate_token,
    take_token,
)
from scripts import train_options as train
from tests.conftest import draw_images
from tests.ports import free_port
from tests.runs import environment, tiny_config, train_command

TOKEN = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    "token", ["", "short", "with a space in it" * 3, "ünïcödé-ünïcödé-ünïcödé-ünïcödé-ü", "0" * 31]
)
def test_weak_tokens_are_rejected(token: str) -> None:
    with pytest.raises(ConfigError, match="at least 32") as refused:
        check_token(token)
    assert not token or token not in str(refused.value)
    check_token(generate_token())


def test_sources_of_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {JOIN_TOKEN: TOKEN, "OTHER": "x"}
    assert take_token(variables) == TOKEN
    assert variables == {"OTHER": "x"}, "no process started later has it"
    said: list[str] = []
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert find_token(None, str(file), None, said.append) == TOKEN
    assert find_token(None, None, "from the environment", said.append) == "from the environment"
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{TOKEN}\nmore"))
    assert find_token(None, "-", None, said.append) == TOKEN
    assert said == []
    assert find_token("old", None, None, said.append) == "old"
    assert "every user of this machine can read --token" in said[0]
    assert "old" not in said[0]
    with pytest.raises(ConfigError, match=r"--token_file .*nowhere"):
        find_token(None, str(tmp_path / "nowhere"), None, said.append)


@pytest.mark.parametrize(
    "typed",
    [
        TOKEN,
        f" {JOIN_TOKEN}={TOKEN} .venv/bin/python scripts/train.py --join 10.0.0.1:29501",
        f"{JOIN_TOKEN}='{TOKEN}' python scripts/train.py --join [::1]:29501 --set family=x.py",
        f"{JOIN_TOKEN}={TOKEN}",
    ],
)
def test_the_token_is_taken_out_of_a_pasted_join_line(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", FakeTerminal())
    monkeypatch.setattr("modules.run.join.join_token.getpass", lambda prompt: typed)
    assert ask_for_token() == TOKEN


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_token_file_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    for mode in (0o600, 0o640):
        file.chmod(mode)
        assert find_token(None, str(file), None, said.append) == TOKEN
    assert said == [f"Warning: other users of this machine can read {file}; make it yours alone: chmod 600 {file}"]


def test_no_token_is_asked_for_before_the_rest_of_the_command_line_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> str:
        raise AssertionError("asked for the token")

    monkeypatch.setattr(train, "ask_for_token", asked)
    wrong = {"--set=seed=1": "seed applies to the whole run", "--multi_gpu": "cannot be used with --join"}
    for argument, message in wrong.items():
        with pytest.raises(ConfigError, match=message):
            train.join_line(train.parser().parse_args(["--join", "10.0.0.1", argument]), None)
    with pytest.raises(ConfigError, match="--join is"):
        train.join_line(train.parser().parse_args(["--join", "a:b:c d"]), None)


def test_an_allowed_path_that_does_not_exist_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--join", "10.0.0.1", "--allow", str(tmp_path / "nowhere"), "--allow", str(tmp_path)]
    train.join_line(train.parser().parse_args(arguments), TOKEN)
    assert f"Warning: --allow {tmp_path / 'nowhere'} does not exist on this machine" in capsys.readouterr().err


@pytest.mark.slow
def test_no_command_line_and_no_file_has_the_token(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real join of two machines, here both on this one, with the line that machine 0 writes."""
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "settings"))
    images = draw_images(tmp_path_factory.mktemp("few"), 6)
    config = tiny_config(
        images, tmp_path, num_nodes=2, processes_per_node=[1], enable_multi_gpu=True, max_steps=2,
        master_addr="127.0.0.1", initial_port=free_port(),
    )  # fmt: skip
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            for process in psutil.process_iter():
                try:
                    seen.update(process.cmdline())
                except psutil.Error:
                    continue
            time.sleep(0.2)

    output = (tmp_path / "console.txt").open("w+")
    threading.Thread(target=watch, daemon=True).start()
    first = subprocess.Popen(
        train_command(config, tmp_path / "c.json"), env=environment(), stdout=output, stderr=output
    )
    try:
        run_folder = RunFolder(Path(config.runs_dir) / str(config.run_name))
        deadline = time.monotonic() + 60
        while not (line := read_join_line(run_folder)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert run_folder.join_line_file.stat().st_mode & 0o077 == 0
        token = line.partition("=")[2].split()[0]
        assert line.startswith(f" {JOIN_TOKEN}="), "the space keeps it out of the shell's history"
        assert len(token) == 32
        folders = ["--set", f"runs_dir={tmp_path / 'there'}", "--set", f"cache_dir={tmp_path / 'there2'}"]
        own = shlex.join([*folders, "--allow", str(images), "--allow", str(ROOT / "tests")])
        # sh reads the line from its standard input, as a terminal does
        second = subprocess.run(
            ["sh"], input=f"{line} {own}\n", text=True, cwd=ROOT, env=environment(),
            capture_output=True, timeout=300, check=False,
        )  # fmt: skip
        assert second.returncode == 0, second.stdout + second.stderr
        assert first.wait(120) == 0
    finally:
        first.kill()
        over.set()
        output.seek(0)
        printed = output.read()
        output.close()
    assert any("--join" in word for word in seen), "the watch has seen the second machine"
    assert token not in "".join(seen)
    assert token not in printed + second.stdout + second.stderr
    files = [file for place in (run_folder.path, tmp_path / "there") for file in place.rglob("*") if file.is_file()]
    assert len(files) > 10
    assert [file for file in files if token.encode() in file.read_bytes()] == []
