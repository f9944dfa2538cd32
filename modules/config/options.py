"""The settings as a flat list of options, for the form, `--help`, `--set`, error messages and the reference page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Literal, Union, cast, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from modules.config.interval import Interval
from modules.config.numbers import format_number
from modules.config.section import Picks, Resume, Section, unwrap_optional

OptionType = Literal[
    "text", "integer", "number", "switch", "choice", "interval", "integers", "numbers", "mapping", "list"
]
SIMPLE_TYPES: dict[OptionType, type] = {
    "text": str, "integer": int, "number": float, "switch": bool, "interval": Interval,
}  # fmt: skip
_NUMBER_FORMAT = re.compile(r"[a-z]+\d+")


@dataclass(frozen=True)
class Bounds:
    """Limits of a number, of each number in a list, or of the length of a text; None means no limit."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None

    def __str__(self) -> str:
        """ "from 8 to 8192", "above 0 and up to 10"; empty without limits."""
        if self.ge is not None and self.le is not None:
            return f"from {format_number(self.ge)} to {format_number(self.le)}"
        limits = (("of at least", self.ge), ("above", self.gt), ("up to", self.le), ("below", self.lt))
        return " and ".join(f"{words} {format_number(limit)}" for words, limit in limits if limit is not None)


@dataclass(frozen=True)
class Option:
    """The declaration of one setting.

    `path` has a star for a list index ("concepts.*.path"). `default` is written as in a file. `variant` is the
    optimizer that the setting belongs to. `depends_on` holds full paths. `length` is the fixed length of a list of
    numbers. `choice_titles` has the words for people in place of each of `choices`, which files keep.
    """

    path: str
    type: OptionType
    default: object
    required: bool
    optional: bool
    title: str
    help: str
    choices: tuple[str, ...]
    bounds: Bounds
    length: int | None
    unit: str | None
    advanced: bool
    depends_on: str | None
    picks: Picks | None
    resume: Resume
    section: str
    variant: str | None
    empty: str = ""  # what the window writes into an empty field
    choice_titles: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def titles(self) -> dict[str, str]:
        """The words for each of the choices: {"fully_sharded": "Fully sharded (FSDP2)", ...}."""
        return dict(zip(self.choices, self.choice_titles, strict=True))


def in_words(value: str) -> str:
    """A value or a submodule's name as people read it: "Cosine with restarts"; number formats such as bf16 stay."""
    return value if _NUMBER_FORMAT.fullmatch(value) else f"{value[:1].upper()}{value[1:]}".replace("_", " ")


@cache
def options(model: type[Section]) -> list[Option]:
    """Every setting of a model in the order of its sections, including those inside lists and optimizers."""
    return list(_walk(model, prefix="", section=None, variant=None))


def find_option(model: type[Section], path: str, variant: str | None = None) -> Option | None:
    """The option at a path such as "concepts.0.path"; `variant` selects the optimizer.

    None for an unknown path; without a variant, the option of the first optimizer that has the setting.
    """
    general = generalise(path)
    found = [option for option in options(model) if option.path == general]
    return next((option for option in found if variant is None or option.variant in (None, variant)), None)


