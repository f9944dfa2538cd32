"""The pictures: does every host see the same files?"""

from __future__ import annotations

from collections.abc import Iterable

from modules.distributed.preflight.conductor import Answer, Conductor, Context
from modules.distributed.preflight.words import hosts_of, lost_cells
from modules.run.checkup import Cell
from modules.run.join.fingerprint import data_listing, differing, digest

_NAMED = 3
_MOST_COMPARED = 100_000


def pictures(context: Context) -> Answer:
    """The task of a host's first rank: for each concept its folder, how many files it has, and one word for them."""
    found = [(concept.path, data_listing(concept)) for concept in context.config.concepts if concept.enabled]
    return {"concepts": [[path, len(files), digest(files)] for path, files in found]}


def picture_names(context: Context, number: int) -> Answer:
    """The task where they differ: every file of one concept, with its size or a hash of its text."""
    concept = [each for each in context.config.concepts if each.enabled][number]
    return dict(data_listing(concept))


def check(conductor: Conductor) -> Iterable[Cell]:
    """One cell where all hosts see the same, else one for each host and concept."""
    if not conductor.context.has_config:
        yield Cell("pictures", hosts_of(conductor.firsts), "grey", "no config given (--config FILE)")
        return
    firsts = conductor.firsts
    answers = conductor.ask([member.rank for member in firsts], "pictures")
    yield from lost_cells("pictures", conductor)
    hosts = {member.rank: member.host for member in firsts}
    cells = [
        Cell("pictures", hosts[rank], "red", str(answer["error"]), MISSING)
        for rank, answer in answers.items()
        if "error" in answer
    ]
    seen = {rank: _concepts(answer) for rank, answer in answers.items() if "error" not in answer}
    for rank, concepts in seen.items():
        cells += [
            Cell("pictures", hosts[rank], "red", f"{path}: no files", MISSING) for path, n, _ in concepts if not n
        ]
        cells += _differences(conductor, hosts, seen, rank) if rank else []
    total = sum(count for _, count, _ in seen.get(0, []))
    same = f", the same on {len(seen)} hosts" if len(seen) > 1 else ""
    yield from cells or [Cell("pictures", hosts_of(firsts), "green", f"{total} files{same}")]


def _differences(
    conductor: Conductor, hosts: dict[int, str], seen: dict[int, list[tuple[str, int, str]]], rank: int
) -> Iterable[Cell]:
    for number, (ours, theirs) in enumerate(zip(seen.get(0, []), seen[rank], strict=False)):
        if ours[2] == theirs[2] or not theirs[1]:
            continue
        value = f"{theirs[0]}: {theirs[1]} files, but {ours[1]} on {hosts[0]}"
        if max(ours[1], theirs[1]) <= _MOST_COMPARED:
            lists = conductor.ask([0, rank], "picture_names", number=number)
            names = differing(*({n: str(size) for n, size in lists.get(each, {}).items()} for each in (0, rank)))
            value += f"; {', '.join(names[:_NAMED])}{f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''}"
        yield Cell("pictures", hosts[rank], "red", value, DIFFERENT)


def _concepts(answer: Answer) -> list[tuple[str, int, str]]:
    concepts = answer["concepts"]
    assert isinstance(concepts, list)
    return [(str(path), int(count), str(word)) for path, count, word in concepts]


MISSING = "Correct the concept's path on that machine, copy the pictures there, or switch the concept off."
DIFFERENT = "Copy the same pictures and captions to every machine, or put them on a disk that all of them see."
