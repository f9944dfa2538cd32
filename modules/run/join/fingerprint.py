"""Compares what machines must have in common to train together: code, packages and data.

Of its data, a machine sends only HMACs under a key of this connection: machine 0 learns which of its own files are the
same there, and how many others there are, but neither names nor contents that it does not know.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

from modules import ROOT
from modules.config import Concept, DataError, TrainConfig
from modules.config.imported_code import read_with_imports
from modules.config.sections.concept import IMAGE_SUFFIXES, METADATA_SUFFIXES
from modules.facts import FILE_INDEX
from modules.files import FileFault, is_shard, printable, read_bytes, weight_map
from modules.files.addresses import is_address
from modules.files.videos import VIDEO_SUFFIXES
from modules.machine import hostname

Listing = dict[str, str]  # name -> hash, size or version

# Another version of these may compute different results. A difference in the others is only a warning.
_NUMERICAL: Final = ("torch", "diffusers", "pytorch-optimizer")
_OTHERS: Final = ("numpy", "Pillow", "safetensors", "pydantic", "psutil")
_LISTS: Final = (".json", ".tsv", ".txt")  # of captions of many images, besides tables
_SHOWN: Final = 3
_HASH_CHARS: Final = 16
_KEYED_CHARS: Final = 32
_MAX_HASHED_BYTES: Final = 1 << 20
_IN_BASE_FILE: Final = re.compile(r"layout/(transformer|unet)/.*\.safetensors")  # weights that nobody reads there
_LARGEST_TEXT: Final = 1 << 30  # bytes; metadata of a million images has some hundred MB


@dataclass(frozen=True)
class Comparison:
    """Messages about differences: those that prevent training together, and warnings."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@cache
def code_listing(root: Path = ROOT) -> Listing:
    """Every Python file of Tandem with a hash of its text, ignoring line endings; as it was at the first call, for that
    is what this process runs."""
    files = sorted(file for part in ("modules", "scripts") for file in (root / part).rglob("*.py"))
    return {file.relative_to(root).as_posix(): _text_hash(file) for file in files}


@cache
def package_listing() -> Listing:
    """The versions of Python and of the relevant packages."""
    found = {"Python": platform.python_version()}
    for name in (*_NUMERICAL, *_OTHERS):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def family_identity(config: TrainConfig) -> str:
    """The name of a built-in family, or a hash of a user's family file and of those that it imports."""
    family = Path(config.family)
    if family.suffix != ".py" or not family.is_file():
        return config.family
    own, *imported = (_hash(file.content) for file in read_with_imports(family))
    return _hash("\n".join([own, *sorted(imported)]).encode()) if imported else own


def family_listing(config: TrainConfig) -> Listing:
    """The family (`family_identity`), the LoRA that training starts from or has, and the files of the base model."""
    found = {"family": family_identity(config)}
    for setting in ("lora_from", "training_adapter"):
        if (given := getattr(config, setting)) is not None:
            lora = Path(given)
            found[setting] = _model_file(lora) if lora.is_file() else lora.name
    if config.base_model is not None:
        base = Path(config.base_model)
        if base.is_dir():
            found |= {f"base_model/{name}": what for name, what in walk_files(base, _model_file)}
        else:
            found["base_model"] = _model_file(base) if base.is_file() else config.base_model
        if base.name.endswith(FILE_INDEX):
            with suppress(FileFault, OSError):  # loading it says what is wrong
                shards = sorted(set(weight_map(base).values()))
                found |= {f"base_model/{name}": _model_file(base.parent / name) for name in shards}
        layout = config.family_options.get("layout")
        if base.exists() and isinstance(layout, str) and os.path.isdir(layout):
            inside = {f"layout/{name}": what for name, what in walk_files(Path(layout), _model_file)}
            found |= {name: what for name, what in inside.items() if not _IN_BASE_FILE.match(name)}
    files = config.family_options.get("text_encoder_files")
    for name in files.split(",") if isinstance(files, str) else ():
        if (file := Path(name.strip())).is_file():
            found[f"text_encoder_files/{file.name}"] = _model_file(file)
    return found


