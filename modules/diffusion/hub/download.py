"""`python -m modules.diffusion.hub.download`: the child process of `HubModel.download`.

It reads the HubModel as JSON from standard input and writes JSON lines: {"done": bytes, "total": bytes} twice a second,
finally {} or an error. When its input ends, because the parent gave up or died, it exits.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import RevisionNotFoundError
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils.tqdm import tqdm

from modules.diffusion.base_model_files import check_pipeline_class
from modules.diffusion.hub.errors import cause_of, disk_full, explain_error
from modules.diffusion.hub.model import HubModel
from modules.diffusion.hub.one_model import check_model_type

MAX_WORKERS = 8
REPORT_EVERY_S = 0.5
UNDER_WAY_S = 0.05  # for an open() that had begun when the process decided to exit
PARTIAL_SUFFIX = ".incomplete"  # huggingface_hub's, of files that are still downloading


class ByteCounter(tqdm):
    """Adds up the bytes of all files; HF_HUB_DISABLE_PROGRESS_BARS keeps it from showing a progress bar for each."""

    lock = threading.Lock()
    done = 0

    def update(self, n: float | None = 1) -> None:
        """`n` more bytes are on disk; negative if a file restarts."""
        with ByteCounter.lock:
            ByteCounter.done += int(n or 0)

    def update_transfer(self, n: float | None = 1) -> None:
        """Compressed bytes in transit, reported separately by hf-xet; not counted."""

    def set_transfer_postfix_str(self, text: str, refresh: bool = False) -> None:
        """Transfer speed; not shown."""


def main() -> None:
    """Read the request, download, write the result."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent handles them and then ends this process
    warnings.simplefilter("ignore")  # for example about too little space, which is an error here
    request = json.loads(sys.stdin.readline() or "null")
    if request is None:
        return
    sys.addaudithook(partial_files)
    threading.Thread(target=_exit_with_parent, name="parent", daemon=True).start()
    for name in ("components", "pipelines", "without_weights"):
        request[name] = tuple(request[name])
    _write_line(_result(HubModel(**request)))
    exit_now()


class PartialFiles:
    """The incomplete files of this process, an audit hook: huggingface_hub could not resume them, nobody else may."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.closed = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Remember an incomplete file that is opened; refuse it once the process is about to exit."""
        if event != "open" or not str(arguments[0]).endswith(PARTIAL_SUFFIX):
            return
        if self.closed:
            raise InterruptedError
        self.paths.append(str(arguments[0]))

    def delete(self) -> None:
        """Delete what the other threads, which keep working, have opened; also those that are closed but not moved."""
        self.closed = True
        for pause in (0.0, UNDER_WAY_S):
            time.sleep(pause)
            for path in self.paths:
                with suppress(OSError):
                    Path(path).unlink()


partial_files = PartialFiles()


def exit_now() -> None:
    """Exit immediately, without incomplete files."""
    partial_files.delete()
    os._exit(0)


def _result(model: HubModel) -> dict[str, Any]:
    may_use_cache = True  # an earlier download will do unless the hub answers that something is wrong
    try:
        info = HfApi().model_info(
            model.name,
            revision=model.revision or None,
            files_metadata=True,
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
        )
        may_use_cache = False
        files = {file.rfilename: file for file in info.siblings or ()}
        required = model.required(files)
        # first, since it also records which commit the revision is, and is small
        index = hf_hub_download(model.name, model.index, revision=model.revision or None)
        if model.kind == "pipeline":
            check_pipeline_class(Path(index).parent, model.pipelines, f"{model.label} on the hub")
        elif model.kind == "transformers":
            check_model_type(Path(index).parent, model.pipelines, f"{model.label} on the hub")
        _download(model, Path(index).parent.name, [files[name] for name in required])
    except Exception as error:  # noqa: BLE001  # no connection, a full disk: the libraries raise errors of any type
        explained = explain_error(error, model.label)
        may_use_cache = may_use_cache and not isinstance(error, RevisionNotFoundError)
        return {
            "message": explained.message,
            "advice": explained.advice,
            "cause": cause_of(error),
            "may_use_cache": may_use_cache,
        }
    return {}


def _download(model: HubModel, commit: str, files: Sequence[RepoSibling]) -> None:
    """Not `snapshot_download`: that lists the files again, falls back to the cache silently, ignores disk space."""
    missing = [file for file in files if try_to_load_from_cache(model.name, file.rfilename, revision=commit) is None]
    blobs = model.cache_dir / repo_folder_name(repo_id=model.name, repo_type="model") / "blobs"
    total = sum(file.size or 0 for file in missing if not (blobs / _blob_name(file)).exists())
    free = shutil.disk_usage(blobs if blobs.is_dir() else model.cache_dir).free
    if total > free:
        raise disk_full(model.label, total, free)
    download: Callable[[RepoSibling], str] = lambda file: hf_hub_download(  # noqa: E731
        model.name, file.rfilename, revision=commit, tqdm_class=ByteCounter
    )
    pool = ThreadPoolExecutor(MAX_WORKERS)
    pending = {pool.submit(download, file) for file in sorted(missing, key=lambda file: file.size or 0)}
    while pending:
        finished, pending = wait(pending, REPORT_EVERY_S, return_when=FIRST_EXCEPTION)
        for future in finished:
            future.result()
        _write_line({"done": min(ByteCounter.done, total), "total": total})


def _blob_name(file: RepoSibling) -> str:
    """The cache's name for the content of a file."""
    return file.lfs.sha256 if file.lfs is not None else str(file.blob_id)


def _write_line(message: dict[str, Any]) -> None:
    with suppress(OSError):  # the parent is gone
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def _exit_with_parent() -> None:
    sys.stdin.read()
    exit_now()


if __name__ == "__main__":
    main()
