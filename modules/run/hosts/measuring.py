"""Runs that only measure something, also on machines over ssh: what these are told, and that they leave nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from modules.config import TrainConfig
from modules.files import remove_tree
from modules.run.batch_size.records import VARIABLE as FIND_BATCH_SIZE
from modules.run.benchmark.records import VARIABLE as BENCHMARK

_PASSED_ON: Final = (FIND_BATCH_SIZE, BENCHMARK)


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that tell the processes of a run to measure, for the machines that this one starts over ssh."""
    return {name: environment[name] for name in _PASSED_ON if name in environment}


@contextmanager
def own_place(environment: Mapping[str, str]) -> Iterator[list[str]]:
    """Settings of a machine that joins a run: nothing, or a folder that is removed afterwards if it only measures.

    A benchmark uses the machine's own cache, as a run does; the search encodes a few images, and has one of its own.
    """
    if not passed_on(environment):
        yield []
        return
    place = Path(tempfile.mkdtemp(prefix="tandem-measuring-"))
    names = ["runs_dir", *(["cache_dir"] if FIND_BATCH_SIZE in environment else [])]
    try:
        yield [f"{name}={place / name}" for name in names]
    finally:
        remove_tree(place)


def on_machines(config: TrainConfig, count: int) -> TrainConfig:
    """The config for `count` of its machines: this one alone, or machine 0 and those after it."""
    if config.num_nodes == 1:
        return config
    counts = config.processes_per_node
    if counts is None and config.world_size is not None:
        counts = (config.world_size // config.num_nodes,)
    if counts is not None:
        counts = counts if len(counts) == config.num_nodes else counts * config.num_nodes
    here = None if counts is None else counts[config.node_rank]
    of_one: dict[str, object] = {"num_nodes": 1, "node_rank": 0, "processes_per_node": None, "world_size": here}
    of_several = {"num_nodes": count, "processes_per_node": counts and counts[:count], "world_size": None}
    return config.model_copy(update=of_one if count == 1 else of_several)


def machines_text(hosts: int, machines: int) -> str:
    """A note if a config has more machines than are measured; empty if not."""
    others = machines - 1 - hosts
    if others <= 0:
        return ""
    which = "this machine" if not hosts else f"this machine and the {hosts} that it starts over ssh"
    return (
        f"Note: only {which} can be measured, not the other {'one' if others == 1 else others} of num_nodes="
        f"{machines}. Add the rest with scripts/hosts.py and give them as --hosts."
    )
