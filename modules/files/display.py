"""Texts from elsewhere on a terminal or in the window: shown, not obeyed."""

from __future__ import annotations

import re
import unicodedata

# escape codes, other control characters, and those that hide or reorder text (Unicode TR 36, "Trojan Source")
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_CONTROL_BUT_LINES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LINE_ENDS = re.compile("[\n\t]")


def printable(text: object, limit: int = 2000, *, lines: bool = False) -> str:
    """`text` with control characters as escapes such as \\x1b, of at most `limit` characters.

    Line ends and tabs stay only with `lines`; lone surrogates, which no terminal can write, become escapes, too.
    """
    shown = str(text)
    shown = shown if len(shown) <= limit else f"{shown[: limit - 1]}…"
    shown = _UNPRINTABLE.sub(_escape, shown)
    if not lines:
        shown = _LINE_ENDS.sub(_escape, shown)
    return "".join(_escape_surrogate(character) for character in shown) if not shown.isascii() else shown


def control_character(text: str, *, lines: bool = False) -> str:
    """The first control character in `text` as an escape, or ""; line ends and tabs are accepted with `lines`.

    These are the characters that a terminal, a shell or a file format takes for more than text, and lone surrogates,
    which no file can hold; those that only hide or reorder text belong to some languages.
    """
    found = (_CONTROL_BUT_LINES if lines else _CONTROL).search(text)
    return ascii(found.group())[1:-1] if found else ""


def _escape(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode()


def _escape_surrogate(character: str) -> str:
    return ascii(character)[1:-1] if unicodedata.category(character) == "Cs" else character
