"""`python -m modules.families.parts.hub_download`: downloads a model for `HubModel.fetch`, which writes to its standard
input what is wanted, and reads what it says: {"done": bytes, "total": bytes} twice a second, at the end {} or a fault.

It leaves when its input ends, that is when nobody wants the model any more.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import psutil
from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import RevisionNotFoundError
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.hf_api import RepoSibling

from modules.families.parts.hub import HubModel
from modules.families.parts.hub_faults import cause_of, disk_full, fault_of
from modules.families.parts.hub_files import INDEX, wanted_files
from modules.families.parts.loading import check_kind

FILES_AT_ONCE = 8
TELL_EVERY_S = 0.5
HALF = ".incomplete"  # how the hub's library ends the names of files that have not arrived whole


class Counter:
    """Bytes that have arrived, of all files together; what the hub's library takes for a progress bar."""

    lock = threading.Lock()
    done = 0

    def __init__(self, *_: object, **__: object) -> None:
        """One bar a file: its size is known already."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""

    def update(self, n: float | None = 1) -> None:
        """`n` more bytes are on the disk; less where the file begins anew."""
        with Counter.lock:
            Counter.done += int(n or 0)

    def update_transfer(self, n: float | None = 1) -> None:
        """Compressed bytes on their way."""

    def set_postfix_str(self, text: str, refresh: bool = False) -> None:
        """Speeds are not shown."""

    def set_transfer_postfix_str(self, text: str, refresh: bool = False) -> None:
        """Speeds are not shown."""

    def close(self) -> None:
        """Nothing to close."""


def main() -> None:
    """Read what is wanted, download it, say how it went."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # whoever wants the model is asked to end, and ends this
    warnings.simplefilter("ignore")  # such as of too little space, which is an error here
    wanted = json.loads(sys.stdin.readline() or "null")
    if wanted is None:
        return
    threading.Thread(target=_leave_with_asker, name="asker", daemon=True).start()
    model = HubModel(**{**wanted, "parts": tuple(wanted["parts"]), "pipelines": tuple(wanted["pipelines"])})
    _say(_result(model))
    leave()


def leave() -> None:
    """End at once, whatever is under way, and leave no half files: the hub's library could not continue them."""
    sys.addaudithook(_open_no_more)
    with suppress(psutil.Error):
        for opened in psutil.Process().open_files():
            if opened.path.endswith(HALF):
                with suppress(OSError):
                    Path(opened.path).unlink()
    os._exit(0)


def _result(model: HubModel) -> dict[str, Any]:
    may_be_old = True  # an earlier download will do, as long as the hub has not said that all is well
    try:
        asked = HfApi().model_info(
            model.name,
            revision=model.revision or None,
            files_metadata=True,
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
        )
        may_be_old = False
        files = {file.rfilename: file for file in asked.siblings or ()}
        wanted = wanted_files(model.called, files, model.parts, weights=model.weights)
        # first, as it also notes which commit the revision is, and is small
        index = hf_hub_download(model.name, INDEX, revision=model.revision or None)
        check_kind(Path(index).parent, model.pipelines, f"{model.called} on the hub")
        _download(model, Path(index).parent.name, [files[name] for name in wanted])
    except Exception as error:  # noqa: BLE001  # no connection, a full disk: the libraries beneath raise errors of any kind
        fault = fault_of(error, model.called)
        may_be_old = may_be_old and not isinstance(error, RevisionNotFoundError)
        return {"message": fault.message, "advice": fault.advice, "cause": cause_of(error), "may_be_old": may_be_old}
    return {}


def _download(model: HubModel, commit: str, files: Sequence[RepoSibling]) -> None:
    missing = [file for file in files if try_to_load_from_cache(model.name, file.rfilename, revision=commit) is None]
    blobs = model.cache / repo_folder_name(repo_id=model.name, repo_type="model") / "blobs"
    total = sum(file.size or 0 for file in missing if not (blobs / _blob_of(file)).exists())
    free = shutil.disk_usage(blobs if blobs.is_dir() else model.cache).free
    if total > free:
        raise disk_full(model.called, total, free)
    fetch: Callable[[RepoSibling], str] = lambda file: hf_hub_download(  # noqa: E731
        model.name, file.rfilename, revision=commit, tqdm_class=cast(Any, Counter)
    )
    pool = ThreadPoolExecutor(FILES_AT_ONCE)
    under_way = {pool.submit(fetch, file) for file in sorted(missing, key=lambda file: file.size or 0)}
    while under_way:
        done, under_way = wait(under_way, TELL_EVERY_S, return_when=FIRST_EXCEPTION)
        for each in done:
            each.result()
        _say({"done": min(Counter.done, total), "total": total})


def _blob_of(file: RepoSibling) -> str:
    """What the cache calls the content of a file."""
    return file.lfs.sha256 if file.lfs is not None else str(file.blob_id)


def _say(answer: dict[str, Any]) -> None:
    with suppress(OSError):  # nobody listens any more
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _open_no_more(event: str, arguments: tuple[Any, ...]) -> None:
    """Other threads are still at work while this process leaves."""
    if event == "open" and str(arguments[0]).endswith(HALF):
        raise InterruptedError


def _leave_with_asker() -> None:
    sys.stdin.read()
    leave()


if __name__ == "__main__":
    main()
