"""Texts and data for a stranger: without passwords, tokens, the user's home folder, prompts and captions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from modules.files import MASK, is_secret_name, mask_secrets, printable

_LONGEST: Final = 100_000  # characters of one text
_SHORTEST_QUOTE: Final = 8  # characters
# The home folders of Linux, macOS and Windows, of anybody, also with the doubled separators of a quoted text, and on
# disks that are mounted elsewhere, such as /mnt/home/anna.
_HOMES: Final = re.compile(
    r"(?i)(?:(?<![\w/.~-])(?:/[\w.-]{1,64}){0,3}/(?:home|Users)/[^/\s:'\"]+|(?<![\w/.~-])/root(?![\w.-])"
    r"|\b[A-Z]:\\{1,2}Users\\{1,2}[^\\\s:'\"]+)"
)
# What `mask_secrets` leaves, because the name of a setting before an error would mask the error; each with the group to
# keep before the mask. A number is no token: "max_token: 77".
_SECRETS: Final = (
    re.compile(r"(?i)(TANDEM_JOIN_TOKEN['\"]?\s*[=:]\s*['\"]?|--token(?:_file)?[ =]['\"]?)[^\s'\"]+"),
    re.compile(r"(?i)(\b[\w-]{0,40}(?:password|passwd|passphrase)['\"]?\s{0,3}[:=]\s{0,3}['\"]?)[^\s'\",;&]+"),
    re.compile(
        r"(?i)(\b[\w-]{0,40}(?:token|secret|api[_-]?key|access[_-]?key)['\"]?\s{0,3}[:=]\s{0,3}['\"]?)"
        r"(?!\d+\b)[^\s'\",;&]{6,}"
    ),
    re.compile(r"(?i)(\bauthorization['\"]?\s{0,3}[:=]\s{0,3}['\"]?(?:\w{1,20}\s{1,3})?)[\w.~+/=-]{6,}"),
    re.compile(r"(?i)(\b(?:wandb|password)\b[^\n]{0,60}?\b)[0-9a-f]{40}\b"),  # also in a .netrc
)
# What people write to be drawn, and their name; the start of a caption is a setting, too.
_PRIVATE_NAMES: Final = frozenset(
    {"prompt", "negative_prompt", "prompt_prefix", "caption", "captions", "trigger_phrase", "model_author", "note"}
)


def anonymous_text(text: str) -> str:
    """`text`, printable, with ~ for home folders and *** for secrets."""
    for pattern in _SECRETS:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    text = mask_secrets(text)
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
