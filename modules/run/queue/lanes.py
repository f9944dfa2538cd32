"""Which GPUs of this machine an entry takes, and what one that has to wait is told."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from modules.run.queue.entries import Entry, Resources


class Taker(NamedTuple):
    """What runs, or waits and comes first, with what it takes."""

    name: str
    resources: Resources
    is_waiting: bool = False


def claim(entry: Entry, gpus: Sequence[int], takers: Sequence[Taker], named: Collection[int] = ()) -> Resources:
    """What an entry is to take: if any GPUs will do, as many of the machine's `gpus` as it needs that nobody takes,
    first those that no entry has `named`.

    If there are not enough, all: so nothing behind it takes one of those that become free, and it is not overtaken for
    ever by entries that need fewer.
    """
    wanted = entry.resources
    if entry.place or entry.devices is not None or entry.gpus is None:
        return wanted
    free = [gpu for gpu in gpus if not any(Resources([gpu]).overlaps(each.resources) for each in takers)]
    free.sort(key=lambda gpu: gpu in named)
    return wanted._replace(devices=sorted(free[: entry.gpus])) if len(free) >= entry.gpus else wanted


def obstacles(entry: Entry, wanted: Resources, takers: Sequence[Taker]) -> list[Taker]:
    """Those that take what an entry wants, or are its own run, which somebody has started or that has not ended yet."""
    return [each for each in takers if each.name == entry.name or wanted.overlaps(each.resources)]


def why_waiting(entry: Entry, gpus: Sequence[int], in_the_way: Sequence[Taker]) -> str:
    """Why an entry waits for those who take what it needs."""
    if any(each.name == entry.name for each in in_the_way):
        return "Waits until its run, which is at work already, has ended"
    first = [each for each in in_the_way if each.is_waiting]
    if first:
        return f"Waits for its turn after {first[-1].name}"
    wanted = entry.resources
    names, verb = _listed([each.name for each in in_the_way]), "trains" if len(in_the_way) == 1 else "train"
    if entry.hosts or entry.place:
        return f"Waits for {names}, which {verb} on the same machines or GPUs"
    if not gpus:
        return f"Waits for {names}, which {verb} on this computer"
    if wanted.devices is not None:
        return f"Waits for GPU {_listed(list(map(str, wanted.devices)))}, on which {names} {verb}"
    if entry.gpus is None:
        return f"Waits until all GPUs are free: {names} {verb}"
    what = "a GPU is free" if entry.gpus == 1 else f"{entry.gpus} GPUs are free"
    return f"Waits until {what}: {names} {verb}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
