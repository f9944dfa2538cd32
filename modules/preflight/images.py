"""The images: does every host see the same files?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from modules.config import Concept
from modules.config.sections.concept import IMAGE_SUFFIXES
from modules.distributed.formatting import first_names
from modules.files.videos import VIDEO_SUFFIXES
from modules.preflight.cells import hosts_of
from modules.preflight.coordinator import Answer, Context, Coordinator
from modules.run.join.fingerprint import Listing, data_listing, differing_names, digest
from modules.run.launch.store_secret import store_secret
from modules.run.preflight_report.report import Cell

_NAMES_SHOWN = 3
_MAX_COMPARED = 100_000


def list_images(context: Context) -> Answer:
    """Task of a host's first rank: each concept's folder, number of files, one digest of them all, number of images."""
    concepts = [concept for concept in context.config.concepts if concept.enabled]
    found = [(concept, _listing(context, concept)) for concept in concepts]
    secret = store_secret() or ""
    return {"concepts": [[each.path, len(files), digest(files, secret), _images(each, files)] for each, files in found]}


def hash_images(context: Context, number: int) -> Answer:
    """Task if they differ: every file of one concept, with its size or a hash of its text."""
    concept = [each for each in context.config.concepts if each.enabled][number]
    return dict(_listing(context, concept))


def _listing(context: Context, concept: Concept) -> Listing:
    return data_listing(concept, with_videos=context.config.clip_step is not None)


def check(coordinator: Coordinator) -> Iterable[Cell]:
    """Yield one cell if all hosts see the same files, else one per host and concept."""
    if not coordinator.context.has_config:
        yield Cell("images", hosts_of(coordinator.first_ranks), "grey", "no config given (--config FILE)")
        return
    first_ranks = coordinator.first_ranks
    if not coordinator.context.has_data:
        yield Cell("images", hosts_of(first_ranks), "grey", NOT_SENT)
        return
    if not any(concept.enabled for concept in coordinator.context.config.concepts):
        yield Cell("images", hosts_of(first_ranks), "grey", "the config has no folders of images")
        return
    answers = coordinator.ask([member.rank for member in first_ranks], "list_images")
    hosts = [member.host for member in coordinator.context.everyone]
    cells = [
        Cell("images", hosts[rank], "red", str(answer["error"]), MISSING)
        for rank, answer in answers.items()
        if "error" in answer
    ]
    seen = {rank: _concepts(answer) for rank, answer in answers.items() if "error" not in answer}
    for rank, concepts in seen.items():
        cells += [Cell("images", hosts[rank], "red", f"{path}: no files", MISSING) for path, n, *_ in concepts if not n]
        cells += _differences(coordinator, hosts, seen, rank) if rank else []
    total = sum(count for _, count, *_ in seen.get(0, []))
    images = sum(count for *_, count in seen.get(0, []))
    files = f"{total:,} file{'s' * (total != 1)}"
    what = f"{images:,} image{'s' * (images != 1)}" if images else files  # archives are read by the run
    what += f" ({files} with captions and masks)" if 0 < images < total else ""
    same = f", the same on {len(seen)} hosts" if len(seen) > 1 else ""
    yield from cells or [Cell("images", hosts_of(first_ranks), "green", f"{what}{same}")]


def _differences(
    coordinator: Coordinator, hosts: list[str], seen: dict[int, list[tuple[str, int, str, int]]], rank: int
) -> Iterable[Cell]:
    for number, (ours, theirs) in enumerate(zip(seen.get(0, []), seen[rank], strict=False)):
        if ours[2] == theirs[2] or not theirs[1]:
            continue
        value = f"{theirs[0]}: {theirs[1]} files, but {ours[1]} on {hosts[0]}"
        if max(ours[1], theirs[1]) <= _MAX_COMPARED:
            lists = coordinator.ask([0, rank], "hash_images", number=number)
            names = differing_names(*({n: str(size) for n, size in lists.get(each, {}).items()} for each in (0, rank)))
            value += f"; {first_names(names, _NAMES_SHOWN)}"
        yield Cell("images", hosts[rank], "red", value, DIFFERENT)


def _images(concept: Concept, files: Iterable[str]) -> int:
    masks, suffixes = concept.mask_suffix.lower(), IMAGE_SUFFIXES | VIDEO_SUFFIXES
    return sum(PurePath(name).suffix.lower() in suffixes and not name.lower().endswith(masks) for name in files)


def _concepts(answer: Answer) -> list[tuple[str, int, str, int]]:
    concepts = answer["concepts"]
    assert isinstance(concepts, list)
    return [(str(path), int(count), str(digest_), int(images)) for path, count, digest_, images in concepts]


NOT_SENT = "not all of them are there yet: the start of a run sends them"
MISSING = "Correct the concept's path on that machine, copy the images there, or disable the concept."
DIFFERENT = "Copy the same images and captions to every machine, or put them on a shared drive."
