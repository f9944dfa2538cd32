"""JSON and YAML text to plain data and back, stricter than the libraries: no repeated keys, no surprises."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable

import yaml

Data = dict[str, object]


def read_json(text: str) -> object:
    """Parse JSON; raises ValueError with a sentence that names the line."""
    try:
        data: object = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        problem = error.msg[0].lower() + error.msg[1:]
        raise ValueError(f"line {error.lineno}, column {error.colno}: {problem}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return data


def read_yaml(text: str) -> object:
    """Parse YAML; only true and false are switches, dates stay text; raises ValueError naming the line."""
    try:
        data: object = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = " ".join(f"{error.context or ''} {error.problem or 'it is not YAML'}".split())
        raise ValueError(f"{where}{problem}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return data


def write_json(data: Data) -> str:
    """JSON with one setting a line."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_yaml(data: Data) -> str:
    """YAML with one setting a line, which this and other YAML readers understand alike."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def _unique(pairs: list[tuple[str, object]]) -> Data:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'"{twice}" is given twice in the same group; keep one')
    return data


# YAML 1.1 takes yes, on, 12:30 and 2024-01-01 for something else than text, and 1e-4 for text; here they are
# what people mean. Per type: the text it is written as, and the characters that can begin it.
_TAG = "tag:yaml.org,2002:"
_PLAIN = {
    "null": (r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    "bool": (r"(?:true|True|TRUE|false|False|FALSE)\Z", list("tTfF")),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)\Z", list("-+0123456789")),
    "float": (
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z",
        list("-+.0123456789"),
    ),
    "merge": (r"<<\Z", ["<"]),
}
MOST_DIGITS = 1000  # Python refuses to read integers of more than 4,300 digits


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    found: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for name, (pattern, beginnings) in _PLAIN.items():
        for beginning in beginnings:
            found.setdefault(beginning, []).append((_TAG + name, re.compile(pattern)))
    return found


def _dumper_resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    ours, usual = _resolvers(), yaml.SafeDumper.yaml_implicit_resolvers
    return {beginning: [*usual.get(beginning, []), *ours.get(beginning, [])] for beginning in {**usual, **ours}}


def _scalar(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> object:
    """Build null, true, false or a number, also where the type is given by a tag such as !!int."""
    text, name = str(node.value), node.tag.removeprefix(_TAG)
    if not re.match(_PLAIN[name][0], text):
        problem = f'"{text[:40]}" is not of the type {name}'
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    if name in ("null", "bool"):
        return None if name == "null" else text.lower() == "true"
    if name == "int" and len(text) < MOST_DIGITS:
        return int(text)
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _refuse(loader: yaml.SafeLoader, node: yaml.Node) -> object:
    problem = f"a config file has no values of the type {node.tag.removeprefix(_TAG)}"
    raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class _Loader(yaml.SafeLoader):
    """Knows nothing but text, numbers, true, false, null, lists and groups."""

    yaml_implicit_resolvers = _resolvers()
    yaml_constructors = {  # noqa: RUF012  (ClassVar would contradict the parent's declaration)
        **{_TAG + name: _scalar for name in ("null", "bool", "int", "float")},
        _TAG + "str": _text,
        _TAG + "seq": yaml.SafeLoader.construct_yaml_seq,
        _TAG + "map": yaml.SafeLoader.construct_yaml_map,
        None: _refuse,
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                problem = f'"{key.value}" is given twice in the same group; keep one'
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML writes odd line breaks such as U+0085 bare and reads them back as a space; escapes survive.
    style = '"' if any(sign in text for sign in "\r\x85\u2028\u2029") else None
    return dumper.represent_scalar(_TAG + "str", text, style=style)


class _Dumper(yaml.SafeDumper):
    """Quotes whatever either YAML 1.1 or our loader would not read as text."""

    yaml_implicit_resolvers = _dumper_resolvers()

    def represent_data(self, data: object) -> yaml.Node:
        return _write_text(self, data) if isinstance(data, str) else super().represent_data(data)

    def ignore_aliases(self, data: object) -> bool:
        return True
