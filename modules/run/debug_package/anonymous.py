"""Texts and data for a stranger: without passwords, tokens, the user's home folder, prompts and captions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from modules.files import MASK, is_secret_name, mask_secrets, printable

_LONGEST: Final = 100_000  # characters of one text
_SHORTEST_QUOTE: Final = 8  # characters
# The home folders of Linux, macOS and Windows, of anybody, also with the doubled separators of a quoted text.
_HOMES: Final = re.compile(r"(?i)(?:(?<![\w/])/(?:home|Users)/[^/\s:'\"]+|\b[A-Z]:\\{1,2}Users\\{1,2}[^\\\s:'\"]+)")
_JOIN_TOKEN: Final = re.compile(r"(?i)(TANDEM_JOIN_TOKEN['\"]?\s*[=:]\s*['\"]?|--token[ =]['\"]?)[^\s'\"]+")
# What people write to be drawn, and their name; the start of a caption is a setting, too.
_PRIVATE_NAMES: Final = frozenset(
    {"prompt", "negative_prompt", "prompt_prefix", "caption", "captions", "trigger_phrase", "model_author", "note"}
)


def anonymous_text(text: str) -> str:
    """`text`, printable, with ~ for home folders and *** for secrets."""
    text = mask_secrets(_JOIN_TOKEN.sub(rf"\g<1>{MASK}", text))
    for home in {str(Path.home()), str(Path.home().resolve())} - {"/", ""}:
        text = re.sub(rf"{re.escape(home)}(?![\w-])", "~", text)
    return printable(_HOMES.sub("~", text), max(_LONGEST, len(text) + 1), lines=True)


def anonymous(value: object, name: str = "") -> object:
    """Data as of JSON, with all its texts made so; of prompts and captions only the length is left."""
    if isinstance(value, Mapping):
        return {anonymous_text(str(key)): anonymous(item, str(key)) for key, item in value.items()}
    if name in _PRIVATE_NAMES and value:
        return f"(left out, {len(str(value))} characters)"
    if isinstance(value, (list, tuple)):
        return [anonymous(item, name) for item in value]
    if is_secret_name(name) and value:
        return MASK
    return anonymous_text(value) if isinstance(value, str) else value


def private_texts(value: object, name: str = "") -> set[str]:
    """The prompts and their like in data; shorter ones than 8 characters may be ordinary words."""
    if isinstance(value, Mapping):
        return {text for key, item in value.items() for text in private_texts(item, str(key))}
    if isinstance(value, (list, tuple)):
        return {text for item in value for text in private_texts(item, name)}
    return {value} if name in _PRIVATE_NAMES and isinstance(value, str) and len(value) >= _SHORTEST_QUOTE else set()
