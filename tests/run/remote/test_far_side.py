"""The program on the other machine, spoken to over pipes: what it keeps, where it goes on, and what it removes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import pytest

from modules.run.folder.commands import COMMAND_NAMES, FORCE_STOP, REGROUP
from modules.run.remote.far_locks import Locks
from modules.run.remote.far_messages import MARK, Broken, receive, send
from modules.run.remote.far_runs import RESUMES
from modules.run.remote.far_side import COMMANDS, FarSide
from tests.runs import ROOT

SHA = hashlib.sha256(b"abc").hexdigest()


def say(home: Path, *requests: tuple[dict[str, object], bytes] | Mapping[str, object]) -> list[dict[str, object]]:
    """The answers in one connection."""
    source, answers = BytesIO(), BytesIO()
    for each in requests:
        send(source, *(each if isinstance(each, tuple) else (each, b"")))
    source.seek(0)
    FarSide(str(home), source, answers).serve()
    answers.seek(0)
    found = []
    while (received := receive(answers)) is not None:
        found.append(json.loads(received[0]))
    return found


def program(home: Path) -> subprocess.Popen[bytes]:
    """The program by itself, which has begun to answer."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from modules.run.remote import far_side; "
    argv = [sys.executable, "-c", f"{code}far_side.main(sys.argv[2])", str(ROOT), str(home)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(len(MARK)) == MARK
    return process


def ask(process: subprocess.Popen[bytes], request: Mapping[str, object]) -> object:
    """Its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    send(process.stdin, request)
    received = receive(process.stdout)
    assert received is not None
    return json.loads(received[0])


def put(data: bytes, offset: int, *, last: bool, path: str = "data/me/a") -> tuple[dict[str, object], bytes]:
    """A piece of the file abc."""
    more = {"sha256": SHA, "size": 3, "date": 5, "session": "s", "offset": offset, "last": last}
    return {"do": "put", "path": path, **more}, data


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Tandem's folder."""
    say(tmp_path / "home", {"do": "make"})
    return tmp_path / "home"


def test_a_folder_of_its_own(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path)
    for each in (theirs, tmp_path / "link", theirs / "file"):
        assert "was not made by Tandem" in str(say(each, {"do": "make"})[0]["error"])
        assert "start with setup" in str(say(each, {"do": "clean", "run": "", "all": True})[0]["error"])
    assert "start with setup" in str(say(tmp_path / "new", {"do": "clean", "run": "", "all": False})[0]["error"])
    (tmp_path / "emptied").mkdir()
    for name in ("new", "emptied"):  # a clean whose answer was lost is asked again
        assert say(tmp_path / name, {"do": "clean", "run": "", "all": True}) == [{"left": [], "is_there": False}]
        assert not (tmp_path / name).exists()
    assert (theirs / "file").read_text() == "mine"
    assert say(tmp_path / "new" / "home", {"do": "make"}, {"do": "make"}) == [{}, {}]
    assert stat.S_IMODE((tmp_path / "new" / "home").stat().st_mode) == 0o700


def test_a_push_goes_on_where_it_was_cut(home: Path) -> None:
    """Whatever was known of the files: they are hashed where the manifest does not know them."""
    offer = {"do": "offer", "session": "s", "files": [["data/me/a", 3, 5, SHA]]}
    compare = {"do": "compare", "files": [["data/me/a", 3, 5]]}
    assert say(home, compare, offer, put(b"a", 0, last=False)) == [{"numbers": [0]}, {"numbers": [0]}]
    assert say(home, offer, put(b"bc", 1, last=True), {"do": "saved"}) == [{"numbers": [1]}, {}]
    assert (home / "data" / "me" / "a").read_bytes() == b"abc"
    assert say(home, compare) == [{"numbers": []}]
    (home / "manifest.json").write_text("{damaged")
    assert say(home, compare, offer) == [{"numbers": [0]}, {"numbers": [-1]}]
    (home / "data" / "me" / "a").write_bytes(b"abd")
    assert say(home, compare, offer) == [{"numbers": [0]}, {"numbers": [0]}]


def test_damaged_pieces_are_not_kept(home: Path) -> None:
    assert "damaged on its way" in str(say(home, put(b"abd", 0, last=True))[0]["error"])
    assert "not where it was left" in str(say(home, put(b"c", 2, last=True))[0]["error"])
    for path in ("../a", "data/../../a", "/data/a", "runs/x/a", "data", "data//a", "code/./a"):
        assert "is no place for a file" in str(say(home, put(b"abc", 0, last=True, path=path))[0]["error"])
    assert not (home / "data").exists()
    with pytest.raises(Broken):
        receive(BytesIO(b"\0\0\0\1"))


def test_a_copy_that_has_gone_on_by_itself_is_not_followed(home: Path) -> None:
    """Such as one that was resumed over there."""
    (home / "runs" / "x").mkdir(parents=True)
    (home / "runs" / "x" / "events.jsonl").write_bytes(b"abc")
    follow = {"do": "follow", "run": "x", "wholes": {}, "config": False, "digest": SHA}
    for size, digest in ((3, "0" * 64), (2, SHA), (4, SHA)):
        asked = {**follow, "logs": {"events.jsonl": size}, "digest": digest}
        assert "is not the beginning of that of the run x" in str(say(home, asked)[0]["error"])
    assert say(home, {**follow, "logs": {"events.jsonl": 3}}) == [{"end": True, "code": None, "seconds": 0}]


def test_only_commands_of_a_run_are_taken(home: Path) -> None:
    folder = home / "runs" / "x"
    (folder / "commands").mkdir(parents=True)
    (home / "state").mkdir()
    stop = {"do": "command", "run": "x", "command": "stop", "content": ""}
    assert say(home, stop) == [{"is_active": False, "has_waited": False, "taken": "stop"}], "it has ended"
    with (home / "state" / "x.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sample = {**stop, "command": "custom_sample", "content": "{}"}
        assert [each["taken"] for each in say(home, stop, sample)] == ["stop", "custom_sample"]
        assert "is no command of a run" in str(say(home, {**stop, "command": "../config.json"})[0]["error"])
    assert {file.name: file.read_text() for file in (folder / "commands").iterdir()} == {
        "stop": "",
        "custom_sample": "{}",
    }
    assert set(COMMANDS) == {*COMMAND_NAMES, FORCE_STOP} - {REGROUP}, "the same here and there"


def test_removes_nothing_but_its_own(home: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_text("theirs")
    say(home, put(b"abc", 0, last=True), put(b"abc", 0, last=True, path="code/app/old.py"), {"do": "saved"})
    (home / "code" / ".venv").mkdir()
    (home / "code" / ".venv" / "python").write_text("")
    os.symlink(tmp_path / "images", home / "data" / "link")
    say(home, {"do": "prune", "folders": ["code"], "session": "s"})
    assert not (home / "code" / "app" / "old.py").exists()
    assert (home / "code" / ".venv" / "python").exists()
    (home / "runs" / "x").mkdir(parents=True)
    assert say(home, {"do": "clean", "run": "", "all": False}) == [{"left": []}]
    assert not (home / "data").exists()
    assert (home / "runs" / "x").exists()
    assert "no run ../x" not in str(say(home, {"do": "clean", "run": "../images", "all": False})[0].get("left"))
    (home / "notes").write_text("theirs")
    (home / ".manifest.json-17").write_text("half of it, as the disk was full")
    (home / "cache").symlink_to(tmp_path / "images")
    moved = str((tmp_path / "images").resolve())
    assert say(home, {"do": "clean", "run": "", "all": True}) == [{"left": [moved, "notes"]}]
    assert {each.name for each in home.iterdir()} == {"notes", ".tandem", "push.lock", "setup.lock", "use.lock"}
    assert say(home, {"do": "make"}) == [{}], "setup takes it again"
    assert (tmp_path / "images" / "a.png").read_text() == "theirs"
    (home / "notes").unlink()
    assert say(home, {"do": "clean", "run": "", "all": True}) == [{"left": []}]
    assert not home.exists()


@pytest.mark.parametrize(
    ("lock", "said"),
    [("push.lock", "is being sent"), ("setup.lock", "is being set up"), ("use.lock", "is being started")],
)
def test_nothing_is_removed_while_something_comes(home: Path, lock: str, said: str) -> None:
    """Else the run would train on the rest of its images."""
    say(home, put(b"abc", 0, last=True), {"do": "saved"})
    with open(home / lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for everything in (False, True):
            assert said in str(say(home, {"do": "clean", "run": "", "all": everything})[0]["error"])
    assert (home / "data" / "me" / "a").exists()


def test_nothing_is_removed_while_a_run_starts_that_needs_nothing_sent(home: Path) -> None:
    """From when its files are found to be there."""
    say(home, put(b"abc", 0, last=True), {"do": "saved"})
    clean = {"do": "clean", "run": "", "all": False}
    compare = {"do": "compare", "files": [["data/me/a", 3, 5]]}
    start = {
        "do": "start",
        "run": "x",
        "machine": "beta",
        "id": "1",
        "config": "{}",
        "arguments": [],
        "python": "true",
        "token": "",
    }
    (home / "code").mkdir()
    with program(home) as starting:
        assert ask(starting, compare) == {"numbers": []}
        assert "is being started" in str(say(home, clean)[0]["error"])
        assert ask(starting, start) == {}
        starting.communicate()
    while say(home, {"do": "runs"})[0]["runs"][0]["is_active"]:  # type: ignore[index]
        pass
    assert (home / "data" / "me" / "a").exists()
    assert say(home, clean) == [{"left": []}]


def test_a_run_is_removed_alone(home: Path) -> None:
    """A start of that name which has waited for the lock does not get that of a file that is gone."""
    (home / "runs" / "x").mkdir(parents=True)
    (home / "state").mkdir()
    lock = home / "state" / "x.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert "is active" in str(say(home, {"do": "clean", "run": "x", "all": False})[0]["error"])
    with lock.open("a") as former:
        assert say(home, {"do": "clean", "run": "x", "all": False}) == [{"left": []}]
        fcntl.flock(former, fcntl.LOCK_EX)
        file = Locks(str(home)).take("state/x.lock")
        assert file is not None
        file.close()


def test_a_push_that_was_cut_gives_way_to_itself_and_nothing_else_is_ended(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever number an earlier version has left in the lock's file: it may be another program's by now."""
    offer = {"do": "offer", "session": "s", "files": []}
    with program(home) as bystander, program(home) as cut:
        assert ask(cut, offer) == {"numbers": []}
        with monkeypatch.context() as at_once:
            at_once.setattr("modules.run.remote.far_locks.time.sleep", lambda seconds: None)
            for left in (f"{bystander.pid} s", "999999999 s", "of another"):
                (home / "push.lock").write_text(left)
                assert "another push" in str(say(home, offer)[0]["error"])
        (home / "push.lock").write_text("s")
        assert say(home, offer) == [{"numbers": []}]
        assert cut.wait(100) == 1
        assert bystander.poll() is None
        bystander.communicate()


def test_what_is_not_named_any_more_is_not_trained_on(home: Path, tmp_path: Path) -> None:
    """Unless a run that is active may read it: then nothing is removed, and that is said."""
    places = [f"data/me/{name}" for name in ("a.png", "a.txt", "b.png", "sub/c.png")]
    say(home, *(put(b"abc", 0, last=True, path=place) for place in (*places, "data/me2/a.png")), {"do": "saved"})
    push = (
        {"do": "compare", "files": [["data/me/a.png", 3, 5]]},
        {"do": "prune", "folders": ["data/me"], "session": "s"},
    )
    (home / "runs" / "x").mkdir(parents=True)
    (home / "state").mkdir()
    (home / "runs" / "x" / "config.json").write_text(json.dumps({"a": f"{home}/data/other; {home}/data/me"}))
    with open(home / "state" / "x.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "the active run x may read" in str(say(home, *push)[1]["error"])
        assert all((home / place).exists() for place in places)
        (home / "runs" / "x" / "config.json").write_text(json.dumps({"a": f"{home}/data/other"}))
        assert say(home, *push) == [{"numbers": []}, {}]
    assert sorted(each.name for each in (home / "data").rglob("*") if each.is_file()) == ["a.png", "a.png"]
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "d.png").write_text("theirs")
    (home / "data" / "linked").symlink_to(tmp_path / "theirs")
    linked = {"do": "prune", "folders": ["data/linked"], "session": "s"}
    assert "behind a link" in str(say(home, linked)[0]["error"])
    assert (tmp_path / "theirs" / "d.png").exists()


def test_of_a_push_that_fails_the_first_reason_is_said_once(home: Path) -> None:
    (home / "partial").mkdir()
    name = hashlib.sha256(f"data/me/a\0{SHA}".encode()).hexdigest()
    (home / "partial" / name).symlink_to("/dev/full")
    said = say(home, put(b"a", 0, last=False), put(b"b", 1, last=False), {"do": "saved"})
    assert said == [{"error": "data/me/a: No space left on device"}, {}]


def test_a_file_that_cannot_be_written_leaves_nothing(home: Path) -> None:
    (home / "manifest.json").mkdir()
    (home / "manifest.json" / "in the way").write_text("")
    with pytest.raises(OSError, match="directory"):
        say(home, put(b"abc", 0, last=True))
    assert not list(home.glob(".manifest*"))


def test_results_of_a_run_that_the_copy_has_left(home: Path) -> None:
    """It was resumed over there: what it has made would be lost."""
    (home / "runs" / "x").mkdir(parents=True)
    (home / "runs" / "x" / "events.jsonl").write_bytes(b"abc")
    results = {"do": "results", "run": "x", "backups": "none", "events": 3, "digest": "0" * 64}
    assert "is not the beginning of that of the run x" in str(say(home, results)[0]["error"])
    assert say(home, {**results, "digest": SHA}) == [{"files": [], "more": False}]


def test_the_list_of_runs_survives_links(home: Path, tmp_path: Path) -> None:
    (home / "runs" / "x").mkdir(parents=True)
    (home / "runs" / "moved").symlink_to(tmp_path)
    (home / "runs" / "dangling").symlink_to(tmp_path / "none")
    said = say(home, {"do": "runs"})[0]
    assert [run["name"] for run in said["runs"]] == ["x"]  # type: ignore[attr-defined]


def test_what_can_be_refused_is_refused_before_anything_is_sent(home: Path) -> None:
    (home / "runs" / "x").mkdir(parents=True)
    check = {
        "do": "check",
        "run": "y",
        "machine": "beta",
        "python": sys.executable,
        "paths": [["base_model", str(home)]],
    }
    assert say(home, check) == [{}]
    for change, said in (
        ({"run": "x"}, "remove it there: tandem remote clean beta x"),
        ({"run": "\u0436"}, "is no name of a run there; use letters a to z"),
        ({"python": "/none/python"}, "there is no Python /none/python there; run setup again"),
        ({"paths": [["base_model", "./a.safetensors"]]}, "base_model is './a.safetensors', which is neither"),
    ):
        assert said in str(say(home, {**check, **change})[0]["error"])


def test_another_push_is_said_before_anything_is_sent(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.run.remote.far_locks.time.sleep", lambda seconds: None)
    with open(home / "push.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another push" in str(say(home, {"do": "offer", "session": "s", "files": []})[0]["error"])


def test_a_run_is_not_begun_again_over_what_it_has_made(home: Path) -> None:
    """Asked again with the same id, as after a lost answer, when the machine was restarted meanwhile."""
    started = {"do": "started", "run": "x", "id": "1"}
    console = home / "runs" / "x" / "log" / "console.txt"
    (home / "state").mkdir()
    console.parent.mkdir(parents=True)
    (home / "state" / "x.id").write_text("1")
    assert say(home, started) == [{"is_started": False}], "its disk was full"
    console.write_text("before")
    start = {
        **started,
        "do": "start",
        "machine": "beta",
        "config": "{}",
        "arguments": [],
        "python": sys.executable,
        "token": "",
    }
    assert say(home, start, started, {**started, "id": "2"}) == [{}, {"is_started": True}, {"is_started": False}]
    assert console.read_text() == "before"


def test_a_job_that_left_the_queue_is_submitted_again_without_a_backup(home: Path) -> None:
    folder = home / "runs" / "x"
    (folder / "backup").mkdir(parents=True)
    (home / "state").mkdir()
    (home / "state" / "x.jobs").write_text("Job 5: training with 1 GPU on one node\n")
    (home / "state" / "x.exit").write_text("130")
    start = {
        "do": "start",
        "run": "x",
        "machine": "beta",
        "id": f"{RESUMES}2",
        "needs_backup": True,
        "slurm": ["--cpu"],
    }
    start |= {"config": "{}", "arguments": [], "python": "false", "token": "", "given": ["--time=2-0"]}
    assert "no backup there" not in str(say(home, start)), "it is submitted"
    (folder / "events.jsonl").touch()
    assert "no backup there to be resumed from" in str(say(home, start))
    (home / "code").mkdir()
    with program(home) as starting:  # without Slurm now, of which nothing is asked then
        assert ask(starting, start | {"id": f"{RESUMES}3", "slurm": [], "needs_backup": False, "python": "true"}) == {}
        starting.communicate()
    assert not (home / "state" / "x.jobs").exists()


def test_what_a_cut_start_has_left_is_started_over(home: Path) -> None:
    """With the id of another start, too, as of one that was typed again; a folder that no start has made stays."""
    folder = home / "runs" / "x"
    (folder / "log").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "log" / "console.txt").touch()
    (folder / "log" / "join_line.txt").write_text("TANDEM_JOIN_TOKEN=old python train.py --join 10.0.0.1:12356")
    (home / "code").mkdir()
    check = {"do": "check", "run": "x", "machine": "beta", "python": sys.executable, "paths": []}
    start = {
        "do": "start",
        "run": "x",
        "machine": "beta",
        "id": "2",
        "config": "{}",
        "arguments": [],
        "python": "true",
        "token": "",
    }
    assert "is there already" in str(say(home, check)[0]["error"])
    assert "is there already" in str(say(home, start)[0]["error"])
    (home / "state" / "x.id").write_text("1")
    assert say(home, check) == [{}]
    with program(home) as starting:
        assert ask(starting, start) == {}
        starting.communicate()
    while say(home, {"do": "runs"})[0]["runs"][0]["is_active"]:  # type: ignore[index]
        pass
    assert (home / "state" / "x.exit").read_text() == "0\n"
    assert not (folder / "log" / "join_line.txt").exists(), "nobody joins a start that was killed"
    assert "is there already" in str(say(home, {**start, "id": "3"})[0]["error"])


def test_what_goes_on_there(home: Path) -> None:
    """Also a run whose folder was moved away; the files of locks stay when it is over."""
    (home / "state").mkdir()
    nothing: dict[str, object] = {"runs": [], "devices": [], "sends": False, "installs": False, "reads": False}
    goes_on: dict[str, dict[str, object]] = {
        "state/x.lock": {"runs": ["x"], "devices": [None]},
        "push.lock": {"sends": True},
        "setup.lock": {"installs": True},
    }
    for name, change in goes_on.items():
        with (home / name).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert say(home, {"do": "activity"}) == [{**nothing, **change}]
        assert say(home, {"do": "activity"}) == [nothing]
    (home / "runs" / "x").mkdir(parents=True)
    config = home / "runs" / "x" / "config.json"
    for text, devices in (('{"device_ids": [0, 3]}', [0, 3]), ('{"device_ids": "0"}', None), ("[", None), ("{}", None)):
        config.write_text(text)
        with (home / "state" / "x.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert say(home, {"do": "activity"}) == [{**nothing, "runs": ["x"], "devices": [devices]}]
    of_run: dict[str, object] = {"run": "x", "events": 0, "digest": "", "logs": {}, "wholes": {}, "config": False}
    for request in (
        {"do": "compare", "files": [["data/me/a", 3, 5]]},  # after which the other side may hash for hours
        {"do": "results", "backups": "all", **of_run},
        {"do": "get", "path": "config.json", "offset": 1, **of_run},
        {"do": "follow", **of_run},
    ):
        with program(home) as reading:
            ask(reading, request)
            assert say(home, {"do": "activity"}) == [{**nothing, "reads": True}], request
            assert "or one is read" in str(say(home, {"do": "clean", "run": "", "all": False})[0]["error"])
            reading.communicate()
        assert say(home, {"do": "activity"}) == [nothing]


def test_two_setups_do_not_write_one_environment(home: Path) -> None:
    """One that goes on after its connection was lost is waited for, unless the other side ends."""
    (home / "code" / "scripts").mkdir(parents=True)
    (home / "code" / "scripts" / "setup.sh").write_text(f"echo once >> '{home}/done'")
    with open(home / "setup.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        there, here = os.pipe()
        with os.fdopen(there, "rb") as source, os.fdopen(here, "wb") as requests:
            send(requests, {"do": "run_setup"})
            requests.close()
            answers = BytesIO()
            with pytest.raises(Broken):
                FarSide(str(home), source, answers).serve()
    assert b"is still at work there" in answers.getvalue()
    assert say(home, {"do": "run_setup"}) == [{"code": 0}]
    assert (home / "done").read_text() == "once\n"


def test_how_long_a_run_has_taken(home: Path) -> None:
    """All its starts; of one that was killed until its last event."""
    (home / "runs" / "x").mkdir(parents=True)
    (home / "state").mkdir()
    times = home / "state" / "x.times"

    def seconds() -> object:
        runs = say(home, {"do": "runs"})[0]["runs"]
        assert isinstance(runs, list)
        return runs[0]["seconds"]

    assert seconds() == 0
    times.write_text("start 1000\nstart 5000\nend 5060\nstart 9000\nend 9001\n")
    assert seconds() == 61
    times.write_text("start 1000\nend 1060\nstart 9000\n")
    events = home / "runs" / "x" / "events.jsonl"
    events.write_text("")
    os.utime(events, (9007, 9007))
    assert seconds() == 67
    assert say(home, {"do": "clean", "run": "x", "all": False}) == [{"left": []}]
    assert not times.exists()
