"""Versions, code and settings: the same on every host?"""

from __future__ import annotations

from collections.abc import Iterable

from modules.distributed.preflight.conductor import Answer, Conductor, Context
from modules.distributed.preflight.words import hosts_of, lost_cells
from modules.distributed.rank_facts import RankFacts
from modules.distributed.rank_facts import sources as own_sources
from modules.run.checkup import Cell
from modules.run.join.fingerprint import differing
from modules.run.join.rules import shared_settings

_NAMED = 4
# A difference in these makes results differ or connections fail; in others it is worth a word.
_GRAVE = frozenset({"torch", "nccl"})


def facts(context: Context) -> Answer:
    """The task: this rank's row of the start-up report."""
    config = context.config if context.has_config else None
    row = RankFacts.here(context.own, context.device, context.backend, config, first_of_host=True)
    return {"row": row.dump()}


def sources(context: Context) -> Answer:
    """The task: hashes of all files and values of all settings, where their digests differ."""
    config = context.config if context.has_config else None
    return {"files": own_sources(config), "settings": {} if config is None else shared_settings(config)}


def check(conductor: Conductor) -> Iterable[Cell]:
    """One cell where all is the same, else one for each host and kind."""
    answers = conductor.ask([member.rank for member in conductor.firsts], "facts")
    yield from lost_cells("versions", conductor)
    errors = {rank: answer["error"] for rank, answer in answers.items() if "error" in answer}
    for rank, error in errors.items():
        yield Cell("versions", f"rank {rank}", "red", str(error), "Look at that rank's own output.")
    rows = [RankFacts.parse(str(answer["row"])) for rank, answer in answers.items() if rank not in errors]
    if not rows:
        return
    first = rows[0]
    cells = [*_versions(first, rows), *_sources(conductor, first, rows)]
    said = ", ".join(
        f"{name} {first.versions[name]}" for name in ("Python", "torch", "cuda", "nccl") if name in first.versions
    )
    same = "" if len(rows) == 1 else f"; the same versions and code on {len(rows)} hosts"
    yield from cells or [Cell("versions", hosts_of(conductor.firsts), "green", said + same)]


def _versions(first: RankFacts, rows: list[RankFacts]) -> Iterable[Cell]:
    for row in rows[1:]:
        apart = differing(dict(first.versions), dict(row.versions))
        if apart:
            told = ", ".join(f"{name} {row.versions.get(name)} ({first.versions.get(name)})" for name in apart)
            colour = "red" if _GRAVE & set(apart) else "yellow"
            where, value = row.host, f"{told}; in brackets that of {first.host}"
            yield Cell("versions", where, "red" if colour == "red" else "yellow", value, VERSIONS)


def _sources(conductor: Conductor, first: RankFacts, rows: list[RankFacts]) -> Iterable[Cell]:
    apart = [row for row in rows[1:] if (row.code, row.settings) != (first.code, first.settings)]
    answers = conductor.ask([first.rank, *(row.rank for row in apart)], "sources") if apart else {}
    for row in apart:
        for kind, word, advice in (("settings", "settings", CONFIG), ("files", "files of Tandem", CODE)):
            ours, theirs = (answers.get(rank, {}).get(kind, {}) for rank in (first.rank, row.rank))
            assert isinstance(ours, dict)
            assert isinstance(theirs, dict)
            if names := differing(ours, theirs):
                more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
                value = f"{word} differ from {first.host}: {', '.join(names[:_NAMED])}{more}"
                yield Cell("versions", row.host, "red", value, advice)


VERSIONS = "Install the same versions on every machine: scripts/setup.sh installs the locked ones."
CODE = "Bring every machine to the same version of Tandem, such as with git pull."
CONFIG = "Give every machine the same config file."
