"""The locks of Tandem's folder on another machine. A part of the program of far_side.py, which is sent over ssh."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import IO

from modules.run.remote.far_files import read, remove, write
from modules.run.remote.far_messages import Busy

if sys.platform != "win32":  # which has this file only for what both sides share
    import fcntl

FILES_OF_LOCKS = ("push.lock", "setup.lock", "use.lock", "push.again")  # use: what is here is compared, read or begun


class Locks:
    """Files in the folder `home` that are locked, some of them until this connection ends."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._kept: dict[str, IO[str]] = {}

    def take(self, name: str, *, is_shared: bool = False) -> IO[str] | None:
        """The open file of a lock that is held now; None if another connection or program holds it."""
        kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        while True:
            file = open(os.path.join(self._home, name), "a+")  # noqa: SIM115
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                if os.path.exists(file.name) and os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
                    return file
            except OSError:
                file.close()
                return None
            file.close()  # of a file that was removed meanwhile: its lock keeps nobody out

    def is_held(self, name: str, *, alone: bool = True) -> bool:
        """Whether a program holds this lock, or holds it `alone`."""
        try:
            lock = os.open(os.path.join(self._home, name), os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if alone else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def keep_all(self) -> None:
        """Nothing is cleaned from now on until this connection ends, so that a run finds what was compared."""
        if "use.lock" in self._kept:
            return
        for pause_s in (0.02, 0.05, 0.1, 0.0):  # do_activity holds it for microseconds
            file = self.take("use.lock", is_shared=True)
            if file is not None:
                self._kept["use.lock"] = file
                return
            time.sleep(pause_s)
        raise Busy("this machine is being cleaned; try again after that")

    def keep_pushes(self, session: str) -> None:
        """One push at a time. A connection of the same one that was cut, and has not noticed it here, ends itself."""
        lock, again = (os.path.join(self._home, each) for each in ("push.lock", "push.again"))
        if "push.lock" in self._kept:
            return
        for _ in range(100):
            file = self.take("push.lock")
            if file is not None:
                break
            if read(lock) == session:
                write(again, session)
            time.sleep(0.1)
        else:
            raise Busy("another push to this machine is under way; try again after it")
        self._kept["push.lock"] = file
        remove(again)
        file.truncate(0)
        file.write(session)
        file.flush()
        threading.Thread(target=_give_way, args=(file, again, session), daemon=True).start()

    def close(self) -> None:
        """At the end of the connection."""
        for lock in self._kept.values():
            lock.close()


def _give_way(lock: IO[str], again: str, session: str) -> None:
    """End this program once a later connection of the same push asks for it. No process id is kept for that: it could
    be another program's by then, or one's in another container."""
    while read(again) != session:
        if lock.closed:
            return
        time.sleep(0.1)
    os._exit(1)
