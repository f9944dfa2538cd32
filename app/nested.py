"""Reads and updates nested plain data by dotted path. Updates return a copy that shares the unchanged parts."""

from __future__ import annotations

from modules.config.io.text_formats import Data


def value_at(data: object, path: str) -> object:
    """The value at a path such as "concepts.0.path", or None."""
    for part in path.split("."):
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and part.isdecimal() and int(part) < len(data):
            data = data[int(part)]
        else:
            return None
    return data


def replaced(data: Data, path: str, value: object) -> Data:
    """A copy with another value at the path; missing groups on the way are created."""
    first, _, rest = path.partition(".")
    return {**data, first: _with_value(data.get(first), rest, value) if rest else value}


def inserted(data: Data, path: str, index: int, item: object) -> Data:
    """A copy with an item inserted into the list at the path."""
    items = _list(data, path)
    return replaced(data, path, [*items[:index], item, *items[index:]])


def removed(data: Data, path: str) -> Data:
    """A copy without the list item or key at the path."""
    parent, _, last = path.rpartition(".")
    group = value_at(data, parent)
    if isinstance(group, dict):
        return replaced(data, parent, {name: value for name, value in group.items() if name != last})
    items = _list(data, parent)
    return replaced(data, parent, [*items[: int(last)], *items[int(last) + 1 :]])


def _with_value(value: object, path: str, new: object) -> object:
    first, _, rest = path.partition(".")
    if isinstance(value, list):
        index = int(first)
        return [*value[:index], _with_value(value[index], rest, new) if rest else new, *value[index + 1 :]]
    return replaced(value if isinstance(value, dict) else {}, path, new)


def _list(data: Data, path: str) -> list[object]:
    value = value_at(data, path)
    return value if isinstance(value, list) else []
