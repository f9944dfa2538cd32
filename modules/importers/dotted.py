"""Values at dotted paths such as `concepts.0.path`, in the plain dictionaries and lists of a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modules.config.io.text_formats import Data


def flatten(given: Mapping[str, object], groups: Iterable[str] = ()) -> dict[str, object]:
    """Flatten nested groups to dotted names, except `groups`."""
    found: dict[str, object] = {}
    stack: list[tuple[str, object]] = [(str(name), value) for name, value in reversed(list(given.items()))]
    while stack:
        name, value = stack.pop()
        if isinstance(value, Mapping) and value and name not in groups:
            stack.extend((f"{name}.{inner}", item) for inner, item in reversed(list(value.items())))
        else:
            found[name] = value
    return found


def put(data: Data, path: str, value: object) -> None:
    """Set a value at a dotted path; creates groups and list items as needed."""
    *parents, last = path.split(".")
    container: Data | list[object] = data
    for part, following in zip(parents, [*parents, last][1:], strict=True):
        if isinstance(container, list):
            while int(part) >= len(container):
                container.append({})
            inner = container[int(part)]
        else:
            inner = container.setdefault(part, [] if following.isdecimal() else {})
        assert isinstance(inner, (dict, list))
        container = inner
    if isinstance(container, list):
        container.append(value)
    else:
        container[last] = value


def remove(data: Data, path: str) -> bool:
    """Delete the value at a dotted path; False if there is none. An item of a list becomes None, so that the others
    keep their numbers."""
    *parents, last = path.split(".")
    container: object = data
    for part in parents:
        if isinstance(container, list) and part.isdecimal() and int(part) < len(container):
            container = container[int(part)]
        else:
            container = container.get(part) if isinstance(container, dict) else None
    if isinstance(container, dict) and last in container:
        del container[last]
        return True
    if isinstance(container, list) and last.isdecimal() and int(last) < len(container):
        container[int(last)] = None
        return True
    return False
