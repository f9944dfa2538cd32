"""A section made again from its declarations as JSON, to check values by the same rules and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, create_model

from modules.config.interval import Interval
from modules.config.section import Section, setting

_PLAIN: dict[str, Any] = {
    "text": str,
    "integer": int,
    "number": float,
    "switch": bool,
    "interval": Interval,
    "mapping": dict[str, JsonValue],
}


def section_of(declarations: Sequence[Mapping[str, Any]]) -> type[Section]:
    """The section whose options, as dictionaries, these are; rules between settings are not among them.

    Raises KeyError or TypeError where they are no such declarations. A list of groups is taken as it comes.
    """
    direct = [one for one in declarations if "." not in one["path"]]
    fields: dict[str, Any] = {one["path"]: (_annotation(one), _setting(one)) for one in direct}
    section: type[Section] = create_model("DescribedSection", __base__=Section, **fields)
    return section


def _annotation(one: Mapping[str, Any]) -> Any:
    kind = one["type"]
    if kind == "choice":
        plain: Any = Literal[tuple(one["choices"])]
    elif kind in ("integers", "numbers"):
        limits = Field(**_limits(one))
        element: Any = Annotated[int, limits] if one["type"] == "integers" else Annotated[float, limits]
        plain = tuple.__class_getitem__((element,) * one["length"] if one["length"] else (element, ...))
    elif kind == "list":
        plain = tuple[Any, ...]
    else:
        plain = _PLAIN[kind]
    return plain | None if one["optional"] else plain


def _setting(one: Mapping[str, Any]) -> Any:
    in_elements = one["type"] in ("integers", "numbers")
    default = Interval.parse(one["default"]) if one["type"] == "interval" else one["default"]
    return setting(
        ... if one["required"] else tuple(default) if isinstance(default, list) else default,
        title=one["title"],
        help=one["help"],
        unit=one["unit"],
        advanced=one["advanced"],
        depends_on=one["depends_on"],
        picks=one["picks"],
        resume=one["resume"],
        **({} if in_elements else _limits(one)),
    )


def _limits(one: Mapping[str, Any]) -> dict[str, Any]:
    return {name: limit for name, limit in one["bounds"].items() if limit is not None}
