"""Files that a test writes itself."""

from __future__ import annotations

import json
from pathlib import Path


def write_json(file: Path, data: object) -> Path:
    """The data as a JSON file."""
    file.write_text(json.dumps(data), encoding="utf-8")
    return file
