"""Output that nobody reads: a run goes on, and says how much is missing once somebody does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modules import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a pipe's size is that of Linux")

PRINTS = """
import os, sys
from modules.run.queued_output import queued_output
with queued_output():
    for number in range(20_000):
        sys.stdout.write(f"line {number:05d} " + "." * 60 + "\\n")
        sys.stdout.flush()
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        os._exit(bool(sys.stdout.flush()))  # a worker has no thread of its parent's
    os.close(GO)
    os.read(READ, 1)
    print("after all", flush=True)
print("not queued", file=sys.stderr)
"""


def test_a_stalled_pipe_holds_nothing_up_and_lines_that_are_missing_are_counted(tmp_path: Path) -> None:
    done, go = os.pipe()
    read, resume = os.pipe()
    program = PRINTS.replace("GO", str(go)).replace("READ", str(read))
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=(go, read)
    ) as process:
        os.close(go)
        os.read(done, 1)  # returns once everything has been printed, although nothing was read
        assert process.poll() is None
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while lines[-1] and not lines[-1].startswith("["):
            lines.append(process.stdout.readline())
        os.close(resume)
        lines += process.stdout.readlines()
        _, error = process.communicate(timeout=60)
    for pipe in (done, read):
        os.close(pipe)
    assert process.returncode == 0, error
    assert error == "not queued\n"
    first = [line for line in lines if line.startswith("line ")]
    assert first == [f"line {number:05d} {'.' * 60}\n" for number in range(len(first))]
    notes = [line for line in lines if line.startswith("[")]
    assert notes == [f"[lines left out while nobody read this output: {20_000 - len(first)}]\n"]
    assert lines[-1] == "after all\n", lines[-3:]


@pytest.mark.slow
def test_a_closed_reader_is_an_error_once() -> None:
    program = (
        "import os, sys; from modules.run.console import echo; from modules.run.queued_output import queued_output\n"
        "with queued_output():\n    echo('one'); os.read(0, 1); echo('two'); echo('three')\n"
        "print('survived', file=sys.stderr)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        process.stdout.close()
        process.stdout = None
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, "survived\n")
