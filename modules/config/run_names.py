"""Names of runs, which are names of folders on every operating system."""

from __future__ import annotations

import re
from typing import Final

ALLOWED: Final = "letters, digits, '.', '_' and '-', and must start and end with a letter or digit"
_MAX_NAME_BYTES: Final = 200
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def sanitize_run_name(name: str) -> str:
    """The nearest valid run name; a valid one is returned unchanged."""
    clean = re.sub(r"[^\w.-]+", "_", name).strip("._-")
    while len(clean.encode()) > _MAX_NAME_BYTES:
        clean = clean[:-1].rstrip("._-")
    return f"run-{clean}".rstrip("-") if not clean or _RESERVED.fullmatch(clean) else clean
