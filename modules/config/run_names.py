"""Names of runs, which are names of folders on every operating system."""

from __future__ import annotations

import re
from typing import Final

ALLOWED: Final = "letters, digits, '.', '_' and '-', and must start and end with a letter or digit"
_MAX_NAME_BYTES: Final = 200
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def run_name_problem(name: str) -> str:
    """What is wrong with a name, as the rest of a sentence; empty for a valid one."""
    clean, length = sanitize_run_name(name), len(name.encode())
    if name == clean:
        return ""
    if length > _MAX_NAME_BYTES:
        return f"has {length:,} bytes; a run name may have at most {_MAX_NAME_BYTES}"
    return f"is {name!r}; a run name may contain only {ALLOWED}"


def sanitize_run_name(name: str) -> str:
    """The nearest valid run name; a valid one is returned unchanged."""
    clean = re.sub(r"[^\w.-]+", "_", name).strip("._-")
    clean = clean[:_MAX_NAME_BYTES].rstrip("._-")  # a foreign name may have a million characters
    while len(clean.encode()) > _MAX_NAME_BYTES:
        clean = clean[:-1].rstrip("._-")
    return f"run-{clean}".rstrip("-") if not clean or _RESERVED.fullmatch(clean) else clean
