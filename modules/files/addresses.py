"""Addresses of images elsewhere, `s3://bucket/cats`: what may be one, and where its copy on this machine lies."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from modules.files.links import expand_home, whole_path
from modules.files.shard_paths import SHARD_SUFFIXES, is_shard
from modules.files.user_folder import user_cache_folder

VARIABLE: Final = "TANDEM_DATA_DIR"  # the folder of all copies
MAX_FILES: Final = 1_000_000  # of one address
MAX_RANGES: Final = 8
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|pipe:")
_SCHEMES: Final = ("s3", "https", "http", "hf")
_DATASET: Final = re.compile(r"datasets/([\w.-]+/[\w.-]+)(?:@([^/@]+))?(?:/(.*))?")
_RANGE: Final = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")
_UNSAFE: Final = re.compile(r"[^\w .()+=,@-]|^\.+")
_MAX_NAME: Final = 100  # characters
_PLACE_DIGITS: Final = 24  # in the name of a copy's place


@dataclass(frozen=True)
class Address:
    """`scheme` is s3, https, http or hf; `host` the bucket, the server, or the data set as owner/name@revision;
    `path` what is in it, which may have ranges such as {000..012}."""

    scheme: str
    host: str
    path: str
    text: str

    @property
    def paths(self) -> tuple[str, ...]:
        """`path` for each number of its ranges."""
        return tuple(_expanded(self.path))

    @property
    def base(self) -> str:
        """The folder that names of its files are below."""
        if found := _RANGE.search(self.path):
            return self.path[: found.start()].rpartition("/")[0]
        return os.path.dirname(self.path) if is_shard(self.path) else self.path


def is_address(path: str) -> bool:
    """Whether a concept's path is an address, and no folder or file here."""
    return _ADDRESS.match(path) is not None


def parse_address(text: str) -> Address:
    """Raises ValueError with a phrase that follows the address."""
    try:
        parts = urlsplit(text)
        scheme, place = parts.scheme, parts.netloc
    except ValueError:
        raise ValueError("is no address") from None
    if scheme not in _SCHEMES:
        known = ", ".join(f"{each}://" for each in _SCHEMES)
        raise ValueError(f"is an address that is not read; give a folder, a file, or an address of {known}")
    if "@" in place:
        raise ValueError("has a password in it; the environment holds those (docs/data.md)")
    if parts.query or parts.fragment:
        raise ValueError("has a query (?...) or a fragment (#...), which often is a secret; give it without")
    if not place:
        raise ValueError("is no address")
    path = unquote(parts.path).strip("/") if scheme in ("https", "http") else parts.path.strip("/")
    if ".." in path.split("/") or "\\" in path:
        raise ValueError("has .. or a backslash in it")
    _check_ranges(path)
    if scheme == "hf":
        return _of_dataset(text, f"{place}/{path}")
    if scheme != "s3" and not is_shard(path):
        raise ValueError(
            f"names no archive: of a web server, one file is read, or with {{000..012}} several, that ends in "
            f"{', '.join(SHARD_SUFFIXES)}"
        )
    return Address(scheme, place, path, text)


def _of_dataset(text: str, rest: str) -> Address:
    found = _DATASET.fullmatch(rest)
    if found is None:
        raise ValueError("is no data set of the hub; write hf://datasets/owner/name, or with @revision and /folder")
    name, revision, path = found.groups()
    return Address("hf", f"{name}@{revision or 'main'}", path or "", text)


def copies_folder() -> Path:
    """Where the copies of all addresses are on this machine."""
    return Path(os.path.abspath(os.environ.get(VARIABLE) or user_cache_folder() / "data"))


def copy_place(text: str) -> Path:
    """The folder of what belongs to the copy of an address. Raises ValueError as `parse_address`."""
    address = parse_address(text)
    identity = "\n".join([address.scheme, address.host, address.path])
    return copies_folder() / hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:_PLACE_DIGITS]


def copy_of(text: str) -> str:
    """The folder with the files of an address; its name is that of the folder there, which may be a caption."""
    address = parse_address(text)
    name = os.path.basename(address.base) or address.host.partition("@")[0].rpartition("/")[2]
    return str(copy_place(text) / (_UNSAFE.sub("_", name)[:_MAX_NAME] or "files"))


def concept_folder(path: str) -> str:
    """The absolute folder or file that a concept's path names: of an address, its copy's. One that is no address that
    can be read counts as a folder that is not there."""
    with suppress(ValueError):
        return copy_of(path) if is_address(path) else str(whole_path(expand_home(path)))
    return str(whole_path(path))


def is_in_copy(folder: str | Path) -> bool:
    """Whether a folder has files of the copy of an address, where the next start replaces what has changed."""
    with suppress(ValueError):
        place, *inner = Path(os.path.realpath(folder)).relative_to(os.path.realpath(copies_folder())).parts
        return bool(inner) and re.fullmatch(rf"[0-9a-f]{{{_PLACE_DIGITS}}}", place) is not None
    return False


def _check_ranges(path: str) -> None:
    """Raises ValueError for ranges that name nothing, or too much to list."""
    ranges = [(int(first), int(last)) for first, last in _RANGE.findall(path)]
    if len(ranges) > MAX_RANGES:
        raise ValueError(f"has {len(ranges):,} ranges such as {{000..012}}; the most is {MAX_RANGES}")
    if empty := [f"{{{first}..{last}}}" for first, last in ranges if first > last]:
        raise ValueError(f"has the range {empty[0]}, which is empty; write the smaller number first")
    if math.prod(last - first + 1 for first, last in ranges) > MAX_FILES:
        raise ValueError(f"names more than {MAX_FILES:,} files")


def _expanded(path: str) -> Iterator[str]:
    found = _RANGE.search(path)
    if found is None:
        yield path
        return
    first, last = found[1], found[2]
    width = len(first) if first.startswith("0") or len(first) == len(last) else 0
    for number in range(int(first), int(last) + 1):
        for rest in _expanded(path[found.end() :]):
            yield f"{path[: found.start()]}{number:0{width}d}{rest}"
