"""The index of a model in several safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from modules.files.opening import FileFault
from modules.files.reading import is_plain_name, read_json

_LIMIT: Final = 64 << 20  # bytes


def weight_map(index: Path) -> dict[str, str]:
    """The file beside `index` that each tensor is in. Raises OSError or FileFault, also for any other than these."""
    content = read_json(index, _LIMIT)
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict):
        raise FileFault("has no weight_map")
    for name in names.values():
        if not is_plain_name(name) or not name.endswith(".safetensors"):
            raise FileFault(f"names {str(name)[:80]!r}, which is no .safetensors file beside it")
    return names
