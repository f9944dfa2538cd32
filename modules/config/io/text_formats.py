"""JSON and YAML text to plain data and back, stricter than the libraries: no repeated keys, no implicit types."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

Data = dict[str, object]
_YAML_TERMS = {
    "while parsing a flow sequence": "in a list between [ and ],",
    "while parsing a flow mapping": "in a group between { and },",
    "while parsing a block mapping": "in a group of settings,",
    "while parsing a block collection": "in a list,",
    "while scanning a quoted scalar": "in a text in quotes,",
    "while scanning a simple key": "in a name,",
    "did not find expected key": "there is no name of a setting; check the indentation",
    "did not find expected '-' indicator": "there is no '-' where the next item should begin",
    "did not find expected": "there is no",
    "mapping values are not allowed in this context": "no ':' is allowed here; check the indentation, or use quotes",
    "found unexpected end of stream": "the file ends before its end",
}
LARGEST_YAML = 512 << 10  # characters, about 700 concepts; they take two seconds at worst


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


def read_yaml(text: str, *, tags: bool = False) -> object:
    """Parse YAML 1.2; only true and false are booleans, dates stay text. Raises ValueError naming the line.

    With `tags`, values of types that are programs' own are read as what is written: `!pyobject a.b.C` is "a.b.C". No
    object is made.
    """
    if len(text) > LARGEST_YAML:
        raise ValueError(f"YAML of more than {LARGEST_YAML >> 10} KiB takes too long to read; write it as JSON")
    try:
        data: object = yaml.load(text, Loader=_TagLoader if tags else _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = _in_words(" ".join(f"{error.context or ''} {error.problem or 'it is not YAML'}".split()))
        if mark and _character_at(text, mark.line, mark.column) == "\t" and "cannot start any token" in problem:
            problem = "a tab; indent with spaces"
        raise ValueError(f"{position}{problem}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return data


def _in_words(problem: str) -> str:
    """The parser's sentence for people who do not know its terms."""
    for term, words in _YAML_TERMS.items():
        problem = problem.replace(term, words)
    return problem


def lines_of_names(text: str) -> dict[str, int]:
    """The line, counted from 1, of each name in YAML or JSON, with dots between it and its groups; empty for others."""
    found: dict[str, int] = {}
    groups = [("", compose_yaml(text))]
    while groups:
        prefix, group = groups.pop()
        for key, value in group.value if isinstance(group, yaml.MappingNode) else ():
            found[f"{prefix}{key.value}"] = key.start_mark.line + 1
            groups.append((f"{prefix}{key.value}.", value))
    return found


def compose_yaml(text: str) -> yaml.Node | None:
    """The nodes of YAML, or of JSON, with their places in the text, within the limits of `read_yaml`; None if it is
    neither."""
    try:
        return yaml.compose(text, Loader=_Loader) if len(text) <= LARGEST_YAML else None
    except (yaml.YAMLError, RecursionError):
        return None


def _character_at(text: str, line: int, column: int) -> str:
    return "".join(text.splitlines()[line : line + 1])[column : column + 1]


def write_json(data: Data) -> str:
    """JSON with one setting per line."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_yaml(data: Data) -> str:
    """YAML with one setting per line, which YAML 1.1 readers parse to the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def _unique(pairs: list[tuple[str, object]]) -> Data:
    data: Data = {}
    for name, value in pairs:
        if name in data:
            raise ValueError(f'"{name}" is given twice in the same group; keep one')
        data[name] = value
    return data


# PyYAML implements YAML 1.1, which reads yes, on, 12:30 and 2024-01-01 as other types than text, and 1e-4 as text.
# These rules follow YAML 1.2, without octal and hexadecimal numbers: ruamel.yaml reads 1_000 and 0x1F as integers.
# Per type: the pattern, and the characters it can start with.
_TAG = "tag:yaml.org,2002:"
_PATTERNS = {
    "null": (r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    "bool": (r"(?:true|True|TRUE|false|False|FALSE)\Z", list("tTfF")),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)\Z", list("-+0123456789")),
    "float": (
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z",
        list("-+.0123456789"),
    ),
}
MOST_DIGITS = 1000  # Python refuses to read integers of more than 4,300 digits


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    found: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for name, (pattern, first_characters) in _PATTERNS.items():
        for character in first_characters:
            found.setdefault(character, []).append((_TAG + name, re.compile(pattern)))
    return found


