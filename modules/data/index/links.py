"""Links in a data set that lead out of it: what lies beside an image as its caption may be a link to any text of the
person who trains on it, and captions end in caches and in saved models."""

from __future__ import annotations

import os
from collections.abc import Iterable

from modules.files import printable

_SHOWN = 80  # characters of a path
_STORES = (".dvc/cache", ".git/annex/objects")  # where DVC and git-annex keep the files, each in a folder of its own


def is_foreign_link(path: str, root: str, images: Iterable[str]) -> bool:
    """Whether the file is a link that leads neither into the concept's folder, `root`, nor to where one of `images` is.

    In data sets made of links, such as those of the Hugging Face cache or of another disk, a caption leads to the
    folder to which its image leads, or both lie there as the links do here, or both lead into the same store.
    """
    if not os.path.islink(path):
        return False
    target, folder = os.path.realpath(path), os.path.realpath(root)
    if target.startswith(os.path.join(folder, "")):
        return False
    return not any(_is_beside(os.path.dirname(target), os.path.dirname(path), image) for image in images)


def describe_foreign_link(path: str) -> str:
    """Where it leads and what to do, as the rest of a sentence."""
    target = os.path.realpath(path)
    shown = printable(target if len(target) <= _SHOWN else f"…{target[-_SHOWN:]}")
    return f"is a link to {shown!r}, outside of the images' folder; to use that file, copy it here"


def _is_beside(target_folder: str, folder: str, image: str) -> bool:
    place = os.path.realpath(image)
    return _store(place) == _store(target_folder) != "" or place in (
        os.path.join(target_folder, os.path.basename(place)),
        os.path.join(target_folder, os.path.relpath(image, folder)),
    )


def _store(path: str) -> str:
    """The folder of DVC or git-annex that the path is in; empty if none."""
    for store in _STORES:
        folder = f"{os.sep}{store.replace('/', os.sep)}{os.sep}"
        if folder in path:
            return path[: path.index(folder) + len(folder)]
    return ""
