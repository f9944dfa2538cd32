"""Another machine that lies: one sentence, and nothing outside the copy of the run, or nothing at all, is written."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from modules.config import ConfigError
from modules.run import RunFolder, request_command
from modules.run.hosts.host import Host
from modules.run.hosts.ssh_command import HostError
from modules.run.preflight_report.report import Cell, OtherMachine, PreflightReport
from modules.run.remote import preflight, run_copy
from modules.run.remote.far_messages import MOST_DATA, receive, send
from modules.run.remote.link import Link, LinkLost
from modules.run.remote.machine import RunsThere
from modules.run.remote.run_copy import Follower, opened_copy, pull
from modules.run.remote.sending import Push, Upload

HOST = Host.make("beta", "me@beta", "~/.tandem/code")
SHA = hashlib.sha256(b"abc").hexdigest()
Answer = tuple[dict[str, object], bytes]


def link_to(*answers: Answer | bytes) -> Link:
    """A link whose other side has these answers, whatever it is asked; bytes are sent as they are."""
    pipe = BytesIO()
    for each in answers:
        if isinstance(each, bytes):
            pipe.write(each)
        else:
            send(pipe, *each)
    pipe.seek(0)
    return Link("beta", pipe, BytesIO())


def silent(text: str) -> None:
    """Nobody listens."""


def refusal(work: Callable[[], object]) -> str:
    """The one sentence, or two, with which it ends."""
    with pytest.raises(HostError) as caught:
        work()
    assert not isinstance(caught.value, LinkLost)
    assert str(caught.value).isprintable()
    return str(caught.value)


def files_in(place: Path) -> set[str]:
    """All that is there, without the lock and the marker of a copy."""
    found = {file.relative_to(place).as_posix() for file in place.rglob("*") if file.is_file()}
    return found - {"runs/x/remote.json", "runs/x/log/supervisor.lock", "runs/x/log/launcher.lock"}


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "../../x.txt", "/etc/passwd", "log/../../x.txt", "log/../x.txt", "samples/a/b.png", "samples/.."),
        *("log/join_line.txt", "log/training.lock", "remote.json", "config.json", "commands/stop", "report.html"),
        *("events.jsonl\n", "samples/.partial-x", "samples/a\0b", "samples\\..\\x", "log/\x1b[2J.txt"),
        *("LOG/rank-0.txt", ".", "C:x", "samples/a:b", "backup/step-1/x", "samples/ä.png"),
        *("model/a.safetensors", "log/" + "a" * 250 + ".txt", "tensorboard/x.txt", "tensorboard"),
        *("tensorboard/events.out.tfevents.a/../../x", "tensorboard/../events.out.tfevents.1", "events.out.tfevents.1"),
    ],
)  # fmt: skip
def test_other_files_than_those_of_a_copy(name: str, tmp_path: Path) -> None:
    with opened_copy(tmp_path / "runs", "x", HOST.name) as folder:
        folder.config_file.write_text("{}")
        before = files_in(tmp_path)
        link = link_to(({"file": name, "offset": 0, "last": True}, b"abc"))
        assert "none that a copy of a run has" in refusal(lambda: Follower(folder, silent).follow(link))
        assert files_in(tmp_path) == before


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([({"file": "events.jsonl", "offset": 5}, b"abc")], "in disorder"),
        ([({"file": "log/a.txt", "offset": 1 << 60}, b"")], "does not understand"),
        ([({"file": "log/a.txt", "offset": -1}, b"")], "does not understand"),
        ([({"file": "log/a.txt", "offset": at}, b"a" * 60) for at in (0, 60)], "more than 100 bytes"),
        ([({"file": "samples/a.png"}, b"a" * 60)] * 2, "more than 100 bytes"),
        ([({"file": "samples/a.png"}, b"a"), ({"file": "samples/b.png"}, b"a")], "in disorder"),
        ([({"file": f"samples/{number}.png", "last": True}, b"a") for number in range(5)], "or 3 files"),
        ([({"file": 5}, b"")], "does not understand"),
        ([({"end": True, "code": 10**9}, b"")], "does not understand"),
        ([({"error": "\x1b[2Jgone\n" * 1000}, b"")], "beta says: \\x1b[2Jgone"),
        ([struct.pack(">II", 1 << 31, 0)], "a message is too long"),
        ([struct.pack(">II", 2, MOST_DATA + 1)], "a message is too long"),
        ([struct.pack(">II", 5, 0) + b"hello"], "does not understand"),
        ([struct.pack(">II", 2_000_000, 0) + b"[" * 2_000_000], "does not understand"),
        ([struct.pack(">II", 2, 0) + b"[]"], "does not understand"),
    ],
)  # fmt: skip
def test_what_no_run_sends(
    answers: list[Answer | bytes], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_copy, "most_of_log", lambda path: 100)
    monkeypatch.setattr(run_copy, "MOST_WHOLE", 100)
    monkeypatch.setattr(run_copy, "_MOST_FILES", 3)
    with opened_copy(tmp_path / "runs", "x", HOST.name) as folder:
        assert said in refusal(lambda: Follower(folder, silent).follow(link_to(*answers)))


def test_no_terminal_obeys_the_log(tmp_path: Path) -> None:
    """Also where a code is cut into two messages; the length, by which the other side goes on, stays."""
    pieces = [b"a\x1b]0;title\x07b\xc2", b"\x9b31mc\r\xc3\xa4", b"\n\x9f\x7f\n"]
    offsets = [sum(map(len, pieces[:number])) for number in range(3)]
    answers = [({"file": "log/console.txt", "offset": at}, piece) for at, piece in zip(offsets, pieces, strict=True)]
    lines: list[str] = []
    with opened_copy(tmp_path / "runs", "x", HOST.name) as folder:
        assert Follower(folder, lines.append).follow(link_to(*answers, ({"end": True, "code": 3}, b""))) == 3
        text = folder.console_file.read_bytes()
    assert text == b"a?]0;title?b\xc2?31mc\r\xc3\xa4\n\x9f?\n"
    assert lines == ["ä", "\ufffd?"]


def results(*files: tuple[str, int, str]) -> Answer:
    """What a machine says it has."""
    return {"files": [dict(zip(("path", "size", "sha256"), each, strict=True)) for each in files], "more": False}, b""


@pytest.mark.parametrize(
    "path",
    [
        *("../x", "model/../../x", "model//x", "/model/x", "model", "model/", "model/.hidden", "backup/../x/y"),
        *("x.safetensors/y", "y.safetensors", "config.json", "log/x.txt", "model/a b", "model/a\0", "model\\x"),
    ],
)  # fmt: skip
def test_other_results_than_models_and_backups(path: str, tmp_path: Path) -> None:
    with opened_copy(tmp_path / "runs", "x", HOST.name) as folder:
        link = link_to(results((path, 3, SHA)), ({"last": True}, b"abc"))
        assert "none of a model or backup" in refusal(lambda: pull(link, folder, "latest", silent))
    assert files_in(tmp_path) == set()
    assert not (tmp_path / "runs" / "x").exists()  # as nothing has come


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([results(("model/a", 3, SHA), ("model/A", 3, SHA))], "none of a model or backup"),
        ([results(("model/a", 1 << 44, SHA))], "must stay"),
        ([results(("model/a", -1, SHA))], "does not understand"),
        ([results(("model/a", 3, "abc"))], "does not understand"),
        ([results(("model/a", 3, SHA)), ({"last": False}, b"abcd")], "more bytes of model/a than it has said"),
        ([results(("model/a", 3, SHA)), ({"last": True}, b"abd")], "did not arrive as it is on beta"),
        ([results(("model/a", 3, SHA)), ({"last": True}, b"ab")], "did not arrive as it is on beta"),
    ],
)  # fmt: skip
def test_results_that_are_not_what_was_said(answers: list[Answer | bytes], said: str, tmp_path: Path) -> None:
    """No model appears unless it is whole."""
    with opened_copy(tmp_path / "runs", "x", HOST.name) as folder:
        assert said in refusal(lambda: pull(link_to(*answers), folder, "latest", silent))
        assert not folder.model_dir.exists()


def test_a_pull_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    with opened_copy(tmp_path / "runs", "x", HOST.name) as folder:
        cut = link_to(results(("model/a", 3, SHA)), ({"last": False}, b"a"))
        with pytest.raises(LinkLost):
            pull(cut, folder, "latest", silent)
        assert not folder.model_dir.exists()
        requests = BytesIO()
        again = Link("beta", link_to(results(("model/a", 3, SHA)), ({"last": True}, b"bc"))._answers, requests)
        assert pull(again, folder, "latest", silent) == ["model"]
        assert (folder.model_dir / "a").read_bytes() == b"abc"
        assert b'"offset": 1' in requests.getvalue()
        assert pull(link_to(results(("model/a", 3, SHA))), folder, "latest", silent) == []


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([{"numbers": [7]}], "wrong numbers of files"),
        ([{"numbers": [-1]}], "wrong numbers of files"),
        ([{"numbers": list(range(2000))}], "does not understand"),
        ([{"numbers": [0]}, {"free": 10}], "10 bytes free"),
        ([{"numbers": [0]}, {"free": 1 << 40}, {"numbers": []}], "wrong numbers of files"),
        ([{"numbers": [0]}, {"free": 1 << 40}, {"numbers": [99]}], "wrong numbers of files"),
        ([{"numbers": [0]}, {"home": "/a\x1b", "free": 1 << 40}], "does not understand"),
    ],
)
def test_answers_about_files_that_are_sent(answers: list[dict[str, object]], said: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    hello = {"home": "/home/me/.tandem", "is_ours": True, "python": "3.12.1", "system": "linux"}
    given = [({**hello, **each} if "free" in each else each, b"") for each in answers]
    push = Push([Upload.of(tmp_path / "a", "data/a")], silent)
    assert said in refusal(lambda: push.send(link_to(*given)))


def test_only_the_copy_of_a_run_of_this_machine_is_written(tmp_path: Path) -> None:
    RunFolder(tmp_path / "x").make_directories()
    with pytest.raises(ConfigError, match="is the folder of another run"), opened_copy(tmp_path, "x", HOST.name):
        pass
    with opened_copy(tmp_path, "y", HOST.name) as folder:
        folder.config_file.write_text("{}")
        (folder.path / "backup").rmdir()
        (folder.path / "backup").symlink_to(tmp_path / "x")
    with pytest.raises(ConfigError, match="is a link"), opened_copy(tmp_path, "y", HOST.name):
        pass
    with pytest.raises(ConfigError, match=f"is the copy of a run on {HOST.name}"), opened_copy(tmp_path, "y", "other"):
        pass
    assert json.loads(folder.remote_file.read_text()) == {"machine": "beta"}


def test_nothing_else_that_has_the_name_is_replaced(tmp_path: Path) -> None:
    """Such as a model of a run that was resumed here."""
    with opened_copy(tmp_path / "runs", "x", HOST.name) as folder:
        folder.model_dir.mkdir()
        (folder.model_dir / "a").write_bytes(b"trained here")
        link = link_to(results(("model/a", 3, SHA)), ({"last": True}, b"abc"))
        assert "is here, and another than that on beta" in refusal(lambda: pull(link, folder, "none", silent))
        assert (folder.model_dir / "a").read_bytes() == b"trained here"


def test_commands_of_the_copy_go_there_one_by_one(tmp_path: Path) -> None:
    """A stop stays until the end; a name that the machine makes up removes nothing."""
    folder = RunFolder(tmp_path / "x")
    folder.make_directories()
    request_command(folder, "stop")
    request_command(folder, "backup")
    nothing: Answer = ({}, b"")
    taken: list[Answer] = [({"taken": name}, b"") for name in ("../x.txt", "stop", "backup")]
    link = link_to(nothing, nothing, *taken, ({"end": True, "code": 0}, b""))
    (tmp_path / "x" / "x.txt").touch()
    asked = link._requests = BytesIO()
    assert Follower(folder, silent).follow(link) == 0
    asked.seek(0)
    assert json.loads((receive(asked) or (b"",))[0])["do"] == "follow"
    sent = []
    while (received := receive(asked)) is not None:
        sent.append(json.loads(received[0])["command"])
    assert sent == ["stop", "stop", "backup"], "asked again after an answer to something else"
    assert list(folder.commands_dir.iterdir()) == []
    assert (tmp_path / "x" / "x.txt").is_file()


def test_a_preflight_neither_commands_nor_paints(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its report holds is shown: no escape sequence, nothing to be typed elsewhere, no endless texts."""
    cell = Cell("disk\x1b[2J", "beta\n", "red", "x" * 5000, "\x1b]0;title\x07")
    short = Cell("a", "b", "green", "c")
    sent = PreflightReport(
        "Pre\x1bflight", (cell, *[short] * 3000), (("m", ("\x1b[0m",) * 900),), waits_for=(OtherMachine(1, "rm -r ~"),)
    )
    found: list[PreflightReport] = []
    answers: list[Answer] = [({"still": True}, b""), ({"report": True}, sent.dump().encode()), ({"code": 3}, b"")]
    assert preflight._read(link_to(*answers), silent, found.append) == 3
    assert len(found[0].cells) == 2000
    assert (found[0].waits_for, len(found[0].matrices[0][1])) == ((), 500)
    shown = [found[0].title, *found[0].lines(100)[:50], *found[0].cells[0].lines()]
    assert all(line.isprintable() for line in shown)
    assert max(map(len, shown)) < 1200
    monkeypatch.setattr(preflight, "_MOST_TOLD", 3)
    nonsense: dict[str, list[Answer | bytes]] = {
        "does not understand": [({"report": True}, b"{")],
        "its answer is wrong": [({"code": 10**9}, b"")],
        "says more than a preflight does": [({"line": True}, b"y")] * 4,
    }
    for said, each in nonsense.items():
        assert said in refusal(lambda each=each: preflight._read(link_to(*each), silent, found.append))  # type: ignore[misc]


@pytest.mark.parametrize("wrong", [{"free": 10**400}, {"others": {"data": 10**400}}], ids=["free", "others"])
def test_sizes_that_no_disk_has(wrong: dict[str, object]) -> None:
    answer = {"runs": [], "others": {}, "free": 1, **wrong}
    assert "does not understand" in refusal(lambda: str(link_to((answer, b"")).read(RunsThere)[0]))
