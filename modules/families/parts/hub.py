"""A model on the hub: whether the hub's cache on this machine holds it, and fetching it there."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from huggingface_hub import constants, try_to_load_from_cache

from modules.config import ConfigError, TrainingError
from modules.families.parts.hub_files import INDEX, is_whole

Tell = Callable[[int, int], None]  # (bytes done, bytes in all); may raise

ROOT = Path(__file__).resolve().parents[3]
LOOK_EVERY_S = 0.5
LEAVE_WITHIN_S = 3.0


@dataclass(frozen=True)
class HubModel:
    """What is needed of a model on the hub."""

    name: str  # owner/model
    revision: str  # a branch, tag or commit; empty for the main branch
    parts: tuple[str, ...]  # the folders of it that are needed
    pipelines: tuple[str, ...]  # what its model_index.json may say
    weights: bool = True  # or only configuration and tokenizers
    wanted_by: str = ""  # the single file that these are for

    @property
    def called(self) -> str:
        """As people write it."""
        return f"{self.name}@{self.revision}" if self.revision else self.name

    @property
    def cache(self) -> Path:
        """The folder that all models of the hub are kept in."""
        return Path(constants.HF_HUB_CACHE)

    def cached(self) -> Path | None:
        """Its folder in the cache; None where that does not hold all that is needed."""
        index = try_to_load_from_cache(self.name, INDEX, revision=self.revision or None)
        folder = Path(index).parent if isinstance(index, str) else None
        return folder if folder is not None and is_whole(folder, self.parts, weights=self.weights) else None

    def at_hand(self, tell: Tell = lambda done, total: None) -> Path:
        """Its folder in the cache, fetched where that is not whole; nothing is asked of the hub where it is."""
        folder = self.cached()
        if folder is None:
            self.fetch(tell)
            folder = self.cached()
        if folder is None:
            raise ConfigError(
                f"base_model: {self.called!r} was downloaded, but its folder in {str(self.cache)!r} is not whole.",
                "Delete the model's folder there and start again.",
            )
        return folder

    def fetch(self, tell: Tell) -> str:
        """Bring the newest state of its revision into the cache; returns a remark where that was not possible but an
        earlier one is whole.

        `tell` is called twice a second, so that this thread is seen to live. What it raises ends the download.
        Raises ConfigError where the model cannot be had.
        """
        try:
            return self._fetch(tell)
        except ConfigError as error:
            if not self.wanted_by:
                raise
            raise ConfigError(
                f"base_model: {self.wanted_by!r} holds weights only; their configuration and the tokenizer come from "
                f"{self.name!r} on the hub. {error.message.removeprefix('base_model: ')}",
                f"{error.advice} Or set family_options.layout to a diffusers folder of the same kind of model.",
            ) from error

    def _fetch(self, tell: Tell) -> str:
        if constants.is_offline_mode():
            if self.cached() is not None:
                return ""
            raise ConfigError(
                f"base_model: there is no folder {self.called!r}, and as a model of the hub it is not (or not whole) "
                f"in {str(self.cache)!r}, while HF_HUB_OFFLINE forbids to download it.",
                "Unset HF_HUB_OFFLINE for one start with a connection, or download it elsewhere and give the folder.",
            )
        answer = _download(self, tell)
        if "message" not in answer:
            return ""
        if answer["may_be_old"] and self.cached() is not None:
            return (
                f"base_model: {self.called!r} is taken as it was downloaded before; the hub could not be asked for a "
                f"newer one ({answer['cause']})."
            )
        raise ConfigError(answer["message"], answer["advice"])


def _download(model: HubModel, tell: Tell) -> dict[str, Any]:
    """What the downloading process says at its end.

    It is a process of its own, because the hub's library offers no way to end a download under way; a process can be
    ended at any time, also by the end of this one.
    """
    done = total = 0
    with _downloader(model) as answers:
        while True:
            with suppress(queue.Empty):
                answer = answers.get(timeout=LOOK_EVERY_S)
                if answer is None:
                    tell(done, total)  # whoever ended it may have asked this process to stop as well
                    raise TrainingError(
                        f"base_model: the process that downloads {model.called!r} was ended before it was done.",
                        "Start again: files that are complete are not downloaded again.",
                    )
                if "total" not in answer:
                    return answer
                done, total = answer["done"], answer["total"]
            tell(done, total)


@contextmanager
def _downloader(model: HubModel) -> Iterator[queue.SimpleQueue[dict[str, Any] | None]]:
    """Starts it, and gives what it says, line by line; None at its end. It ends with the block."""
    found = os.environ.get("PYTHONPATH")
    variables = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), found] if found else [str(ROOT)]),
        "HF_HUB_CACHE": str(model.cache.resolve()),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_VERBOSITY": "error",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "modules.families.parts.hub_download"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, **variables},
        start_new_session=True,  # Ctrl-C in a terminal is answered by this process
    )
    assert process.stdin is not None
    assert process.stdout is not None
    answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process.stdout, answers), name="hub", daemon=True)
    try:
        with suppress(OSError):  # it has ended already, which the reader finds out
            process.stdin.write(json.dumps(asdict(model)) + "\n")
            process.stdin.flush()
        reader.start()
        yield answers
    finally:
        with suppress(OSError):
            process.stdin.close()  # which asks it to tidy up and leave
        try:
            process.wait(LEAVE_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        process.stdout.close()


def _read(lines: IO[str], answers: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    for line in lines:
        answers.put(json.loads(line))
    answers.put(None)
