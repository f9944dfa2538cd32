"""log/rank-N.txt: every line has its time and rank."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.run import RunFolder, start_rank_log, stop_rank_log


@pytest.fixture(autouse=True)
def _root_level_is_restored() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


def write_log(folder: RunFolder, rank: int, *, verbose: bool = False) -> list[str]:
    handler = start_rank_log(folder, rank, verbose)
    log = logging.getLogger("tandem.test")
    log.debug("details")
    log.info("news")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("broken")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old name", UserWarning, stacklevel=1)
    stop_rank_log(handler)
    return folder.log_file(rank).read_text(encoding="utf-8").splitlines()


def test_every_line_has_time_and_rank(folder: RunFolder) -> None:
    lines = write_log(folder, 3)
    assert len(lines) > 5
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d rank 3 ", line) for line in lines)
    text = "\n".join(lines)
    assert "ValueError: two" in text
    assert "old name" in text
    assert "news" not in text


def test_log_level_by_rank_and_verbose(folder: RunFolder) -> None:
    assert "news" in "\n".join(write_log(folder, 0))
    assert "details" not in "\n".join(write_log(folder, 0))
    assert "details" in "\n".join(write_log(folder, 1, verbose=True))


def test_unwritable_log_is_reported_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    handler = start_rank_log(RunFolder(tmp_path / "gone"), 0)
    logging.getLogger("tandem.test").warning("one")
    logging.getLogger("tandem.test").warning("two")
    stop_rank_log(handler)
    assert capfd.readouterr().err.count("cannot be written") == 1
