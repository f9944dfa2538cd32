"""Settings that were given and have no effect, because another one is as it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from modules.config.explain import format_value
from modules.config.io.files import dump
from modules.config.options import Option, options, unmet, value_at
from modules.config.train_config import TrainConfig
from modules.facts import family_names

_OF_VALIDATION = ("validation_batch_size", "validation_workers")


def unused_settings(config: TrainConfig) -> list[str]:
    """A sentence for each reason why settings that are not at their defaults have no effect.

    Samples, which every preset leaves to be added, are no such reason.
    """
    data = dump(config)
    unused: dict[str, list[str]] = defaultdict(list)
    for option in options(TrainConfig):
        for index in _places(option, data) if option.depends_on and option.variant is None else ():
            path = option.path.replace("*", str(index))
            term = unmet(option, data, index)
            needed = term.removeprefix("!").partition("=")[0]
            if term and value_at(path, data) != option.default and needed != "samples":
                unused[f"{needed} is {format_value(value_at(needed, data))}"].append(path)
    held_out = config.validation_split or any(each.enabled and each.kind != "train" for each in config.concepts)
    if not held_out and config.family in family_names():
        unused["no images are held out"] += [name for name in _OF_VALIDATION if data[name] is not None]
    return [
        f"{', '.join(paths)} {'has' if len(paths) == 1 else 'have'} no effect: {why}."
        for why, paths in unused.items()
        if paths
    ]


def _places(option: Option, data: Mapping[str, object]) -> Iterator[int]:
    """The indices of the items that have the option; 0 for one that is not in a list."""
    group, star, _ = option.path.partition(".*.")
    items = value_at(group, data) if star else [None]
    yield from range(len(items) if isinstance(items, list) else 0)
