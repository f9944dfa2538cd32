"""The number of optimizer steps that the settings lead to, counted in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
import tkinter as tk
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from app.images.image_index import absolute_concepts
from app.place import planned_world_size
from app.state import AppState
from modules import ROOT
from modules.config import TrainConfig
from modules.files import decode_json, whole_path
from modules.run.hosts.hardware import Hardware

SETTINGS: Final = (
    *(
        "family",
        "concepts",
        "validation_split",
        "seed",
        "epochs",
        "max_steps",
        "batch_size",
        "gradient_accumulation_steps",
    ),
    *("global_batch_size", "drop_last", "masked_training", "enable_multi_gpu", "world_size"),
    *("training_mode", "device", "device_ids", "num_nodes", "processes_per_node", "cache_dir"),
)
PAUSE_MS: Final = 400  # after the last change
TIMEOUT_S: Final = 60


@dataclass(frozen=True)
class Length:
    """Optimizer steps of a run and of each epoch, 0 if they are not known, and the number of processes.

    `end` says which of two limits ends the run; empty if there is only one.
    """

    steps: int = 0
    steps_per_epoch: int = 0
    world_size: int = 1
    end: str = ""


class RunLength:
    """Calls `changed` once another `length` is known. `is_counting` until the first answer."""

    def __init__(self, owner: tk.Misc, state: AppState, changed: Callable[[], object]) -> None:
        self.length = Length()
        self.is_counting = True
        self._owner, self._state, self._changed = owner, state, changed
        self._asked, self._machine = "", state.place.machine
        self._job = ""

    def refresh(self) -> None:
        """Count again, in the background, if a setting that matters or the place has changed."""
        asked = json.dumps({name: self._state.draft.data.get(name) for name in SETTINGS})
        if (asked, self._state.place.machine) == (self._asked, self._machine):
            return
        if self._job:
            self._owner.after_cancel(self._job)
        self._job = self._owner.after(PAUSE_MS if self._asked else 1, self._count)
        self._asked, self._machine = asked, self._state.place.machine

    def _count(self) -> None:
        self._job = ""
        asked, machine, config = self._asked, self._machine, self._state.draft.config
        data = {name: value for name, value in json.loads(asked).items() if value is not None}
        self._state.background.run(
            lambda: count_steps(data, config, machine), lambda found: self._show(asked, machine, found)
        )

    def _show(self, asked: str, machine: Hardware | None, found: Length) -> None:
        is_wanted = (asked, machine) == (self._asked, self._machine)
        if is_wanted and (self.is_counting or found != self.length):
            self.length, self.is_counting = found, False
            self._changed()


def count_steps(data: Mapping[str, object], config: TrainConfig | None, machine: Hardware | None = None) -> Length:
    """The length of a run with these SETTINGS on this computer, or on a machine. Slow: call it off the main thread."""
    unknown = Length(world_size=1 if config is None else planned_world_size(config, machine))
    if not data.get("concepts"):
        return unknown
    argv = [sys.executable, "-m", "modules.data.loading.count_steps", str(unknown.world_size)]
    cache = str(whole_path(str(data.get("cache_dir", "cache"))))  # its list of images
    text = json.dumps({**data, "concepts": absolute_concepts(data["concepts"]), "cache_dir": cache})
    try:
        done = subprocess.run(
            argv, cwd=ROOT, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        answer = decode_json(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return unknown
    if not isinstance(answer, dict) or "error" in answer:
        return unknown
    return Length(answer["steps"], answer["steps_per_epoch"], unknown.world_size, answer["end"])
