"""The runs on another machine. A part of the program of far_side.py, which is sent over ssh."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from typing import IO

from modules.run.remote.far_files import PLAIN, StateFiles, listed, read
from modules.run.remote.far_locks import Locks
from modules.run.remote.far_messages import Refused
from modules.run.remote.slurm_jobs import SlurmRuns

RESUMES = "resume-"  # how the id of a start begins that resumes a run


class Runs:
    """Those in runs/ of the folder `home`, and what is kept of them in state/. A run is active as long as a program
    holds its lock there, or Slurm has a job of it."""

    def __init__(self, home: str, locks: Locks, state: StateFiles, slurm: SlurmRuns) -> None:
        self._home, self._locks, self._state, self._slurm = home, locks, state, slurm

    def name(self, given: str) -> str:
        """The name. Raises Refused if it is none."""
        if not PLAIN.fullmatch(given):
            raise Refused(f"{given!r} is no name of a run there; use letters a to z, digits, -, _ and ., at most 200")
        return given

    def path(self, name: str, *parts: str) -> str:
        """Where the folder of a run is or will be, or something in it."""
        return os.path.join(self._home, "runs", name, *parts)

    def folder(self, given: str) -> str:
        """The folder of a run. Raises Refused if there is none."""
        folder = self.path(self.name(given))
        if not os.path.isdir(folder) or os.path.islink(folder):
            names = ", ".join(sorted(self.names())) or "none"
            raise Refused(f"there is no run {given} there; its runs are: {names}")
        return folder

    def own_folder(self, given: str) -> str:
        """As `folder`, of a run of this machine's own. Raises Refused if it only takes part in it."""
        if machine := self._state.read(self.name(given), "part"):
            raise Refused(f"this machine only takes part in the run {given}, which is on {machine}: ask there")
        return self.folder(given)

    def names(self) -> list[str]:
        """Of all that have a folder."""
        try:
            with os.scandir(os.path.join(self._home, "runs")) as entries:
                return [e.name for e in entries if PLAIN.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def active(self) -> list[str]:
        """Of all runs, also of one whose folder was moved away."""
        return sorted(each for each in self._state.names("lock") if self.is_active(each))

    def is_active(self, name: str) -> bool:
        """As far as is known."""
        return self._locks.is_held(f"state/{name}.lock") or self._slurm.is_alive(name)

    def lock(self, name: str) -> IO[str] | None:
        """Its lock, held now; None if it is active, or about to be."""
        os.makedirs(os.path.join(self._home, "state"), exist_ok=True)
        return self._locks.take(f"state/{name}.lock")

    def is_known(self, name: str, start_id: str) -> bool:
        """Whether its newest start is the one with this id."""
        return self._state.read(name, "id") == start_id

    def has_begun(self, name: str, start_id: str = "") -> bool:
        """A run that has begun is not begun again over what it has made, such as after the machine was restarted. What
        is left of a start that was cut before, such as by a full disk, is none."""
        folder = self.path(name)
        if os.path.isdir(folder) and self._slurm.job_id(name):
            return True
        made = [os.path.join(folder, "events.jsonl"), os.path.join(folder, "log", "console.txt")]
        has_ended = os.path.isdir(folder) and os.path.exists(self._state.path(name, "exit"))
        if start_id.startswith(RESUMES):  # what is there was made before
            return has_ended
        return has_ended or any(os.path.isfile(each) and os.path.getsize(each) for each in made)

    def is_in_the_way(self, name: str) -> bool:
        """Whether another run, or a folder that no start has made, has the place of a new one."""
        return self.has_begun(name) or (os.path.lexists(self.path(name)) and not self._state.read(name, "id"))

    def backups(self, name: str) -> list[str]:
        """Their names, the latest last."""
        return sorted(each for each in listed(self.path(name, "backup")) if PLAIN.fullmatch(each))

    def exit_code(self, name: str) -> int | None:
        """None until it is known."""
        text = self._state.read(name, "exit").strip()
        if not text:  # which the file system may show later than Slurm, or never, of a killed script
            return self._slurm.exit_code(name)
        return int(text) if text.isdecimal() else None

    def seconds(self, name: str) -> int:
        """How long the starts of a run have taken so far; of one that was killed, until the last that it has told."""
        events, total, begun = self.path(name, "events.jsonl"), 0, 0
        for line in self._state.read(name, "times").splitlines():
            word, _, at = line.partition(" ")
            if not at.isdecimal():
                continue
            total += int(at) - begun if begun and word == "end" else 0
            begun = int(at) if word == "start" else 0
        if begun and self.is_active(name):
            total += int(time.time()) - begun
        elif begun and os.path.isfile(events):
            total += max(0, int(os.path.getmtime(events)) - begun)
        return max(0, total)

    def _config(self, name: str) -> str:
        return read(self.path(name, "config.json"), -1)

    def devices(self, name: str) -> list[int] | None:
        """The indices of the GPUs that a run takes; None for all, or if it does not say."""
        try:
            devices = json.loads(self._config(name))["device_ids"]
        except (ValueError, TypeError, KeyError):
            return None
        is_list = isinstance(devices, list) and len(devices) <= 64
        return devices if is_list and all(type(each) is int and each >= 0 for each in devices) else None

    def may_read(self, name: str, place: str) -> bool:
        """Whether its config may name a file, or a folder that it is in; too often rather than not."""
        config = self._config(name)
        parts = [each.strip() for each in re.split('[";,]', config)]
        data, wanted = (json.dumps(each)[1:-1] for each in (os.path.join(self._home, "data"), place))
        return not config or any(each.startswith(data) and wanted.startswith(each) for each in parts)

    def remove(self, name: str) -> None:
        """With all that is kept of it."""
        shutil.rmtree(self.folder(name))
        self._state.remove(name, "id", "exit", "times", "part", "txt", "jobs", "slurm", "token", "lock")

    def remove_tokens(self) -> None:
        """Of all runs that have ended or never came about, also without a folder."""
        for name in self._state.names("token"):
            if not self.is_active(name):
                self._slurm.remove_token(name)
