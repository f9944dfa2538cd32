"""A section rebuilt from its declarations as JSON, so that the window validates a family's options without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, create_model

from modules.config.interval import Interval
from modules.config.options import SIMPLE_TYPES
from modules.config.section import Section, setting

_TYPES: dict[str, Any] = {
    **{str(name): simple for name, simple in SIMPLE_TYPES.items()},
    "mapping": dict[str, JsonValue],
    "list": tuple[Any, ...],
}
_ATTRIBUTES = ("title", "help", "unit", "advanced", "depends_on", "picks", "resume")


def build_section(declarations: Sequence[Mapping[str, Any]]) -> type[Section]:
    """Build the section with these options, given as dictionaries; rules between settings are not included.

    Raises KeyError or TypeError if the declarations are malformed. The items of lists of sections are not validated.
    """
    direct = [each for each in declarations if "." not in each["path"]]
    fields: dict[str, Any] = {each["path"]: (_annotation(each), _setting(each)) for each in direct}
    section: type[Section] = create_model("DynamicSection", __base__=Section, **fields)
    return section


def _annotation(declaration: Mapping[str, Any]) -> Any:
    kind = declaration["type"]
    if kind == "choice":
        plain: Any = Literal[tuple(declaration["choices"])]
    elif kind in ("integers", "numbers"):
        limits = Field(**_limits(declaration))
        element: Any = Annotated[int, limits] if kind == "integers" else Annotated[float, limits]
        plain = tuple.__class_getitem__((element,) * declaration["length"] if declaration["length"] else (element, ...))
    else:
        plain = _TYPES[kind]
    return plain | None if declaration["optional"] else plain


def _setting(declaration: Mapping[str, Any]) -> Any:
    in_elements = declaration["type"] in ("integers", "numbers")
    default = Interval.parse(declaration["default"]) if declaration["type"] == "interval" else declaration["default"]
    return setting(
        ... if declaration["required"] else tuple(default) if isinstance(default, list) else default,
        empty=declaration.get("empty", ""),  # which an older declaration lacks, as the titles
        titles=dict(zip(declaration["choices"], declaration.get("choice_titles", ()), strict=False)),
        **{name: declaration[name] for name in _ATTRIBUTES},
        **({} if in_elements else _limits(declaration)),
    )


def _limits(declaration: Mapping[str, Any]) -> dict[str, Any]:
    return {name: limit for name, limit in declaration["bounds"].items() if limit is not None}
