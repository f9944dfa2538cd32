"""Fetching a base model from the hub before it is loaded: one rank for all that see the same cache, the others wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from modules.config import ConfigError, TrainConfig
from modules.distributed import Neighbours
from modules.families.family import Family
from modules.monitoring import Report
from modules.run.amounts import BYTES
from modules.training.dataset import Replicas

_WRITABLE, _READ_ONLY, _NOT_THERE = "writable", "read only", ""


def fetch_base_model(
    kind: type[Family], config: TrainConfig, replicas: Replicas, report: Report, check_stop: Callable[[], None]
) -> None:
    """Bring what `kind` loads from the hub into the hub's cache of every machine.

    Raises ConfigError where it cannot be had, or is not the same everywhere; and what `check_stop` raises meanwhile.
    """
    model = kind.on_hub(config)
    caches = replicas.gather("base model", _NOT_THERE if model is None else _kind_of_cache(model.cache))
    if model is None or _NOT_THERE in caches:
        _check_all_alike(config, caches)
        return
    near = _neighbours(model.cache, caches, replicas)
    told = (0, 0)

    def tell(done: int, total: int) -> None:
        nonlocal told
        check_stop()
        if (done, total) != told:
            told = (done, total)
            report.phase("downloading", done, total, BYTES)

    def fetch() -> None:
        if near.is_first and (remark := model.fetch(tell)):
            report.warning(remark)

    replicas.apart("downloading", fetch)
    folder = model.cached()
    _check_same_commit(model.called, replicas.gather("commit", "" if folder is None else folder.name))
    report.phase("loading")


def _neighbours(cache: Path, caches: list[str], replicas: Replicas) -> Neighbours:
    """Where a cache cannot be written there is nothing to share: every rank looks for itself whether it is whole."""
    if _READ_ONLY in caches:
        return Neighbours(replicas.replica_index, tuple((rank,) for rank in range(replicas.replica_count)))
    return replicas.neighbours("the hub's cache (HF_HOME)", cache)


def _kind_of_cache(cache: Path) -> str:
    existing = next((folder for folder in (cache, *cache.absolute().parents) if folder.is_dir()), cache)
    return _WRITABLE if os.access(existing, os.W_OK) else _READ_ONLY


def _check_all_alike(config: TrainConfig, caches: list[str]) -> None:
    on_hub = [rank for rank, cache in enumerate(caches) if cache != _NOT_THERE]
    if on_hub:
        local = caches.index(_NOT_THERE)
        raise ConfigError(
            f"base_model: {config.base_model!r} is on the disk of rank {local}, and not on that of rank {on_hub[0]}, "
            "which would take it from the hub.",
            "Give a path that all machines have, or a name on the hub that is no folder on any of them.",
        )


def _check_same_commit(called: str, commits: list[str]) -> None:
    different = next((rank for rank, commit in enumerate(commits) if commit != commits[0]), None)
    if different is not None:
        raise ConfigError(
            f"base_model: rank 0 has another version of {called!r} ({commits[0] or 'none'}) than rank {different} "
            f"({commits[different] or 'none'}).",
            "One of their machines could not ask the hub for the newest; start again where all can, or give the "
            "version that all have as owner/model@commit.",
        )