def generalise(path: str) -> str:
    """The path with a star for each list index."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def is_active(option: Option, data: Mapping[str, object], index: int = 0) -> bool:
    """Whether the settings that the option depends on make it relevant; `data` as dumped, `index` for list items."""
    return not unmet(option, data, index)


def unmet(option: Option, data: Mapping[str, object], index: int = 0) -> str:
    """The first condition of `depends_on` that does not hold, or ""."""
    terms = (option.depends_on or "").replace("*", str(index)).split(" & ")
    return next((term for term in terms if term and not _holds(term, data)), "")


def value_at(path: str, data: Mapping[str, object]) -> object:
    """The value at a path such as "concepts.0.path"; None where there is none."""
    value: object = data
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, (list, tuple)) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            value = None
    return value


def sections_of(model: type[Section]) -> list[type[Section]]:
    """The sections that a model inherits from, in order; the model itself if it is one section."""
    parts = [base for base in model.__bases__ if issubclass(base, Section) and base.model_fields]
    return parts or [model]


def variants_of(annotation: object) -> list[type[Section]]:
    """The sections of a union discriminated by `name`; empty for any other type."""
    plain = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if get_origin(plain) not in (Union, UnionType):
        return []
    parts = [unwrap_optional(part) for part in get_args(plain)]
    return parts if all(_is_section(part) and "name" in part.model_fields for part in parts) else []


def _walk(model: type[Section], prefix: str, section: str | None, variant: str | None) -> Iterator[Option]:
    """`section` is the title of the top-level section, also for options inside lists and unions."""
    parts = sections_of(model)
    for part in parts:
        for name, field in part.model_fields.items():
            title = part.section_title if section is None else section
            yield from _expand(field, prefix + name, prefix, title, variant)
    for name, field in model.model_fields.items():
        if not any(name in part.model_fields for part in parts):
            yield from _expand(field, prefix + name, prefix, section or "", variant)


def _expand(field: FieldInfo, path: str, prefix: str, section: str, variant: str | None) -> Iterator[Option]:
    kinds = variants_of(field.annotation)
    if kinds:
        choices = tuple(str(kind.model_fields["name"].default) for kind in kinds)
        titles = tuple(kind.section_title for kind in kinds)
        yield _option(field, f"{path}.name", prefix, section, variant, choices=choices, titles=titles)
        for kind, name in zip(kinds, choices, strict=True):
            for option in _walk(kind, prefix=f"{path}.", section=section, variant=name):
                if option.name != "name":
                    condition = " & ".join(filter(None, (f"{path}.name={name}", option.depends_on)))
                    yield replace(option, depends_on=condition)
        return
    yield _option(field, path, prefix, section, variant)
    item = _item_section(field.annotation)
    if item is not None:
        yield from _walk(item, prefix=f"{path}.*.", section=section, variant=variant)


def _option(
    field: FieldInfo,
    path: str,
    prefix: str,
    section: str,
    variant: str | None,
    choices: tuple[str, ...] = (),
    titles: tuple[str, ...] = (),
) -> Option:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    required = field.default is PydanticUndefined
    default = None if required else _in_file_format(field.default)
    plain = unwrap_optional(field.annotation)
    element = get_args(plain)[0] if get_origin(plain) is tuple else None
    literals = choices or (get_args(plain) if get_origin(plain) is Literal else ())
    own_titles = cast("Mapping[str, str]", extra.get("titles") or {})
    return Option(
        path=path,
        type="choice" if choices else _kind(plain),
        default=default["name"] if choices and isinstance(default, dict) else default,
        required=required,
        optional=type(None) in get_args(field.annotation),
        title=field.title or "",
        help=field.description or "",
        choices=literals,
        bounds=_bounds(_metadata(element) or field.metadata),
        length=None if element is None or Ellipsis in get_args(plain) else len(get_args(plain)),
        unit=cast("str | None", extra.get("unit")),
        advanced=bool(extra.get("advanced")),
        depends_on=_prefixed(cast("str | None", extra.get("depends_on")), prefix),
        picks=cast("Picks | None", extra.get("picks")),
        empty=str(extra.get("empty") or ""),
        choice_titles=titles or tuple(own_titles.get(str(choice)) or in_words(str(choice)) for choice in literals),
        resume=cast("Resume", extra.get("resume", "free")),
        section=section,
        variant=variant,
    )


def _in_file_format(default: object) -> object:
    return str(default) if isinstance(default, Interval) else to_jsonable_python(default)


def _kind(plain: object) -> OptionType:
    for name, simple in SIMPLE_TYPES.items():
        if plain is simple:
            return name
    origin = get_origin(plain)
    if origin is Literal:
        return "choice"
    if origin is dict:
        return "mapping"
    if origin is tuple:
        element = unwrap_optional(get_args(plain)[0])
        return "integers" if element is int else "numbers" if element is float else "list"
    raise TypeError(f"A setting cannot be of the type {plain}: neither the form nor the error messages support it.")


def _metadata(annotation: object) -> list[object]:
    """The metadata of list elements such as Annotated[float, Field(ge=0)]."""
    if get_origin(annotation) is not Annotated:
        return []
    found: list[object] = []
    for note in get_args(annotation)[1:]:
        found.extend(note.metadata if isinstance(note, FieldInfo) else [note])
    return found


def _bounds(metadata: list[object]) -> Bounds:
    names = ("ge", "gt", "le", "lt", "min_length")
    return Bounds(**{name: getattr(note, name) for note in metadata for name in names if hasattr(note, name)})


def _item_section(annotation: object) -> type[Section] | None:
    plain = unwrap_optional(annotation)
    element = unwrap_optional(get_args(plain)[0]) if get_origin(plain) is tuple else None
    return cast("type[Section]", element) if _is_section(element) else None


def _is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _prefixed(depends_on: str | None, prefix: str) -> str | None:
    if depends_on is None:
        return None
    terms = depends_on.split(" & ")
    return " & ".join(f"!{prefix}{t[1:]}" if t.startswith("!") else prefix + t for t in terms)


def _holds(term: str, data: Mapping[str, object]) -> bool:
    path, _, wanted = term.removeprefix("!").partition("=")
    value = value_at(path, data)
    holds = str(value) in wanted.split("|") if wanted else bool(value) and value not in ("never", "none")
    return holds != term.startswith("!")
