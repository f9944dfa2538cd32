"""Places in nested plain data by dotted path; nothing is changed in place, unchanged parts are shared."""

from __future__ import annotations

from modules.config.text_formats import Data


def at(data: object, path: str) -> object:
    """The value at "concepts.0.path"; None where there is none."""
    for part in path.split("."):
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and part.isdecimal() and int(part) < len(data):
            data = data[int(part)]
        else:
            return None
    return data


def replaced(data: Data, path: str, value: object) -> Data:
    """A copy with another value at the path; groups on the way are made where they are missing."""
    first, _, rest = path.partition(".")
    return {**data, first: _inside(data.get(first), rest, value) if rest else value}


def inserted(data: Data, path: str, place: int, item: object) -> Data:
    """A copy with one more item in the list at the path."""
    items = _list(data, path)
    return replaced(data, path, [*items[:place], item, *items[place:]])


def removed(data: Data, path: str) -> Data:
    """A copy without the list item or the name at the path."""
    parent, _, last = path.rpartition(".")
    group = at(data, parent)
    if isinstance(group, dict):
        return replaced(data, parent, {name: value for name, value in group.items() if name != last})
    items = _list(data, parent)
    return replaced(data, parent, [*items[: int(last)], *items[int(last) + 1 :]])


def _inside(value: object, path: str, new: object) -> object:
    first, _, rest = path.partition(".")
    if isinstance(value, list):
        place = int(first)
        return [*value[:place], _inside(value[place], rest, new) if rest else new, *value[place + 1 :]]
    return replaced(value if isinstance(value, dict) else {}, path, new)


def _list(data: Data, path: str) -> list[object]:
    value = at(data, path)
    return value if isinstance(value, list) else []
