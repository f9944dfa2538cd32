"""Downloading a base model from the hub before it is loaded: once per cache folder, while the other ranks wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from modules.config import ConfigError, TrainConfig
from modules.distributed import RankGroup, SharedFolderGroups
from modules.families._family import Family
from modules.monitoring import Report
from modules.run.format_progress import BYTES

# What a rank says about its hub cache; a model on its disk needs none.
_WRITABLE, _READ_ONLY, _LOCAL_MODEL = "writable", "read only", ""


def fetch_base_model(
    family: type[Family], config: TrainConfig, ranks: RankGroup, report: Report, check_stop: Callable[[], None]
) -> None:
    """Download what `family` loads from the hub into the hub cache of every machine.

    Raises ConfigError if it is not available or not the same everywhere, and whatever `check_stop` raises meanwhile.
    """
    model = family.hub_model(config)
    caches = ranks.gather("base model", _LOCAL_MODEL if model is None else _cache_access(model.cache_dir))
    if model is None or _LOCAL_MODEL in caches:
        _check_same_source(config, caches)
        return
    groups = _cache_groups(model.cache_dir, caches, ranks)
    reported = (0, 0)

    def on_progress(done: int, total: int) -> None:
        nonlocal reported
        check_stop()
        if (done, total) != reported:
            reported = (done, total)
            report.phase("downloading", done, total, BYTES)

    def download() -> None:
        if groups.is_first_in_group and (warning := model.download(on_progress)):
            report.warning(warning)

    ranks.run_on_all("downloading", download)
    folder = model.cached_folder()
    _check_same_commit(model.label, ranks.gather("commit", "" if folder is None else folder.name))
    report.phase("loading")


def _cache_groups(cache: Path, caches: list[str], ranks: RankGroup) -> SharedFolderGroups:
    """The ranks that share a cache; a read-only one is checked for completeness by every rank on its own."""
    if _READ_ONLY in caches:
        return SharedFolderGroups(ranks.rank, tuple((rank,) for rank in range(ranks.world_size)))
    return ranks.shared_folder_groups("the hub's cache (HF_HOME)", cache)


def _cache_access(cache: Path) -> str:
    existing = next((folder for folder in (cache, *cache.absolute().parents) if folder.is_dir()), cache)
    return _WRITABLE if os.access(existing, os.W_OK) else _READ_ONLY


def _check_same_source(config: TrainConfig, caches: list[str]) -> None:
    on_hub = [rank for rank, cache in enumerate(caches) if cache != _LOCAL_MODEL]
    if on_hub:
        local = caches.index(_LOCAL_MODEL)
        raise ConfigError(
            f"base_model: {config.base_model!r} is on the disk of rank {local}, and not on that of rank {on_hub[0]}, "
            "which would download it.",
            "Give a path that all machines have, or a hub id that is not a folder on any of them.",
        )


def _check_same_commit(name: str, commits: list[str]) -> None:
    different = next((rank for rank, commit in enumerate(commits) if commit != commits[0]), None)
    if different is not None:
        raise ConfigError(
            f"base_model: rank 0 has another version of {name!r} ({commits[0] or 'none'}) than rank {different} "
            f"({commits[different] or 'none'}).",
            "One of the machines could not ask the hub for the newest version; start again when all can, or name a "
            "version that all have: owner/model@commit.",
        )
