"""Saves a config to a file that a person wrote: comments, order and spelling stay, and only what differs is written.

The file is read by the one reader with its limits (text_formats.py). What the edit made of it is read again before
it is written; if it does not give the config, the file is written anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import yaml
from pydantic import ValidationError

from modules.config.errors import ConfigError
from modules.config.io.files import READERS, dump, parse, read_text, save_config, write_config_text
from modules.config.io.migrations import TITLE, migrate
from modules.config.io.text_formats import Data, compose_yaml, write_json, write_yaml
from modules.config.train_config import TrainConfig

Edit: TypeAlias = tuple[int, int, list[str]]  # first and last line, counted from 0, and what takes their place


def save_edited(config: TrainConfig, path: str | Path) -> None:
    """Save to a new or an existing file. Raises ConfigError if it cannot be written."""
    file = Path(path)
    text = _edited(config, file)
    if text is None:
        save_config(config, file)
    else:
        write_config_text(file, text)


def differing(config: TrainConfig) -> Data:
    """What differs from the defaults, as in a file."""
    data: Data = config.model_dump(mode="json", exclude_defaults=True)
    whole = dump(config)
    optimizer, given = whole["optimizer"], data.get("optimizer")
    if isinstance(given, dict) and isinstance(optimizer, dict):
        data["optimizer"] = {"name": optimizer["name"], **given}
    return {name: data[name] for name in whole if name in data}


def _edited(config: TrainConfig, file: Path) -> str | None:
    """The text to write; None if only a complete one gives this config."""
    is_yaml = file.suffix.lower() in (".yaml", ".yml")
    if file.suffix.lower() not in READERS:
        return None
    wanted = differing(config)
    write = write_yaml if is_yaml else write_json
    fresh = write({"version": config.version, **wanted})
    candidates = [fresh]
    try:
        old_text = read_text(file)
        parsed = parse(file, old_text)
        old = migrate(parsed, str(file))
    except ConfigError:
        parsed, old, old_text = {}, {}, ""  # there is none, or it is damaged
    if parsed and parsed.keys() - {TITLE} <= old.keys():  # with today's names
        before, after = _validated(old), dump(config)
        new: Data = {}
        for name, value in parsed.items():
            if name == "version":
                new[name] = config.version
            elif name == TITLE or (name in before and before[name] == after.get(name)):
                new[name] = value  # as it was spelled
            elif name in after:
                new[name] = wanted.get(name, after[name])
        new |= {name: value for name, value in wanted.items() if name not in new and name != "version"}
        edited = edited_yaml(old_text, parsed, new) if is_yaml else write_json(new)
        candidates = [edited, fresh] if edited is not None else candidates
    return next((text for text in candidates if _gives(file, text, config)), None)


def _validated(data: Mapping[str, object]) -> Data:
    try:
        return dump(TrainConfig.model_validate(data))
    except ValidationError:
        return {}


def _gives(file: Path, text: str, config: TrainConfig) -> bool:
    """Whether reading `text` gives this config."""
    try:
        return _validated(migrate(parse(file, text), str(file))) == dump(config)
    except ConfigError:
        return False


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
