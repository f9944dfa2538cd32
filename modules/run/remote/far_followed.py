"""What a copy of a run gets of it. A part of the program of far_side.py, which is sent over ssh."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator

from modules.run.remote.far_files import PLAIN, listed, sha256
from modules.run.remote.far_messages import PIECE, Refused

MOST_LOG = 64 << 20  # bytes of a log that is followed; a longer one stays there
MOST_WHOLE = 64 << 20  # of a sample or a report
MOST_TENSORBOARD = 1 << 30  # of one of its files, which have the samples, too
TENSORBOARD = re.compile(r"tensorboard/events\.out\.tfevents\.[A-Za-z0-9_.-]{1,200}")
MOST_AT_ONCE = 16 << 20  # of one of these, between two looks for commands to the run
KEPT_SECRET = "log/join_line.txt"
# They only grow. TensorBoard's own log is each side's.
_OWN = rf"{re.escape(KEPT_SECRET)}|log/tensorboard\.txt"
LOGS = re.compile(rf"events\.jsonl|(?!{_OWN})log/[A-Za-z0-9_][A-Za-z0-9_.-]{{0,199}}\.txt|{TENSORBOARD.pattern}")
WHOLES = re.compile(r"samples/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}|log/[A-Za-z0-9_-]{1,100}\.error\.json")


class FollowedRun:
    """Tells with `answer` what the files in `folder` have more than their copies, of which `logs` and `wholes` (samples
    and reports) are the sizes."""

    def __init__(self, folder: str, answer: Callable[..., None], logs: dict[str, int], wholes: dict[str, int]) -> None:
        self._folder, self._answer = folder, answer
        self._logs, self._wholes = logs, wholes

    def send_new(self) -> bool:
        """Whether that was anything; of TensorBoard's files more may be left."""
        has_sent = False
        for path in list(self._paths()):
            has_sent |= self._send(path)
        return has_sent

    def _paths(self) -> Iterator[str]:
        """Logs first, so that a sample is there when the events name it; what only TensorBoard shows comes last."""
        log, samples, tensorboard = (
            [f"{part}/{name}" for name in sorted(listed(os.path.join(self._folder, part)))]
            for part in ("log", "samples", "tensorboard")
        )
        for path in [*log, *samples, "events.jsonl", *tensorboard]:
            if not (LOGS.fullmatch(path) or WHOLES.fullmatch(path)):
                continue
            try:
                if stat.S_ISREG(os.lstat(os.path.join(self._folder, path)).st_mode):
                    yield path
            except OSError:
                continue

    def _send(self, path: str) -> bool:
        place = os.path.join(self._folder, path)
        try:
            size = os.lstat(place).st_size
            if LOGS.fullmatch(path):
                return self._send_log(place, path, size)
            if self._wholes.get(path) == size or size > MOST_WHOLE:
                return False
            with open(place, "rb") as file:
                for piece in iter(lambda: file.read(PIECE), b""):
                    self._answer(piece, file=path, last=False)
            self._answer(file=path, last=True)
        except FileNotFoundError:  # removed, or replaced, meanwhile
            return False
        self._wholes[path] = size
        return True

    def _send_log(self, place: str, path: str, size: int) -> bool:
        start = self._logs.get(path, 0)
        most = size if path == "events.jsonl" else min(size, most_of_log(path))
        if size < start:  # a log begins anew
            start = 0
        if TENSORBOARD.fullmatch(path):
            most = min(most, start + MOST_AT_ONCE)
        if start >= most:
            return False
        with open(place, "rb") as file:
            file.seek(start)
            while start < most and (piece := file.read(min(PIECE, most - start))):
                self._answer(piece, file=path, offset=start)
                start += len(piece)
        self._logs[path] = start
        return True


def most_of_log(path: str) -> int:
    """How many bytes of a log are followed."""
    return MOST_TENSORBOARD if TENSORBOARD.fullmatch(path) else MOST_LOG


def require_beginning(folder: str, size: int, digest: str) -> None:
    """Raises Refused unless the copy's events, of this size and hash, are the first ones of the run's."""
    if size and sha256(os.path.join(folder, "events.jsonl"), size) != digest:
        raise Refused(
            f"events.jsonl of the copy is not the beginning of that of the run {os.path.basename(folder)} there; "
            "was it resumed? Use another --runs_dir for what is there"
        )


def files_in(folder: str, top: str) -> Iterator[str]:
    """The regular files of a file or folder of a run with plain names: no links, nothing half-written."""
    place = os.path.join(folder, top)
    if os.path.islink(place):
        return
    if os.path.isfile(place):
        yield top
        return
    for name in sorted(listed(place)):
        if PLAIN.fullmatch(name):
            yield from files_in(folder, f"{top}/{name}")
