"""Telling the user that a run has ended, by a command or a webhook."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from modules.config import ConfigError
from modules.run import RunFolder
from modules.run.folder.event_summary import EventSummary
from modules.run.notification import (
    NOTIFY,
    RunEnd,
    check_target,
    end_of_run,
    find_target,
    keep_target,
    masked,
    notify,
    notifying,
    take_notify,
    target_file,
)
from modules.run.supervise import signals
from modules.run.webhook import post_json

END = RunEnd("failed", "cats", 12, "rank 1: out of memory")


class _Receiver(BaseHTTPRequestHandler):
    received: ClassVar[list[tuple[str, object]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, json.loads(body)))
        self.send_response({"/down": 500, "/away": 302}.get(self.path, 204))
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    _Receiver.received.clear()
    with HTTPServer(("127.0.0.1", 0), _Receiver) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "settings"))


def test_a_webhook_gets_the_end_as_json(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert notify(f"{server}/hook?key=secret", END) == ""
    ((path, said),) = _Receiver.received
    assert path == "/hook?key=secret"
    assert isinstance(said, dict)
    assert {name: said[name] for name in ("state", "run", "step", "error")} == {
        "state": "failed",
        "run": "cats",
        "step": 12,
        "error": "rank 1: out of memory",
    }
    assert said["text"] == "Tandem: cats: Failed at step 12. rank 1: out of memory"
    for path, reason in (("down", "the server answered 500"), ("away", "the server answered 302")):
        assert notify(f"{server}/{path}", END) == reason
    assert notify("http://localhost:1/top-secret", END)
    warnings = capsys.readouterr().err
    assert warnings.count("Warning: the notification by http://") == 3
    assert "secret" not in warnings


def test_a_server_that_does_not_answer_lets_the_run_end() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server, pytest.raises(OSError, match=r"did not answer within 0\.1 s"):
        post_json(f"http://127.0.0.1:{server.getsockname()[1]}/secret", {}, limit_s=0.1)


def test_a_command_gets_the_end_in_variables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run's name is never read as a command."""
    out = tmp_path / "out.txt"
    end = RunEnd("finished", "$(touch stolen)`touch stolen`", 3)
    assert notify(f'echo "$TANDEM_STATE|$TANDEM_RUN|$TANDEM_STEP|$TANDEM_ERROR" > "{out}"', end) == ""
    assert out.read_text() == "finished|$(touch stolen)`touch stolen`|3|\n"
    assert notify("exit 4 # hunter2", END) == "exit code 4"
    assert notify("no_such_program hunter2", END) == "exit code 127"
    assert "hunter2" not in capsys.readouterr().err.replace("no_such_program: ", "")
    assert not list(Path.cwd().glob("stolen"))


@pytest.mark.parametrize(
    "target",
    [
        "http://example.org/hook",
        "https://",
        "https://a b",
        "https://[",
        "echo\nrm",
        "x" * 5000,
        "HTTP:/x",
        "file:///x",
        "FTP://x/y",
    ],
)
def test_what_is_neither_a_command_nor_an_https_url(target: str) -> None:
    with pytest.raises(ConfigError, match="notify"):
        check_target(target)


def test_which_target_counts() -> None:
    """The command line, the environment, the user's own file: in this order. Processes of the run have none of it."""
    assert find_target(None, None) == ""
    keep_target("notify-send hello")
    assert target_file().stat().st_mode & 0o77 == 0
    assert find_target(None, None) == "notify-send hello"
    environment = {NOTIFY: "https://example.org/key", "HOME": "/"}
    assert find_target(None, take_notify(environment)) == "https://example.org/key"
    assert environment == {"HOME": "/"}
    assert find_target("", "https://example.org/key") == ""
    target_file().chmod(0o666)
    assert find_target(None, None) == "", "another user could have written it"


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("https://user:word@hooks.example.org/T0/B0?key=1", "https://hooks.example.org/***"),
        ("curl -d done https://hooks.example.org/T0", "curl ***"),
        ("/home/me/ended.sh", "/home/me/ended.sh"),
        (r"C:\me\ended.bat word", r"C:\me\ended.bat ***"),
        ("TOKEN=word curl https://example.org", "***"),
        ("SLACK=https://hooks.example.org/T0 curl $SLACK", "***"),
        ("hooks=https://ntfy.sh/word;curl $hooks", "***"),
        ("curl;https://ntfy.sh/word", "***"),
    ],
)
def test_logs_have_no_secrets(target: str, shown: str) -> None:
    assert masked(target) == shown


def test_how_a_run_ended_and_an_error_of_its_start(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "cats")
    folder.path.mkdir()
    events = [
        {"v": 1, "t": 1.0, "type": "step", "step": 7, "loss": 1.0},
        {"v": 1, "t": 2.0, "type": "error", "rank": 0, "message": "a NaN\nin the loss"},
        {"v": 1, "t": 2.0, "type": "finished", "reason": "failed", "exit_code": 3},
    ]
    seen = EventSummary(events)
    assert end_of_run(folder, seen, 3) == RunEnd("failed", "cats", 7, "a NaN")
    assert end_of_run(folder, seen, 130) == RunEnd("interrupted", "cats", 7), "which no event says"

    def trains() -> int:
        with folder.events_file.open("a") as file:
            file.writelines(f"{json.dumps(event)}\n" for event in events)
        return 3

    assert notifying(f"{server}/x", folder, trains) == 3

    def fails() -> int:
        raise ConfigError("port 12355 is in use")

    with pytest.raises(ConfigError):
        notifying(f"{server}/x", folder, fails)
    assert notifying(f"{server}/x", folder, lambda: 3) == 3  # killed, say, before it wrote anything
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    assert notifying(f"{server}/x", folder, lambda: 3) == 3, "torchrun starts it again"
    assert notifying(f"{server}/x", folder, lambda: 130) == 130
    said = [facts["text"].split(": ", 2)[2] for _, facts in _Receiver.received if isinstance(facts, dict)]
    assert said == [
        "Failed at step 7. a NaN",
        "Failed. port 12355 is in use.",
        "Failed.",
        "Interrupted.",
    ]


@pytest.mark.parametrize("is_program", [True, False])
def test_a_signal_does_not_change_the_exit_code_while_a_program_notifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_program: bool
) -> None:
    """The command has the signals that others have, and Ctrl-C ends it."""
    monkeypatch.setattr(signals, "_IGNORES_AFTER_STOP", threading.Event())
    if is_program:
        signals.ignore_signals_after_stop()
    received: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        notifying("kill -TERM $PPID", RunFolder(tmp_path / "x"), lambda: 0)
        now = {number: signal.getsignal(number) for number in numbers}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert received == ([] if is_program else [signal.SIGTERM])
    assert now[signal.SIGINT] == before[signal.SIGINT]
    assert signal.SIG_IGN not in {handler for number, handler in now.items() if handler != before[number]}
