"""Whatever the sizes of pieces and files, with and without direct I/O, the file is what was added."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from modules import ROOT
from modules.checkpoint import hashed_files, verified_write
from modules.checkpoint.hashed_files import HashedFile

BLOCK = 8192


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (hashed_files, verified_write):
        monkeypatch.setattr(module, "BLOCK_BYTES", BLOCK)
        monkeypatch.setattr(module, "CHUNK_BYTES", 3000)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, BLOCK, BLOCK + 1, 3 * BLOCK, 20 * BLOCK + 4097])
@pytest.mark.parametrize("is_direct", [True, False])
def test_a_file_is_what_was_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, is_direct: bool) -> None:
    if not is_direct:
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    draw = random.Random(size)
    data, path, added = draw.randbytes(size), tmp_path / "file", 0
    with HashedFile(path) as file:
        while added < size:
            piece = draw.choice((1, 7, 4096, 30_000))
            file.add(data[added : added + piece])
            added += piece
    assert path.read_bytes() == data
    assert (file.entry.size, file.entry.sha256) == (size, hashlib.sha256(data).hexdigest())


def test_a_limit_of_size_within_a_block_is_named_and_leaves_no_thread(tmp_path: Path) -> None:
    """As on a full disk, the last write is a short one, whose rest cannot be written by direct I/O."""
    before, path = threading.active_count(), tmp_path / "file"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 * BLOCK + 100, limits[1]))

    def write() -> None:
        with HashedFile(path) as file:
            for _ in range(50):
                file.add(bytes(BLOCK))

    try:
        with pytest.raises(OSError, match="File too large") as found:
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, former)
    assert found.value.filename == str(path)
    assert threading.active_count() == before


@pytest.mark.parametrize(("number", "name"), [(1, "write"), (2, "read back"), (3, "read back")])
def test_a_system_that_refuses_a_thread_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    before, started, start = threading.active_count(), list[str](), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        started.append(thread.name)
        if len(started) == number:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with (
        pytest.raises(OSError, match=r"refuses another thread.*file"),
        HashedFile(tmp_path / "file") as file,
    ):
        file.add(bytes(9 * BLOCK))
    assert started[-1] == name
    assert threading.active_count() == before


@pytest.mark.parametrize("fails", ["memory", "reading"])
def test_a_reader_that_fails_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    make, made = verified_write._aligned, list[int]()

    def refuse(size: int) -> verified_write.Bytes:
        made.append(size)
        if len(made) > 1:  # the first is the block
            raise OSError(12, "Cannot allocate memory")
        return make(size)

    def break_down(*_: object) -> bool:
        raise RuntimeError("broken")

    if fails == "memory":
        monkeypatch.setattr(verified_write, "_aligned", refuse)
    else:
        monkeypatch.setattr(verified_write, "_equal", break_down)
    expected = "Cannot allocate memory" if fails == "memory" else "RuntimeError: broken"
    with pytest.raises(OSError, match=rf"{expected}.*file"), HashedFile(tmp_path / "file") as file:
        file.add(bytes(9 * BLOCK))


REFUSED_MEMORY = """
import os, resource, sys
from pathlib import Path
from modules.checkpoint.hashed_files import HashedFile
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
before = os.listdir("/proc/self/fd")
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))
try:
    HashedFile(Path(sys.argv[1]))
except OSError as error:
    found = error
print(found.errno, found.filename == sys.argv[1], os.listdir("/proc/self/fd") == before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of memory")
def test_memory_that_is_refused_leaves_no_open_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", REFUSED_MEMORY, str(tmp_path / "file")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(errno.ENOMEM), "True", "True"], done.stderr
