"""Settings are declared with `setting(...)` inside a `Section`; everything else is derived from that declaration."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from modules.files import control_character

Picks = Literal["file", "folder", "long_text"]
Resume = Literal["free", "warn", "fixed", "checked"]
# A folder of this machine; those of a concept or model keep their `~` for the home folders of other machines.
LocalFolder = Annotated[str, AfterValidator(os.path.expanduser)]

RULES = "rules"
NOT_A_NUMBER = "not_a_number"
_VARIABLE = re.compile(r"\$\{.*|^\$[A-Za-z_]\w*$|^%[A-Za-z_]\w*%$")  # of a shell, or Hydra's
MOST_ITEMS = 10_000  # of a list or group; ten times the concepts of a large data set


class Section(BaseModel):
    """A frozen group of settings that rejects unknown names; a page of the window or an item of a list."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    section_title: ClassVar[str] = ""

    @field_validator("*", mode="before")  # only one: pydantic examines each anew for every field when it is imported
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        field = cls.model_fields[info.field_name]
        if isinstance(value, (list, tuple, dict)) and len(value) > MOST_ITEMS:
            raise ValueError(f"it has {len(value):,} items, and at most {MOST_ITEMS:,} are allowed")
        _reject_unusable_text(value, field.json_schema_extra)
        return _numbers(value, field.annotation)


def setting(
    default: Any,
    *,
    title: str,
    help: str,
    unit: str | None = None,
    advanced: bool = False,
    depends_on: str | None = None,
    picks: Picks | None = None,
    resume: Resume = "free",
    empty: str = "",
    titles: Mapping[str, str] | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    min_length: int | None = None,
) -> Any:
    """Declare one setting; `...` as default makes it required.

    `help` is written for an artist and describes the effect. `depends_on` names the setting of the same section (or of
    the whole config) that makes this one relevant: "ema", "scheduler=cosine|linear", "!global_batch_size",
    joined by " & ". `picks` selects the chooser or editor that the window offers. `empty` is what the window writes
    into an empty field, by default "automatic", or "none" for a file or folder. `titles` has the window's words for
    those of the choices that are not read as they are written: "linear" is "Linear" without, "lora" is not "LoRA".

    `resume` says what changing the value means for a run that resumes from a backup: "free" does not affect what is
    learned; "warn" changes training from there on, and the run logs a warning; "fixed" would make it another run and
    is refused; "checked" may differ as long as the result is equivalent (modules/training/state/resume).
    """
    extra: dict[str, Any] = {
        "unit": unit,
        "advanced": advanced,
        "depends_on": depends_on,
        "picks": picks,
        "empty": empty,
        "titles": dict(titles or {}),
        "resume": {"told": "warn"}.get(resume, resume),  # users' own family files may still say told
    }
    limits = {"ge": ge, "gt": gt, "le": le, "lt": lt, "min_length": min_length}
    given: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
    return Field(default, title=title, description=help, json_schema_extra=extra, **given)


def broken_rules(rules: list[tuple[str, str]]) -> PydanticCustomError:
    """The error of a model validator for settings that conflict: pairs of field and rest of the sentence."""
    return PydanticCustomError(RULES, "settings conflict", {"rules": rules})


def unwrap_optional(annotation: Any) -> Any:
    """The type inside `X | None` and `Annotated[X, ...]`; any other annotation unchanged."""
    if get_origin(annotation) is Annotated:
        return unwrap_optional(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        kept = [part for part in get_args(annotation) if part is not NoneType]
        if len(kept) == 1:
            return unwrap_optional(kept[0])
    return annotation


def _reject_unusable_text(value: Any, extra: Any) -> None:
    """No name, path or word has control characters; a shell script, a terminal or a log would obey them."""
    picks = extra.get("picks") if isinstance(extra, dict) else None
    is_long = picks == "long_text"
    for text in _texts(value):
        parts = re.split(r"[/\\]", text) if picks in ("file", "folder") else []
        if any(len(each.encode(errors="surrogatepass")) > 255 for each in parts) or (parts and len(text) > 4000):
            raise ValueError("it is longer than the path of a file may be")
        if any(map(_VARIABLE.search, parts)) and not os.path.lexists(text):
            raise ValueError("variables are not replaced; write the path itself, or ~ for your home folder")
        found = control_character(text, lines=is_long or isinstance(value, dict))
        if found:
            raise ValueError(f"it contains the control character {found}, which is not allowed here")


def _texts(value: Any) -> Iterator[str]:
    """The texts of a value that is validated at once; groups inside lists have validators of their own."""
    if isinstance(value, (list, tuple)):
        yield from (item for item in value if isinstance(item, str))
    else:
        yield from _nested_texts(value)


def _nested_texts(value: Any) -> Iterator[str]:
    """A text, or every name and text at any depth of a dict such as family_options."""
    remaining = [value]
    while remaining:
        item = remaining.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            remaining += [*item, *item.values()]
        elif isinstance(item, (list, tuple)):
            remaining += item


def _numbers(value: Any, annotation: Any) -> Any:
    """Number fields accept "1e-4" and reject true and false, which Python treats as 1 and 0."""
    plain = unwrap_optional(annotation)
    if plain in (int, float):
        return _number(value, whole=plain is int)
    if get_origin(plain) is tuple and isinstance(value, (list, tuple)):
        element = unwrap_optional(get_args(plain)[0])
        if element in (int, float):
            return [_number(item, whole=element is int, index=index) for index, item in enumerate(value)]
    return value


def _number(value: Any, *, whole: bool, index: int | None = None) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError(NOT_A_NUMBER, "true and false are not numbers", {"index": index})
    if not isinstance(value, str):
        return value
    try:
        # A shell and YAML 1.1 pass 1e-4 as text; 1e3 is accepted as a whole number.
        if whole and value.strip().lstrip("+-").isdigit():
            return int(value)
        number = float(value)
    except ValueError:
        return value
    usable = number.is_integer() if whole else math.isfinite(number)
    return number if usable else value  # the error message then shows the original text
