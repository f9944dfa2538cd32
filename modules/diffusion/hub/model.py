"""A model on the hub: whether this machine's cache has it, and downloading it there."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from huggingface_hub import constants, try_to_load_from_cache

from modules import ROOT
from modules.config import ConfigError, TrainingError
from modules.config.file_access import umask_of
from modules.diffusion.hub.files import INDEX, is_complete, required_files
from modules.diffusion.hub.one_model import CONFIG, TAGGER_TAGS, is_complete_model, required_model_files

DownloadProgress = Callable[[int, int], None]  # (bytes done, bytes in total); what it raises ends the download

POLL_EVERY_S = 0.5
EXIT_WITHIN_S = 3.0


@dataclass(frozen=True)
class HubModel:
    """What is needed of a model on the hub."""

    name: str  # owner/model
    revision: str  # a branch, tag or commit; empty for the main branch
    components: tuple[str, ...]  # the subfolders that are needed
    pipelines: tuple[str, ...]  # the pipeline classes that its model_index.json may name, or types of models
    weights: bool = True  # False for configuration and tokenizers only
    without_weights: tuple[str, ...] = ()  # the components of which only the configuration is needed
    needed_by: str = ""  # the single file that they are for
    kind: Literal["pipeline", "transformers", "tagger"] = "pipeline"

    @property
    def label(self) -> str:
        """As people write it: owner/model or owner/model@revision."""
        return f"{self.name}@{self.revision}" if self.revision else self.name

    @property
    def cache_dir(self) -> Path:
        """The hub's cache, which holds all models."""
        return Path(constants.HF_HUB_CACHE)

    @property
    def index(self) -> str:
        """The file that is downloaded first, and says what the model is."""
        return {"pipeline": INDEX, "transformers": CONFIG, "tagger": TAGGER_TAGS}[self.kind]

    def required(self, files: Collection[str]) -> list[str]:
        """Of all `files` of the repository those that are needed. Raises ConfigError if some are missing."""
        if self.kind != "pipeline":
            return required_model_files(self.label, files, self.kind)
        return required_files(
            self.label, files, self.components, weights=self.weights, without_weights=self.without_weights
        )

    def cached_folder(self) -> Path | None:
        """Its folder in the cache; None if that lacks something."""
        index = try_to_load_from_cache(self.name, self.index, revision=self.revision or None)
        folder = Path(index).parent if isinstance(index, str) else None
        if folder is None:
            return None
        if self.kind != "pipeline":
            return folder if is_complete_model(folder, self.kind) else None
        complete = is_complete(folder, self.components, weights=self.weights, without_weights=self.without_weights)
        return folder if complete else None

    def ensure_cached(self, progress: DownloadProgress = lambda done, total: None) -> Path:
        """Its folder in the cache, downloaded if it is incomplete; otherwise the hub is not contacted."""
        folder = self.cached_folder()
        if folder is None:
            self.download(progress)
            folder = self.cached_folder()
        if folder is None:
            raise ConfigError(
                f"base_model: {self.label!r} was downloaded, but its folder in {str(self.cache_dir)!r} is incomplete.",
                "Delete the model's folder there and start again.",
            )
        return folder

    def download(self, progress: DownloadProgress) -> str:
        """Bring the cache up to date with the revision; returns a warning if an earlier download is used instead.

        `progress` is called twice a second, so that the calling thread is seen to be alive.
        Raises ConfigError if the model is not available.
        """
        try:
            return self._download(progress)
        except ConfigError as error:
            if not self.needed_by:
                raise
            lacks = (
                "is a transformer alone; the other components come"
                if self.weights
                else "contains weights only; their configuration and the tokenizer come"
            )
            raise ConfigError(
                f"base_model: {self.needed_by!r} {lacks} from {self.name!r} on the hub, which cannot be used: "
                f"{error.message.removeprefix('base_model: ')}",
                f"{error.advice} Or set family_options.layout to a diffusers folder of the same architecture.",
            ) from error

    def _download(self, progress: DownloadProgress) -> str:
        if constants.is_offline_mode():
            if self.cached_folder() is not None:
                return ""
            raise ConfigError(
                f"base_model: there is no folder {self.label!r}, and as a model of the hub it is not (or only partly) "
                f"in {str(self.cache_dir)!r}, while HF_HUB_OFFLINE forbids downloading it.",
                "Unset HF_HUB_OFFLINE once while online, or download it elsewhere and give the folder.",
            )
        result = _run_download(self, progress)
        if "message" not in result:
            return ""
        if result["may_use_cache"] and self.cached_folder() is not None:
            return (
                f"base_model: using the {self.label!r} that was downloaded earlier; the hub could not be asked for a "
                f"newer version ({result['cause']})."
            )
        raise ConfigError(result["message"], result["advice"])


def _run_download(model: HubModel, progress: DownloadProgress) -> dict[str, Any]:
    """The last message of the child process: {}, or an error.

    It is a process because huggingface_hub cannot cancel a download; a process can be ended at any time, also by the
    end of this one.
    """
    done = total = 0
    with _child_process(model) as messages:
        while True:
            with suppress(queue.Empty):
                message = messages.get(timeout=POLL_EVERY_S)
                if message is None:
                    progress(done, total)  # whoever ended the child may have asked this process to stop as well
                    raise TrainingError(
                        f"base_model: the process downloading {model.label!r} was terminated.",
                        "Start again: completed files are not downloaded again.",
                    )
                if "total" not in message:
                    return message
                done, total = message["done"], message["total"]
            progress(done, total)


@contextmanager
def _child_process(model: HubModel) -> Iterator[queue.SimpleQueue[dict[str, Any] | None]]:
    """Start it, and yield the queue of its messages, None after the last; it ends with the block."""
    python_path = os.environ.get("PYTHONPATH")
    variables = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), python_path] if python_path else [str(ROOT)]),
        "HF_HUB_CACHE": str(model.cache_dir.resolve()),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_VERBOSITY": "error",
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "modules.diffusion.hub.download"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, **variables},
        start_new_session=True,  # Ctrl-C in a terminal is handled by this process
        umask=umask_of(model.cache_dir),  # a cache that several users share stays shared
    )
    assert process.stdin is not None
    assert process.stdout is not None
    messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process.stdout, messages), name="hub", daemon=True)
    try:
        with suppress(OSError):  # it has already exited, as the reader will notice
            process.stdin.write(json.dumps(asdict(model)) + "\n")
            process.stdin.flush()
        reader.start()
        yield messages
    finally:
        with suppress(OSError):
            process.stdin.close()  # it cleans up and exits
        try:
            process.wait(EXIT_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        process.stdout.close()


def _read(lines: IO[str], messages: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    for line in lines:
        messages.put(json.loads(line))
    messages.put(None)
