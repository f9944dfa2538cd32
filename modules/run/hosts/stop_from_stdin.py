"""A program that was started over ssh stops at a line of its standard input: ssh passes on no signals."""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

STOP_LINE: Final = b"stop\n"
_LONGEST: Final = 4096


def stop_at_line_of_stdin(*, also_at_end: bool = False) -> None:
    """From now on, a line "stop" acts as Ctrl-C does; so does the end of the input, `also_at_end`: a run goes on
    without it, a preflight would tell nobody.

    Reads the descriptor itself: a thread that waits in `sys.stdin` would hold up the end of the program.
    """
    threading.Thread(target=_read, args=(also_at_end,), name="stdin", daemon=True).start()


def _read(also_at_end: bool) -> None:
    pending = b""
    while True:
        try:
            data = os.read(0, _LONGEST)
        except OSError:
            data = b""
        if not data:
            if also_at_end:
                os.kill(os.getpid(), signal.SIGINT)
            return
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            if line + b"\n" == STOP_LINE:
                os.kill(os.getpid(), signal.SIGINT)
        pending = pending[-_LONGEST:]
