"""Are software versions, code and settings the same on every host?"""

from __future__ import annotations

from collections.abc import Iterable

from modules.distributed.formatting import first_names
from modules.distributed.startup.cluster_info import NAMES_SHOWN, SAME_CODE, SAME_CONFIG
from modules.distributed.startup.rank_info import RankInfo, source_hashes
from modules.preflight.cells import hosts_of
from modules.preflight.coordinator import Answer, Context, Coordinator
from modules.run.join.fingerprint import differing_names
from modules.run.join.local_settings import shared_settings
from modules.run.preflight_report.report import Cell

# Differences in these change results or break connections; in others they deserve only a note.
_CRITICAL = frozenset({"torch", "nccl"})


def rank_info(context: Context) -> Answer:
    """Task: this rank's row of the start-up report."""
    config = context.config if context.has_config else None
    row = RankInfo.of_this_process(context.own, context.device, context.backend, config, is_first_of_host=True)
    return {"row": row.dump()}


def sources(context: Context) -> Answer:
    """Task if the digests differ: hashes of all files and values of all settings."""
    config = context.config if context.has_config else None
    return {"files": source_hashes(config), "settings": {} if config is None else shared_settings(config)}


def check(coordinator: Coordinator) -> Iterable[Cell]:
    """Yield one cell if everything is the same, else one per host and kind."""
    answers = coordinator.ask([member.rank for member in coordinator.first_ranks], "rank_info")
    errors = {rank: answer["error"] for rank, answer in answers.items() if "error" in answer}
    for rank, error in errors.items():
        yield Cell("versions", f"rank {rank}", "red", str(error), "Check that rank's output.")
    rows = [RankInfo.parse(str(answer["row"]), rank) for rank, answer in answers.items() if rank not in errors]
    if not rows:
        return
    first = rows[0]
    cells = [*_versions(first, rows), *_sources(coordinator, first, rows)]
    summary = ", ".join(
        f"{name} {first.versions[name]}" for name in ("Python", "torch", "cuda", "nccl") if name in first.versions
    )
    same = "" if len(rows) == 1 else f"; the same versions and code on {len(rows)} hosts"
    yield from cells or [Cell("versions", hosts_of(coordinator.first_ranks), "green", summary + same)]


def _versions(first: RankInfo, rows: list[RankInfo]) -> Iterable[Cell]:
    for row in rows[1:]:
        differing = differing_names(dict(first.versions), dict(row.versions))
        if differing:
            versions = ", ".join(f"{name} {row.versions.get(name)} ({first.versions.get(name)})" for name in differing)
            value = f"{versions}; in brackets those of {first.host}"
            yield Cell("versions", row.host, "red" if _CRITICAL & set(differing) else "yellow", value, VERSIONS)


def _sources(coordinator: Coordinator, first: RankInfo, rows: list[RankInfo]) -> Iterable[Cell]:
    different = [row for row in rows[1:] if (row.code, row.settings) != (first.code, first.settings)]
    answers = coordinator.ask([first.rank, *(row.rank for row in different)], "sources") if different else {}
    for row in different:
        for kind, word, advice in (("settings", "settings", SAME_CONFIG), ("files", "files of Tandem", SAME_CODE)):
            ours, theirs = (answers.get(rank, {}).get(kind, {}) for rank in (first.rank, row.rank))
            assert isinstance(ours, dict)
            assert isinstance(theirs, dict)
            if names := differing_names(ours, theirs):
                value = f"{word} differ from {first.host}: {first_names(names, NAMES_SHOWN)}"
                yield Cell("versions", row.host, "red", value, advice)


VERSIONS = "Install the same versions on every machine: scripts/setup.sh installs the locked ones."
