"""Notes and tags of a run: kept in its folder, read with limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import ConfigError
from modules.run import RunFolder
from modules.run.folder.run_notes import RunNotes, notes_file, parse_tags, read_notes, write_notes


def test_notes_come_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    notes = RunNotes(note="Better hands.\nTry rank 32.", tags=["portrait", "v2"])
    write_notes(folder, notes)
    assert read_notes(folder) == notes
    assert notes.line == "#portrait #v2  Better hands."
    write_notes(folder, RunNotes())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", '{"note": 5}', '{"tags": "cat"}', '{"tags": [1]}', '{"note": "' + "x" * 10_001 + '"}',
        '{"tags": ["' + "x" * 41 + '"]}', '{"tags": [' + ",".join(['"a"'] * 21) + "]}", "[" * 100_000,
    ],
)  # fmt: skip
def test_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    notes_file(RunFolder(tmp_path)).write_text(text)
    assert read_notes(RunFolder(tmp_path)) == RunNotes()


def test_foreign_notes_are_printable(tmp_path: Path) -> None:
    notes_file(RunFolder(tmp_path)).write_text('{"note": "a\\u001b[31mb\\nc", "tags": ["x\\u202ey", " "]}')
    assert read_notes(RunFolder(tmp_path)) == RunNotes(note="a\\x1b[31mb\nc", tags=["x\\u202ey"])


def test_tags_of_a_line() -> None:
    assert parse_tags("#portrait, v2  portrait") == ["portrait", "v2"]
    with pytest.raises(ConfigError, match="too long"):
        parse_tags("x" * 41)
    with pytest.raises(ConfigError, match="21 tags"):
        parse_tags(" ".join(f"t{number}" for number in range(21)))