def data_listing(concept: Concept, *, with_videos: bool = False) -> Listing:
    """The images, masks and captions of a concept: sizes of images, hashes of captions. Opens no image.

    Raises DataError if the folder does not exist.
    """
    if is_address(concept.path):
        return {concept.path: "downloaded by each machine"}
    root = Path(os.path.expanduser(concept.path))
    if root.is_file():
        return {root.name: str(root.stat().st_size)}  # an archive
    if not root.is_dir():
        raise DataError(f"concepts: there is no folder {concept.path!r} on {hostname()}")
    texts = (*concept.text_suffixes, *sorted(METADATA_SUFFIXES))
    texts += _LISTS if concept.caption_source in ("auto", "metadata", "label") else ()
    images = IMAGE_SUFFIXES | VIDEO_SUFFIXES if with_videos else IMAGE_SUFFIXES
    return dict(walk_files(root, partial(_data_file, texts=texts, images=images), deeper=concept.include_subfolders))


def all_listings(config: TrainConfig) -> list[Listing]:
    """One listing per enabled concept, in order, and one for family and base model. Raises DataError."""
    with_videos = config.clip_step is not None
    concepts = (config.concepts[number] for number in enabled_concepts(config))
    return [*(data_listing(each, with_videos=with_videos) for each in concepts), family_listing(config)]


def enabled_concepts(config: TrainConfig) -> list[int]:
    """The indices of the enabled concepts."""
    return [number for number, concept in enumerate(config.concepts) if concept.enabled]


def concept_name(config: TrainConfig, number: int) -> str:
    """The name of a concept in messages."""
    concept = config.concepts[number]
    return f"the data set (concepts.{number}, {concept.name or concept.path})"


def digest(listing: Listing, key: str) -> str:
    """A short digest of a listing under a key: equal digests mean equal listings."""
    whole = hmac.new(key.encode(), b"listing", hashlib.sha256)
    for name in sorted(listing):
        whole.update(f"{name}\0{listing[name]}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def keyed_names(listing: Listing, key: str) -> dict[str, str]:
    """Name -> its HMAC."""
    return {name: _keyed(key, "name", name) for name in listing}


def keyed_listing(listing: Listing, key: str) -> Listing:
    """The listing that another machine may see: HMACs of the names, and of each name with its value."""
    return {_keyed(key, "name", name): _keyed(key, "value", f"{name}\0{value}") for name, value in listing.items()}


def compare_code(here: Listing, there: Listing, host: str) -> Comparison:
    """`here` is machine 0, `there` the machine named `host`."""
    names = differing_names(here, there)
    if not names:
        return Comparison()
    return Comparison((f"Tandem's code on {host} differs from machine 0's in {_shorten(names)}",))


def compare_packages(here: Mapping[str, str], there: Mapping[str, str], host: str) -> Comparison:
    """A different release of Python or a numerical package is an error; other differences are warnings.

    Of the packages that only the other machine names, nothing is known here.
    """
    errors: list[str] = []
    warnings: list[str] = []
    for name in sorted(here):
        first, second = here[name], printable(there.get(name, "none"), 100)
        if first == second:
            continue
        sentence = f"{name} is {second} on {host} and {first} on machine 0"
        is_numerical = name in _NUMERICAL or name == "Python"
        (errors if is_numerical and _release(name, first) != _release(name, second) else warnings).append(sentence)
    return Comparison(tuple(errors), tuple(warnings))


@dataclass(frozen=True)
class DataDifference:
    """What differs, as a message, and the HMACs of the first names that only the other machine has."""

    message: str
    only_there: tuple[str, ...] = ()


def compare_data(what: str, here: Listing, there: Listing, key: str, host: str) -> DataDifference | None:
    """The first files of `here` that differ from the keyed listing of `host`, and their number; None if none do."""
    names = keyed_names(here, key)
    known = set(names.values())
    values = keyed_listing(here, key)
    only_there = sorted(name for name in there if name not in known)
    differing = sorted(name for name, hidden in names.items() if there.get(hidden) != values[hidden])
    if not differing and not only_there:
        return None
    shown = [
        f"{printable(name, 200)}{'' if names[name] in there else f' (missing on {host})'}"
        for name in differing[:_SHOWN]
    ]
    more = len(differing) - len(shown)
    parts = [
        ", ".join(shown),
        f"and {more} more" if more else "",
        f"{len(only_there)} only on {host}" * bool(only_there),
    ]
    count = len(differing) + len(only_there)
    files = "1 file differs" if count == 1 else f"{count} files differ"
    return DataDifference(
        f"{what} is not the same on {host} as on machine 0: {files}: {', '.join(part for part in parts if part)}",
        tuple(only_there[:_SHOWN]),
    )


def lacks_base_model(base_model: str, here: Listing, there: Listing, key: str) -> bool:
    """Whether the other machine has nothing at the path of the base model, and so took it for a name on the hub."""
    as_name = {"base_model": base_model}
    return as_name.items().isdisjoint(here.items()) and keyed_listing(as_name, key).items() <= there.items()


def differing_names(here: Listing, there: Listing) -> list[str]:
    """The names that only one listing has, or whose values differ."""
    return sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))


