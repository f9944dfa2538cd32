"""Another place for the finished model, if the run folder's disk does not take it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from modules.config import TrainConfig, TrainingError
from modules.run import RunFolder

HOME_FOLDER: Final = "tandem-rescued"  # below the home folder
SPARE_BYTES: Final = 1 << 30  # stay free on a disk that the user did not choose for this
_OF_THE_DISK: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ESTALE}
)


def save_elsewhere(
    error: OSError, config: TrainConfig, folder: RunFolder, size: int, save: Callable[[RunFolder], list[Path]]
) -> None:
    """After `error` in saving the finished model of about `size` bytes, have `save` write it where there is room.

    Raises TrainingError, which says where the model is, or returns if it is nowhere.
    """
    if error.errno not in _OF_THE_DISK:
        return
    for place in _places(config, folder.name, size):
        with suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            written = " and ".join(map(str, save(replace(folder, path=place))))
            raise TrainingError(
                f"The model could not be saved in {folder.path}: {error.strerror}. It is saved in {written} instead.",
                "Free space there, or make it writable; --resume latest then saves it in its place, too.",
            ) from error


def _places(config: TrainConfig, name: str, size: int) -> Iterator[Path]:
    """Folders of this run in the order in which they are tried: `rescue_dir`, then the home folder if it has room."""
    if config.rescue_dir is not None:
        yield _free_name(Path(config.rescue_dir).absolute(), name)
    with suppress(RuntimeError, OSError):  # there is no home folder
        home = Path.home()
        if home.is_dir() and shutil.disk_usage(home).free >= size + SPARE_BYTES and os.access(home, os.W_OK):
            yield _free_name(home / HOME_FOLDER, name)


def _free_name(folder: Path, name: str) -> Path:
    """What an earlier run of the same name left there stays."""
    number, found = 1, folder / name
    while os.path.lexists(found):
        number += 1
        found = folder / f"{name}-{number}"
    return found
