"""Changes values in the text of a YAML file and leaves all other characters as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import yaml

from modules.config.io.text_formats import Data, compose_yaml, write_yaml

Edit: TypeAlias = tuple[int, int, list[str]]  # first and last line, counted from 0, and what takes their place


def edited_yaml(text: str, old: Data, new: Data) -> str | None:
    """`text`, which holds `old`, with the values of `new`; None if it has a form in which no line can be changed."""
    root = compose_yaml(text)
    if not isinstance(root, yaml.MappingNode) or root.flow_style or not root.value:
        return None
    lines = text.split("\n")
    for first, last, replacement in sorted(_mapping_edits(root, old, new, lines), reverse=True):
        lines[first : last + 1] = replacement
    return "\n".join(lines)


def _mapping_edits(node: yaml.MappingNode, old: Data, new: Data, lines: Sequence[str]) -> list[Edit]:
    edits: list[Edit] = []
    indent = node.value[0][0].start_mark.column
    for key, value in node.value:
        name = str(key.value)
        if name not in new:
            edits.append((key.start_mark.line, _last_line(key, value), []))
        elif old.get(name) != new[name]:
            edits += _value_edits(key, value, old.get(name), new[name], lines)
    added = {name: value for name, value in new.items() if name not in old}
    if added:
        after = _last_line(*node.value[-1]) + 1
        edits.append((after, after - 1, _rendered(added, indent)))
    return edits


def _value_edits(key: yaml.Node, value: yaml.Node, old: object, new: object, lines: Sequence[str]) -> list[Edit]:
    """The edits that bring one value from `old` to `new`: inside of a group, of the line, or all of it."""
    is_block = isinstance(value, yaml.CollectionNode) and not value.flow_style
    if is_block and isinstance(value, yaml.MappingNode) and isinstance(old, dict) and isinstance(new, dict):
        return _mapping_edits(value, old, new, lines)
    if is_block and isinstance(value, yaml.SequenceNode) and isinstance(old, list) and isinstance(new, list):
        return _list_edits(key, value, old, new, lines)
    start, end = value.start_mark, value.end_mark
    rendered = _rendered({str(key.value): new}, key.start_mark.column)
    if len(rendered) == 1 and start.line == end.line == key.start_mark.line and start.column < end.column:
        line = lines[start.line]
        shown = rendered[0][key.start_mark.column :].partition(": ")[2]
        return [(start.line, start.line, [line[: start.column] + shown + line[end.column :]])]
    first = lines[key.start_mark.line][: key.start_mark.column]  # the dash of a list's item
    rendered[0] = first + rendered[0][key.start_mark.column :]
    return [(key.start_mark.line, _last_line(key, value), rendered)]


def _list_edits(
    key: yaml.Node, node: yaml.SequenceNode, old: Sequence[object], new: Sequence[object], lines: Sequence[str]
) -> list[Edit]:
    """Changed items one by one, further ones at the end; with fewer items the list is written anew."""
    column = node.start_mark.column
    groups = all(isinstance(item, yaml.MappingNode) and not item.flow_style for item in node.value)
    if len(new) < len(old) or not groups or not all(isinstance(item, dict) for item in [*old, *new]):
        return [(key.start_mark.line, _last_line(key, node), _rendered({str(key.value): new}, key.start_mark.column))]
    edits: list[Edit] = []
    for item, before, after in zip(node.value, old, new, strict=False):
        assert isinstance(item, yaml.MappingNode)
        assert isinstance(before, dict)
        assert isinstance(after, dict)
        edits += _mapping_edits(item, before, after, lines)
    if further := list(new[len(old) :]):
        end = _last_line(key, node) + 1
        text = write_yaml({"x": further}).rstrip("\n").split("\n")[1:]
        edits.append((end, end - 1, [" " * column + line for line in text]))
    return edits


def _last_line(key: yaml.Node, value: yaml.Node) -> int:
    """The last line of a value, without the comments and empty lines below it."""
    if isinstance(value, yaml.MappingNode) and not value.flow_style and value.value:
        return _last_line(*value.value[-1])
    if isinstance(value, yaml.SequenceNode) and not value.flow_style and value.value:
        return _last_line(value.value[-1], value.value[-1])
    if isinstance(value, yaml.ScalarNode) and value.style in ("|", ">"):
        return int(value.end_mark.line) - 1
    if isinstance(value, yaml.ScalarNode) and value.start_mark.index == value.end_mark.index:
        return int(key.end_mark.line)  # no value
    return int(value.end_mark.line)


def _rendered(data: Mapping[str, object], indent: int) -> list[str]:
    return [" " * indent + line for line in write_yaml(dict(data)).rstrip("\n").split("\n")]
