"""Records that somebody else wrote, checked against a pydantic model."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import is_dataclass
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from modules.files.display import printable
from modules.files.opening import FileFault

T = TypeVar("T")
_NO_OBJECT = frozenset({"dataclass_type", "model_type", "dict_type"})  # pydantic's messages name classes


class Record(BaseModel):
    """Base of records: no conversion of types; names that a newer version may have added are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


def validate_record(kind: type[T], data: object) -> T:
    """`data` as a record or dataclass of this kind; raises FileFault with the first fault."""
    try:
        # pydantic's strict mode would want the dataclass itself
        found: T = _adapter(cast("Hashable", kind)).validate_python(data, strict=None if is_dataclass(kind) else True)
        return found
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        if first["type"] in _NO_OBJECT and not first["loc"]:
            raise FileFault("is wrong: it must be one JSON object, {…}") from None
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        is_null = first["type"] != "missing" and first["input"] is None
        reason = "null is no value here" if is_null else first["msg"].removeprefix("Value error, ")
        raise FileFault(f"is wrong in {printable(where, 80)!r}: {printable(reason, 200)}") from None


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    """Building one takes about a millisecond; the heartbeats of a thousand ranks are checked every second."""
    return TypeAdapter(cast("type[Any]", kind))
