"""The event log: complete, ordered, and harmless to training."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from modules.run import EventLog, EventReader, read_events
from modules.run.folder.event_reader import parse_events

ROOT = Path(__file__).parents[3]


def wait_for(path: Path, count: int) -> None:
    """Wait until `count` events are on the disk."""
    give_up = time.monotonic() + 60
    while len(read_events(path)) < count:
        assert time.monotonic() < give_up
        time.sleep(0.005)


def test_step_events_are_buffered_and_flushed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write("phase", phase="training")
    assert len(read_events(path)) == 1, "rare events are written at once"
    for step in range(50):
        log.write("step", step=step, loss=0.5)
    wait_for(path, 51)
    log.close()
    log.close()
    events = read_events(path)
    assert [event["step"] for event in events[1:]] == list(range(50))
    assert all(event["v"] == 1 and isinstance(event["t"], float) for event in events)


def test_at_most_ten_writes_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = []
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: writes.append(1) or real_write(file, data))
    start = time.monotonic()
    log = EventLog(tmp_path / "events.jsonl")
    for step in range(100):
        log.write("step", step=step)
        time.sleep(0.005)
    log.close()
    assert len(writes) <= 10 * (time.monotonic() - start) + 7
    assert len(read_events(tmp_path / "events.jsonl")) == 100


def test_non_finite_numbers_become_null(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write("validation", loss=float("nan"), metrics={"a": [float("inf")]}, file=Path("x/y.png"))
    log.close()
    event = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert event["loss"] is None
    assert event["metrics"] == {"a": [None]}
    assert event["file"] == str(Path("x/y.png"))


def test_undecodable_file_names_are_written(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write("warning", message="caf\udce9.png: ü")
    log.close()
    assert b"caf\\udce9.png: \xc3\xbc" in path.read_bytes()
    assert [event["message"] for event in read_events(path)] == ["caf\udce9.png: ü"]


def test_events_are_flushed_at_exit(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    code = (
        "from pathlib import Path; from modules.run import EventLog\n"
        f"log = EventLog(Path({str(path)!r}))\nfor n in range(5): log.write('step', step=n)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=100)
    assert len(read_events(path)) == 5


def test_incomplete_last_line_is_terminated(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"v":1,"t":1,"type":"started"}\n{"v":1,"t":2,"ty')
    assert [event["type"] for event in read_events(path)] == ["started"]
    log = EventLog(path)
    log.write("finished", reason="failed", exit_code=3)
    log.close()
    assert [event["type"] for event in read_events(path)] == ["started", "finished"]


def test_full_disk_delays_events_and_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    real_write = os.write
    log = EventLog(path)
    log.write("phase", phase="loading")

    def half_then_full(file: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", full)
        return real_write(file, data[: len(data) // 2])

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half_then_full)
    log.write("backup", step=1)
    for step in range(3):
        log.write("backup", step=step + 2)
        log.flush()
    assert capfd.readouterr().err.count("No space left on device") == 1
    monkeypatch.setattr(os, "write", real_write)
    log.close()
    assert [event.get("step") for event in read_events(path)] == [None, 1, 2, 3, 4]


def test_missing_folder_does_not_raise(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = EventLog(tmp_path / "nowhere" / "events.jsonl")
    log.write("phase", phase="loading")
    log.close()
    assert "cannot be written" in capfd.readouterr().err


def test_events_follow_the_path_when_the_folder_is_moved(tmp_path: Path) -> None:
    """Else the window, which reads the recreated folder, shows "Starting" while the run trains, and then "Finished"."""
    folder = tmp_path / "cats"
    folder.mkdir()
    log = EventLog(folder / "events.jsonl")
    log.write("phase", phase="training")
    folder.rename(tmp_path / "dogs")
    log.write("warning", message="kept until the folder is there again")
    folder.mkdir()
    log.write("stopped")
    log.close()
    assert [event["type"] for event in read_events(folder / "events.jsonl")] == ["warning", "stopped"]
    assert [event["type"] for event in read_events(tmp_path / "dogs" / "events.jsonl")] == ["phase"]


def test_reader_returns_each_event_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    assert reader.new() == []
    path.write_bytes(b'{"type":"from_the_future","x":1}\nnot json\n[1]\n{"no":"type"}\n{"type":"st')
    assert [event["type"] for event in reader.new()] == ["from_the_future"]
    with path.open("ab") as file:
        file.write(b'ep","step":1}\n')
    assert reader.new() == [{"type": "step", "step": 1}]
    assert reader.new() == []
    path.write_bytes(b'{"type":"started"}\n')
    assert [event["type"] for event in reader.new()] == ["started"]
    assert EventReader(path, from_end=True).new() == []


def test_large_files_are_read_in_chunks(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    line = b'{"type":"step","pad":"' + b"x" * 1000 + b'"}\n'
    path.write_bytes(line * 10_000 + b'{"type":"big","pad":"' + b"y" * (5 << 20) + b'"}\n')
    assert 0 < len(EventReader(path).new()) < 10_000
    assert len(read_events(path)) == 10_001


def test_reader_skips_invalid_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path, chunk_bytes=4096)
    with path.open("wb") as file:
        file.write(b"nonsense\n" * 5000 + b"[" * 100_000 + b"\n")
        file.write(b'{"type":"step","step":1}\n')
        file.write(b"x" * (9 << 20))
    assert [event["step"] for event in reader.new()] == [1]
    assert reader.new() == []
    with path.open("ab") as file:
        file.write(b"y" * (9 << 20) + b'\n{"type":"step","step":2}\n{"type":"st')
    assert [event["step"] for event in reader.new()] == [2]
    with path.open("ab") as file:
        file.write(b'ep","step":3}\n')
    assert [event["step"] for event in reader.new()] == [3]


def test_events_nested_too_deeply_for_their_readers_are_none() -> None:
    deep = {depth: b'{"type":"step","a":' + b"[" * depth + b"]" * depth + b"}\n" for depth in (9, 63, 64, 900)}
    assert len(list(parse_events(b"".join(deep.values())))) == 2
    wide = b'{"type":"ranks","ranks":[' + b",".join([b'{"rank":1}'] * 100) + b"]}\n"
    assert len(list(parse_events(wide))) == 1


def test_reader_detects_a_replaced_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"type":"step","step":1,"t":1}\n')
    reader = EventReader(path)
    assert [event["step"] for event in reader.new()] == [1]
    path.write_text('{"type":"step","step":5,"t":2}\n' * 100)
    assert len(reader.new()) == 100
    path.write_text('{"type":"step","step":5,"t":2}\n')
    assert len(reader.new()) == 1
    assert reader.restarts == 2


def test_an_endless_line_is_left_in_pieces(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'{"type":"a"}\n')
    with file.open("r+b") as opened:
        opened.truncate(1 << 42)
    reader = EventReader(file, chunk_bytes=1 << 20)
    assert [event["type"] for event in reader.new()] == ["a"]
    assert reader.new() == []


def test_an_event_is_written_in_the_place_that_was_reserved_for_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write("validation", step=1)
    place = log.reserve()
    log.write("backup", step=1)
    log.flush()
    assert [event["type"] for event in read_events(path)] == ["validation"]
    log.write_at(place, "sample", step=1)
    log.flush()
    assert [event["type"] for event in read_events(path)] == ["validation", "sample", "backup"]
    times = [float(str(event["t"])) for event in read_events(path)]
    assert times == sorted(times)
    empty = log.reserve()
    log.write("finished", reason="failed", exit_code=3)
    log.close()
    assert read_events(path)[-1]["type"] == "finished"
    log.write_at(empty, "sample", step=2)  # too late, as at the end of a process
    log.close()
    assert len(read_events(path)) == 4
