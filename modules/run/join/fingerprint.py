"""What two machines must have in common to train together: code, packages, pictures; and where they differ."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modules.config import Concept, DataError, TrainConfig
from modules.config.concept import CAPTION_SUFFIXES, PICTURE_SUFFIXES

Listing = dict[str, str]  # what a thing is called -> what it holds, shortly

ROOT: Final = Path(__file__).resolve().parents[3]
# These compute what is trained: another version may compute something else. A difference in the others is only told.
_COMPUTING: Final = ("torch", "diffusers", "pytorch-optimizer")
_OTHERS: Final = ("numpy", "Pillow", "safetensors", "pydantic", "psutil")
_SHOWN: Final = 3
_SHORT: Final = 16
_WEIGHTS_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Comparison:
    """Sentences about differences: those that forbid training together, and those one should know."""

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def code_listing(root: Path = ROOT) -> Listing:
    """Every Python file of Tandem with a hash of its text, whatever its line ends."""
    files = sorted(file for part in ("modules", "scripts") for file in (root / part).rglob("*.py"))
    return {file.relative_to(root).as_posix(): _text_hash(file) for file in files}


def package_listing() -> Listing:
    """The versions of Python and of the packages that matter."""
    found = {"Python": platform.python_version()}
    for name in (*_COMPUTING, *_OTHERS):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def family_code(config: TrainConfig) -> str:
    """The name of a family of Tandem's own, or the hash of the family's file."""
    family = Path(config.family)
    return _text_hash(family) if family.suffix == ".py" and family.is_file() else config.family


def family_listing(config: TrainConfig) -> Listing:
    """The family's name, or the hash of its file; and what the base model's files are."""
    found = {"family": family_code(config)}
    if config.base_model is not None:
        base = Path(config.base_model)
        if base.is_dir():
            inside = {f"base_model/{name}": what for name, what in _walk(base, _model_file)}
            return {**found, **inside}
        found["base_model"] = _model_file(base) if base.is_file() else config.base_model
    return found


def data_listing(concept: Concept, progress: Callable[[int], None] = lambda count: None) -> Listing:
    """The pictures, masks and captions of a concept: sizes, and hashes of the captions. Opens no picture.

    `progress` hears how many files were seen, now and then. Raises DataError where there is no such folder.
    """
    root = Path(os.path.expanduser(concept.path))
    if not root.is_dir():
        raise DataError(f"concepts: there is no folder {concept.path!r} on this machine")
    found: Listing = {}
    for name, what in _walk(root, _data_file, deeper=concept.include_subfolders):
        found[name] = what
        if len(found) % 1000 == 0:
            progress(len(found))
    return found


def all_listings(config: TrainConfig) -> list[Listing]:
    """One for each enabled concept, in their order, and one for the family and the base model. Raises DataError."""
    return [*(data_listing(config.concepts[number]) for number in enabled_concepts(config)), family_listing(config)]


def enabled_concepts(config: TrainConfig) -> list[int]:
    """The places of the concepts that are used."""
    return [number for number, concept in enumerate(config.concepts) if concept.enabled]


def concept_name(config: TrainConfig, number: int) -> str:
    """What a concept is called in messages."""
    concept = config.concepts[number]
    return f"the data set (concepts.{number}, {concept.name or concept.path})"


def digest(listing: Listing) -> str:
    """One short text for a whole listing: equal texts, equal listings."""
    lines = (f"{name}\0{listing[name]}\n" for name in sorted(listing))
    whole = hashlib.sha256()
    for line in lines:
        whole.update(line.encode("utf-8", "surrogateescape"))
    return f"{len(listing)}-{whole.hexdigest()[:32]}"


def compare_code(here: Listing, there: Listing, host: str) -> Comparison:
    """`here` is machine 0, `there` the machine named `host`."""
    names = differing(here, there)
    if not names:
        return Comparison()
    return Comparison((f"Tandem's code on {host} differs from machine 0's in {some(names)}",))


def compare_packages(here: Mapping[str, str], there: Mapping[str, str], host: str) -> Comparison:
    """Other releases of what computes are refused; builds, patches and the rest are only told."""
    refusals: list[str] = []
    warnings: list[str] = []
    for name in differing(dict(here), dict(there)):
        first, second = here.get(name, "none"), there.get(name, "none")
        sentence = f"{name} is {second} on {host} and {first} on machine 0"
        computes = name in _COMPUTING or name == "Python"
        (refusals if computes and _release(name, first) != _release(name, second) else warnings).append(sentence)
    return Comparison(tuple(refusals), tuple(warnings))


def compare_data(what: str, here: Listing, there: Listing, host: str) -> str:
    """A sentence about the first differing files and how many there are; empty for none."""
    names = differing(here, there)
    if not names:
        return ""
    first = [_how(name, here, there, host) for name in names[:_SHOWN]]
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    files = "1 file differs" if len(names) == 1 else f"{len(names)} files differ"
    return f"{what} is not the same on {host} as on machine 0: {files}: {', '.join(first)}{more}"


def differing(here: Listing, there: Listing) -> list[str]:
    """The names that only one has, or that hold something else."""
    return sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))


def some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more files" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _how(name: str, here: Listing, there: Listing, host: str) -> str:
    if name not in there:
        return f"{name} (missing on {host})"
    return f"{name} (only on {host})" if name not in here else name


def _release(name: str, version: str) -> str:
    """What must agree: of Python 3.11.2 the 3.11, of torch 2.13.0+cu130 the 2.13.0."""
    return ".".join(version.split(".")[:2]) if name == "Python" else version.partition("+")[0]


def _walk(root: Path, describe: Callable[[os.DirEntry[str]], str], *, deeper: bool = True) -> Iterator[tuple[str, str]]:
    """All files that `describe` has a word for, by relative path with `/`; hidden ones are passed over."""
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
        seen.add((status.st_dev, status.st_ino))  # links in a circle end here
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


def _data_file(entry: os.DirEntry[str]) -> str:
    suffix = os.path.splitext(entry.name)[1].lower()
    if suffix in CAPTION_SUFFIXES:
        return _text_hash(entry.path)
    return str(entry.stat().st_size) if suffix in PICTURE_SUFFIXES else ""


def _model_file(file: os.DirEntry[str] | Path) -> str:
    """Size, and of small files (the model's settings) the content."""
    size = file.stat().st_size
    return str(size) if size > _WEIGHTS_READ_BYTES else f"{size} {_text_hash(file)}"


def _text_hash(file: str | os.PathLike[str]) -> str:
    """A hash of the content, whatever the line ends are."""
    with open(file, "rb") as opened:
        return hashlib.sha256(opened.read().replace(b"\r\n", b"\n")).hexdigest()[:_SHORT]
