"""TensorBoard here, of a run on another machine, whose ssh is a shell here."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from modules.run import RunFolder
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import add_host
from modules.run.remote import far_followed
from modules.run.remote.run_copy import Copy, mark_copy
from scripts import remote
from tests.runs import ROOT, tiny_config

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for ssh is a shell script"),
    pytest.mark.slow,
]
FILE = "tensorboard/events.out.tfevents.1.beta.5.7"
RECORDS = bytes(range(256)) * 10_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The copy of a run on beta that has ended there, of which nothing has come yet."""
    there, ssh = tmp_path / "there", tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "config"))
    run = there / "runs" / "x"
    (run / "tensorboard").mkdir(parents=True)
    (there / "state").mkdir()
    for place, text in ((there / ".tandem", ""), (run / "events.jsonl", "{}\n"), (there / "state" / "x.exit", "0\n")):
        place.write_text(text)
    (run / FILE).write_bytes(RECORDS)
    (run / "tensorboard" / "notes.txt").write_text("no file of TensorBoard's")
    add_host(Host.make("beta", "me@beta", f"{there}/code", python=sys.executable))
    made = RunFolder.create(tiny_config(tmp_path, tmp_path, runs_dir=str(tmp_path / "runs"), tensorboard=True))
    mark_copy(made, Copy(machine="beta", id="5" * 32))
    return made


def test_it_follows_and_ends_with_the_command(folder: RunFolder) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "remote.py"), "tensorboard", "beta", "x"]
    runs = ["--runs_dir", str(folder.path.parent)]
    for ending in (signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen([*command, *runs], stdout=-1, stderr=-2, encoding="utf-8") as process:
            assert process.stdout is not None
            said = [process.stdout.readline()]
            try:
                url = re.search(r"http://127\.0\.0\.1:(\d+)/", said[0])
                assert url is not None, said
                with urllib.request.urlopen(url[0], timeout=60) as answer:
                    assert b"TensorBoard" in answer.read()
                if ending == signal.SIGINT:
                    said.append(process.stdout.readline())
            finally:
                process.send_signal(ending)
            said += process.stdout
        assert process.returncode == (0 if ending == signal.SIGINT else -signal.SIGKILL), said
        if ending == signal.SIGINT:
            assert "x has ended on beta (me@beta) with exit code 0" in said[1]
        assert (folder.path / FILE).read_bytes() == RECORDS
        assert {file.name for file in folder.tensorboard_dir.iterdir()} == {Path(FILE).name}
        until = time.monotonic() + 120
        while is_open(int(url[1])):
            assert time.monotonic() < until, "TensorBoard still listens"
            time.sleep(0.05)


def test_a_large_file_comes_in_pieces_between_which_commands_pass(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "log").mkdir()
    for name in ("tensorboard.txt", "join_line.txt", "rank-0.txt"):
        (tmp_path / "log" / name).write_text("x")
    size = far_followed.MOST_AT_ONCE + 5
    os.truncate(os.open(tmp_path / FILE, os.O_CREAT | os.O_WRONLY), size)
    sent: dict[str, int] = Counter()
    followed = far_followed.FollowedRun(
        str(tmp_path), lambda data, file, offset: sent.update({file: len(data)}), {}, {}
    )
    assert followed.send_new()
    assert sent == {FILE: far_followed.MOST_AT_ONCE, "log/rank-0.txt": 1}, "each side has a log of its own TensorBoard"
    assert followed.send_new()
    assert sent[FILE] == size
    assert not followed.send_new()


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_what_cannot_be_shown(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    runs = ["--runs_dir", str(folder.path.parent)]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert remote.main(["tensorboard", "beta", "x", *runs, "--port", str(port)]) == 2
        assert f"--port is {port}, which is no free port of this computer. Leave it out" in capsys.readouterr().err
    assert remote.main(["tensorboard", "beta", "../x", *runs]) == 2
    assert "run_name" in capsys.readouterr().err
    assert remote.main(["tensorboard", "beta", "y", *runs]) == 2
    assert "is not the copy of a run on another machine" in capsys.readouterr().err
    folder.config_file.write_text(folder.config_file.read_text().replace('"tensorboard": true', '"tensorboard": false'))
    assert remote.main(["tensorboard", "beta", "x", *runs]) == 2
    assert "tensorboard is false in its config" in capsys.readouterr().err
    mark_copy(folder, Copy(machine="gamma"))
    assert remote.main(["tensorboard", "beta", "x", *runs]) == 2
    assert "is the copy of a run on gamma, not on beta" in capsys.readouterr().err
