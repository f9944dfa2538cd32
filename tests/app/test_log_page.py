"""The log: in time order over all ranks, without what the console repeats, and wrapped."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.monitor.line_list import heads_of, without_info, wrapped
from app.monitor.log_reader import LogReader
from modules.run import RunFolder
from tests.app.fake_runs import make_fake_run
from tests.app.run_driver import Driven

STAMP = "2026-01-02 03:04:0"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = make_fake_run(tmp_path / "run", steps=1, ended=None)
    folder.console_file.write_text(
        "Run folder: /runs/run\n8 images\nWarning: 1 file has a problem\nonly on the console\nStep 10: saved.\n"
    )
    folder.log_file(0).write_text(
        f"{STAMP}1 rank 0 INFO tandem: 8 images\n{STAMP}2 rank 0 WARNING tandem: 1 file has a problem\n"
        f"{STAMP}4 rank 0 INFO tandem: Step 10: saved.\n"
    )
    folder.log_file(1).write_text(f"{STAMP}3 rank 1 INFO tandem: here, too\n")
    return folder


@pytest.fixture
def reader(folder: RunFolder) -> Iterator[LogReader]:
    reader = LogReader(folder)
    yield reader
    reader.close()


def shown(reader: LogReader) -> list[str]:
    """What "All sources" shows, without times."""
    return [line.text.removeprefix(line.stamp).strip() for line in reader.lines if not line.is_repeat]


def test_console_repeats_nothing_and_stands_at_its_time(reader: LogReader) -> None:
    reader.poll()
    assert shown(reader) == [
        "Run folder: /runs/run",
        "rank 0 INFO tandem: 8 images",
        "rank 0 WARNING tandem: 1 file has a problem",
        "only on the console",
        "rank 1 INFO tandem: here, too",
        "rank 0 INFO tandem: Step 10: saved.",
    ]
    assert len([line for line in reader.lines if line.source == "console"]) == 5, "all of them are still there"


def test_late_lines_of_another_rank_come_in_order(reader: LogReader, folder: RunFolder) -> None:
    reader.poll()
    before = len(shown(reader))
    with folder.log_file(0).open("a") as file:
        file.write(f"{STAMP}7 rank 0 INFO tandem: seven\n{STAMP}9 rank 0 INFO tandem: nine\n")
    reader.poll()
    with folder.log_file(1).open("a") as file:
        file.write(f"{STAMP}6 rank 1 INFO tandem: six\n{STAMP}8 rank 1 INFO tandem: eight\n")
    reader.poll()
    reader.poll()
    assert [line.rpartition(" ")[2] for line in shown(reader)[before:]] == ["six", "seven", "eight", "nine"]


@pytest.mark.parametrize("line", [b"\n", b"x" * 100], ids=["empty lines", "no line end"])
def test_a_log_of_any_kind_takes_little_memory(line: bytes, reader: LogReader, folder: RunFolder) -> None:
    (folder.log_dir / "rank-2.txt").write_bytes(line * ((2 << 20) // len(line)))
    reader.poll()
    assert len(reader.lines) < 40_000
    assert len(reader._files["2"]._partial) <= 64 << 10


def test_a_resumed_run_and_its_machines_stand_in_time_order(reader: LogReader, folder: RunFolder) -> None:
    """The console is that of the last start; what a machine over ssh prints stands where it has ended."""
    starts = f"{STAMP}0 A=1 python train.py\n{STAMP}5 A=1 python train.py --resume latest\nof torch\n"
    folder.launcher_log.write_text(starts)
    host = folder.log_dir / "host-beta.txt"
    host.write_text("Joining the run at 10.0.0.1 ...\nTraining stopped: rank 1 on beta failed.\n")
    ended = time.mktime(time.strptime(f"{STAMP}8", "%Y-%m-%d %H:%M:%S"))
    os.utime(host, (ended, ended))
    with folder.log_file(0).open("a") as file:
        file.write(f"{STAMP}6 rank 0 INFO tandem: Resuming at step 10.\n{STAMP}9 rank 0 INFO tandem: the end\n")
    folder.console_file.write_text("Run folder: /runs/run\nResuming at step 10.\nstep 11\n")
    reader.poll()
    assert shown(reader) == [
        "A=1 python train.py",
        "rank 0 INFO tandem: 8 images",
        "rank 0 WARNING tandem: 1 file has a problem",
        "rank 1 INFO tandem: here, too",
        "rank 0 INFO tandem: Step 10: saved.",
        "A=1 python train.py --resume latest",
        "Run folder: /runs/run",
        "of torch",
        "rank 0 INFO tandem: Resuming at step 10.",
        "step 11",
        "Joining the run at 10.0.0.1 ...",
        "Training stopped: rank 1 on beta failed.",
        "rank 0 INFO tandem: the end",
    ]
    assert reader.sources == ("console", "launcher", "0", "1", "host-beta")


def test_lines_are_broken_between_words() -> None:
    assert wrapped("short", 20) == ["short"]
    assert wrapped("one two three four five", 12) == ["one two", "    three", "    four", "    five"]
    path = "/" + "x" * 30
    assert wrapped(f"File {path}", 20) == [f"File {path[:15]}", f"    {path[15:]}"], "a long word fills the row"
    assert wrapped("eight chars", 10) == ["eight", "    chars"]
    assert wrapped("one two three", 9, columns_of=lambda letter: 2) == ["one two", "    three"]
    assert wrapped("öne two three", 9, columns_of=lambda letter: 2) == ["öne two", "    three"], "of one wide letter"
    assert wrapped("öne two", 7, 0, lambda letter: 2) == ["öne", "two"]
    assert wrapped("字" * 6, 8, 0, lambda letter: 2) == ["字" * 4, "字" * 2]


@pytest.mark.slow
def test_long_lines_are_wrapped_and_scroll_whole(home: Path, preferences: Path, folder: RunFolder) -> None:
    with folder.log_file(0).open("a") as file:
        for number in range(100):
            file.write(f"{STAMP}5 rank 0 INFO tandem: {number} " + "word " * 100 + f"end-of-{number}\n")
    driven = Driven()
    try:
        driven.window.state_.actions.follow(folder.path)
        page = driven.monitor("log")
        driven.until(lambda: page.found and page.found[-1].text.endswith("end-of-99"), "the lines")
        lines = page.lines
        driven.live(0.2)

        def drawn() -> list[str]:
            return [text for item in lines._rows if (text := lines.canvas.itemcget(item, "text"))]

        assert drawn()[-1].endswith("end-of-99"), "the end is in sight"
        for item in lines._rows:
            assert (lines.canvas.bbox(item) or (0, 0, 0))[2] <= lines.canvas.winfo_width(), "nothing is cut off"
        whole = "".join(drawn()).replace(" ", "")
        assert ("word" * 100 + "end-of-98") in whole, "a whole line over several rows"
        lines.canvas.focus_force()
        driven.press("ctrl+Home", "Home")
        assert lines.first == 0
        driven.press("Down")
        assert lines.first == 1
        assert not lines.follows
        driven.press("End")
        assert drawn()[-1].endswith("end-of-99")
        top = lines._line_of_row[0]
        driven.click(lines.canvas)
        assert lines.selection is not None
        assert lines.selection[0] >= top
        assert lines.selected_text() == page.found[lines.selection[0]].text, "a click on any row selects the whole line"
        driven.press("ctrl+a", "ctrl+c")
        assert driven.window.clipboard_get() == "\n".join(line.text for line in page.found), "the whole log"
    finally:
        driven.close()


def test_time_and_rank_are_said_once_for_lines_that_follow_each_other() -> None:
    failure = f"{STAMP}1 rank 0 "
    texts = [
        f"{failure}INFO tandem: 8 images",
        f"{failure}Traceback (most recent call last):",
        f"{failure}  File",
        "    wrapped",
        "console",
        f"{failure}  end",
        f"{STAMP}1 rank 1 here, too: a message",
    ]
    lines = [0, 1, 2, 2, 3, 4, 5]
    assert heads_of([(line, text, "info") for line, text in zip(lines, texts, strict=True)]) == [
        (f"{failure}INFO tandem: ", False),
        (failure, False),
        (failure, True),
        ("", False),  # the rest of a long line
        ("", False),
        (failure, False),  # after a line without a time
        (f"{STAMP}1 rank 1 ", False),
    ]


def test_most_lines_are_shown_without_their_level_and_logger() -> None:
    assert without_info(f"{STAMP}1 rank 0 INFO tandem: Step 10: saved.") == f"{STAMP}1 rank 0 Step 10: saved."
    others = (f"{STAMP}1 rank 0 WARNING tandem: odd", f"{STAMP}1 rank 0   File", "INFO tandem: console")
    assert [without_info(line) for line in others] == list(others)
