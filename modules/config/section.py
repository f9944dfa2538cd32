"""How a setting is declared: `setting(...)` inside a `Section` is the only way, and the only declaration."""

from __future__ import annotations

import math
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

Picks = Literal["file", "folder", "long_text"]
Resume = Literal["free", "told", "fixed", "checked"]

RULES = "rules"
NOT_A_NUMBER = "not_a_number"


class Section(BaseModel):
    """A frozen group of settings that refuses unknown names; a page of the window or an item of a list."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    section_title: ClassVar[str] = ""

    @field_validator("*", mode="before")
    @classmethod
    def _read_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Number fields take "1e-4" as a number and refuse true and false, which Python counts as 1 and 0."""
        assert info.field_name is not None
        return _numbers(value, cls.model_fields[info.field_name].annotation)


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
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    min_length: int | None = None,
) -> Any:
    """Declare one setting; `...` as default makes it required.

    `help` speaks to an artist and says the effect. `depends_on` names the setting of the same section (or of
    the whole config) that makes this one matter: "ema", "scheduler=cosine|linear", "!global_batch_size",
    joined by " & ". `picks` tells the window which chooser or editor to offer.

    `resume` says what another value means to a run that goes on from a backup: "free", nothing to what is learned;
    "told", that it is learned otherwise from there on, which the run says; "fixed", that the backup is of another run,
    which is refused; "checked", that the value may differ as long as it comes to the same (modules/training/resuming).
    """
    extra: dict[str, Any] = {
        "unit": unit,
        "advanced": advanced,
        "depends_on": depends_on,
        "picks": picks,
        "resume": resume,
    }
    limits = {"ge": ge, "gt": gt, "le": le, "lt": lt, "min_length": min_length}
    given: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
    return Field(default, title=title, description=help, json_schema_extra=extra, **given)


def broken_rules(rules: list[tuple[str, str]]) -> PydanticCustomError:
    """What a model validator raises where settings do not fit: pairs of field and rest of the sentence."""
    return PydanticCustomError(RULES, "settings do not fit each other", {"rules": rules})


def without_none(annotation: Any) -> Any:
    """The type inside `X | None` and `Annotated[X, ...]`; any other annotation unchanged."""
    if get_origin(annotation) is Annotated:
        return without_none(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        kept = [part for part in get_args(annotation) if part is not NoneType]
        if len(kept) == 1:
            return without_none(kept[0])
    return annotation


def _numbers(value: Any, annotation: Any) -> Any:
    plain = without_none(annotation)
    if plain in (int, float):
        return _number(value, whole=plain is int)
    if get_origin(plain) is tuple and isinstance(value, (list, tuple)):
        element = without_none(get_args(plain)[0])
        if element in (int, float):
            return [_number(item, whole=element is int, place=place) for place, item in enumerate(value)]
    return value


def _number(value: Any, *, whole: bool, place: int | None = None) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError(NOT_A_NUMBER, "true and false are not numbers", {"place": place})
    if not isinstance(value, str):
        return value
    try:
        # YAML 1.1 reads 1e-4 (no dot) as text, and so does a shell; 1e3 is a fine whole number.
        if whole and value.strip().lstrip("+-").isdigit():
            return int(value)
        number = float(value)
    except ValueError:
        return value
    usable = number.is_integer() if whole else math.isfinite(number)
    return number if usable else value  # the message then shows what was typed
