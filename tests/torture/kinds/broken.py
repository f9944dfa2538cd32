"""A reader with every fault that is looked for, which proves that the harness finds them; no kind of KINDS."""

from __future__ import annotations

import os
import threading
import time
from random import Random

from modules.config import ConfigError
from tests.torture.kind import Places

EXPECTED = {
    0: "accepted",
    1: "refused",
    2: "crash",  # a ValueError
    3: "hang",  # waits
    4: "hang",  # computes
    5: "crash",  # writes a file elsewhere
    6: "crash",  # the process dies
    7: "crash",  # an exception in a thread
    8: "crash",  # an escape code in its sentence
    9: "crash",  # starts a program
    10: "crash",  # accepts what is not valid
    11: "crash",  # endless memory
    12: "accepted",  # the next one is well
}


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def make(self, draw: Random) -> None:
        self._places.case.joinpath("drawn").write_text(str(draw.random()))
        done = self._places.seeds.parent / "broken.count"  # the cases are made in order
        number = int(done.read_text()) + 1 if done.exists() else 0
        done.write_text(str(number))
        self._number = number

    def read(self) -> str:
        match self._number:
            case 1:
                raise ConfigError("no such thing")
            case 2:
                raise ValueError("a mistake")
            case 3:
                threading.Event().wait()
            case 4:
                while True:
                    pass
            case 5:
                (self._places.outside / "written.txt").write_text("x")
            case 6:
                os._exit(1)
            case 7:
                thread = threading.Thread(target=lambda: 1 // 0)
                thread.start()
                thread.join()
            case 8:
                return "\x1b[2J"
            case 9:
                os.system("true")
            case 10:
                raise AssertionError("it is not valid")
            case 11:
                held = bytearray(1 << 40)
                time.sleep(len(held))
        return ""
