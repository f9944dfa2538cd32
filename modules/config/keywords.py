"""Keyword arguments as a text, NAME = VALUE separated by commas, for classes that are not Tandem's."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

_WORDS: Final = {"true": True, "false": False, "none": None, "null": None}
_EXAMPLE: Final = "weight_decay = 0.01, betas = [0.9, 0.99]"


def parse_keywords(text: str) -> dict[str, object]:
    """The arguments by name: numbers, texts in quotes, lists, true, false and none. Nothing is executed.

    Raises ValueError with the rest of a sentence.
    """
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        found = {str(each.arg): _value(each.value) for each in call.keywords if each.arg is not None}
        if len(found) < len(call.keywords):  # one stands twice, or **
            raise ValueError
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ValueError(f"which is no list of NAME = VALUE, such as {_EXAMPLE}") from None
    return found


def keywords_text(arguments: Mapping[str, object]) -> str:
    """The text that `parse_keywords` reads."""
    return ", ".join(f"{name} = {value!r}" for name, value in arguments.items())


def _value(node: ast.expr) -> object:
    if isinstance(node, ast.Name) and node.id.lower() in _WORDS:
        return _WORDS[node.id.lower()]
    return ast.literal_eval(node)
