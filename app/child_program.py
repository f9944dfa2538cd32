"""Programs of Tandem's that the window runs in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from modules import ROOT
from modules.files import FileFault, read_bytes

NOT_STARTED: Final = -1  # in place of an exit code
_WAIT_S: Final = 3.0  # for a process to end that was killed


class ChildProgram:
    """Runs `script` with `arguments`; `log` is the file for its output, of errors too unless `errors` is given.

    `variables` are for what no command line may show. Raises OSError if it cannot be started; see `not_started`.
    """

    def __init__(
        self,
        script: Path,
        arguments: Sequence[str],
        log: Path,
        errors: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        # files, not pipes, which would block the program unless read
        with ExitStack() as files, _interruptible():
            self.process = subprocess.Popen(
                [sys.executable, str(script), *arguments],
                env={**os.environ, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=files.enter_context(log.open("wb")),
                stderr=files.enter_context(errors.open("wb")) if errors else subprocess.STDOUT,
                start_new_session=sys.platform != "win32",
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def output(self) -> str:
        """All that it has written so far."""
        try:
            return read_bytes(self._log).decode(errors="replace").strip()
        except OSError as error:
            return f"Its output cannot be read: {error.strerror or error}."
        except FileFault as error:
            return f"Its output {error}."

    def stop(self) -> None:
        """Ask it to end, as Ctrl-C does; it ends its own processes."""
        if not self.is_running:
            return
        if sys.platform == "win32":
            self.process.terminate()
        else:
            os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """End it at once, and wait until it has ended."""
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_WAIT_S)


def not_started(error: OSError) -> str:
    """The sentence for a program that cannot be started, such as because of a full disk."""
    return f"The program could not be started: {error.strerror or error}."


def ended_early(exit_code: int) -> str:
    """The sentence for a program that has not said why it ended; a negative code is that of a signal."""
    if exit_code < 0:
        return f"The program was ended by signal {-exit_code}. Perhaps the computer ran out of memory."
    return f"The program failed with exit code {exit_code}."


@contextmanager
def _interruptible() -> Iterator[None]:
    """A program that is started inside the block ends at SIGINT: it would inherit that this one ignores it, as a
    background job of a shell does, but inherits no handler."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def start_module(module: str, *arguments: str) -> subprocess.Popen[str]:
    """`python -m module` of Tandem's, with pipes for text; its current folder is Tandem's own."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