def _dumper_resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    own, standard = _resolvers(), yaml.SafeDumper.yaml_implicit_resolvers
    return {first: [*standard.get(first, []), *own.get(first, [])] for first in {**standard, **own}}


def _scalar(loader: SafeConstructor, node: yaml.ScalarNode) -> object:
    """Construct null, true, false or a number, also if a tag such as !!int gives the type."""
    text, name = str(node.value), node.tag.removeprefix(_TAG)
    if not re.match(_PATTERNS[name][0], text):
        problem = f'"{text[:40]}" is not of the type {name}'
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    if name in ("null", "bool"):
        return None if name == "null" else text.lower() == "true"
    if name == "int" and len(text) < MOST_DIGITS:
        return int(text)
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _text(loader: SafeConstructor, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _reject(loader: SafeConstructor, node: yaml.Node) -> object:
    problem = f"config files do not support values of the type {node.tag.removeprefix(_TAG)}"
    raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _parser() -> Any:
    """The class to derive the loader from, with libyaml's scanner if PyYAML was built with it: four times faster."""
    if not yaml.__with_libyaml__:
        return yaml.SafeLoader
    from yaml.cyaml import CParser  # type: ignore[attr-defined]

    class Parser(Composer, CParser, SafeConstructor, Resolver):
        """Composes in Python, where `_Loader` refuses anchors."""

        def __init__(self, stream: str) -> None:
            CParser.__init__(self, stream)
            for part in (Composer, SafeConstructor, Resolver):
                part.__init__(self)

    return Parser


if TYPE_CHECKING:
    _Parser = yaml.SafeLoader
else:
    _Parser = _parser()


class _Loader(_Parser):
    """Supports only text, numbers, true, false, null, lists and groups."""

    yaml_implicit_resolvers = _resolvers()
    yaml_constructors = {  # noqa: RUF012  (ClassVar would contradict the parent's declaration)
        **{_TAG + name: _scalar for name in ("null", "bool", "int", "float")},
        _TAG + "str": _text,
        _TAG + "seq": yaml.SafeLoader.construct_yaml_seq,
        _TAG + "map": yaml.SafeLoader.construct_yaml_map,
        None: _reject,
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # a few hundred bytes of anchors that refer to each other stand for gigabytes
        event: yaml.events.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]
        anchor = getattr(event, "anchor", None)
        if anchor is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            problem = f"anchors and aliases ({sign}{anchor}) are not supported; write the value where it is needed"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)  # type: ignore[arg-type]
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                problem = f'"{key.value}" is given twice in the same group; keep one'
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _untagged(loader: SafeConstructor, node: yaml.Node) -> object:
    """A value as if it had no tag; `!!python/name:a.b.C`, whose value is in the tag, is "a.b.C"."""
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    return str(node.value) or node.tag.rpartition(":")[2]


class _TagLoader(_Loader):
    """Reads values with tags of programs as text, lists and groups."""

    yaml_constructors = {**_Loader.yaml_constructors, None: _untagged}  # noqa: RUF012


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML writes line breaks such as U+0085 unescaped and reads them back as a space; escapes survive.
    style = '"' if any(sign in text for sign in "\r\x85\u2028\u2029") else None
    return dumper.represent_scalar(_TAG + "str", text, style=style)


class _Dumper(yaml.SafeDumper):
    """Quotes all text that YAML 1.1 or `_Loader` would read as another type."""

    yaml_implicit_resolvers = _dumper_resolvers()

    def represent_data(self, data: object) -> yaml.Node:
        return _write_text(self, data) if isinstance(data, str) else super().represent_data(data)

    def ignore_aliases(self, data: object) -> bool:
        return True
