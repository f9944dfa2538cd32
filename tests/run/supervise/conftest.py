"""Every test here leaves no process and no folder of torchrun behind."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator

import psutil
import pytest

from modules.run import RunFolder


@pytest.fixture
def nothing_is_left(
    folder: RunFolder, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))  # of the processes
    yield
    assert list(temporary.glob("torchelastic*")) == [], "torchrun makes a folder at each start"
    time.sleep(0.05)
    left = [
        process.cmdline()
        for process in psutil.process_iter()
        if process.pid != os.getpid() and str(folder.path) in " ".join(_cmdline(process))
    ]
    assert left == []


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
