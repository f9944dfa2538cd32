"""The signals by which a person or the system asks a program to end."""

from __future__ import annotations

import signal


def end_signals() -> list[signal.Signals]:
    """Those to answer, of the ones that this system has.

    Ctrl-C counts also where it is ignored so far, as in what a shell script starts in the background: whoever sends
    it to this process means it. But nohup asks not to be told when the terminal closes.
    """
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    numbers = [signal.Signals[name] for name in names if hasattr(signal, name)]
    return [each for each in numbers if each.name != "SIGHUP" or signal.getsignal(each) != signal.SIG_IGN]