def _shorten(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(printable(name, 200) for name in names[:_SHOWN])}{more}"


def _keyed(key: str, purpose: str, text: str) -> str:
    data = f"{purpose}\0{text}".encode("utf-8", "surrogateescape")
    return hmac.new(key.encode(), data, hashlib.sha256).hexdigest()[:_KEYED_CHARS]


def _release(name: str, version: str) -> str:
    """The part of a version that must match: 3.11 of Python 3.11.2, 2.13.0 of torch 2.13.0+cu130."""
    return ".".join(version.split(".")[:2]) if name == "Python" else version.partition("+")[0]


def walk_files(
    root: Path, describe: Callable[[os.DirEntry[str]], str], *, deeper: bool = True
) -> Iterator[tuple[str, str]]:
    """(relative path with `/`, description) of all files that `describe` accepts; hidden files are skipped."""
    seen = set()
    pending = [(str(root), "")]
    while pending:
        folder, prefix = pending.pop()
        try:
            status = os.stat(folder)
            entries = [] if (status.st_dev, status.st_ino) in seen else list(os.scandir(folder))
        except OSError as error:
            yield prefix or ".", f"cannot be opened: {error.strerror}"
            continue
        seen.add((status.st_dev, status.st_ino))  # breaks cycles of links
        for entry in entries:
            if entry.name.startswith("."):
                continue
            try:
                if entry.is_dir():
                    pending += [(entry.path, f"{prefix}{entry.name}/")] if deeper else []
                    continue
                what = describe(entry) if entry.is_file() else ""
            except OSError as error:
                what = f"cannot be read: {error.strerror}"
            if what:
                yield prefix + entry.name, what


def _data_file(entry: os.DirEntry[str], texts: tuple[str, ...], images: frozenset[str]) -> str:
    """A hash of the files that end in `texts`, in any case, the size of `images` and shards; empty for others."""
    if entry.name.lower().endswith(texts):
        return _text_hash(entry.path)
    suffix = os.path.splitext(entry.name)[1].lower()
    return str(entry.stat().st_size) if suffix in images or is_shard(entry.name) else ""


def _model_file(file: os.DirEntry[str] | Path) -> str:
    """Size, and for small files (the model's settings) a hash of the content."""
    size = file.stat().st_size
    return str(size) if size > _MAX_HASHED_BYTES else f"{size} {_text_hash(file)}"


def _text_hash(file: str | os.PathLike[str]) -> str:
    """A hash of the content, ignoring line endings; of a file that is too large to be used, its size."""
    try:
        return _hash(read_bytes(os.fspath(file), _LARGEST_TEXT))
    except FileFault as fault:
        return f"{fault}: {os.stat(file).st_size}"


def _hash(text: bytes) -> str:
    return hashlib.sha256(text.replace(b"\r\n", b"\n")).hexdigest()[:_HASH_CHARS]
